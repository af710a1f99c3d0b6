"""Whose answer it is, and what is told of its context: stored answers are given to their own user only."""

from __future__ import annotations

import pytest

from tests.workflow.chatting import ROOM, make_chat, said
from threadkeep import Memory, Message, SessionNotFound, StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.records import SessionInfo
from threadkeep.testing import ScriptedModel

ID = "telegram:42"


@pytest.mark.parametrize("failures", [1, 2])
async def test_an_answer_is_not_given_away_while_its_owner_is_not_known(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The database fails when it is asked whose session it is: another user gets nothing, the owner may try again."""
    model = ScriptedModel(["your pin is 1234"])
    chat = make_chat(small_memory, model)
    first = await chat.ask(said("hi", ID, user_id="ann"))
    real, calls = Session.info, 0

    async def unsteady(session: Session) -> SessionInfo:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise StoreUnavailable("a blip")
        return await real(session)

    monkeypatch.setattr(Session, "info", unsteady)
    with pytest.raises(SessionNotFound if failures == 1 else StoreUnavailable):
        await chat.ask(said("hi", ID, user_id="bob"))
    calls = 0
    if failures == 2:
        with pytest.raises(StoreUnavailable):
            await chat.ask(said("hi", ID, user_id="ann"))
    assert await chat.ask(said("hi", ID, user_id="ann")) == first
    assert len(model.calls) == 1


async def test_the_context_is_told_of_a_question_that_another_run_stored(small_memory: Memory) -> None:
    """An agent began it, the chat ends it: what the model saw is counted under whichever run it was."""
    session = small_memory.session(ROOM)
    await session.append([Message(role="user", content="hi", id=ID, run_id="another-run")])
    answer = await make_chat(small_memory, ScriptedModel(["hello"])).ask(said("hi", ID))
    assert (answer.response, answer.context.messages) == ("hello", 1)
    assert answer.context.tokens > 0
