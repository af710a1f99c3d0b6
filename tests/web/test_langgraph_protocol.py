"""Tests of the streaming protocol of LangGraph's server, with its Python SDK, against a listening service."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_core._api.beta_decorator import LangChainBetaWarning
from langchain_core.language_models.chat_model_stream import AsyncChatModelStream
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk._async.stream import AsyncThreadStream
from langgraph_sdk.client import LangGraphClient

from tests.limits import HANG_SECONDS
from tests.web.services import history, listening, opened_app, said, settings_for, until
from threadkeep.records.runs import Run, RunQuery
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.store.runs.rows import RunRecords
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.langgraph import thread_events
from threadkeep.web.langgraph.run_events import seq_base
from threadkeep.web.langgraph.thread_events import EventChoice, ThreadEvents

ASKING = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

graph = StateGraph(MessagesState)
graph.add_node("ask", lambda state: {"messages": [AIMessage(f"You said {interrupt('Ship it?')}.")]})
graph.add_edge(START, "ask")
"""

COUNTING = """
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from threadkeep.testing import ScriptedModel

def count(numbers):
    for number in numbers:
        get_stream_writer()(number)

async def answer(state):
    count([0, 1])
    reply = await ScriptedModel([["It ", "is ", "teal."]]).ainvoke(state["messages"])
    count([2, 3])
    return {"messages": [reply]}

graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_node("after", lambda state: count([4]))
graph.add_edge(START, "answer")
graph.add_edge("answer", "after")
"""

PAUSING = """
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

graph = StateGraph(MessagesState)
graph.add_node("before", lambda state: get_stream_writer()("before"))
graph.add_node("ask", lambda state: {"messages": [AIMessage(interrupt("Sure?"))]})
graph.add_node("after", lambda state: get_stream_writer()("after"))
graph.add_edge(START, "before")
graph.add_edge("before", "ask")
graph.add_edge("ask", "after")
"""

ASKED = """
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

@tool
def page(number: int) -> dict:
    "Return a page."
    return [{"data": {"rows": 1}}, {"type": "page", "data": {"rows": 2}, "next": 3}][number]

async def answer(state):
    for number in range(2):
        await page.ainvoke({"number": number})
    return {"messages": [AIMessage("Done.")]}

graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
"""

SHOP = """
schema: 1
name: shop
nodes:
  answer: {kind: agent, tools: ['tests.workflows.tools:find_order'], next: end}
"""

JUDGED = """
from langgraph.graph import START, MessagesState, StateGraph
from threadkeep.testing import ScriptedModel

async def answer(state):
    reply = await ScriptedModel(["It is teal."]).ainvoke(state["messages"])
    await ScriptedModel(["fine"]).ainvoke([reply], {"tags": ["nostream"]})
    return {"messages": [reply]}

graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
"""


@asynccontextmanager
async def sdk(
    folder: Path, model: ScriptedModel, **settings: object
) -> AsyncIterator[tuple[LangGraphClient, httpx2.AsyncClient]]:
    """Return a client of LangGraph's SDK and one of Threadkeep's API, of the same service."""
    async with opened_app(model, settings_for(folder, **settings)) as app, listening(app) as client:
        langgraph = get_client(url=str(client.base_url), timeout=HANG_SECONDS)
        try:
            yield langgraph, client
        finally:
            await langgraph.aclose()


def asks(text: str, **more: str) -> dict[str, Any]:
    """Return the input of a run with a user message."""
    return {"messages": [{"role": "user", "content": text, **more}]}


def texts(values: Any) -> list[tuple[str, str]]:
    """Return the type and text of each message."""
    return [(one["type"], one["content"]) for one in values["messages"]]


async def test_turns_of_a_thread_are_turns_of_a_session(tmp_path: Path) -> None:
    """Each output is the transcript so far, also for a second client of the thread, whose run is a new one."""
    async with sdk(tmp_path, ScriptedModel(["Noted.", "It is teal."])) as (langgraph, client):
        async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="chat") as stream:
            await stream.run.start(input=asks("I like teal.", id="m1"))
            first = await stream.output
        async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="chat") as stream:
            await stream.run.start(input=asks("Which colour?"))
            second = await stream.output
        state = await langgraph.threads.get_state("t1")
        stored = await history(client, "t1")
    assert texts(first) == [("human", "I like teal."), ("ai", "Noted.")]
    assert texts(second) == [*texts(first), ("human", "Which colour?"), ("ai", "It is teal.")]
    assert state["values"] == second
    assert (state["next"], state["tasks"]) == ([], [])
    assert stored[0]["id"] == "m1"
    assert [text for _, text, _ in said(stored)] == [text for _, text in texts(second)]


async def test_messages_come_in_pieces_and_are_assembled(tmp_path: Path) -> None:
    """The first piece is sent before the last is generated, and the SDK assembles the message."""
    gate = Gate()
    async with sdk(tmp_path, ScriptedModel([["It", gate, " is teal."]])) as (langgraph, _):
        thread = langgraph.threads.stream(assistant_id="chat")
        async with asyncio.timeout(HANG_SECONDS), thread as stream:
            await stream.run.start(input=asks("Which colour?"))
            spoken = asyncio.create_task(_spoken(stream))
            async for event in stream.events:
                if "delta" in event["params"]["data"]:
                    gate.open()
                    break
            (message,) = await spoken
            assert "".join([piece async for piece in message.text]) == "It is teal."
            assert (await message.output).text == "It is teal."
            assert texts(await stream.output)[-1] == ("ai", "It is teal.")


async def test_events_are_numbered_and_continue_after_a_number(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["one two three"])) as (_, client):
        body = {"channels": ["lifecycle", "messages", "values"]}
        command = {"id": 7, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("hi")}}
        started = await client.post("/threads/t1/commands", json=command)
        assert started.json()["type"] == "success"
        assert started.json()["id"] == 7
        everything = await _events(client, body)
        rest = await _events(client, {**body, "since": everything[3]["seq"]})

    numbers = [event["seq"] for event in everything]
    assert numbers == sorted(set(numbers))
    assert len({event["event_id"] for event in everything}) == len(everything)
    assert rest == everything[4:]
    assert everything[-1]["params"]["data"] == {"event": "completed", "graph_name": "chat"}


async def test_a_reader_that_changes_services_receives_the_end_of_its_run_once(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are in the database have the same `seq` in each service.

    A message that was read in part is sent again. Only the first service streams messages in pieces.
    """
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"database_url": shared_url, "workflows": "counting=counting:graph"}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **options) as (_, first),
        sdk(tmp_path / "b", ScriptedModel([]), **options) as (_, second),
        sdk(tmp_path / "c", ScriptedModel([]), **options) as (_, third),
        asyncio.timeout(HANG_SECONDS),
    ):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "counting", "input": asks("hi")}}
        begun = await first.post("/threads/t1/commands", json=command)
        body: dict[str, Any] = {"channels": ["lifecycle", "messages", "values", "custom"]}
        body["since"] = begun.json()["meta"]["applied_through_seq"]
        whole = await _events(first, body)
        begun_before = {**body, "since": next(event["seq"] for event in whole if event["method"] == "custom")}
        new_here = [event for event in await _events(third, begun_before) if event["method"] == "custom"]
        assert [event["params"]["data"]["payload"] for event in new_here] == [1, 2, 3, 4]
        for most in range(1, len(whole)):
            read = await _events(first, body, most=most)
            for service, count in ((second, most), (first, None)):
                if read[-1]["seq"] != whole[-1]["seq"]:
                    read += await _events(service, {**body, "since": read[-1]["seq"]}, most=count)
            numbers = [event["seq"] for event in read]
            assert numbers == sorted(set(numbers))
            assert [event["params"]["data"] for event in read[-2:]] == [event["params"]["data"] for event in whole[-2:]]
            assert numbers[-2:] == [event["seq"] for event in whole[-2:]]
            counted = [event["params"]["data"]["payload"] for event in read if event["method"] == "custom"]
            assert counted == [0, 1, 2, 3, 4]
            begun_here = await _events(first, body, most=most)
            rest = await _events(second, {**body, "since": begun_here[-1]["seq"]})
            assert _assembled([*begun_here, *rest]) == "It is teal."


@pytest.mark.parametrize("answer", ["cancel", "resume"])
async def test_a_reader_of_a_waiting_run_receives_its_end_from_another_service(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The other service reads the run only after its end, so its `seq` are not those of the first service."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"database_url": shared_url, "workflows": "asking=asking:graph"}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **options) as (_, first),
        sdk(tmp_path / "b", ScriptedModel([]), **options) as (_, second),
        asyncio.timeout(HANG_SECONDS),
    ):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "asking", "input": asks("go")}}
        begun = (await first.post("/threads/t1/commands", json=command)).json()
        body: dict[str, Any] = {"channels": ["lifecycle"], "since": begun["meta"]["applied_through_seq"]}
        paused = await _events(first, body, end="interrupted")
        address = f"/api/v1/runs/{begun['result']['run_id']}/{answer}"
        assert (await first.post(address, json={"value": "yes"} if answer == "resume" else None)).is_success
        end = "completed" if answer == "resume" else "failed"
        ends = [
            (await _events(service, {**body, "since": paused[-1]["seq"]}, end=end))[-1]
            for service in (second, first, second)
        ]
    assert {event["params"]["data"]["event"] for event in ends} == {end}
    assert len({event["seq"] for event in ends}) == 1


async def test_a_reader_of_a_resumed_run_that_changes_services_receives_no_earlier_event(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other service has not followed the run before."""
    (tmp_path / "pausing.py").write_text(PAUSING)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"database_url": shared_url, "workflows": "pausing=pausing:graph"}
    async with (
        sdk(tmp_path / "a", ScriptedModel([]), **options) as (_, first),
        sdk(tmp_path / "b", ScriptedModel([]), **options) as (_, second),
        asyncio.timeout(HANG_SECONDS),
    ):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "pausing", "input": asks("go")}}
        assert (await first.post("/threads/t1/commands", json=command)).json()["type"] == "success"
        body: dict[str, Any] = {"channels": ["lifecycle", "custom", "input"]}
        paused = await _events(first, body, end="interrupted")
        [asked] = [event["params"]["data"] for event in paused if event["method"] == "input.requested"]
        answer = {"interrupt_id": asked["interrupt_id"], "response": "yes"}
        command = {"id": 2, "method": "input.respond", "params": answer}
        assert (await first.post("/threads/t1/commands", json=command)).json()["type"] == "success"
        [resumed] = await _events(first, {**body, "since": paused[-1]["seq"]}, most=1)
        rest = await _events(second, {**body, "since": resumed["seq"]})
    assert [event["params"]["data"].get("payload") for event in rest] == ["after", None]


async def test_a_run_of_the_older_protocol_is_not_repeated(tmp_path: Path) -> None:
    """Its reader has its end. A reader of the thread waits for the next run, and does not take that end for its own."""
    async with (
        sdk(tmp_path, ScriptedModel(["Noted.", "It is teal."])) as (langgraph, client),
        asyncio.timeout(HANG_SECONDS),
    ):
        async for _ in langgraph.runs.stream("t1", "chat", input=asks("I like teal."), if_not_exists="create"):
            pass
        reading = asyncio.create_task(_events(client, {"channels": ["lifecycle", "values"]}))
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("Which colour?")}}
        await client.post("/threads/t1/commands", json=command)
        values = [event["params"]["data"] for event in await reading if event["method"] == "values"]
    assert texts(values[-1])[-1] == ("ai", "It is teal.")


async def test_the_events_of_a_message_are_those_of_langgraph(tmp_path: Path) -> None:
    """The events have the order and the fields of `astream_events(version="v3")` for the same answer."""
    pieces = ["It", " is", " teal."]

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await ScriptedModel([pieces]).ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    graph = builder.add_edge(START, "answer").compile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        stream = await graph.astream_events(asks("Which colour?"), version="v3")  # type: ignore[call-overload]
        own = [event["params"]["data"][0] async for event in stream if event["method"] == "messages"]
    async with sdk(tmp_path, ScriptedModel([pieces])) as (_, client):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("Which colour?")}}
        await client.post("/threads/t1/commands", json=command)
        found = await _events(client, {"channels": ["lifecycle", "messages"]})
    ours = [event["params"]["data"] for event in found if event["method"] == "messages"]
    assert _shape(ours) == _shape(own)
    assert {event["params"]["namespace"] == [] for event in found} == {True}


def _shape(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of one message with its deltas joined, without ids and metadata."""
    found: list[dict[str, Any]] = []
    for event in events:
        named = {name: value for name, value in event.items() if name not in ("id", "metadata")}
        if found and "delta" in named and "delta" in found[-1]:
            text = found[-1]["delta"]["text"] + named["delta"]["text"]
            named["delta"] = {**named["delta"], "text": text}
            found.pop()
        found.append(named)
    return found


async def test_a_message_has_the_usage_of_its_own_model_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usage is not that of another model that is called before the message is complete."""
    (tmp_path / "judged.py").write_text(JUDGED)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel([]), workflows="judged=judged:graph") as (_, client):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "judged", "input": asks("Which?")}}
        await client.post("/threads/t1/commands", json=command)
        found = await _events(client, {"channels": ["lifecycle", "messages"]})
    [usage] = [each["params"]["data"]["usage"] for each in found if "usage" in each["params"]["data"]]
    assert usage == {"input_tokens": 1, "output_tokens": 3, "total_tokens": 4}


async def test_a_message_that_its_first_chunk_alone_names_is_streamed_once(tmp_path: Path) -> None:
    """Some providers set the id in the first chunk only. LangChain gives the other chunks the id of the call."""
    async with sdk(tmp_path, ScriptedModel([[AIMessage("", id="msg_1"), "It is", " teal."]])) as (_, client):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("Which?")}}
        await client.post("/threads/t1/commands", json=command)
        found = [each["params"]["data"] for each in await _events(client, {"channels": ["lifecycle", "messages"]})]
    assert [each["id"] for each in found if each["event"] == "message-start"] == ["msg_1"]
    assert "".join(each["delta"]["text"] for each in found if "delta" in each) == "It is teal."
    assert [each["usage"]["output_tokens"] for each in found if each["event"] == "message-finish"] == [3]


async def test_the_events_of_a_tool_have_the_id_of_its_call(tmp_path: Path) -> None:
    """Clients find the call of an assistant message by this id, and read the text of the tool's message."""
    (tmp_path / "shop.yaml").write_text(SHOP)
    calls = [{"name": "find_order", "args": {"number": number}, "id": f"call-{number}"} for number in ("1", "2")]
    model = ScriptedModel([AIMessage("", tool_calls=calls), "Done."])
    async with (
        sdk(tmp_path, model, workflows=str(tmp_path / "shop.yaml")) as (_, client),
        asyncio.timeout(HANG_SECONDS),
    ):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "shop", "input": asks("Find 1 and 2.")}}
        assert (await client.post("/threads/t1/commands", json=command)).json()["type"] == "success"
        events = await _events(client, {"channels": ["tools", "lifecycle"]})
    found = [event["params"]["data"] for event in events if event["method"] == "tools"]
    started = {one["tool_call_id"]: one["input"] for one in found if one["event"] == "tool-started"}
    assert started == {"call-1": {"number": "1"}, "call-2": {"number": "2"}}
    for one in (one for one in found if one["event"] == "tool-finished"):
        assert (one["output"]["type"], one["output"]["tool_call_id"]) == ("tool", one["tool_call_id"])
        assert started.pop(one["tool_call_id"])["number"] in one["output"]["content"]
    assert started == {}


async def test_the_result_of_a_tool_that_a_node_calls_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects with the key `data` are not taken for messages."""
    (tmp_path / "asked.py").write_text(ASKED)
    monkeypatch.syspath_prepend(tmp_path)
    async with (
        sdk(tmp_path, ScriptedModel([]), workflows="asked=asked:graph") as (_, client),
        asyncio.timeout(HANG_SECONDS),
    ):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "asked", "input": asks("go")}}
        assert (await client.post("/threads/t1/commands", json=command)).json()["type"] == "success"
        events = await _events(client, {"channels": ["tools", "lifecycle"]})
    results = [event["params"]["data"]["output"] for event in events if "output" in event["params"]["data"]]
    assert results == [{"data": {"rows": 1}}, {"type": "page", "data": {"rows": 2}, "next": 3}]


async def test_messages_one_after_the_other_have_the_name_of_their_node(tmp_path: Path) -> None:
    """Only messages that stream at the same time need other names."""
    async with sdk(tmp_path, ScriptedModel([]), workflows="in-turn=tests.web.at_once:in_turn") as (_, client):
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "in-turn", "input": asks("hi")}}
        await client.post("/threads/t1/commands", json=command)
        found = await _events(client, {"channels": ["lifecycle", "messages"]})
    spoken = [event["params"] for event in found if event["method"] == "messages"]
    assert {params["data"]["id"] for params in spoken} == {"first", "second"}
    assert {params["node"] for params in spoken} == {"answer"}


async def test_messages_that_stream_at_once_are_assembled_each_by_its_id(tmp_path: Path) -> None:
    """The SDK and a v1 stream assemble simultaneous messages by id. Each has its own node name."""
    async with sdk(tmp_path, ScriptedModel([]), workflows="twice=tests.web.at_once:graph") as (langgraph, client):
        thread = langgraph.threads.stream(assistant_id="twice")
        async with asyncio.timeout(HANG_SECONDS), thread as stream:
            speaking = asyncio.create_task(_spoken(stream))
            await stream.run.start(input=asks("hi"))
            await stream.output
            assert sorted([await one.text for one in await speaking]) == ["one three", "two four"]
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "twice", "input": asks("hi")}}
        await client.post("/threads/t1/commands", json=command)
        found = await _events(client, {"channels": ["lifecycle", "messages"]})
        v1 = [
            part async for part in langgraph.runs.stream("t2", "twice", input=asks("hi"), stream_mode="messages-tuple")
        ]
    nodes: dict[str, set[str]] = {}
    for event in found:
        if event["method"] == "messages":
            nodes.setdefault(event["params"]["data"]["id"], set()).add(event["params"]["node"])
    assert sorted(map(len, nodes.values())) == [1, 1]
    assert len(set.union(*nodes.values())) == 2
    said: dict[str, str] = {}
    for part in v1:
        if part.event == "messages":
            said[part.data[0]["id"]] = said.get(part.data[0]["id"], "") + part.data[0]["content"]
    assert sorted(said.values()) == ["one three", "two four"]


async def test_a_run_that_fails_fails_the_output(tmp_path: Path) -> None:
    """The error does not contain the provider's text."""
    async with sdk(tmp_path, ScriptedModel([ValueError("secret of the provider")])) as (langgraph, _):
        thread = langgraph.threads.stream(assistant_id="chat")
        async with asyncio.timeout(HANG_SECONDS), thread as stream:
            await stream.run.start(input=asks("hi"))
            with pytest.raises(RuntimeError, match="Run errored") as failed:
                await stream.output
    assert "secret" not in str(failed.value)


async def test_a_question_of_a_run_is_answered_by_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with sdk(tmp_path, ScriptedModel([]), workflows="asking=asking:graph") as (langgraph, _):
        thread = langgraph.threads.stream("t1", assistant_id="asking")
        async with asyncio.timeout(HANG_SECONDS), thread as stream:
            await stream.run.start(input=asks("go"))
            await until(lambda: stream.interrupted)
            state = await langgraph.threads.get_state("t1")
            await stream.run.respond("yes")
            values = await stream.output
    assert state["next"] == ["asking"]
    assert [one["value"] for one in state["tasks"][0]["interrupts"]] == ["Ship it?"]
    assert texts(values) == [("human", "go"), ("ai", "You said yes.")]


async def test_a_run_beside_a_waiting_one_reaches_its_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that was asked, and a new client, receive the answer to a message that is no answer to the question.

    A reader of the thread also receives the rest of the waiting run, after a person has answered it. A late reader
    receives no values from before the later runs.
    """
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    model = ScriptedModel(["It is teal.", "It is red."])
    async with sdk(tmp_path, model, workflows="asking=asking:graph") as (langgraph, client):
        async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="asking") as stream:
            await stream.run.start(input=asks("go"))
            await until(lambda: stream.interrupted)
            reading = asyncio.create_task(_events(client, {"channels": ["lifecycle", "values"]}, count=3))
            stream.assistant_id = "chat"
            await stream.run.start(input=asks("Which colour?"))
            first = await stream.output
        async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="chat") as stream:
            await stream.run.start(input=asks("Really?"))
            second = await stream.output
        async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="asking") as stream:
            await until(lambda: stream.interrupted)
            opened = asyncio.Event()
            late = asyncio.create_task(_events(client, {"channels": ["lifecycle", "values"]}, opened=opened))
            await opened.wait()
            await stream.run.respond("yes")
            third = await stream.output
        async with asyncio.timeout(HANG_SECONDS):
            read = [event["params"]["data"] for event in await reading]
            seen = [event["params"]["data"] for event in await late if event["method"] == "values"]
    assert texts(first)[-1] == ("ai", "It is teal.")
    assert texts(second)[-1] == ("ai", "It is red.")
    assert texts(third)[-1] == ("ai", "You said yes.")
    assert seen[-1] == third
    assert all(texts(second) == texts(values)[: len(texts(second))] for values in seen)
    assert [(each["graph_name"], each["event"]) for each in read if "graph_name" in each] == [
        ("asking", "running"),
        ("asking", "interrupted"),
        ("chat", "running"),
        ("chat", "completed"),
        ("chat", "running"),
        ("chat", "completed"),
        ("asking", "running"),
        ("asking", "completed"),
    ]


async def test_a_client_whose_run_is_queued_receives_its_own_message(tmp_path: Path) -> None:
    """Neither the run before it nor an ended run, whose messages nobody has read, is sent to its reader."""
    gate = Gate()
    model = ScriptedModel(["Noted.", ["It", gate, " is teal."], "It is red."])
    async with sdk(tmp_path, model) as (langgraph, _), asyncio.timeout(HANG_SECONDS):
        await _turn(langgraph, input=asks("I like teal."))
        async with langgraph.threads.stream("t1", assistant_id="chat") as one:
            await one.run.start(input=asks("Which colour?"))
            async for event in one.events:
                if "delta" in event["params"]["data"]:
                    break
            async with langgraph.threads.stream("t1", assistant_id="chat") as two:
                await two.run.start(input=asks("Really?"))
                spoken = asyncio.create_task(_spoken(two))
                gate.open()
                assert [await message.text for message in await spoken] == ["It is red."]


@pytest.mark.parametrize("since", [False, True])
async def test_each_reader_begins_with_the_run_of_its_command(tmp_path: Path, *, since: bool) -> None:
    """Without `since`, the readers of the same channels get the started runs in order."""
    gate, reading, read = Gate(), [], list[list[dict[str, Any]]]()
    async with sdk(tmp_path, ScriptedModel([[gate, "It is teal."], "It is red."])) as (_, client):
        told = []
        for text in ("Which colour?", "Really?"):
            command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks(text)}}
            told.append((await client.post("/threads/t1/commands", json=command)).json())
        for one in told:
            body: dict[str, Any] = {"channels": ["lifecycle", "messages"], "since": one["meta"]["applied_through_seq"]}
            if not since:
                del body["since"]
            opened = asyncio.Event()
            reading.append(asyncio.create_task(_events(client, body, opened=opened)))
            await opened.wait()
        gate.open()
        async with asyncio.timeout(HANG_SECONDS):
            read = [[event["params"]["data"] for event in await one] for one in reading]
    assert ["".join(each["delta"]["text"] for each in one if "delta" in each) for one in read] == [
        "It is teal.",
        "It is red.",
    ]


async def test_an_idle_reader_reads_the_runs_of_its_thread_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll reads only their states, by indexes. Otherwise a hundred open pages would keep a core busy."""
    polls, lists = list[str](), list[str | None]()
    polled, listed = RunRecords.of_sessions, RunService.list

    async def count_polls(self: RunRecords, session_ids: list[str], *, user_id: str | None = None) -> Any:
        polls.extend(session_ids)
        return await polled(self, session_ids, user_id=user_id)

    async def count_lists(self: RunService, query: RunQuery) -> Any:
        lists.append(query.session_id)
        return await listed(self, query)

    async with sdk(tmp_path, ScriptedModel(["It is teal.", "It is red."])) as (langgraph, client):
        await langgraph.runs.wait("t1", "chat", input=asks("Which colour?"))
        monkeypatch.setattr(RunRecords, "of_sessions", count_polls)
        async with client.stream("POST", "/threads/t1/stream/events", json={"channels": ["lifecycle"]}) as response:
            monkeypatch.setattr(RunService, "list", count_lists)
            await until(lambda: len(polls) > 3)
            assert lists in ([], ["t1"])
            command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("Really?")}}
            await client.post("/threads/t1/commands", json=command)
            async for line in response.aiter_lines():
                if "completed" in line:
                    break


@asynccontextmanager
async def asking_app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ThreadEvents, RunService]]:
    """Open an app whose workflow `asking` asks a person; its chat answers once."""
    (folder / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(folder)
    async with (
        opened_app(ScriptedModel(["Noted."]), settings_for(folder, workflows="asking=asking:graph")) as app,
        asyncio.timeout(HANG_SECONDS),
    ):
        yield ThreadEvents(app), await app.runs.service()


async def test_a_client_that_left_receives_its_run_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client left before it had all events, or while the run waited for a person, whom it then answered.

    A client that continues after an earlier run receives the question again.
    """
    async with asking_app(tmp_path, monkeypatch) as (events, runs):

        async def read(end: str, since: int | None = None) -> list[str]:
            """Return the events of a client that leaves after `end`."""
            choice, found = EventChoice(frozenset(["lifecycle", "values"]), since, at_root=True), list[str]()
            reader = events.of_thread("t1", choice, user_id=None)
            async with aclosing(reader) as stream:
                async for event in stream:
                    found.append(str(event["params"]["data"].get("event")))
                    if found[-1] == end:
                        break
            return found

        async def run(workflow: str, text: str) -> Run:
            submitted = await runs.submit(RunRequest(workflow=workflow, text=text, session_id="t1"))
            events.follow_run(runs, await runs.run(submitted.run_id)).commanded = True
            return (await runs.result(submitted.run_id)).run

        first = await run("chat", "I like teal.")
        assert await read("running") == ["running"]
        assert (await read("completed"))[0] == "running"
        asking = await run("asking", "go")
        assert (await read("interrupted"))[0] == "running"
        assert (await read("interrupted", seq_base(first)))[-2:] == ["None", "interrupted"]
        await runs.resume(asking.run_id, "yes")
        events.follow_run(runs, await runs.run(asking.run_id)).commanded = True
        await runs.result(asking.run_id)
        assert (await read("completed"))[-1] == "completed"


async def test_an_idle_reader_receives_the_runs_that_end_between_two_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command started them. A run that had ended before the reader began is not sent."""
    idle, polling = asyncio.Event(), asyncio.Event()

    async def wait_for_poll(started: asyncio.Event, seconds: float) -> bool:
        idle.set()
        return await polling.wait()

    monkeypatch.setattr(thread_events, "changed", wait_for_poll)
    model = ScriptedModel(["Noted.", "It is teal.", "It is red."])
    async with opened_app(model, settings_for(tmp_path)) as app, asyncio.timeout(HANG_SECONDS):
        runs, read = await app.runs.service(), list[str]()

        async def answer(text: str) -> None:
            submitted = await runs.submit(RunRequest(workflow="chat", text=text, session_id="t1"))
            await runs.result(submitted.run_id)

        async def read_two() -> None:
            choice = EventChoice(frozenset(["messages"]), None, at_root=True)
            async with aclosing(ThreadEvents(app).of_thread("t1", choice, user_id=None)) as reader:
                while len(read) < 2:
                    data = (await anext(reader))["params"]["data"]
                    read.extend([data["content"]["text"]] if data["event"] == "content-block-finish" else [])

        await answer("I like teal.")
        reading = asyncio.create_task(read_two())
        await idle.wait()
        await answer("Which colour?")
        await answer("Really?")
        polling.set()
        await reading
    assert read == ["It is teal.", "It is red."]


async def test_a_reader_that_continues_after_a_later_run_receives_the_rest_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events up to the question are not repeated, and neither are those of the later run."""
    async with asking_app(tmp_path, monkeypatch) as (events, runs):

        async def read(since: int | None, end: tuple[str, str]) -> tuple[list[tuple[str, str]], list[int]]:
            """Return the events and their `seq`, from the first one after `since` up to `end`."""
            choice, found, numbers = EventChoice(frozenset(["lifecycle"]), since, at_root=True), [], list[int]()
            async with aclosing(events.of_thread("t1", choice, user_id=None)) as reader:
                while end not in found:
                    event = await anext(reader)
                    found.append((event["params"]["data"]["graph_name"], event["params"]["data"]["event"]))
                    numbers.append(event["seq"])
            return found, numbers

        asked = await runs.submit(RunRequest(workflow="asking", text="go", session_id="t1"))
        await runs.result(asked.run_id)
        _, numbers = await read(None, ("asking", "interrupted"))
        later = await runs.submit(RunRequest(workflow="chat", text="hi", session_id="t1"))
        await runs.result(later.run_id)
        _, more = await read(numbers[-1], ("chat", "completed"))
        await runs.resume(asked.run_id, "yes")
        await runs.result(asked.run_id)
        events.follow_run(runs, await runs.run(asked.run_id))
        rest, last = await read(more[-1], ("asking", "completed"))
    assert rest == [("asking", "running"), ("asking", "completed")]
    assert [*numbers, *more, *last] == sorted({*numbers, *more, *last})


async def test_a_run_that_nobody_has_read_is_sent_before_that_of_another_channel(tmp_path: Path) -> None:
    """Otherwise the client of the ended run would take the other answer for its own."""
    gate, said_texts = Gate(), list[str]()
    model = ScriptedModel(["It is teal.", [gate, "It is red."]])
    async with opened_app(model, settings_for(tmp_path)) as app, asyncio.timeout(HANG_SECONDS):
        events, runs = ThreadEvents(app), await app.runs.service()
        run_id = (await runs.submit(RunRequest(workflow="chat", text="Which?", session_id="t1"))).run_id
        events.follow_run(runs, await runs.run(run_id)).commanded = True
        await runs.result(run_id)
        await runs.submit(RunRequest(workflow="chat", text="Really?", session_id="t1"))
        choice = EventChoice(frozenset(["lifecycle", "messages"]), None, at_root=True)
        reader = events.of_thread("t1", choice, user_id=None)
        await anext(reader)
        gate.open()
        while len(said_texts) < 2:
            data = (await anext(reader))["params"]["data"]
            said_texts += [data["delta"]["text"]] if "delta" in data else []
    assert said_texts == ["It is teal.", "It is red."]


async def test_a_resumed_run_sends_only_values_with_later_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that begins after a later run receives no older values, and the new ones also if it reads slowly."""
    choice = EventChoice(frozenset(["lifecycle", "values"]), None, at_root=True)
    async with asking_app(tmp_path, monkeypatch) as (events, runs):
        asked = await runs.submit(RunRequest(workflow="asking", text="go", session_id="t1"))
        await runs.result(asked.run_id)
        known = events.follow_run(runs, await runs.run(asked.run_id))
        assert [one async for one in known.events_from(0)]
        await runs.result((await runs.submit(RunRequest(workflow="chat", text="hi", session_id="t1"))).run_id)
        slow = events.of_thread("t1", choice, user_id=None)
        assert (await anext(slow))["params"]["data"]["event"] == "running"
        await runs.resume(asked.run_id, "yes")
        events.follow_run(runs, await runs.run(asked.run_id)).commanded = True
        for reader in (slow, events.of_thread("t1", choice, user_id=None)):
            seen = []
            async for event in reader:
                if event["method"] == "values":
                    seen.append([text for _, text in texts(event["params"]["data"])])
                elif event["params"]["data"]["event"] == "completed":
                    break
            assert seen[-1] == ["go", "hi", "Noted.", "You said yes."]
            assert all("Noted." in values for values in seen)


async def test_a_turn_is_answered_again_from_the_checkpoint_before_it(tmp_path: Path) -> None:
    """Without input the message is answered again, with input it is replaced. The later turns are superseded."""
    async with sdk(tmp_path, ScriptedModel(["a", "b", "c", "d"])) as (langgraph, client):
        for text in ("first", "second"):
            await _turn(langgraph, input=asks(text))
        states = await langgraph.threads.get_history("t1")
        assert states[0]["parent_checkpoint"] is not None
        before = {"configurable": {"checkpoint_id": states[0]["parent_checkpoint"]["checkpoint_id"]}}
        again = await _turn(langgraph, config=before)
        edited = await _turn(langgraph, input=asks("other"), config=before)
        everything = await history(client, "t1", view="history")
    assert [texts(state["values"])[-1:] for state in states] == [[("ai", "b")], [("ai", "a")], []]
    assert [state["parent_checkpoint"] for state in states][1:] == [states[2]["checkpoint"], None]
    assert texts(again) == [("human", "first"), ("ai", "a"), ("human", "second"), ("ai", "c")]
    assert texts(edited) == [("human", "first"), ("ai", "a"), ("human", "other"), ("ai", "d")]
    assert [one["content"] for one in everything] == ["first", "a", "second", "b", "c", "other", "d"]


async def test_threads_are_listed_with_their_first_and_newest_message(tmp_path: Path) -> None:
    """Threads are also listed by workflow. A created thread has no state yet, and a deleted one is not listed."""
    async with sdk(tmp_path, ScriptedModel(["a", "b"])) as (langgraph, _):
        created = await langgraph.threads.create(metadata={"page": "/"})
        await _turn(langgraph, input=asks("first"))
        await _turn(langgraph, input=asks("second"))
        found = await langgraph.threads.search(metadata={"graph_id": "chat"}, limit=100)
        others = await langgraph.threads.search(metadata={"graph_id": "research"})
        assistants = await langgraph.assistants.search()
        await langgraph.threads.delete("t1")
        left = await langgraph.threads.search()
        assert (await langgraph.threads.get_history(created["thread_id"])) == []
    assert [one["thread_id"] for one in found] == ["t1"]
    assert found[0]["metadata"] is not None
    assert texts(found[0]["values"]) == [("human", "first"), ("ai", "b")]
    assert (found[0]["status"], found[0]["metadata"]["title"]) == ("idle", "first")
    assert (others, left) == ([], [])
    assert [one["assistant_id"] for one in assistants] == ["chat"]


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("run.start", {"input": asks("hi")}, "assistant_id"),
        ("run.start", {"assistant_id": "nope", "input": asks("hi")}, "available"),
        ("run.start", {"assistant_id": "chat", "input": {"messages": [{"colour": "teal"}]}}, "role"),
        ("run.start", {"assistant_id": "chat"}, "pass it in"),
        ("input.respond", {"interrupt_id": "i", "response": 1}, "does not exist"),
        ("state.listCheckpoints", {"limit": -1}, "limit must be"),
        ("state.fork", {}, "run.start"),
    ],
)
async def test_a_bad_command_is_an_error_with_a_cure(
    client: httpx2.AsyncClient, method: str, params: dict[str, Any], says: str
) -> None:
    """The response keeps the protocol's envelope."""
    response = await client.post("/threads/t1/commands", json={"id": 1, "method": method, "params": params})
    told = response.json()
    assert response.status_code == 200
    assert (told["type"], told["id"]) == ("error", 1)
    assert says in told["message"]
    assert "teal" not in told["message"]


async def _spoken(stream: AsyncThreadStream) -> list[AsyncChatModelStream]:
    return [message async for message in stream.messages]


async def _turn(langgraph: LangGraphClient, **given: Any) -> Any:
    async with asyncio.timeout(HANG_SECONDS), langgraph.threads.stream("t1", assistant_id="chat") as stream:
        await stream.run.start(**given)
        return await stream.output


def _assembled(events: list[dict[str, Any]]) -> str:
    """Return the text of the only message, which each `message-start` begins again."""
    text = ""
    for event in events:
        data = event["params"]["data"]
        if event["method"] == "messages" and data["event"] == "message-start":
            text = ""
        elif event["method"] == "messages" and data["event"] == "content-block-delta":
            text += data["delta"]["text"]
    return text


async def _events(
    client: httpx2.AsyncClient,
    body: dict[str, Any],
    end: str = "completed",
    count: int = 1,
    opened: asyncio.Event | None = None,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """Return the events of a thread up to `count` lifecycle events named `end`; set `opened` after the first event.

    Return at most `most` events.
    """
    found: list[dict[str, Any]] = []
    async with client.stream("POST", "/threads/t1/stream/events", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if opened is not None:
                    opened.set()
                count -= found[-1]["method"] == "lifecycle" and found[-1]["params"]["data"]["event"] == end
                if count == 0 or len(found) == most:
                    break
    return found
