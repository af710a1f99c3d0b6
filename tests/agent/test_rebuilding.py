"""Tests of rebuilding the exact messages of a model call from its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from threadkeep import ContextGone, InvalidInput, Message, SessionMemory, rebuild
from threadkeep.agent.context_view import Difference, recorded_view
from threadkeep.agent.conversion import digest_of_all
from threadkeep.agent.provider_messages import OPENING
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.manifest import ContextManifest
from threadkeep.history.memory import Memory
from threadkeep.records import Role
from threadkeep.testing import ScriptedModel

CONFIG: RunnableConfig = {"configurable": {"thread_id": "telegram:1"}}


@tool
def look_up(term: str) -> str:
    """Look something up."""
    return f"{term}: " + "many words " * 3_000


def calling(number: int) -> AIMessage:
    """Return a message that calls the tool."""
    return AIMessage("", tool_calls=[{"name": "look_up", "args": {"term": "x"}, "id": f"call-{number}"}])


async def talk(memory: Memory, model: ScriptedModel, texts: Sequence[str | AnyMessage]) -> None:
    """Run a turn for each text."""
    agent = create_agent(model, [look_up], system_prompt="Be brief.", middleware=[SessionMemory(memory)])
    for text in texts:
        await agent.ainvoke({"messages": [text if isinstance(text, BaseMessage) else HumanMessage(text)]}, CONFIG)


async def rebuilt(memory: Memory) -> list[list[BaseMessage]]:
    """Return the rebuilt messages of each call of the session, oldest first."""
    stored = await memory.manifests.of_session("telegram:1", limit=200)
    return [await rebuild(manifest) for manifest in reversed(stored)]


def told(messages: Sequence[BaseMessage]) -> list[tuple[str, object, object]]:
    """Return the parts of messages that a provider receives."""
    return [(message.type, message.content, getattr(message, "tool_calls", None)) for message in messages]


async def test_a_system_message_of_the_state_is_one_text_in_all_calls(memory: Memory) -> None:
    """LangGraph adds a new id to it in each turn; the calls still begin with the same message, which is stored once."""
    agent = create_agent(ScriptedModel(replies=["one", "two"]), middleware=[SessionMemory(memory)])
    for text in ("first", "second"):
        await agent.ainvoke({"messages": [SystemMessage("Be brief."), HumanMessage(text)]}, CONFIG)
    later, earlier = [await recorded_view(memory, stored) for stored in await memory.manifests.of_session("telegram:1")]
    assert later.messages[0].entry.digest == earlier.messages[0].entry.digest is not None
    difference = Difference.between(earlier, later)
    assert (difference.stable, difference.shared, difference.gone) == (True, 2, {})
    prefix = earlier.manifest.prefix
    assert prefix is not None
    assert [replace(difference, shared=prefix.messages - less).stable for less in (0, 1)] == [True, False]


async def test_every_call_is_rebuilt(memory: Memory) -> None:
    model = ScriptedModel(replies=[reply for n in range(15) for reply in (calling(n), f"answer {n}")])
    await talk(memory, model, [f"question {number} " + "and more " * 30 for number in range(15)])
    calls = await rebuilt(memory)
    assert len(calls) == len(model.calls) == 30
    assert [told(call) for call in calls] == [told(call) for call in model.calls]


async def test_contents_without_a_transcript_are_rebuilt(memory: Memory) -> None:
    """A system message of the state, an image, a cut input and a name are rebuilt."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked: list[str | AnyMessage] = [
        HumanMessage([{"type": "text", "text": "what is this?"}, image]),
        "long " * 9_000,
        HumanMessage("named", name="Ann"),
    ]
    model = ScriptedModel(replies=["a", "b", "c", "d"])
    await talk(memory, model, asked)
    agent = create_agent(model, [], middleware=[SessionMemory(memory)])
    await agent.ainvoke({"messages": [SystemMessage("Rule two."), HumanMessage("and now?")]}, CONFIG)
    assert [told(call) for call in await rebuilt(memory)] == [told(call) for call in model.calls]


async def test_a_manifest_holds_no_text_and_survives_json(memory: Memory) -> None:
    """A manifest contains no text, and is rebuilt from its JSON if the memory is given."""
    model = ScriptedModel(replies=[calling(1), "the answer is plain"])
    await talk(memory, model, ["my secret question"])
    stored = (await memory.manifests.of_session("telegram:1"))[0]
    assert not any(word in str(stored.manifest) for word in ("secret", "plain", "many words", "Be brief"))
    manifest = ContextManifest.from_dict(stored.manifest)
    assert digest_of_all(await rebuild(manifest, memory)) == manifest.digest
    assert await rebuild(stored.manifest, memory) == await rebuild(stored)
    with pytest.raises(InvalidInput, match="Pass the memory"):
        await rebuild(manifest)
    with pytest.raises(InvalidInput, match="not the manifest"):
        await rebuild({"session_id": 5}, memory)


async def test_a_context_of_a_deleted_session_cannot_be_rebuilt(memory: Memory) -> None:
    """Rebuilding raises ContextGone after the session was deleted, even if new messages have the same positions."""
    await talk(memory, ScriptedModel(replies=["one", "two"]), ["first", "second"])
    stored = (await memory.manifests.of_session("telegram:1"))[0]
    await memory.session("telegram:1").delete()
    with pytest.raises(ContextGone, match="was deleted"):
        await rebuild(stored)
    await talk(memory, ScriptedModel(replies=["three", "four"]), ["third", "fourth"])
    with pytest.raises(ContextGone, match=r"have changed|was deleted"):
        await rebuild(stored)
    assert await memory.manifests.of_run(stored.run_id) == []


@pytest.mark.parametrize("earlier", [("user", "assistant"), ("user", "user"), ("assistant", "assistant")])
async def test_the_cut_of_the_newest_message_is_rebuilt(sqlite_memory: Memory, earlier: tuple[Role, ...]) -> None:
    said = [Message(role=role, content=f"{role} {place} " + "says much " * 100) for place, role in enumerate(earlier)]
    await sqlite_memory.session("telegram:1").append(said)
    model = ScriptedModel(["ok", "yes"])
    for budget in (150, 250):
        agent = create_agent(model, [], middleware=[SessionMemory(sqlite_memory, max_tokens=budget)])
        await agent.ainvoke({"messages": [HumanMessage("hi")]}, CONFIG)
    assert [told(call) for call in await rebuilt(sqlite_memory)] == [told(call) for call in model.calls]
    texts = [message.text for message in model.calls[0] if message.text != OPENING]
    assert [text.endswith(CUT_MARK) for text in texts] == [True, False]


_ANSWERS: list[list[dict[str, object]]] = [
    [{"type": "thinking", "thinking": "hmm", "signature": "s"}, {"type": "text", "text": "So it is."}],
    [{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "text", "text": "So it is."}],
    [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        {"type": "text", "text": "So it is."},
    ],
]


@pytest.mark.parametrize("provider", ["anthropic", "openai", None])
@pytest.mark.parametrize("blocks", _ANSWERS, ids=["thinking", "reasoning", "server tool"])
async def test_answers_with_blocks_of_a_provider_are_rebuilt_as_they_were_sent(
    memory: Memory, blocks: list[str | dict[str, object]], provider: str | None
) -> None:
    answer = AIMessage(blocks, response_metadata={"model_provider": provider} if provider else {})
    model = ScriptedModel([answer, AIMessage("yes", response_metadata={"model_provider": "openai"}), "three", "four"])
    agent = create_agent(model, [], middleware=[SessionMemory(memory, keep_originals=True)])
    for words in ("one", "two", "three", "four"):
        await agent.ainvoke({"messages": [HumanMessage(words)]}, CONFIG)
    assert [told(call) for call in await rebuilt(memory)] == [told(call) for call in model.calls]


async def test_a_question_that_lost_its_image_is_rebuilt_without_it(memory: Memory) -> None:
    model = ScriptedModel([RuntimeError("down"), "a horse"])
    agent = create_agent(model, [], middleware=[SessionMemory(memory, keep_originals=True)])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    first = HumanMessage([{"type": "text", "text": "what is this?"}, image], id="m1")
    with pytest.raises(RuntimeError):
        await agent.ainvoke({"messages": [first]}, CONFIG)
    await agent.ainvoke({"messages": [HumanMessage("what is this?", id="m1")]}, CONFIG)
    assert [told(call) for call in await rebuilt(memory)] == [told(call) for call in model.calls]
