"""Tests of the session of the OpenAI Agents SDK, which the SDK itself runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, SessionSettings, function_tool
from agents.memory import Session
from agents.testing import ScriptedModel
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

from threadkeep import Memory, Message, WrongUser, open_memory_sync
from threadkeep.adapters.openai_agents import AgentsSession

ROOM = "room:1"
QUIET = RunConfig(tracing_disabled=True)
REASONING: Any = {"id": "rs_1", "summary": [{"text": "hm", "type": "summary_text"}], "type": "reasoning"}
CALL: Any = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "cold"}


def said(text: str) -> ResponseOutputMessage:
    """Return an answer as the API returns it."""
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")


@function_tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"cold in {city}"


async def test_an_agent_remembers_and_every_kind_of_item_survives(memory: Memory) -> None:
    """A second run gets the items of the first, with tool calls, results and reasoning."""
    session = AgentsSession(memory, ROOM, user_id="ann")
    assert isinstance(session, Session)
    call = ResponseFunctionToolCall(call_id="c1", name="weather", arguments='{"city":"Oslo"}', type="function_call")
    thought = ResponseReasoningItem(id="rs_1", summary=[], type="reasoning")
    model = ScriptedModel()
    model.enqueue([thought, call])
    model.enqueue([said("It is cold.")])
    agent = Agent(name="guide", model=model, tools=[weather])
    await Runner.run(agent, "Weather in Oslo?", session=session, run_config=QUIET)

    items: list[Any] = await session.get_items()
    assert [item.get("type", item.get("role")) for item in items] == [
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert items[3]["output"] == "cold in Oslo"
    window = await memory.session(ROOM, user_id="ann").window()
    assert [message.content for message in window.messages] == ["Weather in Oslo?", "It is cold."]

    model.enqueue([said("Oslo.")])
    result = await Runner.run(agent, "Which city?", session=session, run_config=QUIET)
    assert len(result.to_input_list()) == 7


async def test_the_newest_items_are_returned_and_taken_back(memory: Memory) -> None:
    """`pop_item` takes the newest item back; the history keeps it."""
    session = AgentsSession(memory, ROOM, session_settings=SessionSettings(limit=3))
    await session.add_items([{"role": "user", "content": "a"}, REASONING, CALL, RESULT])
    assert await session.get_items() == [REASONING, CALL, RESULT]
    assert await session.get_items(limit=1) == [RESULT]
    assert await session.get_items(limit=0) == []
    assert await session.get_items(limit=-1) == [{"role": "user", "content": "a"}, REASONING, CALL, RESULT]
    assert await session.pop_item() == RESULT
    assert await session.get_items(limit=10) == [{"role": "user", "content": "a"}, REASONING, CALL]
    assert await memory.session(ROOM).count(view="history") == 4
    assert await AgentsSession(memory, ROOM, session_settings={"limit": 1}).get_items() == [CALL]
    assert AgentsSession(memory, ROOM).session_settings == SessionSettings()

    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)


async def test_messages_of_others_are_items_and_a_reset_hides_them(memory: Memory) -> None:
    """A session of another framework can be continued until its reset; system messages are no items."""
    stored = memory.session(ROOM)
    await stored.append([Message("user", "hi"), Message("system", "a note"), Message("assistant", "hello")])
    session = AgentsSession(memory, ROOM)
    assert await session.get_items() == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]
    await stored.append([Message("system", "another note"), Message("system", "and another")])
    assert await session.get_items(1) == [{"role": "assistant", "content": "hello"}]
    assert await session.pop_item() == {"role": "assistant", "content": "hello"}
    assert await session.pop_item() == {"role": "user", "content": "hi"}
    assert await session.pop_item() is None
    await stored.append([Message("user", "hi again")])
    await stored.reset()
    assert (await session.get_items(), await session.pop_item()) == ([], None)


async def test_another_users_session_is_empty_and_closed(memory: Memory) -> None:
    await AgentsSession(memory, ROOM, user_id="ann").add_items([{"role": "user", "content": "secret"}])
    other = AgentsSession(memory, ROOM, user_id="bob")
    assert (await other.get_items(), await other.pop_item()) == ([], None)
    with pytest.raises(WrongUser):
        await other.add_items([{"role": "user", "content": "x"}])
    await other.clear_session()
    assert len(await AgentsSession(memory, ROOM, user_id="ann").get_items()) == 1


def test_one_session_serves_several_event_loops(shared_url: str) -> None:
    """`run_sync` and `asyncio.run` each create an event loop."""
    model = ScriptedModel()
    agent = Agent(name="guide", model=model)
    with open_memory_sync(shared_url) as memory:
        session = AgentsSession(memory, ROOM)

        async def ask(text: str) -> None:
            model.enqueue([said(f"You said {text}.")])
            await Runner.run(agent, text, session=session, run_config=QUIET)

        for text in ("one", "two"):
            asyncio.run(ask(text))
        assert [message.content for message in memory.session(ROOM).tail(10)] == [
            "one",
            "You said one.",
            "two",
            "You said two.",
        ]
