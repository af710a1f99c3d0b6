"""Tests of changes to a session between a question and its model call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.agent.context_laws import check_coverage
from tests.agent.talking import ROOM, Meanwhile, ask, make_agent, numbered
from threadkeep import ContextManifest, Memory, MemoryOptions, Message, Session, SessionMemory, open_memory, rebuild
from threadkeep.store.address import TranscriptLocation
from threadkeep.testing import ScriptedModel


async def reset_and_speak(session: Session) -> None:
    """Reset the session and append a message."""
    await session.reset()
    await session.append([Message(role="user", content="something else")])


EVENTS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "reset": Session.reset,
    "reset and speak": reset_and_speak,
}


@pytest.mark.parametrize("event", EVENTS)
async def test_the_question_is_sent_and_recorded_once(memory: Memory, event: str) -> None:
    """The question is sent and in the manifest once after a reset, and the manifest rebuilds the call."""
    session = memory.session(ROOM)
    await session.append(numbered(6))
    model = ScriptedModel(replies=["answer"])
    agent = make_agent(model, [Meanwhile(lambda: EVENTS[event](session)), SessionMemory(memory)])
    assert await ask(agent, "question") == "answer"
    # A question is stored when its first model call begins, so the other message precedes it.
    expected = ["something else", "question"] if event == "reset and speak" else ["question"]
    assert [message.text for message in model.calls[0]] == expected
    for stored in await memory.manifests.of_session(ROOM):
        check_coverage(ContextManifest.from_dict(stored.manifest), await session.tail(100))
        assert [message.text for message in await rebuild(stored)] == expected


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_answer_to_a_question_before_a_reset_is_not_sent(
    shared_url: str, memory_options: MemoryOptions, transcripts: TranscriptLocation, elsewhere: bool
) -> None:
    options = replace(memory_options, transcripts=transcripts)
    async with open_memory(shared_url, options=options) as memory, open_memory(shared_url, options=options) as other:
        await memory.session(ROOM).append(numbered(6))
        resetting = (other if elsewhere else memory).session(ROOM)
        model = ScriptedModel(replies=["one", "late", "three", "four"])
        await ask(make_agent(model, [SessionMemory(memory)]), "first")
        await ask(make_agent(model, [SessionMemory(memory), Meanwhile(resetting.reset)]), "second")
        assert (await memory.session(ROOM).window()).messages == ()
        agent = make_agent(model, [SessionMemory(memory)])
        for question in ("third", "fourth"):
            await ask(agent, question)
        assert [message.text for message in model.calls[3]] == ["third", "three", "fourth"]
        stored = await other.session(ROOM).tail(6)
        assert [message.content for message in stored] == ["second", "late", "third", "three", "fourth", "four"]
