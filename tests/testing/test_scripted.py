"""Tests of the scripted model: its replies, its streams and its records."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from threadkeep.testing import Gate, ScriptedModel, ScriptEnded


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADDING = AIMessage(content="Let me add.", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "call-1"}])


async def test_replies_are_returned_in_order() -> None:
    model = ScriptedModel(["one", AIMessage(content="two"), ValueError("three")])
    assert (await model.ainvoke("a")).content == "one"
    assert model.invoke("b").content == "two"
    with pytest.raises(ValueError, match="three"):
        await model.ainvoke("c")
    with pytest.raises(ScriptEnded, match="Call 4"):
        await model.ainvoke("d")
    with pytest.raises(ScriptEnded, match="Call 5"):
        model.invoke("e")


async def test_calls_are_recorded_as_copies() -> None:
    model = ScriptedModel(itertools.repeat("ok"))
    message = HumanMessage("before")
    await model.ainvoke([SystemMessage("be kind"), message])
    message.content = "after"
    await model.ainvoke("again")
    assert [[one.content for one in call] for call in model.calls] == [["be kind", "before"], ["again"]]
    assert model.tools == [(), ()]


async def test_functions_compute_replies_from_the_messages() -> None:
    async def later(messages: Sequence[BaseMessage]) -> str:
        return f"later {len(messages)}"

    model = ScriptedModel([lambda messages: f"now {messages[-1].text}", later])
    assert (await model.ainvoke("a")).content == "now a"
    assert (await model.ainvoke("b")).content == "later 1"


async def test_a_reply_is_streamed_word_by_word_with_usage() -> None:
    model = ScriptedModel(["Hello  there,\nyou ", "Hello you"])
    chunks = [chunk async for chunk in model.astream("a b c")]
    assert [chunk.content for chunk in chunks] == ["Hello", "  there,", "\nyou", " ", ""]
    assert chunks[-1].usage_metadata == {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6}
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(str(chunk.content) for chunk in model.stream("a")) == "Hello you"


async def test_replies_without_streaming_have_usage() -> None:
    given = AIMessage(content="x", usage_metadata={"input_tokens": 7, "output_tokens": 8, "total_tokens": 15})
    model = ScriptedModel(["one two", given])
    assert (await model.ainvoke("a")).usage_metadata == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    assert (await model.ainvoke("a")).usage_metadata == given.usage_metadata


async def test_streamed_chunks_add_up_to_the_message() -> None:
    model = ScriptedModel([ADDING])
    total = AIMessageChunk(content="")
    async for chunk in model.astream("go"):
        total += chunk
    assert total.content == ADDING.content
    assert [(call["name"], call["args"], call["id"]) for call in total.tool_calls] == [
        ("add", {"a": 1, "b": 2}, "call-1")
    ]


async def test_a_gate_holds_the_reply_in_the_middle() -> None:
    """A test can look at a partial reply before it opens the gate."""
    gate = Gate()
    model = ScriptedModel([["half ", gate, "whole"]])
    seen: list[str] = []

    async def read() -> None:
        async for chunk in model.astream("go"):
            seen.append(str(chunk.content))  # noqa: PERF401 - the test reads the partial list

    reader = asyncio.create_task(read())
    await gate.reached()
    assert "".join(seen).strip() == "half"
    gate.open()
    await reader
    assert "".join(seen) == "half whole"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_call_can_be_cancelled_at_a_gate(streams: bool) -> None:
    gate = Gate()
    model = ScriptedModel([["half ", gate, "whole"], "next"])

    async def read() -> None:
        if streams:
            async for _ in model.astream("go"):
                pass
        else:
            await model.ainvoke("go")

    reader = asyncio.create_task(read())
    await gate.reached()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await model.ainvoke("go")).content == "next"


async def test_an_error_can_interrupt_a_stream() -> None:
    model = ScriptedModel([["some words", ConnectionError("gone")]])
    stream = model.astream("go")
    assert [(await anext(stream)).content, (await anext(stream)).content] == ["some", " words"]
    with pytest.raises(ConnectionError):
        await anext(stream)


def test_sync_calls_refuse_gates_and_async_functions() -> None:
    """The error suggests `ainvoke`; otherwise, the call would deadlock."""

    async def later(messages: Sequence[BaseMessage]) -> str:
        return "later"

    model = ScriptedModel([Gate(), later])
    with pytest.raises(TypeError, match="ainvoke"):
        model.invoke("a")
    with pytest.raises(TypeError, match="ainvoke"):
        model.invoke("b")


async def test_an_agent_uses_its_tools_as_scripted() -> None:
    model = ScriptedModel([ADDING, "It is 3."])
    agent: Any = create_agent(model, [add])
    state = await agent.ainvoke({"messages": [HumanMessage("1 + 2?")]})
    assert [type(one).__name__ for one in state["messages"]] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "AIMessage",
    ]
    assert state["messages"][-1].content == "It is 3."
    assert isinstance(model.calls[1][-1], ToolMessage)
    assert model.tools == [("add",), ("add",)]


async def test_an_agent_streams_the_words() -> None:
    agent: Any = create_agent(ScriptedModel(["one two three"]), [])
    words = [
        chunk.content async for chunk, _ in agent.astream({"messages": [HumanMessage("go")]}, stream_mode="messages")
    ]
    assert [word for word in words if word] == ["one", " two", " three"]


async def test_streaming_can_be_disabled() -> None:
    model = ScriptedModel(["one two"], disable_streaming=True)
    assert [chunk.content async for chunk in model.astream("go")] == ["one two"]


def test_the_clock_does_not_load_langchain() -> None:
    """Test doubles are imported on first access."""
    code = "import sys; from threadkeep.testing import SettableClock; print('langchain_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
