"""What happens to a session between a question and its model call costs neither the answer nor a true record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.agent.context_laws import check_coverage
from tests.agent.talking import ROOM, Meanwhile, ask, make_agent, numbered
from threadkeep import ContextManifest, Memory, Message, Session, SessionMemory, rebuild
from threadkeep.testing import ScriptedModel


async def reset_and_speak(session: Session) -> None:
    """A reset, and somebody's message after it."""
    await session.reset()
    await session.append([Message(role="user", content="something else")])


EVENTS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "reset": Session.reset,
    "reset and speak": reset_and_speak,
}


@pytest.mark.parametrize("event", EVENTS)
async def test_the_question_is_sent_and_told_once(memory: Memory, event: str) -> None:
    """It is in the record as what was asked, and not among what is out; the record gives back what was sent."""
    session = memory.session(ROOM)
    await session.append(numbered(6))
    model = ScriptedModel(replies=["answer"])
    agent = make_agent(model, [Meanwhile(lambda: EVENTS[event](session)), SessionMemory(memory)])
    assert await ask(agent, "question") == "answer"
    # A question is stored when its first model call begins: what was said before that came first.
    expected = ["something else", "question"] if event == "reset and speak" else ["question"]
    assert [message.text for message in model.calls[0]] == expected
    for stored in await memory.manifests.of_session(ROOM):
        check_coverage(ContextManifest.from_dict(stored.manifest), await session.tail(100))
        assert [message.text for message in await rebuild(stored)] == expected
