"""Tests of the sign-in to the console: the key is in a cookie that scripts and other sites cannot use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import httpx2
import pytest

from tests.web.console.pages import FORM, opened, page_of, sent
from tests.web.services import check_problem, client_of, opened_app, settings_for
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.records.knowledge import Scope

BROWSER = {"accept": "text/html"}
PAGES = ["/", "/console/runs", "/console/known", "/console/health", "/console/sessions/s", "/console/nothing"]


@pytest.fixture(autouse=True)
def _keys_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.web.callers.REFRESH_SECONDS", 0.0)


@pytest.fixture
async def guarded_app(tmp_path: Path) -> AsyncIterator[App]:
    """Return an App that requires keys."""
    settings = settings_for(tmp_path, api_keys="web:k-one,bot:k-zwei-ü", host="0.0.0.0")  # noqa: S104
    async with opened_app(DemoModel(), settings) as app:
        yield app


@pytest.fixture
async def browser(guarded_app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a browser that has not signed in."""
    async with client_of(guarded_app) as client:
        client.headers.update(BROWSER)
        yield client


@pytest.mark.parametrize("address", PAGES)
async def test_every_page_leads_to_the_sign_in(browser: httpx2.AsyncClient, address: str) -> None:
    """A browser is redirected to the form, and a program gets the 401 of the API."""
    response = await browser.get(address)
    assert response.status_code == 303
    assert response.headers["location"].startswith("/console/sign-in?next=")
    check_problem(await browser.get(address, headers={"accept": "*/*"}), 401, "api-key-needed")
    check_problem(await browser.post("/console/say", headers={"accept": "*/*"}), 401, "api-key-needed")


@pytest.mark.parametrize("key", ["k-one", "k-zwei-ü"])
async def test_a_key_signs_in_and_out(browser: httpx2.AsyncClient, key: str) -> None:
    """Sign-in leads to the requested page with working forms, and signing out closes the console."""
    page = await opened(browser, "/console/runs?status=done")
    response = await browser.post(
        "/console/sign-in", content=urlencode({**page.forms[0].fields, "key": key}), headers=FORM
    )
    assert response.headers["location"] == "/console/runs?status=done"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert key not in response.headers["set-cookie"]
    first = await opened(browser, "/")
    assert "Every conversation" in first.words
    assert "hello" in (await sent(browser, first.form("/console/say"), message="hello", session_id="s")).words
    await sent(browser, first.form("/sign-out"))
    assert (await browser.get("/")).status_code == 303


@pytest.mark.parametrize("address", ["/console/nothing", "/console/files/nothing.css", "/console/sessions/s/nothing"])
async def test_an_address_without_a_page_is_a_page_of_the_console(browser: httpx2.AsyncClient, address: str) -> None:
    """A browser gets a page with the status 404 and a link back, and a program the problem document."""
    await sent(browser, (await opened(browser, "/")).forms[0], key="k-one")
    page = await opened(browser, address, status=404)
    assert "There is nothing at this address" in page.words
    assert "/" in page.links
    check_problem(await browser.get(address, headers={"accept": "*/*"}), 404, "not-found")
    check_problem(await browser.get("/api/nothing", headers={"authorization": "Bearer k-one"}), 404, "not-found")


async def test_other_refusals_are_pages_too(browser: httpx2.AsyncClient) -> None:
    """An unsupported method and a form that is too large are refused with a page."""
    first = await opened(browser, "/")
    await sent(browser, first.forms[0], key="k-one")
    refused = await browser.post("/console/runs", content="a=b", headers=FORM)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert "does not support this method" in page_of(refused).words
    refused = await browser.post("/console/say", content="a=" + "b" * 5_000_000, headers=FORM)
    assert refused.status_code == 413
    assert "The body has more than" in page_of(refused).words


async def test_the_api_does_not_accept_the_cookie(browser: httpx2.AsyncClient) -> None:
    """The API does not accept the cookie, so that pages of other sites cannot use it."""
    page = await opened(browser, "/")
    await sent(browser, page.forms[0], key="k-one")
    assert (await browser.get("/console/runs")).status_code == 200
    for path in ("/api/v1/sessions", "/metrics", "/readyz"):
        check_problem(await browser.get(path), 401, "api-key-needed")


async def test_a_wrong_key_and_a_form_of_another_site_do_not_sign_in(browser: httpx2.AsyncClient) -> None:
    """The responses to a wrong key and to a form of another site set no cookie."""
    wrong = await browser.post("/console/sign-in", content="key=wrong&next=/", headers=FORM)
    assert wrong.status_code == 401
    assert "This key is not valid" in page_of(wrong).words
    foreign = await browser.post(
        "/console/sign-in", content="key=k-one&next=/", headers={**FORM, "sec-fetch-site": "cross-site"}
    )
    assert foreign.status_code == 403
    assert "set-cookie" not in {*wrong.headers, *foreign.headers}


async def test_a_form_with_thousands_of_fields_is_refused(browser: httpx2.AsyncClient) -> None:
    """The fields are counted before they are read, because reading 2 MB of them would block the service."""
    assert (await browser.post("/console/sign-in", content="a=&" * 5_000, headers=FORM)).status_code == 422


@pytest.mark.parametrize("value", ["not base64", '"\\351"'])
async def test_a_malformed_cookie_leads_to_the_sign_in(browser: httpx2.AsyncClient, value: str) -> None:
    """A malformed cookie, even with characters beyond ASCII, counts as none."""
    response = await browser.get("/", headers={"cookie": f"threadkeep_console={value}"})
    assert response.status_code == 303
    assert response.headers["location"].startswith("/console/sign-in?next=")


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/api/v1/sessions", "/console/%2e", "//["]
)
async def test_sign_in_leads_to_no_other_site(browser: httpx2.AsyncClient, to: str) -> None:
    response = await browser.post("/console/sign-in", content=urlencode({"key": "k-one", "next": to}), headers=FORM)
    assert response.headers["location"] == (to if to.startswith("/console/") else "/")


async def test_a_key_of_one_user_sees_that_user_alone(guarded_app: App, browser: httpx2.AsyncClient) -> None:
    """A read key of one user sees only that user's data, no forms that change something, and no pages for operators."""
    headers = {"x-api-key": "k-one"}
    for user in ("ana", "ben"):
        body = {"session_id": user, "user_id": user, "message": f"I am {user}."}
        assert (await browser.post("/api/v1/chat", json=body, headers=headers)).status_code == 200
    key = await guarded_app.memory.api_keys.add("reader", scope="read", user_id="ana")
    page = await opened(browser, "/")
    page = await sent(browser, page.forms[0], key=key.secret)
    assert "I am ana." in page.words
    assert "I am ben." not in page.words
    assert not {"/console/health", "/console/channels"} & {*page.links}
    proposed = [Proposed(Scope("user", "ana"), "home_city", "Lisbon", 1)]
    await guarded_app.memory.proposals.add(Reading("ana", "model", "small-model", 0, 1), proposed)
    knowledge = await opened(browser, "/console/knowledge")
    assert "home_city" in knowledge.words
    for shown in (page, knowledge, await opened(browser, "/console/sessions/ana")):
        assert {form.action for form in shown.forms if form.method == "post"} == {"/console/sign-out"}
    for address in ("/", "/console/known", "/console/runs", "/console/knowledge"):
        assert not any("user" in form.fields for form in (await opened(browser, address)).forms), address
    refused = await opened(browser, "/console/runs?user=ben", status=404)
    assert "this address names another one; leave the user out" in refused.words
    assert (await browser.get("/console/sessions/ben")).status_code == 404
    refused = await opened(browser, "/console/health", status=403)
    assert "This key is limited to one user" in refused.words
    assert not {"/console/health", "/console/channels"} & {*refused.links}
    response = await browser.post("/console/sessions/ana/reset", content="csrf=x", headers=FORM)
    assert response.status_code == 403
    assert "scope" in page_of(response).words
    await sent(browser, (await opened(browser, "/")).form("/sign-out"))
    assert (await browser.get("/")).status_code == 303


async def test_a_revoked_key_is_signed_out(guarded_app: App, browser: httpx2.AsyncClient) -> None:
    key = await guarded_app.memory.api_keys.add("short", scope="read", user_id=None)
    await sent(browser, (await opened(browser, "/")).forms[0], key=key.secret)
    assert (await browser.get("/")).status_code == 200
    await guarded_app.memory.api_keys.revoke("short")
    assert (await browser.get("/")).status_code == 303
