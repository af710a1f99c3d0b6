"""Tests of /api/v1/workflows/{name}/runs and /api/v1/runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.databases import execute
from tests.web.services import check_problem, client_of, opened_app, settings_for, until
from threadkeep import open_memory, rebuild
from threadkeep.app import App
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.records.runs import NewRun
from threadkeep.testing import Gate, ScriptedModel

FLOW = """
schema: 1
name: bot
nodes:
  answer: {kind: agent, system_prompt: Be kind., next: end}
"""
PARENT = """
schema: 1
name: parent
nodes:
  ask: {kind: subworkflow, workflow: bot, next: end}
"""
ASKING = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


def ask(state):
    return {"messages": [AIMessage(f"{interrupt('Your name?')} is {interrupt('Your age?')}.")]}


graph = StateGraph(MessagesState)
graph.add_node("ask", ask)
graph.add_edge(START, "ask")
"""
RUNS = "/api/v1/workflows/bot/runs"


@asynccontextmanager
async def service(
    folder: Path, model: ScriptedModel, flow: str = FLOW, **overrides: object
) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Open a service with the workflows `bot` and `parent` over a model."""
    names = []
    for name, text in (("bot", flow), ("parent", PARENT)):
        (folder / f"{name}.yaml").write_text(text)
        names.append(str(folder / f"{name}.yaml"))
    settings = settings_for(folder, workflows=names, prices=["scripted=1/2"], **overrides)
    async with opened_app(model, settings) as app, client_of(app) as client:
        yield app, client


def events_of(text: str) -> list[tuple[str, str | None, Any]]:
    """Return the name, id and data of each server-sent event."""
    found = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


@pytest.mark.parametrize("database", ["sqlite://", "file"])
async def test_a_run_is_waited_for(tmp_path: Path, database: str) -> None:
    """The response has the answer, the usage and the session. A repeated message returns the same run."""
    url = database if database == "sqlite://" else f"sqlite:///{tmp_path}/threadkeep.db"
    async with service(tmp_path, ScriptedModel(["Hello."]), database_url=url) as (app, client):
        body = {"message": "Hi", "session_id": "room", "user_id": "ann", "message_id": "m1"}
        first = await client.post(RUNS, json=body)
        assert first.status_code == 200
        run = first.json()
        assert (run["status"], run["text"], run["session_id"], run["trigger"]) == ("done", "Hello.", "room", "http")
        assert run["usage"]["models"][0]["calls"] == 1
        assert run["usage"]["output_tokens"] == 1
        assert (await client.post(RUNS, json=body)).json()["run_id"] == run["run_id"]
        said = await app.memory.session("room").tail(10)
        assert [(message.role, message.content) for message in said] == [("user", "Hi"), ("assistant", "Hello.")]
        assert (await client.get(f"/api/v1/runs/{run['run_id']}")).json() == run
        trace = (await client.get(f"/api/v1/runs/{run['run_id']}/trace")).json()
        assert [event["number"] for event in trace["events"]] == list(range(1, len(trace["events"]) + 1))
        assert "answer" in {event["node"] for event in trace["events"]}


async def test_a_run_without_a_session_continues_the_users_session(tmp_path: Path) -> None:
    async with service(tmp_path, ScriptedModel(["One.", "Two.", "Three."])) as (_, client):
        first = (await client.post(RUNS, json={"message": "Hi", "user_id": "ann"})).json()
        again = (await client.post(RUNS, json={"message": "And?", "user_id": "ann"})).json()
        other = (await client.post(RUNS, json={"message": "Hi", "user_id": "bob"})).json()
        assert first["session_id"] == again["session_id"] != other["session_id"]


async def test_a_background_run_returns_202_at_once(tmp_path: Path) -> None:
    gate = Gate()
    async with service(tmp_path, ScriptedModel([["Well, ", gate, "yes."]])) as (_, client):
        response = await client.post(RUNS, json={"message": "Hi", "user_id": "ann", "mode": "background"})
        assert response.status_code == 202
        run_id = response.json()["run_id"]
        await gate.reached()
        [listed] = (await client.get("/api/v1/runs", params={"status": "running"})).json()["runs"]
        assert listed["run_id"] == run_id
        gate.open()

        async def done() -> bool:
            return bool((await client.get(f"/api/v1/runs/{run_id}")).json()["status"] == "done")

        await until(done)
        check_problem(await client.get(f"/api/v1/runs/{run_id}", params={"user_id": "bob"}), 404, "run-not-found")
        for since, count in (("2000-01-01T00:00:00", 1), ("9999-12-31T00:00:00Z", 0)):
            assert len((await client.get("/api/v1/runs", params={"since": since})).json()["runs"]) == count
        for since in ("9999-12-31T23:59:59-01:00", "-5507120689858", "1735689600"):
            check_problem(await client.get("/api/v1/runs", params={"since": since}), 422, "invalid-request")


async def test_a_run_is_streamed_from_any_event(tmp_path: Path) -> None:
    """A stream has numbered events, the pieces of the answer and the end.

    `Last-Event-ID` skips the earlier events.
    """
    async with service(tmp_path, ScriptedModel(["a few words"])) as (_, client):
        told = events_of((await client.post(RUNS, json={"message": "Hi", "mode": "stream"})).text)
        assert (told[0][0], told[0][2]["run_id"]) == ("start", told[-1][2]["run_id"])
        assert "".join(data["text"] for name, _, data in told if name == "token") == "a few words"
        assert (told[-1][0], told[-1][2]["status"], told[-1][2]["text"]) == ("end", "done", "a few words")
        numbers = [int(number) for _, number, _ in told if number is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        path = f"/api/v1/runs/{told[-1][2]['run_id']}/events"
        rest = events_of((await client.get(path, headers={"Last-Event-ID": "2"})).text)
        assert [number for _, number, _ in rest if number] == [str(number) for number in numbers[2:]]
        assert rest[-1][0] == "end"
        whole = await client.get(path, headers={"Last-Event-ID": "9" * 30})  # no event has such a number
        assert [number for _, number, _ in events_of(whole.text) if number] == [str(number) for number in numbers]


async def test_the_refusal_of_a_message_names_the_running_run(tmp_path: Path) -> None:
    """The client can wait for the named run, or cancel it."""
    gate = Gate()
    async with service(tmp_path, ScriptedModel([[gate]]), f"{FLOW}options: {{double_texting: reject}}") as (_, client):
        body = {"message": "Hi", "session_id": "room", "mode": "background"}
        run_id = (await client.post(RUNS, json=body)).json()["run_id"]
        problem = check_problem(await client.post(RUNS, json={**body, "mode": "stream"}), 409, "session-busy")
        assert (problem["session_id"], problem["run_id"]) == ("room", run_id)
        gate.open()


async def test_a_new_answer_that_is_refused_supersedes_nothing(tmp_path: Path) -> None:
    """A refused `regenerate` changes nothing. After the running turn, the message is answered again."""
    gate = Gate()
    model = ScriptedModel(["one", [gate, "two"], "again"])
    async with service(tmp_path, model, f"{FLOW}options: {{double_texting: reject}}") as (_, client):
        body = {"session_id": "room", "mode": "wait"}
        await client.post(RUNS, json={**body, "message": "first", "message_id": "m1"})
        run_id = (await client.post(RUNS, json={**body, "message": "second", "mode": "background"})).json()["run_id"]
        await gate.reached()
        for path in ("/api/v1/sessions/room/regenerate", "/api/v1/sessions/room/regenerate/stream"):
            check_problem(await client.post(path, json={"message_id": "m1"}), 409, "session-busy")
        gate.open()
        await client.get(f"/api/v1/runs/{run_id}/events")
        history = (await client.get("/api/v1/chat/history/room")).json()["messages"]
        assert [message["content"] for message in history] == ["first", "one", "second", "two"]
        await client.post("/api/v1/sessions/room/regenerate", json={"message_id": "m1"})
        history = (await client.get("/api/v1/chat/history/room")).json()["messages"]
        assert [message["content"] for message in history] == ["first", "again"]


async def test_a_run_that_is_cancelled_before_it_begins_keeps_its_question(tmp_path: Path, shared_url: str) -> None:
    """The message is stored even if the process has not executed any run yet."""
    new = NewRun(run_id="r1", workflow="bot", input={"text": "I am Ann"}, session_id="room", message_id="m1")
    async with open_memory(shared_url) as memory:
        await memory.runs.order.add(new)
    async with service(tmp_path, ScriptedModel([]), database_url=shared_url) as (_, client):
        stopped = await client.post("/api/v1/runs/r1/cancel")
        assert stopped.json() == {"run_ids": ["r1"]}
        assert (await client.get("/api/v1/runs/r1")).json()["status"] == "cancelled"
        history = (await client.get("/api/v1/chat/history/room")).json()["messages"]
        assert [message["content"] for message in history] == ["I am Ann"]


async def test_a_request_may_set_double_texting(tmp_path: Path) -> None:
    """`double_texting` of a request overrides that of the workflow. An unknown value is refused."""
    gate = Gate()
    async with service(tmp_path, ScriptedModel([["one", gate], "two"]), FLOW) as (_, client):
        body = {"message": "Hi", "session_id": "room", "mode": "background"}
        first = (await client.post(RUNS, json=body)).json()["run_id"]
        await gate.reached()
        second = {"message": "No: hello", "session_id": "room", "double_texting": "rollback"}
        assert (await client.post(RUNS, json=second)).json()["text"] == "two"
        assert (await client.get(f"/api/v1/runs/{first}")).json()["status"] == "cancelled"
        history = (await client.get("/api/v1/chat/history/room")).json()["messages"]
        assert [message["content"] for message in history] == ["No: hello", "two"]
        check_problem(await client.post(RUNS, json={**body, "double_texting": "drop"}), 422, "invalid-request")


async def test_a_run_is_cancelled_and_retried(tmp_path: Path) -> None:
    gate = Gate()
    async with service(tmp_path, ScriptedModel([["Well, ", gate], "Yes."])) as (_, client):
        run_id = (await client.post(RUNS, json={"message": "Hi", "mode": "background"})).json()["run_id"]
        await gate.reached()
        stopped = await client.post(f"/api/v1/runs/{run_id}/cancel")
        assert stopped.json() == {"run_ids": [run_id]}

        async def cancelled() -> bool:
            return bool((await client.get(f"/api/v1/runs/{run_id}")).json()["status"] == "cancelled")

        await until(cancelled)
        again = await client.post(f"/api/v1/runs/{run_id}/retry", json={"budget": {"max_tokens": 500}})
        assert (again.json()["status"], again.json()["text"]) == ("done", "Yes.")
        assert again.json()["budget"] == {"max_tokens": 500, "max_cost": None}
        check_problem(await client.post(f"/api/v1/runs/{run_id}/retry", json={}), 422, "invalid-request")
        check_problem(await client.post(f"/api/v1/runs/{run_id}/resume", json={"value": 1}), 422, "invalid-request")


async def test_an_answer_with_a_message_id_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "form_of_two.py").write_text(ASKING)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = settings_for(tmp_path, workflows=["form=form_of_two:graph"])
    async with opened_app(ScriptedModel(), settings) as app, client_of(app) as client:
        form = "/api/v1/workflows/form/runs"
        asking = (await client.post(form, json={"session_id": "room", "message_id": "m1"})).json()
        path = f"/api/v1/runs/{asking['run_id']}/resume"
        answers = [await client.post(path, json={"value": "Ann", "message_id": "m2"}) for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 200]
        assert [one.json()["questions"][0]["value"] for one in answers] == ["Your age?"] * 2
        later = {"value": "30", "message_id": "m3", "mode": "background"}
        assert (await client.post(path, json=later)).status_code == 202
        done = await client.post(path, json={**later, "mode": "wait"})
        assert (done.status_code, done.json()["text"]) == (200, "Ann is 30.")
        check_problem(await client.post(path, json={**later, "message_id": "m4"}), 422, "invalid-request")
        check_problem(await client.post(path, json={**later, "message_id": "m1"}), 422, "invalid-request")
        alone = (await client.post(form, json={"sessionless": True})).json()
        check_problem(await client.post(f"/api/v1/runs/{alone['run_id']}/resume", json=later), 422, "invalid-request")


async def test_an_answer_to_a_child_returns_the_next_question_or_the_result(
    shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "form_of_a_child.py").write_text(ASKING)
    (tmp_path / "parent.yaml").write_text(PARENT.replace("workflow: bot", "workflow: form"))
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["form=form_of_a_child:graph", str(tmp_path / "parent.yaml")]
    settings = settings_for(tmp_path, database_url=shared_url, workflows=names)
    async with opened_app(ScriptedModel(), settings) as app, client_of(app) as client:
        asking = (await client.post("/api/v1/workflows/parent/runs", json={"message": "hi"})).json()
        path = f"/api/v1/runs/{asking['questions'][0]['value']['run_id']}/resume"
        asked = (await client.post(path, json={"value": "Ann"})).json()
        assert [one["value"] for one in asked["questions"]] == ["Your age?"]
        done = (await client.post(path, json={"value": "30"})).json()
        assert (done["status"], done["text"]) == ("done", "Ann is 30.")


async def test_a_parent_and_its_child_are_a_tree(tmp_path: Path) -> None:
    """The usage of the parent includes that of the child once."""
    async with service(tmp_path, ScriptedModel(["Four words of it."])) as (_, client):
        parent = (await client.post("/api/v1/workflows/parent/runs", json={"message": "Hi"})).json()
        assert (parent["status"], parent["text"]) == ("done", "Four words of it.")
        assert parent["usage"]["output_tokens"] == 4
        tree = (await client.get(f"/api/v1/runs/{parent['run_id']}/tree")).json()
        assert [(run["workflow"], run["depth"], run["node_id"]) for run in tree["runs"]] == [
            ("parent", 0, None),
            ("bot", 1, "ask"),
        ]
        children = await client.get("/api/v1/runs", params={"parent_run_id": parent["run_id"]})
        assert [run["workflow"] for run in children.json()["runs"]] == ["bot"]


async def test_runs_are_paged(tmp_path: Path) -> None:
    async with service(tmp_path, ScriptedModel(["ok"] * 5)) as (_, client):
        made = [(await client.post(RUNS, json={"message": "Hi"})).json()["run_id"] for _ in range(5)]
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            params: dict[str, str | int] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = (await client.get("/api/v1/runs", params=params)).json()
            found += [run["run_id"] for run in page["runs"]]
            cursor = page["next_cursor"]
        assert found == made[::-1]


async def test_a_failing_model_fails_the_run_without_its_text(tmp_path: Path) -> None:
    async with service(tmp_path, ScriptedModel([ValueError("secret words")])) as (app, client):
        run = (await client.post(RUNS, json={"message": "Hi", "session_id": "room"})).json()
        assert run["status"] == "failed"
        assert "secret words" not in json.dumps(run)
        assert [message.content for message in await app.memory.session("room").tail(5)] == ["Hi"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("workflows/nope/runs", {"message": "Hi"}, 404, "workflow-not-found"),
        ("workflows/bot/runs", {"message": "Hi", "session_id": "a\nb"}, 422, "invalid-session-id"),
        ("workflows/bot/runs", {"message": "Hi", "session_id": ""}, 422, "invalid-session-id"),
        ("workflows/bot/runs", {"message": "Hi", "sessionless": True, "message_id": "1"}, 422, "invalid-request"),
        ("workflows/bot/runs", {"message": "Hi", "budget": {"max_tokens": 0}}, 422, "invalid-request"),
        ("workflows/bot/runs", {"mode": "later"}, 422, "invalid-request"),
        ("workflows/chat/runs", {}, 422, "invalid-request"),
        ("runs/nope/cancel", {}, 404, "run-not-found"),
        ("runs/nope/resume", {"value": 1}, 404, "run-not-found"),
    ],
)
async def test_an_invalid_request_is_a_problem(
    tmp_path: Path, path: str, body: dict[str, object], status: int, kind: str
) -> None:
    async with service(tmp_path, ScriptedModel()) as (_, client):
        check_problem(await client.post(f"/api/v1/{path}", json=body), status, kind)
        assert (await client.get("/api/v1/runs")).json()["runs"] == []


async def test_the_fault_of_inputs_that_are_too_deep_names_the_inputs(tmp_path: Path) -> None:
    deep: object = 1
    for _ in range(40):
        deep = [deep]
    async with service(tmp_path, ScriptedModel()) as (_, client):
        response = await client.post("/api/v1/workflows/bot/runs", json={"message": "Hi", "inputs": {"deep": deep}})
        [fault] = check_problem(response, 422, "invalid-request")["errors"]
    assert fault["pointer"] == "/inputs"
    assert fault["detail"].startswith("The object is at most 32 levels deep")


async def test_the_calls_of_a_child_are_listed_under_its_run(tmp_path: Path) -> None:
    """The manifest of a child's call is listed for its user only, and the call can be rebuilt from it."""
    model = ScriptedModel(["Well."])
    async with service(tmp_path, model) as (app, client):
        asked = {"message": "My cat is Miso", "session_id": "s1", "user_id": "ann"}
        run_id = (await client.post("/api/v1/workflows/parent/runs", json=asked)).json()["run_id"]
        [child] = [run for run in await (await app.runs.service()).tree(run_id) if run.parent_run_id == run_id]
        path = f"/api/v1/runs/{child.run_id}/manifests"
        [call] = (await client.get(path, params={"user_id": "ann"})).json()["manifests"]
        assert "session_id" not in call
        assert (call["run_id"], call["call"], call["node"]) == (child.run_id, 1, "answer")
        assert [entry["section"] for entry in call["entries"]] == ["system", "input"]
        assert [message.text for message in await rebuild(call, app.memory)] == ["Be kind.", "My cat is Miso"]
        check_problem(await client.get(path, params={"user_id": "bob"}), 404, "run-not-found")


async def test_how_much_of_a_run_is_traced_is_a_setting(tmp_path: Path) -> None:
    """Events beyond the limit are omitted and marked, except for the status."""
    async with service(tmp_path, ScriptedModel(["hello"]), run_trace_max_events=2) as (_, client):
        run_id = (await client.post(RUNS, json={"message": "hi"})).json()["run_id"]
        events = (await client.get(f"/api/v1/runs/{run_id}/trace")).json()["events"]
    assert [event["kind"] for event in events] == ["status", "node_started", "trace_cut", "status"]


async def test_a_pruned_run(tmp_path: Path) -> None:
    """A repeat of a pruned run returns its answer. The run has no trace and is not listed."""
    async with service(tmp_path, ScriptedModel(["hello"])) as (app, client):
        body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
        first = (await client.post(RUNS, json=body)).json()
        await app.memory.run_retention.prune(RunRetention(keep_days=0.0))
        again = (await client.post(RUNS, json=body)).json()
        kept = ("run_id", "session_id", "message_id", "status", "text", "answer_id", "workflow")
        assert [again[name] for name in kept] == [first[name] for name in kept]
        assert (again["version"], again["usage"]["models"]) == (None, [])
        streamed = events_of((await client.post(RUNS, json={**body, "mode": "stream"})).text)
        assert [name for name, _, _ in streamed][-1] == "end"
        assert streamed[-1][2]["text"] == "hello"
        run = f"/api/v1/runs/{first['run_id']}"
        assert (await client.get(run)).json() == again
        assert (await client.get(f"{run}/trace")).json()["events"] == []
        assert [one["run_id"] for one in (await client.get(f"{run}/tree")).json()["runs"]] == [first["run_id"]]
        assert (await client.get("/api/v1/runs")).json()["runs"] == []
        problem = check_problem(await client.post(f"{run}/retry", json={}), 422, "invalid-request")
        assert "not stored any more" in problem["detail"]


@pytest.mark.parametrize("content", ["28b52ffd00", "5b315d"], ids=["compressed", "list"])
async def test_a_damaged_record_is_no_outage(tmp_path: Path, content: str) -> None:
    """A retry does not help, so the problem says what does. The session accepts messages."""
    url = f"sqlite:///{tmp_path}/threadkeep.db"
    async with service(tmp_path, ScriptedModel(["hello"] * 2), database_url=url) as (_, client):
        run_id = (await client.post(RUNS, json={"message": "hi", "session_id": "s1"})).json()["run_id"]
        execute(url, f"UPDATE chat_runs SET result = x'{content}'")
        problem = check_problem(await client.get(f"/api/v1/runs/{run_id}"), 500, "record-unreadable")
        assert "restore a backup" in problem["detail"]
        assert run_id in problem["detail"]
        (listed,) = (await client.get("/api/v1/runs")).json()["runs"]
        assert (listed["run_id"], listed["status"], listed["error"]) == (run_id, "done", "RecordUnreadable")
        assert run_id in (await client.get("/console/runs")).text
        assert (await client.get("/threads/s1/state")).json()["values"]["messages"][-1]["content"] == "hello"
        assert (await client.get("/threads/s1")).json()["status"] == "idle"
        assert (await client.get("/console/health")).status_code == 200
        assert (await client.post(RUNS, json={"message": "hi", "session_id": "s1"})).json()["text"] == "hello"


async def test_an_agents_own_conversation_is_read_and_erased_as_a_session(tmp_path: Path) -> None:
    """An agent's own conversation is listed, read, searched, changed and deleted as a session, by its user only."""
    flow = FLOW.replace("kind: agent,", "kind: agent, use_graph_chat_history: true,")
    async with service(tmp_path, ScriptedModel(["Well."]), flow=flow) as (_, client):
        inputs = {"history_key": "desk-7"}
        asked = {"message": "My cat is Miso", "inputs": inputs, "user_id": "ann", "sessionless": True}
        assert (await client.post(RUNS, json=asked)).json()["status"] == "done"
        [session] = (await client.get("/api/v1/sessions", params={"user_id": "ann"})).json()["sessions"]
        assert (session["session_id"], session["namespace"]) == ("desk-7", ["agent_chat_history"])
        messages = (await client.get("/api/v1/chat/history/desk-7")).json()["messages"]
        assert [message["content"] for message in messages] == ["My cat is Miso", "Well."]
        assert (await client.get("/api/v1/search", params={"q": "Miso"})).json()["count"] == 1
        changed = await client.patch("/api/v1/sessions/desk-7", json={"title": "Cats"})
        assert (changed.json()["title"], changed.json()["namespace"]) == ("Cats", ["agent_chat_history"])
        assert (await client.post("/api/v1/sessions/desk-7/reset")).json()["reset_seq"] == 2
        gone = "/api/v1/sessions/desk-7"
        check_problem(await client.delete(gone, params={"user_id": "bob"}), 404, "session-not-found")
        assert (await client.delete(gone, params={"user_id": "ann"})).status_code == 204
        check_problem(await client.get("/api/v1/chat/history/desk-7"), 404, "session-not-found")
