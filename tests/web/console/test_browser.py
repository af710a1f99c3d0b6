"""Tests of the console in a real browser: live answers, the keyboard, and accessibility with axe."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.web.console.demo_service import opened_service
from tests.web.console.test_sessions import said
from tests.web.services import listening, opened_app, settings_for
from tests.web.test_runs import FLOW
from threadkeep.records import Message
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.store.transcripts import SessionQuery
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.console import rendering, sessions

playwright = pytest.importorskip("playwright.async_api", reason="no browser is driven: run `make browser`")
axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="no axe: run `make browser`")
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium"),
]

PAGES = [
    "/",
    "/console/known",
    "/console/known?q=nuts&session=web:lisbon",
    "/console/runs",
    "/console/knowledge",
    "/console/channels",
    "/console/health",
    "/console/sign-in",
    "/console/sessions/web:lisbon",
    "/console/sessions/web:lisbon/calls",
    "/console/sessions/web:order-4711",
    "/console/sessions/telegram:4242:-7001",
    "/console/sessions/nothing",
]

_FOCUS = """() => {
  const focus = document.activeElement, form = document.querySelector(".composer");
  const [{ bottom }, { top }] = [focus, form].map((one) => one.getBoundingClientRect());
  return { in_form: form.contains(focus), bottom, form_top: top };
}"""


@asynccontextmanager
async def tab(base_url: str, **options: object) -> AsyncIterator[Any]:
    """Open a page in a new browser, and check that it reports no error and no violation of the content policy."""
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await (await browser.new_context(base_url=base_url, **options)).new_page()
        errors: list[str] = []
        page.on("console", lambda told: errors.append(told.text) if "Content Security Policy" in told.text else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []
        await browser.close()


async def test_an_answer_appears_while_it_is_written(tmp_path: Path) -> None:
    """Ctrl+Enter sends the message, the pieces appear, and the transcript replaces them at the end."""
    gate = Gate()
    model = ScriptedModel([["Well, ", gate, "yes."]])
    async with (
        opened_app(model, settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await page.goto("/")
        await page.fill("form[action='/console/say'] textarea", "Is it so?")
        await page.keyboard.press("Control+Enter")
        live = page.locator("[data-live] .text")
        await live.filter(has_text="Well,").wait_for()
        assert (await live.inner_text()).strip() == "Well,"
        gate.open()
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Well, yes.").wait_for()


async def test_the_end_of_an_answer_keeps_what_a_person_writes_meanwhile(tmp_path: Path) -> None:
    """Typed text, the focus, the selection and open details stay when the transcript replaces the pieces."""
    gate = Gate()
    async with (
        opened_app(ScriptedModel([["Well, ", gate, "yes."]]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await page.goto("/")
        await page.fill("form[action='/console/say'] textarea", "Is it so?")
        await page.keyboard.press("Control+Enter")
        await page.locator("[data-live] .text").filter(has_text="Well,").wait_for()
        await page.get_by_text("Reset…").click()
        field = page.locator(".composer textarea")
        await field.fill("And why?")
        await field.evaluate("field => field.setSelectionRange(0, 3)")
        gate.open()
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Well, yes.").wait_for()
        assert await field.input_value() == "And why?"
        assert await field.evaluate("field => [document.activeElement === field, field.selectionEnd]") == [True, 3]
        assert await page.get_by_text("The transcript stays.").is_visible()


async def test_a_form_that_is_not_accepted_keeps_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says why next to the form; after a restart of the service the form is sent with a new token."""
    async with (
        opened_app(ScriptedModel(["Two.", "Four."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        field, alert = page.locator(".composer textarea"), page.locator(".composer [role=alert]")
        await page.route("**/say", lambda route: route.abort())
        await field.fill("Three.")
        await page.keyboard.press("Control+Enter")
        await alert.filter(has_text="nothing was sent").wait_for()
        assert await field.input_value() == "Three."
        await page.unroute("**/say")
        await page.route("**/say", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
        await field.fill("Three!")
        await alert.evaluate("alert => alert.textContent = ''")
        await page.keyboard.press("Control+Enter")
        await alert.filter(has_text="nothing was sent").wait_for()
        await page.unroute("**/say")
        await field.fill(" ")
        await page.keyboard.press("Control+Enter")
        await alert.filter(has_text="A message has 1 to 100,000 characters").wait_for()
        monkeypatch.setattr(rendering, "_SECRET", b"of the restarted service")
        await field.fill("Three.")
        await page.keyboard.press("Control+Enter")
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Four.").wait_for()
        assert await alert.count() == 0
        assert await field.input_value() == ""
        assert await field.evaluate("field => document.activeElement === field")


@pytest.mark.parametrize("returns", [False, True])
async def test_a_form_is_not_sent_for_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """If another user signs in in another tab, an open page says so, keeps its text, and sends and shows nothing."""
    monkeypatch.setattr("threadkeep.web.callers.REFRESH_SECONDS", 0.0)
    async with (
        opened_app(ScriptedModel(["Two."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.", user_id="ben")
        keys = [await app.memory.api_keys.add(user, scope="write", user_id=user) for user in ("ana", "ben")]
        other = await page.context.new_page()
        for key, shown in zip(keys, (page, other), strict=True):
            await shown.goto("/console/sign-in")
            await shown.fill("[name=key]", key.secret)
            await shown.keyboard.press("Enter")
            await shown.get_by_role("button", name="Sign out").wait_for()
        field = page.locator("form[action='/console/say'] textarea")
        await field.fill("A secret of Ana.")
        if returns:
            await page.evaluate("dispatchEvent(new Event('focus'))")
            await page.locator("[role=status]").filter(has_text="signed in for another user").wait_for()
        await field.press("Control+Enter")
        await page.locator("main [role=alert]").filter(has_text="older than the service or your sign-in").wait_for()
        assert await field.input_value() == "A secret of Ana."
        assert await page.get_by_text("One.").count() == 0
        assert [info.session_id for info in (await app.memory.sessions_page(SessionQuery()))[0]] == ["s"]


async def test_a_message_that_is_written_while_another_is_sent_is_kept(tmp_path: Path) -> None:
    """The next message has an id of its own. An error beside it stays while an answer arrives."""
    gate, sent = Gate(), Gate()
    async with (
        opened_app(ScriptedModel(["Two.", ["Four", gate, "."], "Six."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        field, alert = page.locator(".composer textarea"), page.locator(".composer [role=alert]")
        ids = [await page.locator("[name=form_id]").input_value()]

        async def hold(route: Any) -> None:
            await sent.pass_through()
            await route.continue_()

        await page.route("**/say", hold)
        await field.fill("Three.")
        await page.keyboard.press("Control+Enter")
        await sent.reached()
        await field.fill("Five.")
        sent.open()
        await page.locator("[data-live] .text").filter(has_text="Four").wait_for()
        assert await field.input_value() == "Five."
        assert await page.locator("[name=form_id]").input_value() not in ids
        await page.unroute("**/say")
        await page.route("**/say", lambda route: route.abort())
        await page.keyboard.press("Control+Enter")
        await alert.wait_for()
        gate.open()
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Four.").wait_for()
        assert await alert.count() == 1
        await page.unroute("**/say")
        await page.keyboard.press("Control+Enter")
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Six.").wait_for()
        assert await alert.count() == 0


async def test_a_message_that_cannot_be_stored_yet_appears_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process locks the database, the page says so; then the message and its answer appear."""
    monkeypatch.setattr(sessions, "_START_SECONDS", 0.1)
    settings = settings_for(tmp_path, database_url=f"sqlite:///{tmp_path / 'memory.db'}")
    async with (
        opened_app(ScriptedModel(["Two.", "Four."]), settings) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await page.fill(".composer textarea", "Three.")
            await page.keyboard.press("Control+Enter")
            await page.locator("[role=status]").filter(has_text="cannot store the message yet").wait_for()
            other.execute("ROLLBACK")
        await page.locator(".message.assistant:not(.live) .text").filter(has_text="Four.").wait_for()


async def test_a_reset_command_is_not_a_message_that_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that resets the session is never in the transcript, and may have ended before the page is made."""

    async def until_the_end(turn: ChatTurn) -> None:
        async for _ in turn.follow():
            pass

    monkeypatch.setattr(sessions, "_wait_for_start", until_the_end)
    (tmp_path / "bot.yaml").write_text(FLOW.replace("next:", "reset_command: /new, next:"))
    settings = settings_for(tmp_path, workflows=[str(tmp_path / "bot.yaml")])
    async with (
        opened_app(ScriptedModel(["Two."]), settings) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        await page.select_option(".composer select", "bot")
        await page.fill(".composer textarea", "/new")
        await page.keyboard.press("Control+Enter")
        await page.locator(".chat > .reset").wait_for()
        assert await page.locator("[role=status]").inner_text() == ""


async def test_a_double_click_on_stop_does_not_try_the_run_again(tmp_path: Path) -> None:
    """The button that takes the place of the pressed one ignores the second click."""
    gate = Gate()
    async with (
        opened_app(ScriptedModel([["Well, ", gate, "yes."]]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        body = {"message": "Is it so?", "session_id": "s", "mode": "background"}
        run = (await client.post("/api/v1/workflows/chat/runs", json=body)).json()
        await gate.reached()
        await page.goto(f"/console/runs/{run['run_id']}")
        await page.get_by_role("button", name="Stop it").click()
        box = await page.get_by_role("button", name="Try again").bounding_box()
        await page.evaluate("addEventListener('submit', () => (document.title = 'sent'))")
        await page.mouse.move(box["x"] + 5, box["y"] + 5)
        await page.mouse.down(click_count=2)
        await page.mouse.up(click_count=2)
        assert await page.title() == "Run of chat · Threadkeep"


async def test_pieces_of_a_lost_connection_are_not_shown_twice(tmp_path: Path) -> None:
    """A connection sends all pieces from the beginning; the text of another message is another paragraph."""
    gate = Gate()
    async with (
        opened_app(ScriptedModel([[gate, "Yes."]]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        connections = 0

        async def stream(route: Any) -> None:
            nonlocal connections
            connections += 1
            told = [("1", "Let me "), ("1", "look."), ("2", "It is "), ("2", "so.")][: 2 * connections]
            pieces = [json.dumps({"node": "answer", "message_id": name, "text": text}) for name, text in told]
            body = "".join(f"event: token\ndata: {piece}\n\n" for piece in pieces)
            again = 20 if connections == 1 else 60_000
            await route.fulfill(content_type="text/event-stream", body=f"retry: {again}\n\n{body}")

        await page.route("**/events", stream)
        await page.goto("/")
        await page.fill("form[action='/console/say'] textarea", "Is it so?")
        await page.keyboard.press("Control+Enter")
        live = page.locator("[data-live] .text")
        await live.filter(has_text="so.").wait_for()
        assert await live.inner_text() == "Let me look.\n\nIt is so."
        gate.open()


async def test_a_page_that_gets_the_focus_shows_what_changed_meanwhile(tmp_path: Path) -> None:
    """A reader who returns sees the messages of another tab, and keeps what was typed. An error page continues, too."""
    async with (
        opened_app(ScriptedModel(["Two.", "Four."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await page.goto("/console/sessions/s")
        await page.get_by_text("This session was deleted or never existed").wait_for()
        await said(client, "s", "One.")
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator(".message .text").filter(has_text="Two.").wait_for()
        await page.fill(".composer textarea", "And five?")
        await said(client, "s", "Three.")
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator(".message .text").filter(has_text="Four.").wait_for()
        assert await page.locator(".composer textarea").input_value() == "And five?"
        await client.delete("/api/v1/sessions/s")
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator("[role=status]").filter(has_text="This session was deleted").wait_for()
        assert await page.locator(".composer textarea").input_value() == "And five?"


async def test_a_page_that_gets_the_focus_keeps_its_position(tmp_path: Path) -> None:
    """Without a new message it does not scroll. A response that breaks off does not end its refreshes."""
    async with (
        opened_app(ScriptedModel(["words " * 900, "Four."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url), viewport={"width": 800, "height": 600}) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        await page.evaluate("scrollTo(0, document.body.scrollHeight - innerHeight - 150)")
        position = await page.evaluate("[scrollY, document.title = 'old'][0]")
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.wait_for_function("() => document.title !== 'old'", polling=50)
        assert await page.evaluate("scrollY") == position
        await page.evaluate(
            "() => { const { text } = Response.prototype; Response.prototype.text = async () => {"
            " Response.prototype.text = text; throw new TypeError('broken'); }; }"
        )
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator("[role=status]").filter(has_text="does not answer").wait_for()
        await said(client, "s", "Three.")
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator(".message .text").filter(has_text="Four.").wait_for()


async def test_a_late_refresh_does_not_hide_a_sent_message(tmp_path: Path) -> None:
    """A refresh that began before the message was sent ends later. One that shows the message first is no failure."""
    late = asyncio.Event()
    first = True

    async def hold(route: Any) -> None:
        nonlocal first
        if is_held := first:
            first = False
        response = await route.fetch()
        if is_held:
            await late.wait()
        await route.fulfill(response=response)

    async with (
        opened_app(ScriptedModel(["Two.", "Four.", "Six."]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/console/sessions/s")
        await page.route("**/console/sessions/s", hold)
        async with page.expect_request("**/console/sessions/s"):
            await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.fill(".composer textarea", "Three.")
        await page.keyboard.press("Control+Enter")
        await page.locator(".message:not(.live) .text").filter(has_text="Four.").wait_for()
        async with page.expect_response("**/console/sessions/s"):
            late.set()
        await page.wait_for_load_state("networkidle")
        assert await page.locator(".message .text").filter(has_text="Three.").count() == 1
        await page.unroute("**/console/sessions/s")
        await page.evaluate(
            "() => { const own = fetch; window.fetch = async (...given) => { const response = await own(...given);"
            " if (given[1].method) await new Promise((release) => (window.release = release)); return response; }; }"
        )
        await page.fill(".composer textarea", "Five.")
        await page.keyboard.press("Control+Enter")
        await page.wait_for_function("() => window.release", polling=50)
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await page.locator(".message:not(.live) .text").filter(has_text="Six.").wait_for()
        await page.evaluate("() => window.release()")
        await page.wait_for_function("() => document.querySelector('.composer textarea').value === ''", polling=50)
        assert "tries again" not in await page.locator("[role=status]").inner_text()


async def test_the_pages_are_used_with_the_keyboard(tmp_path: Path) -> None:
    """Tab leads to the link past the header, and a slash to the search. An edit and a reset do not lose the focus."""
    model = ScriptedModel(["Two."])
    async with (
        opened_app(model, settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await said(client, "s", "One.")
        await page.goto("/")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("/")
        await page.keyboard.type("one")
        await page.keyboard.press("Enter")
        await page.get_by_text("with “one”").wait_for()
        assert "q=one" in page.url
        await page.goto("/console/sessions/s")
        await page.locator(".message.assistant summary").press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.type("Two or ")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.locator(".message .text").filter(has_text="Two or ").wait_for()
        assert await page.evaluate("document.activeElement.matches('.composer textarea')")
        await page.get_by_text("Reset…").press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.locator(".chat > .reset").wait_for()
        assert await page.evaluate("document.activeElement.textContent") == "Reset…"


async def test_the_form_at_the_end_does_not_hide_the_focus(tmp_path: Path) -> None:
    """Each control of a transcript is visible when Tab reaches it, though the form stays at the end of the window."""
    async with (
        opened_app(ScriptedModel([]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url)) as page,
    ):
        await app.memory.session("s").append([Message("user", f"{number}.") for number in range(16)])
        for width in (400, 1240):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto("/console/sessions/s")
            await page.locator(".actions a").last.focus()
            hidden: list[bool] = []
            while True:
                await page.keyboard.press("Tab")
                focus = await page.evaluate(_FOCUS)
                if focus["in_form"]:
                    break
                hidden.append(focus["bottom"] > focus["form_top"])
            assert hidden == [False] * 16 * 3, width  # its number, and the buttons to answer it again and to edit it


async def test_what_an_empty_list_says_fits_into_a_narrow_window(tmp_path: Path) -> None:
    """No part of it is outside a table that scrolls. A list with a filter says that nothing matches."""
    async with (
        opened_app(ScriptedModel([]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url), viewport={"width": 400, "height": 800}) as page,
    ):
        for address, text in (
            ("runs", "No run yet."),
            ("runs?session=none", "No run matches all of this."),
            ("knowledge", "Nothing is known yet."),
            ("channels", "No bot has received a message."),
        ):
            await page.goto(f"/console/{address}")
            table = page.locator(".table").filter(has_text=text)
            assert await table.evaluate("table => table.scrollWidth <= table.clientWidth"), address


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_accessible(tmp_path: Path, theme: str) -> None:
    """Axe finds no violation in either theme. In a narrow window only tables scroll sideways, also with keys."""
    async with (
        opened_service(tmp_path) as (_, client),
        tab(str(client.base_url), color_scheme=theme) as page,
    ):
        found = (await client.get("/api/v1/runs", params={"limit": 100})).json()["runs"]
        runs = {one["workflow"]: f"/console/runs/{one['run_id']}" for one in reversed(found)}
        for address in [*PAGES, *runs.values(), f"{runs['chat']}/calls/1", f"{runs['agent_with_tools']}/calls/2"]:
            await page.set_viewport_size({"width": 1240, "height": 900})
            await page.goto(address)
            found = await axe.Axe().run(page)
            broken = {one["id"]: [node["html"][:200] for node in one["nodes"]] for one in found.response["violations"]}
            assert broken == {}, address
            await page.set_viewport_size({"width": 400, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= 400, address
            wide = "[...document.querySelectorAll('.table')].filter(one => one.scrollWidth > one.clientWidth)"
            await page.wait_for_function(f"() => {wide}.every(one => one.tabIndex === 0)", polling=50)
            found = await axe.Axe().run(page, options={"runOnly": ["scrollable-region-focusable"]})
            assert found.response["violations"] == [], address


async def test_long_and_bidirectional_names_do_not_break_the_layout(tmp_path: Path) -> None:
    """No name makes a page wider than its window, or changes the direction of the text after it."""
    failure = type("F" * 200, (Exception,), {})
    session = "room\u202e1"
    address = f"/console/sessions/{quote(session)}"
    async with (
        opened_app(ScriptedModel(["Hello.", "Yes.", failure()]), settings_for(tmp_path)) as app,
        listening(app) as client,
        tab(str(client.base_url), viewport={"width": 400, "height": 800}) as page,
    ):
        await said(client, "s" * 200, "Hi.")
        await said(client, session, "One.")
        sent = {"session_id": session, "user_id": "ana", "message": "Two.", "metadata": {"sender_name": "u" * 200}}
        assert (await client.post("/api/v1/chat", json=sent)).status_code == 502
        changed = {"title": "W" * 200, "tags": ["L" * 60]}
        assert (await client.patch(f"/api/v1/sessions/{quote(session)}", json=changed)).status_code == 200
        [run, *_] = (await client.get("/api/v1/runs")).json()["runs"]
        for shown in ("/", "/console/runs", f"/console/runs/{run['run_id']}", f"{address}/calls", address):
            await page.goto(shown)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 400, shown
        await page.goto("/")
        cards, titles = page.locator("main"), page.locator(".row .title")
        edge = await cards.evaluate("element => element.getBoundingClientRect().right")
        assert max(await titles.evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")) <= edge
        await page.set_viewport_size({"width": 1240, "height": 800})
        await page.goto("/console/runs")
        assert await page.locator(".table").evaluate("element => element.scrollWidth <= element.clientWidth")
        await page.goto(address)
        meta = page.locator(".heading .meta")
        boxes = [await meta.locator(name).bounding_box() for name in ("code", "a", "time", ".badge")]
        assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes)
