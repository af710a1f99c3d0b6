"""Tests of the console's pages of runs: the list, the trace, the tree, and the questions to a person."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from tests.web.console.pages import FORM, opened, sent
from tests.web.console.test_sessions import said
from tests.web.services import client_of, opened_app, settings_for, until
from tests.web.test_runs import FLOW, PARENT, RUNS
from threadkeep.records import Message
from threadkeep.records.runs import NewRun, Run
from threadkeep.runs.service import RunService
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.api.runs import RunTraceBody, get_trace
from threadkeep.web.console import runs, sessions
from threadkeep.web.langgraph.states import runs_of


@pytest.fixture
def gate() -> Gate:
    """Return the gate at which the model's first answer waits."""
    return Gate()


@pytest.fixture
async def bots(tmp_path: Path, gate: Gate) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a service with three workflows: one answers, one starts it, and one asks a person."""
    for name, text in (("bot", FLOW), ("parent", PARENT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    names = [*(str(tmp_path / f"{name}.yaml") for name in ("bot", "parent")), "form=tests.web.console.asking:graph"]
    model = ScriptedModel([["Well, ", gate, "yes."], "Again.", "More."])
    async with opened_app(model, settings_for(tmp_path, workflows=names)) as app, client_of(app) as client:
        yield client


async def test_a_workflow_that_asks_begins_a_session_on_the_first_page(bots: httpx2.AsyncClient) -> None:
    """The page of the new session exists, although the workflow stores the message later."""
    form = (await opened(bots, "/")).form("/console/say")
    for number in range(5):
        page = await sent(bots, form, message="Hi", session_id=f"room:{number}", workflow="form")
        assert "room:" in page.words

    async def is_asked() -> bool:
        return "A run asks a person" in (await opened(bots, "/console/sessions/room:4")).words

    await until(is_asked)


async def test_a_question_is_shown_behind_many_resets(bots: httpx2.AsyncClient) -> None:
    await bots.post("/api/v1/workflows/form/runs", json={"message": "Hi", "session_id": "s"})
    for _ in range(11):
        assert (await bots.post("/api/v1/sessions/s/reset")).status_code == 200
    assert "A run asks a person" in (await opened(bots, "/console/sessions/s")).words


async def test_a_run_without_its_workflow_says_why_it_waits(tmp_path: Path) -> None:
    async with opened_app(ScriptedModel([]), settings_for(tmp_path)) as app, client_of(app) as client:
        run = NewRun(run_id="waits", workflow="gone", input={"text": "Hi"}, session_id="s")
        await app.memory.runs.order.add(run)
        await app.memory.runs.note_workflow_gone("waits")
        page = await opened(client, "/console/runs/waits")
        assert "It waits, because a worker lacks the workflow gone" in page.words
        assert "It ended with" not in page.words
        await app.memory.session("s").append([Message(role="user", content="Earlier")])
        page = await opened(client, "/console/sessions/s")
        assert "Turns of this session wait, because a worker lacks the workflow gone" in page.words
        assert "/console/runs/waits" in page.links


async def test_a_session_shows_the_failure_of_its_last_run(tmp_path: Path) -> None:
    """The page of a session shows the last failure and a link to retry it, until the retry succeeds or a reset."""
    model = ScriptedModel([ValueError("secret"), "Yes.", ValueError("secret")])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        await client.post("/api/v1/chat", json={"message": "Is it so?", "session_id": "s"})
        page = await opened(client, "/console/sessions/s")
        assert "The last run failed with ValueError" in page.words
        assert "secret" not in page.text
        failed = next(link for link in page.links if link.startswith("/console/runs/"))
        await sent(client, (await opened(client, failed)).form("/retry"))

        async def answered() -> bool:
            return "Yes." in (await opened(client, "/console/sessions/s")).words

        await until(answered)
        assert "failed" not in (await opened(client, "/console/sessions/s")).words
        await client.post("/api/v1/chat", json={"message": "And now?", "session_id": "s"})
        assert "The last run failed with ValueError" in (await opened(client, "/console/sessions/s")).words
        await client.post("/api/v1/sessions/s/reset")
        assert "failed" not in (await opened(client, "/console/sessions/s")).words


async def test_a_person_answers_the_questions_of_a_run(bots: httpx2.AsyncClient) -> None:
    """The page of the session links to the run, whose page has a form for each question."""
    started = await bots.post("/api/v1/workflows/form/runs", json={"message": "Hi", "session_id": "s"})
    address = f"/console/runs/{started.json()['run_id']}"
    link = next(link for link in (await opened(bots, "/console/sessions/s")).links if link == address)
    page = await opened(bots, link)
    assert '"ask": "name"' in page.text.replace("&#34;", '"')
    field = next(name for name in page.form("/resume").fields if name.startswith("answer:"))
    await sent(bots, page.form("/resume"), **{field: "Ada"})

    async def asked_again() -> bool:
        page = await opened(bots, address)
        return '"ask": "age"' in page.text.replace("&#34;", '"')

    await until(asked_again)
    repeated = {**page.form("/resume").fields, field: "Ada"}
    assert (await bots.post(page.form("/resume").action, content=urlencode(repeated), headers=FORM)).status_code == 422
    assert await asked_again()
    page = await opened(bots, address)
    field = next(name for name in page.form("/resume").fields if name.startswith("answer:"))
    await sent(bots, page.form("/resume"), **{field: "36"})

    async def done() -> bool:
        return "Ada is 36" in (await opened(bots, address)).words

    await until(done)


async def test_a_running_run_is_streamed_and_cancelled(bots: httpx2.AsyncClient, gate: Gate) -> None:
    """The page names the stream for the script. Without a script it reloads itself."""
    started = await bots.post(RUNS, json={"message": "Hi", "session_id": "s", "mode": "background"})
    await gate.reached()
    address = f"/console/runs/{started.json()['run_id']}"
    for place in ("/console/sessions/s", address):
        page = await opened(bots, place)
        assert f'data-live="{address}/events"' in page.text
        assert '<noscript><meta http-equiv="refresh"' in page.text
    page = await sent(bots, page.form("/cancel"))

    async def stopped() -> bool:
        return "cancelled" in (await opened(bots, address)).words

    await until(stopped)
    async with bots.stream("GET", f"{address}/events") as events:
        text = (await events.aread()).decode()
    assert "event: end" in text
    page = await sent(bots, (await opened(bots, address)).form("/retry"))

    async def again() -> bool:
        return "Again." in (await opened(bots, address)).words

    await until(again)


async def test_a_session_shows_its_running_answer_and_the_messages_that_wait(
    bots: httpx2.AsyncClient, gate: Gate
) -> None:
    """A message that is sent during an answer is shown, and the answer can be stopped on the same page."""
    started = await bots.post(RUNS, json={"message": "Hi", "session_id": "s", "mode": "background"})
    await gate.reached()
    page = await opened(bots, "/console/sessions/s")
    page = await sent(bots, page.form("/say"), message="Later <b>.")
    assert f'data-live="/console/runs/{started.json()["run_id"]}/events"' in page.text
    assert page.text.count("data-live") == 1
    assert "queued run Later <b>." in page.words
    await sent(bots, page.form("/cancel"))

    async def stopped() -> bool:
        return "cancelled" in (await opened(bots, f"/console/runs/{started.json()['run_id']}")).words

    await until(stopped)


async def test_a_session_whose_run_ends_while_its_page_is_made_has_the_answer(
    bots: httpx2.AsyncClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with neither the running run nor its answer would never show the answer."""
    await bots.post(RUNS, json={"message": "Hi", "session_id": "s", "mode": "background"})
    await gate.reached()

    async def after_the_end(service: RunService, session_id: str) -> list[Run]:
        gate.open()
        await until(lambda: _is_over(bots, "s"))
        return await runs_of(service, session_id)

    monkeypatch.setattr(sessions, "runs_of", after_the_end)
    page = await opened(bots, "/console/sessions/s")
    assert "data-live" not in page.text
    assert "Well, yes." in page.words


async def test_the_page_of_a_run_that_ends_while_it_is_made_is_refreshed(
    bots: httpx2.AsyncClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with the answer, but without the last events, would never show them."""
    run = (await bots.post(RUNS, json={"message": "Hi", "session_id": "s", "mode": "background"})).json()
    await gate.reached()

    async def before_the_end(*given: Any) -> RunTraceBody:
        found = await get_trace(*given)
        gate.open()
        await until(lambda: _is_over(bots, "s"))
        return found

    monkeypatch.setattr(runs, "get_trace", before_the_end)
    assert "data-live" in (await opened(bots, f"/console/runs/{run['run_id']}")).text


async def _is_over(client: httpx2.AsyncClient, session_id: str) -> bool:
    found = (await client.get("/api/v1/runs", params={"session_id": session_id})).json()["runs"]
    return all(run["status"] == "done" for run in found)


async def test_the_page_of_a_run_has_its_tree_its_trace_and_its_usage(bots: httpx2.AsyncClient, gate: Gate) -> None:
    gate.open()
    run = (await bots.post("/api/v1/workflows/parent/runs", json={"message": "Hi"})).json()
    page = await opened(bots, f"/console/runs/{run['run_id']}")
    assert "from ask" in page.words
    assert "child started" in page.words
    children = [link for link in page.links if link.startswith("/console/runs/") and run["run_id"] not in link]
    assert "model called" in (await opened(bots, children[0])).words
    listed = await opened(bots, "/console/runs?workflow=parent&status=done")
    assert run["run_id"] in listed.text
    assert "No run matches all of this." in (await opened(bots, "/console/runs?status=failed")).words


async def test_the_time_of_a_long_run_is_in_minutes(tmp_path: Path) -> None:
    """A run that waited for a person took 40 min 59 s, not 2459.9 s."""
    settings = settings_for(tmp_path, database_url=f"sqlite:///{tmp_path / 'memory.db'}")
    async with opened_app(ScriptedModel(["Two."]), settings) as app, client_of(app) as client:
        await said(client, "s", "One.")
        with closing(sqlite3.connect(tmp_path / "memory.db")) as database, database:
            times = "started_at = '2026-01-05T14:00:00+00:00', ended_at = '2026-01-05T14:40:59.9+00:00'"
            database.execute(f"UPDATE chat_runs SET {times}")
        assert " 40 min 59 s " in (await opened(client, "/console/runs")).words


async def test_the_runs_of_a_session_are_filtered_by_user(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "One.", user_id="ana")
    assert "ana" in (await opened(client, "/console/runs?session=s")).words
    assert "No run matches all of this." in (await opened(client, "/console/runs?session=s&user=ben")).words
