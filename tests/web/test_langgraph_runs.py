"""Tests of the v1 API of LangGraph's server, with its Python SDK and `RemoteGraph`, against a listening service."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from itertools import product, repeat
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.store.base import PutOp
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError
from langgraph_sdk.schema import Command, MultitaskStrategy, StreamMode, StreamPart

from tests.limits import HANG_SECONDS
from tests.web.services import history, listening, opened_app, said, served, settings_for, until
from tests.web.test_langgraph_protocol import ASKING, COUNTING, asks, sdk, texts
from threadkeep.errors import StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.testing import Gate, ScriptedModel

NOTING = """
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

graph = StateGraph(MessagesState)
graph.add_node("note", lambda state: get_stream_writer()("noted"))
graph.add_node("answer", lambda state: {"messages": [AIMessage("It is teal.")]})
graph.add_edge(START, "note")
graph.add_edge("note", "answer")
"""
ALL_MODES: list[StreamMode] = ["values", "updates", "messages", "messages-tuple", "custom", "checkpoints"]


async def test_a_streamed_run_gives_values_pieces_and_its_ids(tmp_path: Path) -> None:
    """The parts begin with `metadata` and end with `end`, and the pieces make the answer in the last values."""
    created: list[Any] = []
    async with (
        sdk(tmp_path, ScriptedModel([["It is ", "teal."]])) as (langgraph, client),
        asyncio.timeout(HANG_SECONDS),
    ):
        parts = [
            part
            async for part in langgraph.runs.stream(
                "t1", "chat", input=asks("Which?", id="m1"), stream_mode=ALL_MODES, on_run_created=created.append
            )
        ]
        run = await langgraph.runs.get("t1", parts[0].data["run_id"])
        stored = await history(client, "t1")
    assert [parts[0].event, parts[-1].event] == ["metadata", "end"]
    assert parts[-1].data == {"run_id": run["run_id"], "status": "success"}
    assert created == [{"run_id": run["run_id"], "thread_id": "t1"}]
    assert (run["status"], run["assistant_id"], run["thread_id"]) == ("success", "chat", "t1")
    values = [part.data for part in parts if part.event == "values"]
    assert texts(values[-1]) == [("human", "Which?"), ("ai", "It is teal.")]
    chunks = [part.data[0] for part in parts if part.event == "messages"]
    assert "".join(chunk["content"] for chunk in chunks) == "It is teal."
    assert {chunk["type"] for chunk in chunks} == {"AIMessageChunk"}
    assert {chunk["id"] for chunk in chunks} == {values[-1]["messages"][-1]["id"]}
    partials = [part.data[0]["content"] for part in parts if part.event == "messages/partial"]
    assert partials[-1] == "It is teal."
    assert [text for _, text, _ in said(stored)] == ["Which?", "It is teal."]


async def test_each_message_is_one_update_of_a_run_that_is_joined_late(tmp_path: Path) -> None:
    """The trace has the answer twice, as a message of the agent and as the answer of the run.

    The update has it once.
    """
    async with sdk(tmp_path, ScriptedModel(["It is teal."])) as (langgraph, client), asyncio.timeout(HANG_SECONDS):
        await langgraph.runs.wait("t1", "chat", input=asks("Which?"))
        [run] = await langgraph.runs.list("t1")
        address = f"/threads/t1/runs/{run['run_id']}/stream"  # older JavaScript SDKs encode several modes as JSON
        encoded = [
            await client.get(address, params={"stream_mode": modes})
            for modes in ('["values","messages-tuple"]', '["values","other"]', "[" * 5000, "[")
        ]
        parts = [part async for part in langgraph.runs.join_stream("t1", run["run_id"], stream_mode="updates")]
        usual = [part async for part in langgraph.runs.join_stream("t1", run["run_id"])]
        of_thread = [part async for part in await langgraph.threads.join_stream("t1")]
    assert [one.status_code for one in encoded] == [200, 422, 422, 422]
    assert {"event: values", "event: messages"} <= set(encoded[0].text.splitlines())
    assert {part.event for part in usual} == {"metadata", "values", "end"}
    assert [part.event for part in of_thread] == [part.event for part in usual]
    updates = [part.data for part in parts if part.event == "updates"]
    assert [[one["content"] for one in update["answer"]["messages"]] for update in updates] == [["It is teal."]]


async def test_a_stream_is_rejoined_after_the_last_event(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        sdk(tmp_path, ScriptedModel([["It is ", gate, "teal."]])) as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        first, run_id, last_id = [], "", None
        stream = langgraph.runs.stream("t1", "chat", input=asks("Which?"), stream_mode="messages-tuple")
        async for part in stream:
            run_id = part.data["run_id"] if part.event == "metadata" else run_id
            if part.event == "messages":
                first.append(part.data[0]["content"])
                last_id = part.id
                break
        await closed(stream)
        gate.open()
        rest = [
            part
            async for part in langgraph.runs.join_stream(
                "t1", run_id, stream_mode="messages-tuple", last_event_id=last_id
            )
        ]
        whole = [part async for part in langgraph.runs.join_stream("t1", run_id, stream_mode="messages-tuple")]
    assert "".join([*first, *(part.data[0]["content"] for part in rest if part.event == "messages")]) == "It is teal."
    assert "metadata" not in [part.event for part in rest]
    assert "".join(part.data[0]["content"] for part in whole if part.event == "messages") == "It is teal."


async def test_a_message_without_pieces_follows_the_last_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    monkeypatch.syspath_prepend(tmp_path)
    async with (
        sdk(tmp_path, ScriptedModel([]), workflows="noting=noting:graph") as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        modes: Any = ["messages-tuple", "custom"]
        whole = [part async for part in langgraph.runs.stream("t1", "noting", input=asks("go"), stream_mode=modes)]
        run_id = whole[0].data["run_id"]
        [noted] = [part.id for part in whole if part.event == "custom"]
        rest = langgraph.runs.join_stream("t1", run_id, stream_mode=modes, last_event_id=noted)
        assert [part.event async for part in rest] == ["messages", "end"]


async def test_a_stream_is_rejoined_at_a_service_that_has_fewer_events(tmp_path: Path, shared_url: str) -> None:
    """Another client already reads the run there. The stream has all later events, and no piece twice."""
    gate, modes = Gate(), ["messages-tuple", "updates", "values"]
    model = ScriptedModel([[*(f"{number} " for number in range(20)), gate, "end"]])
    async with (
        sdk(tmp_path / "a", model, database_url=shared_url) as (first, _),
        sdk(tmp_path / "b", ScriptedModel([]), database_url=shared_url) as (second, client),
        asyncio.timeout(HANG_SECONDS),
    ):
        pieces, run_id, last_id = [], "", ""
        stream = first.runs.stream("t1", "chat", input=asks("Count."), stream_mode=cast("Any", modes))
        async for part in stream:
            run_id = part.data["run_id"] if part.event == "metadata" else run_id
            last_id = part.id or last_id
            pieces += [part.data[0]["content"]] if part.event == "messages" else []
            if len(pieces) == 20:
                break
        await closed(stream)
        other = second.runs.join_stream("t1", run_id, stream_mode="values")
        # Wait for the first values: otherwise, the rejoined stream may begin with them.
        assert [part.event async for part in _until(other, "values")] == ["metadata", "values"]
        address, headers = f"/threads/t1/runs/{run_id}/stream", {"Last-Event-ID": last_id}
        async with client.stream("GET", address, params={"stream_mode": modes}, headers=headers) as rejoined:
            gate.open()
            lines = [line async for line in rejoined.aiter_lines() if line.startswith("event: ")]
        await closed(other)
    assert lines == ["event: updates", "event: values", "event: end"]


async def test_a_stream_is_rejoined_after_an_event_of_another_service(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both services have the event, but the other one has the message after it, in one piece."""
    (tmp_path / "counting_again.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"database_url": shared_url, "workflows": "counting=counting_again:graph"}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **options) as (first, _),
        sdk(tmp_path / "b", ScriptedModel([]), **options) as (second, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        modes: Any = ["messages-tuple", "custom"]
        whole = [part async for part in first.runs.stream("t1", "counting", input=asks("go"), stream_mode=modes)]
        run_id = whole[0].data["run_id"]
        for last in [part for part in whole if part.event == "custom"]:
            rest = [
                part async for part in second.runs.join_stream("t1", run_id, stream_mode=modes, last_event_id=last.id)
            ]
            assert [part.event for part in rest] == ["custom"] * (4 - cast("int", last.data)) + ["end"]


async def test_an_id_that_no_event_can_have_gets_the_whole_stream(tmp_path: Path) -> None:
    """An impossible event id does not change the ids that later readers get."""
    async with sdk(tmp_path, ScriptedModel(["It is teal."])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        await langgraph.runs.wait("t1", "chat", input=asks("Which?"))
        [run] = await langgraph.runs.list("t1")
        first, second = [
            [part async for part in langgraph.runs.join_stream("t1", run["run_id"], last_event_id=last_id)]
            for last_id in ("9" * 32, None)
        ]
    assert [(part.event, part.id) for part in first] == [(part.event, part.id) for part in second]
    assert max(int(part.id.partition("-")[0]) for part in second if part.id) < 2**53


@pytest.mark.parametrize(
    ("strategy", "left"),
    [
        ("enqueue", ["first", "It is teal.", "second", "two"]),
        ("interrupt", ["first", "It is ", "second", "two"]),
        ("rollback", ["second", "two"]),
    ],
)
async def test_a_second_run_of_a_busy_thread_follows_its_strategy(
    tmp_path: Path, strategy: MultitaskStrategy, left: list[str]
) -> None:
    """The transcript has what the strategy leaves of the first run. `reject` returns 409."""
    gate = Gate()
    async with (
        sdk(tmp_path, ScriptedModel([["It is ", gate, "teal."], "two"])) as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        stream = langgraph.runs.stream("t1", "chat", input=asks("first"), stream_mode="messages-tuple")
        (run_id,) = [part.data["run_id"] async for part in _until(stream, "messages") if part.event == "metadata"]
        with pytest.raises(ConflictError):
            await langgraph.runs.create("t1", "chat", input=asks("x"), multitask_strategy="reject")
        second = await langgraph.runs.create("t1", "chat", input=asks("second"), multitask_strategy=strategy)
        if strategy == "enqueue":  # the other strategies cancel the first run, which may take a moment
            gate.open()
        for each in (run_id, second["run_id"]):
            await langgraph.runs.join("t1", each)
        await closed(stream)
        state = await langgraph.threads.get_state("t1")
    assert [text for _, text in texts(state["values"])] == left


async def test_a_rejected_fork_of_a_busy_thread_supersedes_nothing(tmp_path: Path) -> None:
    """A rejected fork supersedes nothing. A repeated fork whose own run is active is not rejected."""
    gate, last = Gate(), Gate()
    async with (
        sdk(tmp_path, ScriptedModel(["one", ["It is ", gate, "teal."], [last, "three"]])) as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        await langgraph.runs.wait("t1", "chat", input=asks("first"))
        stream = langgraph.runs.stream("t1", "chat", input=asks("second"), stream_mode="messages-tuple")
        (run_id,) = [part.data["run_id"] async for part in _until(stream, "messages") if part.event == "metadata"]
        for given in (asks("other"), None):
            with pytest.raises(ConflictError):
                await langgraph.runs.create("t1", "chat", input=given, checkpoint_id="0", multitask_strategy="reject")
        gate.open()
        values = await langgraph.runs.join("t1", run_id)
        await closed(stream)
        again: Any = {"input": asks("other", id="m3"), "checkpoint_id": "0", "multitask_strategy": "reject"}
        repeated = [await langgraph.runs.create("t1", "chat", **again) for _ in range(2)]
        last.open()
        forked = await langgraph.runs.join("t1", repeated[0]["run_id"])
    assert [text for _, text in texts(values)] == ["first", "one", "second", "It is teal."]
    assert repeated[0]["run_id"] == repeated[1]["run_id"]
    assert [text for _, text in texts(forked)] == ["other", "three"]


async def _until(stream: AsyncIterator[StreamPart], name: str) -> AsyncIterator[StreamPart]:
    """Yield the parts of a stream up to the first one with a name."""
    async for part in stream:
        yield part
        if part.event == name:
            return


async def test_runs_are_waited_for_joined_and_listed(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["one", "two"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        waited = await langgraph.runs.wait("t1", "chat", input=asks("first"))
        begun = await langgraph.runs.create("t1", "chat", input=asks("second"))
        joined = await langgraph.runs.join("t1", begun["run_id"])
        listed = await langgraph.runs.list("t1")
        succeeded = await langgraph.runs.list("t1", status="success", limit=1)
    assert texts(waited) == [("human", "first"), ("ai", "one")]
    assert texts(joined) == [*texts(waited), ("human", "second"), ("ai", "two")]
    assert listed[0]["run_id"] == begun["run_id"]
    assert len(listed) == 2
    assert [run["run_id"] for run in succeeded] == [begun["run_id"]]


async def test_a_run_has_the_metadata_of_its_request(tmp_path: Path, shared_url: str) -> None:
    """A queued run has them and a finished one, also if it answers a question again."""
    sent = {"source": "page", "tags": ["a"]}
    async with sdk(tmp_path, ScriptedModel(["one", "two"]), database_url=shared_url) as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            begun = await langgraph.runs.create("t1", "chat", input=asks("first"), metadata=sent)
            await langgraph.runs.join("t1", begun["run_id"])
            beginning = (await langgraph.threads.get_history("t1"))[-1]["checkpoint"]["checkpoint_id"]
            again = await langgraph.runs.create("t1", "chat", checkpoint_id=beginning, metadata={"source": "retry"})
            await langgraph.runs.join("t1", again["run_id"])
            listed = await langgraph.runs.list("t1")
            found = await langgraph.runs.get("t1", begun["run_id"])
    assert begun["metadata"] == found["metadata"] == sent
    assert [run["metadata"] for run in listed] == [{**sent, "source": "retry"}, sent]


async def test_a_run_without_a_thread_stores_nothing(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["one", "two"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        waited = await langgraph.runs.wait(None, "chat", input=asks("first"))
        parts = [part async for part in langgraph.runs.stream(None, "chat", input=asks("second"))]
        threads = await langgraph.threads.search()
    assert texts(waited) == [("human", "first"), ("ai", "one")]
    values = [part.data for part in parts if part.event == "values"]
    assert texts(values[-1]) == [("human", "second"), ("ai", "two")]
    assert threads == []


@pytest.mark.parametrize("later", ["resets", "turns"])
async def test_a_thread_is_interrupted_behind_many_later_runs(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    options: Any = {"workflows": "asking=asking:graph", "database_url": shared_url}
    async with sdk(tmp_path, ScriptedModel(["ok"] * 21), **options) as (langgraph, client):
        await langgraph.runs.wait("t1", "asking", input=asks("go"))
        for _ in range(21):
            if later == "turns":
                await langgraph.runs.wait("t1", "chat", input=asks("hello"))
            else:
                assert (await client.post("/api/v1/sessions/t1/reset")).status_code == 200
        thread = await langgraph.threads.get("t1")
        [found] = await langgraph.threads.search(status="interrupted")
        state = await langgraph.threads.get_state("t1")
    assert (thread["status"], found["thread_id"]) == ("interrupted", "t1")
    assert state["tasks"][0]["interrupts"][0]["value"] == "Ship it?"


async def test_a_question_of_a_run_is_answered_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of an interrupted run contain the question. `resume` streams only what follows it."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel([]), workflows="asking=asking:graph") as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            parts = [
                part
                async for part in langgraph.runs.stream(
                    "t1", "asking", input=asks("go"), stream_mode=["values", "updates"]
                )
            ]
            state = await langgraph.threads.get_state("t1")
            resumed = [
                part
                async for part in langgraph.runs.stream(
                    "t1", "asking", command={"resume": "yes"}, stream_mode=["values"]
                )
            ]
    asked = [part.data["__interrupt__"] for part in parts if part.event == "updates"]
    assert [one["value"] for one in asked[0]] == ["Ship it?"]
    assert parts[-1].data["status"] == "interrupted"
    assert state["tasks"][0]["interrupts"][0]["value"] == "Ship it?"
    values = [part.data for part in resumed if part.event == "values"]
    assert texts(values[-1])[-1] == ("ai", "You said yes.")
    assert "__interrupt__" not in values[-1]


async def test_a_second_service_streams_only_what_follows_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_url: str
) -> None:
    """A service that has not read the run sends no answered question, neither after `resume` nor in a later join."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"workflows": "asking=asking:graph", "database_url": shared_url}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **settings) as (first, _),
        sdk(tmp_path / "b", ScriptedModel([]), **settings) as (second, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        assert "__interrupt__" in await first.runs.wait("t1", "asking", input=asks("go"))
        modes: list[StreamMode] = ["values", "updates"]
        streamed = second.runs.stream("t1", "asking", command={"resume": "yes"}, stream_mode=modes)
        parts = [part async for part in streamed]
        [run] = await second.runs.list("t1")
        joined = [part async for part in second.runs.join_stream("t1", run["run_id"], stream_mode="values")]
    values = [part.data for part in parts if part.event == "values"]
    assert texts(values[-1]) == [("human", "go"), ("ai", "You said yes.")]
    assert not any("__interrupt__" in part.data for part in parts)
    last = [part.data for part in joined if part.event == "values"][-1]
    assert last == values[-1]


def asking_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a graph that asks two questions one after the other, and return the setting that names it."""
    twice = ASKING.replace("interrupt('Ship it?')", "interrupt('Ship it?'), interrupt('When?')")
    (folder / "asking_two.py").write_text(twice)
    monkeypatch.syspath_prepend(folder)
    return "asking=asking_two:graph"


async def test_a_stream_has_a_question_that_follows_a_resume_at_another_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_url: str
) -> None:
    """A service that has read a run up to its first question streams the second one.

    Another service resumed the run.
    """
    settings = {"workflows": asking_twice(tmp_path, monkeypatch), "database_url": shared_url}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **settings) as (first, _),
        sdk(tmp_path / "b", ScriptedModel([]), **settings) as (second, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        async for _ in first.runs.stream("t1", "asking", input=asks("go")):
            pass
        await second.runs.wait("t1", "asking", command={"resume": "yes"})
        [run] = await first.runs.list("t1")
        joined = [part async for part in first.runs.join_stream("t1", run["run_id"], stream_mode="values")]
    asked = [part.data for part in joined if part.event == "values"][-1]["__interrupt__"]
    assert [one["value"] for one in asked] == ["When?"]


async def test_a_repeated_answer_to_an_interrupt_answers_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_url: str
) -> None:
    """`Command(resume={id: value})` is refused if the interrupt is no longer pending."""
    settings = {"workflows": asking_twice(tmp_path, monkeypatch), "database_url": shared_url}
    async with sdk(tmp_path, ScriptedModel([]), **settings) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        values: Any = await langgraph.runs.wait("t1", "asking", input=asks("go"))
        answer: Any = {"resume": {values["__interrupt__"][0]["id"]: "yes"}}
        asked: Any = await langgraph.runs.wait("t1", "asking", command=answer)
        with pytest.raises(UnprocessableEntityError):
            await langgraph.runs.create("t1", "asking", command=answer)
        [pending] = (await langgraph.threads.get_state("t1"))["tasks"][0]["interrupts"]
        assert [one["value"] for one in asked["__interrupt__"]] == [pending["value"]] == ["When?"]
        done = await langgraph.runs.wait("t1", "asking", command={"resume": {pending["id"]: {"at": 9}}})
    assert texts(done)[-1] == ("ai", "You said ('yes', {'at': 9}).")


async def test_an_answer_reaches_the_run_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_url: str
) -> None:
    """Of two waiting runs, an answer without the id of an interrupt reaches the newest.

    A new message beside an answer is refused, but a repeated question is not.
    """
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"workflows": "asking=asking:graph", "database_url": shared_url}
    async with sdk(tmp_path, ScriptedModel([]), **settings) as (langgraph, client), asyncio.timeout(HANG_SECONDS):
        asked: list[Any] = [
            await langgraph.runs.wait("t1", "asking", input=asks(text, id=text)) for text in ("one", "two")
        ]
        ids = [values["__interrupt__"][0]["id"] for values in asked]
        shown = (await langgraph.threads.get("t1"))["interrupts"].values()
        assert [[one["id"] for one in found] for found in shown] == [[ids[1]], [ids[0]]]
        answer: Any = {"resume": {ids[0]: "first"}}
        with pytest.raises(UnprocessableEntityError, match="command"):
            await langgraph.runs.create("t1", "asking", input=asks("three"), command=answer)
        done = await langgraph.runs.wait("t1", "asking", input=asks("two", id="two"), command=answer)
        assert texts(done)[-1] == ("ai", "You said first.")
        asked = [await langgraph.runs.wait("t1", "asking", input=asks("three"))]
        params = {"interrupt_id": ids[1], "response": "second"}
        body = {"id": 1, "method": "input.respond", "params": params}
        assert (await client.post("/threads/t1/commands", json=body)).json()["type"] == "success"
        await langgraph.runs.wait("t1", "asking", command={"resume": "third"})
        state: Any = await langgraph.threads.get_state("t1")
    assert {text for kind, text in texts(state["values"]) if kind == "ai"} == {
        "You said first.",
        "You said second.",
        "You said third.",
    }


async def test_an_answer_to_several_interrupts_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without the ids of several interrupts is refused with the ids.

    Each interrupt can be answered alone.
    """
    second = ASKING.replace('"ask"', '"ask_too"').replace("Ship it?", "When?").partition("StateGraph(MessagesState)")[2]
    (tmp_path / "asking_both.py").write_text(ASKING + second)
    monkeypatch.syspath_prepend(tmp_path)
    async with (
        sdk(tmp_path, ScriptedModel([]), workflows="asking=asking_both:graph") as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        values: Any = await langgraph.runs.wait("t1", "asking", input=asks("go"))
        ids = {one["value"]: one["id"] for one in values["__interrupt__"]}
        answers: tuple[Any, ...] = ("yes", {"Ship it?": "yes"})
        for answer in answers:
            with pytest.raises(UnprocessableEntityError) as refused:
                await langgraph.runs.create("t1", "asking", command={"resume": answer})
            detail = refused.value.response.json()["detail"]
            assert "answer with a map from their ids: " in detail
            assert all(one in detail for one in ids.values())
        rest: Any = await langgraph.runs.wait("t1", "asking", command={"resume": {ids["Ship it?"]: "yes"}})
        assert [one["value"] for one in rest["__interrupt__"]] == ["When?"]
        done = await langgraph.runs.wait("t1", "asking", command={"resume": "now"})
    assert texts(done) == [("human", "go"), ("ai", "You said now.")]  # the last message of a run is its answer


async def test_every_value_of_a_run_that_asks_has_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`useStream` shows the messages of the last values, and reads none from values that have only `__interrupt__`."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel([]), workflows="asking=asking:graph") as (langgraph, _):
        for number in range(3):
            streamed = langgraph.runs.stream(f"t{number}", "asking", input=asks("go"), stream_mode="values")
            values = [part.data async for part in streamed if part.event == "values"]
            plain = [one for one in values if "__interrupt__" not in one]
            assert plain != []
            assert [texts(one) for one in values] == [[("human", "go")]] * len(values)
            assert values[-1] == {**plain[-1], "__interrupt__": values[-1]["__interrupt__"]}


async def test_a_question_of_a_run_is_resolved_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`goto: __end__`, as agent-chat-ui sends it, resolves the question.

    The thread continues with the next message.
    """
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel(["Next."]), workflows="asking=asking:graph") as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            assert "__interrupt__" in await langgraph.runs.wait("t1", "asking", input=asks("go"))
            parts = [
                part
                async for part in langgraph.runs.stream(
                    "t1", "asking", command={"goto": "__end__"}, stream_mode=["values"]
                )
            ]
            state = await langgraph.threads.get_state("t1")
            values = await langgraph.runs.wait("t1", "chat", input=asks("another"))
    assert (parts[-1].event, parts[-1].data["status"]) == ("end", "interrupted")
    assert (state["next"], state["interrupts"]) == ([], [])
    assert texts(values)[-2:] == [("human", "another"), ("ai", "Next.")]


async def test_a_run_is_cancelled_by_request_and_by_disconnect(tmp_path: Path) -> None:
    """A run is cancelled by `cancel`, and by a disconnect with `on_disconnect: cancel`, of a stream or a wait."""
    gates = [Gate(), Gate(), Gate()]
    model = ScriptedModel([["a", gates[0]], ["b", gates[1]], ["c", gates[2]]])
    async with sdk(tmp_path, model) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        begun = await langgraph.runs.create("t1", "chat", input=asks("one"))
        await gates[0].reached()
        await langgraph.runs.cancel("t1", begun["run_id"], wait=True)
        cancelled = await langgraph.runs.get("t1", begun["run_id"])
        stream = langgraph.runs.stream(
            "t2", "chat", input=asks("two"), stream_mode="messages-tuple", on_disconnect="cancel"
        )
        run_id = ""
        async for part in stream:
            run_id = part.data["run_id"] if part.event == "metadata" else run_id
            if part.event == "messages":
                break
        await closed(stream)
        await langgraph.runs.join("t2", run_id)
        gone = await langgraph.runs.get("t2", run_id)
        waiting = asyncio.create_task(langgraph.runs.wait("t3", "chat", input=asks("three"), on_disconnect="cancel"))
        await gates[2].reached()
        waiting.cancel()
        [given_up] = await langgraph.runs.list("t3")
        await langgraph.runs.join("t3", given_up["run_id"])
        given_up = await langgraph.runs.get("t3", given_up["run_id"])
    assert [one["status"] for one in (cancelled, gone, given_up)] == ["interrupted"] * 3


async def test_a_cancelled_run_with_a_rollback_leaves_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has the messages that it had before the run. A rollback that failed can be repeated."""
    gate, take_back, tries = Gate(), Session.take_back_turn, 0

    async def fails_once(session: Session, question_id: str) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailable("The database is away; try again.")
        return await take_back(session, question_id)

    monkeypatch.setattr(Session, "take_back_turn", fails_once)
    async with (
        sdk(tmp_path, ScriptedModel(["one", ["tw", gate, "o"]])) as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        first = await langgraph.runs.wait("t1", "chat", input=asks("First."))
        begun = await langgraph.runs.create("t1", "chat", input=asks("Second."))
        await gate.reached()
        with suppress(APIStatusError):
            await langgraph.runs.cancel("t1", begun["run_id"], action="rollback")
        for _ in range(2):
            await langgraph.runs.cancel("t1", begun["run_id"], action="rollback")
        state = await langgraph.threads.get_state("t1")
        cancelled = await langgraph.runs.get("t1", begun["run_id"])
    assert texts(cast("Any", state["values"])) == texts(first) == [("human", "First."), ("ai", "one")]
    assert cancelled["status"] == "interrupted"


@pytest.mark.parametrize("named", [{}, {"id": "m2"}], ids=["without an id", "with an id"])
async def test_a_rollback_leaves_a_question_that_a_later_run_answers(tmp_path: Path, named: dict[str, str]) -> None:
    """A rollback of a cancelled run keeps the answer of a later run. One of that run takes question and answer back."""
    gates = Gate(), Gate()
    async with (
        sdk(tmp_path, ScriptedModel(["one", ["tw", gates[0], "o"], "three", ["fiv", gates[1], "e"]])) as (langgraph, _),
        asyncio.timeout(HANG_SECONDS),
    ):
        await langgraph.runs.wait("t1", "chat", input=asks("First."))
        first = await langgraph.runs.create("t1", "chat", input=asks("Second.", **named))
        await gates[0].reached()
        await langgraph.runs.cancel("t1", first["run_id"], wait=True)
        answered = await langgraph.runs.wait("t1", "chat", checkpoint_id="2")
        assert texts(answered)[2:] == [("human", "Second."), ("ai", "three")]
        await langgraph.runs.cancel("t1", first["run_id"], action="rollback")
        kept = await langgraph.threads.get_state("t1")
        assert texts(cast("Any", kept["values"])) == texts(answered)
        again = await langgraph.runs.create("t1", "chat", checkpoint_id="2")
        await gates[1].reached()
        await langgraph.runs.cancel("t1", again["run_id"], action="rollback")
        left = await langgraph.threads.get_state("t1")
    assert texts(cast("Any", left["values"])) == [("human", "First."), ("ai", "one")]


AGENT = """
schema: 1
name: helper
nodes:
  answer: {kind: agent, tools: [words:tools], next: end}
"""
TOOLS = """
from langchain_core.tools import tool

@tool
def look(word: str) -> str:
    "Look a word up."
    return word

tools = [look]
"""


@pytest.mark.parametrize("assistant", ["chat", "helper"])
@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "failed"])
async def test_a_partial_answer_is_stored_under_the_id_of_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assistant: str, *, stops: bool
) -> None:
    """A page that has shown the pieces does not show the stored text a second time."""
    (tmp_path / "words.py").write_text(TOOLS)
    (tmp_path / "helper.yaml").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    gate, run_id = Gate(), ""
    model = ScriptedModel(repeat(["It is ", gate, ConnectionError("gone")]))
    pieces: list[dict[str, Any]] = []
    async with sdk(tmp_path, model, workflows=str(tmp_path / "helper.yaml")) as (langgraph, client):
        async with asyncio.timeout(HANG_SECONDS):
            async for part in langgraph.runs.stream(
                "t1", assistant, input=asks("Which?"), stream_mode="messages-tuple"
            ):
                if part.event == "metadata":
                    run_id = part.data["run_id"]
                if part.event == "messages":
                    pieces.append(part.data[0])
                    if stops:
                        await langgraph.runs.cancel("t1", run_id)
                    gate.open()
            stored = await history(client, "t1")
    assert said(stored)[1] == ("assistant", "It is ", "interrupted" if stops else "failed")
    assert stored[1]["id"] in {one["id"] for one in pieces}


@pytest.mark.parametrize("background", [False, True])
async def test_a_reloaded_page_joins_a_run_in_the_modes_of_its_request(tmp_path: Path, *, background: bool) -> None:
    """The pieces are sent again, as `useStream` expects it: it names no mode when it joins a run."""
    gate, run_id = Gate(), ""
    chosen: list[StreamMode] = ["values", "messages-tuple"]
    async with sdk(tmp_path, ScriptedModel([["It is ", gate, "teal."]])) as (langgraph, client):
        async with asyncio.timeout(HANG_SECONDS):
            if background:
                run_id = (await langgraph.runs.create("t1", "chat", input=asks("Which?"), stream_mode=chosen))["run_id"]
                await gate.reached()
            else:
                stream = langgraph.runs.stream("t1", "chat", input=asks("Which?"), stream_mode=chosen)
                async for part in stream:
                    run_id = part.data["run_id"] if part.event == "metadata" else run_id
                    if part.event == "messages":
                        break
                await closed(stream)
            state = await langgraph.threads.get_state("t1")
            gate.open()
            joined = await client.get(f"/threads/t1/runs/{run_id}/stream", headers={"Last-Event-ID": "-1"})
            after = await langgraph.threads.get_state("t1")
            both = await client.get("/threads/t1/stream", params={"stream_mode": ["run_modes", "updates"]})
    names = [line.removeprefix("event: ") for line in joined.text.splitlines() if line.startswith("event: ")]
    assert "messages" in names
    assert names[-2:] == ["values", "end"]
    assert all(f"event: {name}" in both.text for name in ("values", "messages", "updates"))
    assert (state["next"], after["next"]) == (["chat"], [])


async def test_a_run_that_ends_during_a_shutdown_streams_its_values(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        opened_app(ScriptedModel([["It is ", gate, "teal."]]), settings_for(tmp_path)) as app,
        served(app, shutdown_seconds=HANG_SECONDS) as (client, server),
        get_client(url=str(client.base_url), timeout=HANG_SECONDS) as langgraph,
        asyncio.timeout(HANG_SECONDS),
    ):
        parts = []
        async for part in langgraph.runs.stream("t1", "chat", input=asks("Which?"), stream_mode=["values", "messages"]):
            parts.append(part)
            if part.event == "messages/partial" and not server.should_exit:
                server.handle_exit(signal.SIGTERM, None)
                await until(lambda: not server.servers[0].is_serving())
                gate.open()
    assert "error" not in [part.event for part in parts]
    values = [part.data for part in parts if part.event == "values"]
    assert texts(values[-1]) == [("human", "Which?"), ("ai", "It is teal.")]


async def test_a_failed_run_is_reported(tmp_path: Path) -> None:
    """The stream has an `error` part, `wait` raises, and neither contains the text of the exception."""
    async with sdk(tmp_path, ScriptedModel([ConnectionError("secret words")] * 8)) as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            parts = [part async for part in langgraph.runs.stream("t1", "chat", input=asks("one"))]
            with pytest.raises(Exception, match="failed") as raised:
                await langgraph.runs.wait("t2", "chat", input=asks("two"))
    assert [part.event for part in parts if part.event in ("error", "end")] == ["error", "end"]
    assert "secret" not in f"{parts} {raised.value}"


async def test_the_first_question_is_answered_again_from_the_beginning(tmp_path: Path) -> None:
    """The checkpoint 0 is accepted in each field in which a client may name a checkpoint."""
    async with sdk(tmp_path, ScriptedModel(["a", "b", "c", "d"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        await langgraph.runs.wait("t1", "chat", input=asks("first"))
        beginning = (await langgraph.threads.get_state("t1"))["parent_checkpoint"]
        assert beginning is not None
        await langgraph.runs.wait("t1", "chat", checkpoint=beginning)
        again = await langgraph.threads.get_state("t1")
        for text, named in (("other", {"checkpoint": beginning}), ("third", {"checkpoint_id": "0"})):
            await langgraph.runs.wait("t1", "chat", input=asks(text), **named)
        edited = await langgraph.threads.get_state("t1")
    assert texts(again["values"]) == [("human", "first"), ("ai", "b")]
    assert texts(edited["values"]) == [("human", "third"), ("ai", "d")]


async def test_a_long_thread_continues_from_a_checkpoint_that_is_no_longer_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint before the newest messages, here 100, can be read and forked.

    The shown messages begin at a checkpoint.
    """
    monkeypatch.setattr("threadkeep.web.langgraph.states.MOST_MESSAGES", 100)
    turns = [asks(f"q{number}")["messages"] + [{"role": "assistant", "content": "a"}] for number in range(52)]
    async with sdk(tmp_path, ScriptedModel(["b"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        await langgraph.threads.update_state("t1", {"messages": [message for turn in turns for message in turn]})
        states = await langgraph.threads.get_history("t1", limit=1000)
        earlier = await langgraph.threads.get_history("t1", before=states[-1]["checkpoint"])
        old = await langgraph.threads.get_state("t1", checkpoint_id="2")
        edited = await langgraph.runs.wait("t1", "chat", input=asks("other"), checkpoint_id="2")
    assert len(texts(states[0]["values"])) == 100
    assert states[-1]["checkpoint"]["checkpoint_id"] == "4"
    assert [state["checkpoint"]["checkpoint_id"] for state in earlier] == ["2", "0"]
    assert (texts(old["values"]), old["checkpoint"]["checkpoint_id"]) == ([("human", "q0"), ("ai", "a")], "2")
    assert texts(edited) == [("human", "q0"), ("ai", "a"), ("human", "other"), ("ai", "b")]


async def test_a_checkpoint_of_another_server_is_refused(tmp_path: Path) -> None:
    """A checkpoint id that is not a seq is refused. If it were ignored, the run would continue at the end."""
    strange: Any = {"checkpoint_id": "1f0f7c1e-62a0-6d4e-8001-2b1f5d3c9a7b"}
    async with sdk(tmp_path, ScriptedModel(["one"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        await langgraph.runs.wait("t1", "chat", input=asks("first"))
        for named in ({"checkpoint": strange}, {"config": {"configurable": strange}}):
            with pytest.raises(UnprocessableEntityError, match="seq"):
                await langgraph.runs.create("t1", "chat", input=asks("other"), **named)
        with pytest.raises(UnprocessableEntityError, match="seq"):
            await langgraph.threads.get_history("t1", before=strange)
        assert len(texts((await langgraph.threads.get_state("t1"))["values"])) == 2


async def test_unsupported_options_are_refused(tmp_path: Path) -> None:
    """Unsupported options are refused and not ignored: a client would wait for a webhook that never comes."""
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        for extra in ({"webhook": "https://example.com"}, {"interrupt_before": ["a"]}, {"after_seconds": 5}):
            with pytest.raises(UnprocessableEntityError):
                await langgraph.runs.create("t1", "chat", input=asks("one"), **extra)
        with pytest.raises(UnprocessableEntityError):
            await langgraph.runs.create("t1", "chat", command={"goto": "a"})
        with pytest.raises(UnprocessableEntityError, match="metadata"):
            await langgraph.threads.get_history("t1", metadata={"source": "loop"})
        unknown: Any = ["values", "no-such-mode"]
        with pytest.raises(UnprocessableEntityError):
            await langgraph.runs.create("t1", "chat", input=asks("one"), stream_mode=unknown)
        with pytest.raises(UnprocessableEntityError):
            _ = [part async for part in langgraph.runs.join_stream("t1", "nobody", stream_mode=unknown)]
        with pytest.raises(NotFoundError):
            await langgraph.runs.get("t1", "nobody")


async def test_calls_that_are_not_offered_name_the_alternative(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, client), asyncio.timeout(HANG_SECONDS):
        for call, cure in (
            (langgraph.crons.search(), "scheduler"),
            (langgraph.crons.create("chat", schedule="* * * * *"), "scheduler"),
            (langgraph.crons.create_for_thread("t1", "chat", schedule="* * * * *"), "scheduler"),
            (langgraph.runs.create_batch([]), "each run by itself"),
            (langgraph.runs.cancel_many(status="all"), "each run by itself"),
            (langgraph.runs.delete("a/b", "r1"), "with their thread"),
            (langgraph.threads.count(), "/threads/search"),
            (langgraph.threads.prune(["t1"]), "DELETE /threads"),
            (langgraph.assistants.create("chat"), "workflows"),
            (langgraph.assistants.update("chat", name="x"), "workflows"),
            (langgraph.assistants.get_subgraphs("chat"), "workflows"),
            (langgraph.assistants.get_versions("chat"), "workflows"),
        ):
            with pytest.raises(APIStatusError, match=cure):
                await call
        openai = [
            await client.post("/v1/responses", json={"model": "chat", "input": "hi"}),
            await client.get("/v1/chat/completions/stored"),
            await client.delete("/v1/models/chat"),
        ]
        offered = await client.get("/v1/chat/completions")
    assert all("/v1/chat/completions" in one.json()["error"]["message"] for one in openai)
    assert "method" in offered.json()["error"]["message"]


async def test_a_run_without_a_thread_keeps_none(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["one"])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        with pytest.raises(UnprocessableEntityError, match="POST /threads"):
            await langgraph.runs.create(None, "chat", input=asks("x"), on_completion="keep")
        for behavior in ("delete", "complete", "continue", ""):  # "complete" and "continue": the JavaScript SDK
            run = await langgraph.runs.create(None, "chat", input=asks("x"), on_completion=cast("Any", behavior))
            assert run["thread_id"] is None


async def test_an_answer_that_names_another_assistant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel([]), workflows="asking=asking:graph") as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            await langgraph.runs.wait("t1", "asking", input=asks("go"))
            commands: list[Command] = [{"resume": "yes"}, {"goto": "__end__"}]
            for assistant, command in product(("chat", "nobody"), commands):
                with pytest.raises(UnprocessableEntityError, match="asking"):
                    await langgraph.runs.create("t1", assistant, command=command)
            state = await langgraph.threads.get_state("t1")
    assert state["next"] == ["asking"]


async def test_unsupported_options_without_a_value_are_accepted(tmp_path: Path) -> None:
    """Clients of other languages send them as null, empty or 0."""
    options: dict[str, Any] = {
        "webhook": "",
        "interrupt_before": [],
        "interrupt_after": None,
        "after_seconds": 0,
        "feedback_keys": None,
    }
    async with sdk(tmp_path, ScriptedModel(["a"])) as (_, client):
        body = {"assistant_id": "chat", "input": asks("one"), **options}
        answers = [
            await client.post("/threads/t1/runs/wait", json=body),
            await client.post("/threads/t1/history", json={"metadata": {}}),
            await client.post("/threads/search", json={"values": None, "extract": {}}),
            await client.post("/threads", json={"supersteps": [], "ttl": None}),
        ]
        refused = await client.post("/threads", json={"ttl": 0})
    assert [one.status_code for one in (*answers, refused)] == [200, 200, 200, 200, 422]


async def test_a_thread_is_edited_and_copied_and_its_earlier_states_are_read(tmp_path: Path) -> None:
    """`update_state` adds messages once without a run, a copy is independent, and each turn has a state."""
    async with sdk(tmp_path, ScriptedModel(["one", "two"])) as (langgraph, client), asyncio.timeout(HANG_SECONDS):
        await langgraph.runs.wait("t1", "chat", input=asks("first"))
        added = {
            "messages": [
                {"role": "user", "content": "By the way.", "id": "x"},
                {"role": "assistant", "content": "Noted.", "id": "y"},
            ]
        }
        for _ in range(2):
            await langgraph.threads.update_state("t1", added)
        before = await langgraph.threads.get_state("t1", checkpoint_id="2")
        chosen: Any = {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "2"}
        of_checkpoint = await langgraph.threads.get_history("t1", checkpoint=chosen)
        for none, options in (("1", {}), ("999", {}), ("9" * 15, {}), ("2", {"before": chosen})):
            unknown: Any = {**chosen, "checkpoint_id": none}
            assert await langgraph.threads.get_history("t1", checkpoint=unknown, **options) == []
        now = await langgraph.threads.get_state("t1")
        copied = (await client.post("/threads/t1/copy")).json()
        await langgraph.runs.wait(copied["thread_id"], "chat", input=asks("second"))
        after = await langgraph.threads.get_state("t1")
        with pytest.raises(UnprocessableEntityError):
            await langgraph.threads.update_state("t1", {"files": {"a.txt": "b"}})
    assert texts(before["values"]) == [("human", "first"), ("ai", "one")]
    assert of_checkpoint == [before]
    assert texts(now["values"])[2:] == [("human", "By the way."), ("ai", "Noted.")]
    assert after["values"] == now["values"]


async def test_assistants_are_workflows(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        found = await langgraph.assistants.search()
        assistant = await langgraph.assistants.get("chat")
        schemas = await langgraph.assistants.get_schemas("chat")
        graph = await langgraph.assistants.get_graph("chat")
        counted = await langgraph.assistants.count()
        with pytest.raises(NotFoundError):
            await langgraph.assistants.get("nobody")
    assert found[0] == assistant
    assert counted == len(found)
    assert schemas["input_schema"] is not None
    assert "messages" in schemas["input_schema"]["properties"]
    assert {node["id"] for node in graph["nodes"]} >= {"__start__", "__end__"}


async def test_the_store_has_items_but_no_histories(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel([]), database_url=f"sqlite:///{tmp_path}/a.db") as (langgraph, _):
        async with asyncio.timeout(HANG_SECONDS):
            store = langgraph.store
            await store.put_item(["users", "u1"], "theme", {"dark": True})
            item = await store.get_item(["users", "u1"], "theme")
            found = await store.search_items(["users"], filter={"dark": True})
            namespaces = await store.list_namespaces(prefix=["users"])
            await store.delete_item(["users", "u1"], "theme")
            with pytest.raises(NotFoundError):
                await store.get_item(["users", "u1"], "theme")
            for namespace in (["agent_chat_history"], ["agent_chat_history_ids", "x"], ["langgraph"], []):
                with pytest.raises(UnprocessableEntityError):
                    await store.put_item(namespace, "a", {})
    assert item is not None
    assert item["value"] == {"dark": True}
    assert [one["key"] for one in found["items"]] == ["theme"]
    assert namespaces["namespaces"] == [["users", "u1"]]


async def test_a_page_of_the_store_is_filled_although_histories_come_first(tmp_path: Path, shared_url: str) -> None:
    """Items of histories do not count in the limit or the offset, for items and for namespaces."""
    settings = settings_for(tmp_path, database_url=shared_url)
    async with opened_app(ScriptedModel([]), settings) as app, listening(app) as client:
        store, langgraph = await app.memory.graph_store(), get_client(url=str(client.base_url))
        async with asyncio.timeout(HANG_SECONDS), langgraph:
            for number in range(3):
                await store.aput(("users", f"u{number}"), "theme", {"dark": True})
            await store.abatch([PutOp(("agent_chat_history", f"c{number}"), "meta", {}) for number in range(1001)])
            pages = [await langgraph.store.search_items([], limit=2, offset=offset) for offset in (0, 2)]
            listed = [await langgraph.store.list_namespaces(limit=2, offset=offset) for offset in (0, 2)]
    found = [item["namespace"][1] for page in pages for item in page["items"]]
    assert sorted(found) == ["u0", "u1", "u2"]
    assert [one for page in listed for one in page["namespaces"]] == [["users", f"u{number}"] for number in range(3)]


async def test_a_remote_graph_is_a_graph(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["one", ["tw", "o"]])) as (langgraph, _):
        remote = RemoteGraph("chat", client=langgraph)
        config: Any = {"configurable": {"thread_id": "t1"}}
        async with asyncio.timeout(HANG_SECONDS):
            result = await remote.ainvoke({"messages": [("user", "first")]}, config)
            chunks = [
                chunk
                async for chunk in remote.astream({"messages": [("user", "second")]}, config, stream_mode="messages")
            ]
            state = await remote.aget_state(config)
    assert texts(result) == [("human", "first"), ("ai", "one")]
    assert "".join(part[0]["content"] for part in cast("list[Any]", chunks)) == "two"
    assert texts(state.values) == [*texts(result), ("human", "second"), ("ai", "two")]


async def test_another_users_runs_are_not_found(tmp_path: Path) -> None:
    async with opened_app(ScriptedModel(["one"]), settings_for(tmp_path)) as app, served(app) as (client, _):
        mine = await app.memory.api_keys.add("mine", scope="write", user_id="u1")
        await app.memory.api_keys.add("yours", scope="write", user_id="u2")
        other = await app.memory.api_keys.add("other", scope="write", user_id="u2")
        body = {"assistant_id": "chat", "input": asks("hello")}
        begun = await client.post("/threads/t1/runs/wait", json=body, headers=key(mine))
        run = begun.headers["content-location"]
        seen = [(await client.get(f"{run}{end}", headers=key(other))).status_code for end in ("", "/join", "/stream")]
        started = await client.post("/threads/t1/runs/wait", json=body, headers=key(other))
        store = await client.post("/store/items/search", json={}, headers=key(other))
        async with get_client(url=str(client.base_url), api_key=other.secret) as langgraph:
            drawn = await RemoteGraph("chat", client=langgraph).aget_graph()
    assert begun.status_code == 200
    assert seen == [404, 404, 404]
    assert started.status_code == 404
    assert store.status_code == 403
    assert "__start__" in drawn.nodes


async def closed(stream: AsyncIterator[Any]) -> None:
    """Close a stream of the SDK, as a client does that disconnects."""
    await cast("AsyncGenerator[Any]", stream).aclose()


def key(given: Any) -> dict[str, str]:
    """Return the header of an API key."""
    return {"X-API-Key": given.secret}
