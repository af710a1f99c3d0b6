"""Whose answer it is, and what is told of its context: stored answers are given to their own user only."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.talking import kept, seen
from tests.limits import HANG_SECONDS
from tests.runs.chatting import ROOM, Chats, said
from threadkeep import Memory, Message, SessionNotFound, StoreUnavailable
from threadkeep.testing import ScriptedModel

ID = "telegram:42"


@pytest.mark.parametrize("broken", ["add", "run"])
async def test_an_answer_is_not_given_away_while_no_run_can_be_had(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, broken: str, make_chat: Chats
) -> None:
    """The table of runs fails: another user gets nothing of it, the owner the answer that is kept."""
    model = ScriptedModel(["your pin is 1234", "I know nothing"])
    chat = make_chat(sqlite_memory, model)
    first = await chat.ask(said("hi", ID, user_id="ann"))

    async def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("a blip")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_memory.runs.order if broken == "add" else sqlite_memory.runs, broken, failing)
        if broken == "run":
            assert (await chat.ask(said("hi", ID, user_id="ann"))).response == first.response
        else:
            # Whose message it is cannot be asked: a stranger is answered, but from nothing.
            assert (await chat.ask(said("hi", ID, user_id="bob"))).response == "I know nothing"
            assert seen(model.calls[-1]) == [("human", "hi")]
    with pytest.raises(SessionNotFound):
        await chat.ask(said("hi", ID, user_id="bob"))
    assert await chat.ask(said("hi", ID, user_id="ann")) == first
    assert await kept(sqlite_memory, ROOM) == [("user", "hi"), ("assistant", "your pin is 1234")]


async def test_the_context_is_told_of_a_question_that_another_run_stored(
    sqlite_memory: Memory, make_chat: Chats
) -> None:
    """An agent began it, the chat ends it: what the model saw is counted under whichever run it was."""
    session = sqlite_memory.session(ROOM)
    await session.append([Message(role="user", content="hi", id=ID, run_id="another-run")])
    answer = await make_chat(sqlite_memory, ScriptedModel(["hello"])).ask(said("hi", ID))
    assert (answer.response, answer.context.messages) == ("hello", 1)
    assert answer.context.tokens > 0


async def test_a_user_goes_on_in_the_last_session_also_in_an_outage(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """Where a user was last cannot be asked then, and is remembered; others begin a session of their own."""
    chat = make_chat(sqlite_memory, ScriptedModel(["one", "two", "three", "four"]))
    await chat.ask(said("hi", session_id=None, user_id="ann"))
    await chat.ask(said("over here", session_id=ROOM, user_id="ann"))

    async def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(sqlite_memory.runs.sessions, "active_session", failing)
    assert (await chat.ask(said("still me", session_id=None, user_id="ann"))).session_id == ROOM
    assert (await chat.ask(said("hi", session_id=None, user_id="bob"))).session_id != ROOM
    async with asyncio.timeout(HANG_SECONDS):
        while sqlite_memory.pending.entries:
            await sqlite_memory.pending.deliver()
    assert [text for _, text in await kept(sqlite_memory, ROOM)] == ["over here", "two", "still me", "three"]
