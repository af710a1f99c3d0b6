"""Tests of streams of an agent with `SessionMemory`: all of the run and nothing of the history."""

from __future__ import annotations

from collections.abc import Generator
from contextvars import copy_context
from typing import cast

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.types import StreamMode

from tests.agent.talking import ROOM, add, adding, config_of, input_of, kept, make_agent, tokens
from threadkeep import Memory, Message, SessionMemory, open_memory_sync
from threadkeep.agent import root_runs
from threadkeep.testing import ScriptedModel

CANARY = "canary-7f3a"
MODES: tuple[StreamMode, ...] = ("updates", "values", "tasks", "debug", "messages", "custom", "checkpoints")


@tool
def look(at: str) -> str:
    """Look at a thing, and tell of it on the way."""
    get_stream_writer()({"looking": at})
    return f"{at} is green"


async def remember(memory: Memory) -> None:
    """Append messages with a text that no stream may contain."""
    await memory.session(ROOM).append(
        [Message(role="user", content=f"my word is {CANARY}"), Message(role="assistant", content=f"noted: {CANARY}")]
    )


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_no_stream_has_history(small_memory: Memory, version: str, checkpointed: bool) -> None:
    await remember(small_memory)
    looking = adding().model_copy(update={"tool_calls": [{"name": "look", "args": {"at": "it"}, "id": "call-1"}]})
    model = ScriptedModel([looking, "it is green"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory)], [look], checkpointer=saver, system_prompt="be kind")
    modes = [mode for mode in MODES if checkpointed or mode != "checkpoints"]
    streamed: list[object] = []
    if version == "v1":
        streamed += [event async for event in agent.astream(input_of("look at it"), config_of(), stream_mode=modes)]
    else:
        parts = agent.astream(input_of("look at it"), config_of(), stream_mode=modes, version="v2")
        streamed += [part async for part in parts]
    assert all(any(CANARY in message.text for message in call) for call in model.calls)
    shown = repr(streamed)
    assert CANARY not in shown
    assert "be kind" not in shown
    assert all(words in shown for words in ("look at it", "is green", "looking"))


async def test_state_and_checkpoints_have_no_history(small_memory: Memory) -> None:
    await remember(small_memory)
    agent = make_agent(
        ScriptedModel([adding(), "3"]), [SessionMemory(small_memory)], [add], checkpointer=InMemorySaver()
    )
    await agent.ainvoke(input_of("1 + 2?"), config_of())
    snapshots = [snapshot async for snapshot in agent.aget_state_history(config_of())]
    assert len(snapshots) > 3
    assert CANARY not in repr(snapshots)
    assert len(snapshots[0].values["messages"]) == 4


async def test_tokens_are_streamed_as_the_model_emits_them(memory: Memory) -> None:
    await remember(memory)
    agent = make_agent(ScriptedModel(["one two three"]), [SessionMemory(memory)])
    assert [piece async for piece in tokens(agent, "count")] == ["one", " two", " three"]
    assert (await kept(memory))[-2:] == [("user", "count"), ("assistant", "one two three")]


async def test_events_have_the_tags_and_metadata_of_the_run(small_memory: Memory) -> None:
    model = ScriptedModel(["fine"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    config = config_of()
    config["tags"] = ["blue"]
    events = [event async for event in agent.astream_events(input_of("hi"), config, version="v2")]
    started = [event for event in events if event["event"] == "on_chat_model_start"]
    assert [event["tags"] for event in started if "blue" in event["tags"]]
    assert started[0]["metadata"]["langgraph_node"] == "model"
    streamed = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]
    assert streamed[0] == "fine"


@pytest.mark.parametrize("parts", [2, 3, 9])
def test_a_stream_may_be_read_and_closed_in_other_contexts(sqlite_url: str, parts: int) -> None:
    """Starlette reads a synchronous generator in this way. A stream that is closed early delays no later turn."""
    with open_memory_sync(sqlite_url) as memory:
        middleware = SessionMemory(memory)
        agent = make_agent(ScriptedModel([adding(), "3", "fine"]), [middleware], [add])
        stream = agent.stream(input_of("1 + 2?"), config_of(), stream_mode="values")
        for _ in range(parts):
            copy_context().run(next, stream, None)
        copy_context().run(cast("Generator[object]", stream).close)
        assert middleware.open_runs == 0
        [*runs] = root_runs._root_runs.get(memory.asynchronous.identity, ())  # noqa: SLF001 - not public
        assert runs == []
        agent.invoke(input_of("And now?"), config_of())
        assert [one.role for one in memory.session(ROOM).tail(9)][-2:] == ["user", "assistant"]
