"""Tests of message contents that a database or JSON cannot store: the agent answers."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent, factory
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, StateGraph

from tests.agent.talking import ROOM, add, adding, ask, config_of, input_of, kept, make_agent, seen
from threadkeep import Memory, SessionMemory, rebuild, recorded
from threadkeep.agent.conversion import digest_of_all
from threadkeep.agent.provider_messages import repair
from threadkeep.testing import ScriptedModel


@tool(response_format="content_and_artifact")
def picture(subject: str) -> tuple[str, bytes]:
    """Draw something."""
    return f"a picture of {subject}", b"\xff\xd8\xff\x00"


@tool(response_format="content_and_artifact")
def table(subject: str) -> tuple[str, dict[object, object]]:
    """Make a table."""
    return f"a table of {subject}", {1: object(), "half": "\ud800", "nothing": float("nan"), "set": {1}}


def drawing(call: BaseTool, subject: object = "a horse") -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": call.name, "args": {"subject": subject}, "id": "call-1"}])


async def rebuilt(memory: Memory) -> list[list[BaseMessage]]:
    """Return the rebuilt messages of each call, oldest first."""
    return [await rebuild(stored) for stored in reversed(await memory.manifests.of_session(ROOM))]


@pytest.mark.parametrize("call", [picture, table])
async def test_an_artifact_that_is_no_json_is_not_stored(memory: Memory, call: BaseTool) -> None:
    model = ScriptedModel(replies=[drawing(call), "done"])
    agent = create_agent(model, [call], middleware=[SessionMemory(memory)])
    assert await ask(agent, "draw") == "done"
    told = [[(message.type, message.content) for message in sent] for sent in await rebuilt(memory)]
    assert told == [[(message.type, message.content) for message in sent] for sent in model.calls]
    manifests = await memory.manifests.of_session(ROOM)
    digests = [entry["digest"] for entry in _entries(manifests[0].manifest) if "digest" in entry]
    assert all('"artifact":null' in text or '"type":"ai"' in text for text in await _texts(memory, digests))


async def test_bytes_in_a_message_are_sent_and_recorded(memory: Memory) -> None:
    block: dict[str, object] = {"type": "media", "data": b"\xff\x00", "mime_type": "image/png"}
    for keep_originals in (False, True):
        model = ScriptedModel(replies=["seen"])
        agent = create_agent(model, middleware=[SessionMemory(memory, keep_originals=keep_originals)])
        question = HumanMessage([{"type": "text", "text": "what is it?"}, dict(block)])
        await agent.ainvoke({"messages": [question]}, config_of())
        assert model.calls[0][-1].content == question.content
    assert len(await rebuilt(memory)) == 2


async def test_nan_as_a_tool_argument_works(memory: Memory) -> None:
    model = ScriptedModel(replies=[drawing(picture, float("nan")), "done"])
    agent = create_agent(model, [picture], middleware=[SessionMemory(memory)])
    assert await ask(agent, "draw") == "done"
    assert len(await rebuilt(memory)) == 2


@pytest.mark.skipif(not hasattr(factory, "_patch_invalid_tool_calls"), reason="This LangChain reports no such error.")
async def test_the_error_of_an_invalid_call_is_sent(memory: Memory) -> None:
    """LangChain's result for a call with malformed arguments is sent after a valid call of the same message."""
    invalid = {"name": "add", "args": '{"a": 1', "id": "call-2", "error": None, "type": "invalid_tool_call"}
    both = adding().model_copy(update={"invalid_tool_calls": [invalid]})
    model = ScriptedModel([both, "done"], disable_streaming=True)
    agent = make_agent(model, [SessionMemory(memory)], [add])
    assert await ask(agent, "add 1 and 2, and 1 and 3") == "done"
    _, called, *results = model.calls[1]
    assert isinstance(called, AIMessage)
    assert [(call["id"], call["args"]) for call in called.tool_calls] == [("call-1", {"a": 1, "b": 2}), ("call-2", {})]
    assert [(one.tool_call_id, one.status) for one in results if isinstance(one, ToolMessage)] == [
        ("call-1", "success"),
        ("call-2", "error"),
    ]
    assert [digest_of_all(sent) for sent in await rebuilt(memory)] == [digest_of_all(sent) for sent in model.calls]


def test_an_invalid_call_with_the_id_of_a_valid_one_is_not_sent() -> None:
    invalid = {"name": "add", "args": "{", "id": "call-1", "error": None, "type": "invalid_tool_call"}
    both = adding().model_copy(update={"invalid_tool_calls": [invalid]})
    sent = repair([HumanMessage("q"), both, ToolMessage("3", tool_call_id="call-1")]).messages
    assert [one.tool_calls for one in sent if isinstance(one, AIMessage)] == [both.tool_calls]
    assert len(sent) == 3


async def test_a_question_with_a_changed_text_is_rebuilt_as_sent(memory: Memory) -> None:
    """A repeated id with another text is rebuilt with the text that the model received."""
    model = ScriptedModel(replies=[RuntimeError("down"), "done"])
    agent = create_agent(model, middleware=[SessionMemory(memory)])
    with pytest.raises(RuntimeError):
        await ask(agent, "first words", message_id="m1")
    assert await ask(agent, "other words", message_id="m1") == "done"
    assert [digest_of_all(sent) for sent in await rebuilt(memory)] == [digest_of_all(sent) for sent in model.calls]


def _entries(manifest: Any) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = manifest["entries"]
    return entries


async def _texts(memory: Memory, digests: list[str]) -> list[str]:
    texts = await memory.manifests.texts(ROOM, digests)
    assert len(texts) == len(set(digests)) > 0
    return list(texts.values())


@pytest.mark.parametrize(
    "refusal",
    [
        AIMessage("", additional_kwargs={"refusal": "I can't help with that."}),
        AIMessage("", additional_kwargs={"audio": {"id": "a1", "transcript": "I can't help with that."}}),
        AIMessage([{"type": "refusal", "refusal": "I can't help with that."}]),
        AIMessage([{"type": "non_standard", "value": {"type": "refusal", "refusal": "I can't help with that."}}]),
    ],
    ids=["completions", "spoken", "responses", "version-1"],
)
async def test_the_text_of_a_refusal_is_the_answer(memory: Memory, refusal: AIMessage) -> None:
    model = ScriptedModel([refusal, "Gladly."])
    agent = make_agent(model, [SessionMemory(memory)])
    await ask(agent, "q", message_id="m1")
    assert await ask(agent, "q", message_id="m1") == "I can't help with that."
    await ask(agent, "something else, then")
    assert seen(model.calls[1]) == [
        ("human", "q"),
        ("ai", "I can't help with that."),
        ("human", "something else, then"),
    ]
    assert (await kept(memory))[:2] == [("user", "q"), ("assistant", "I can't help with that.")]


@pytest.mark.parametrize(
    "beside",
    [{"refusal": "I can't help with that."}, {"audio": {"id": "a1", "transcript": "I can't help with that."}}],
    ids=["refusal", "audio"],
)
async def test_a_kept_refusal_is_sent_as_text(memory: Memory, beside: dict[str, Any]) -> None:
    """Providers do not receive a refusal beside the content, and OpenAI deletes recordings after an hour."""
    refusal = AIMessage("", additional_kwargs=beside)
    model = ScriptedModel([refusal, "Gladly."])
    agent = make_agent(model, [SessionMemory(memory, keep_originals=True)])
    await ask(agent, "q")
    await ask(agent, "and then?")
    sent = [(message.type, message.content) for message in model.calls[-1]]
    assert sent == [("human", "q"), ("ai", "I can't help with that."), ("human", "and then?")]


async def test_the_text_of_a_refusal_is_the_answer_of_a_recorded_graph(memory: Memory) -> None:
    refusal = AIMessage("", additional_kwargs={"refusal": "I can't help with that."})
    graph = recorded(create_agent(ScriptedModel([refusal]), [], name="desk"), memory)
    await graph.ainvoke(input_of("q", "m1"), config_of())
    state = await graph.ainvoke(input_of("q", "m1"), config_of())
    assert state["messages"][-1].text == "I can't help with that."
    assert await kept(memory) == [("user", "q"), ("assistant", "I can't help with that.")]


ROLES: list[Any] = [ChatMessage(content=text, role=role) for role, text in (
    ("user", "hi"), ("assistant", "hello"), ("user", "and now?")
)]  # fmt: skip


async def test_messages_of_other_classes_are_stored_by_role(memory: Memory) -> None:
    model = ScriptedModel(["one", "two"])
    agent = create_agent(model, middleware=[SessionMemory(memory)])
    await agent.ainvoke({"messages": ROLES[:1]}, config_of())
    await agent.ainvoke({"messages": ROLES[2:]}, config_of())
    assert await kept(memory) == [
        ("user", "hi"), ("assistant", "one"), ("user", "and now?"), ("assistant", "two")
    ]  # fmt: skip
    assert seen(model.calls[1]) == [("human", "hi"), ("ai", "one"), ("human", "and now?")]


class Untyped(TypedDict):
    """A state whose messages LangGraph does not convert."""

    messages: list[Any]


@pytest.mark.parametrize(
    "answer", [ChatMessage(content="fine", role="assistant"), {"role": "assistant", "content": "fine"}]
)
async def test_a_recorded_graph_stores_messages_of_other_classes(memory: Memory, answer: object) -> None:
    builder: Any = StateGraph(Untyped)
    builder.add_node("answer", lambda state: {"messages": [*state["messages"], answer]})
    builder.add_edge(START, "answer")
    await recorded(builder.compile(), memory).ainvoke({"messages": ROLES}, config_of())
    assert await kept(memory) == [("user", "and now?"), ("assistant", "fine")]
