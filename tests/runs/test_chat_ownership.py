"""Tests of the ownership of answers: a stored answer is returned to its own user only."""

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
async def test_another_user_does_not_get_the_answer_in_an_outage(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, broken: str, make_chat: Chats
) -> None:
    """While runs cannot be stored or read, another user does not get the stored answer, and the owner does."""
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
            # The owner of the message cannot be read: the other user gets an answer, but without a context.
            assert (await chat.ask(said("hi", ID, user_id="bob"))).response == "I know nothing"
            assert seen(model.calls[-1]) == [("human", "hi")]
    with pytest.raises(SessionNotFound):
        await chat.ask(said("hi", ID, user_id="bob"))
    assert await chat.ask(said("hi", ID, user_id="ann")) == first
    assert await kept(sqlite_memory, ROOM) == [("user", "hi"), ("assistant", "your pin is 1234")]


async def test_a_message_with_and_without_its_user_is_answered_once_in_an_outage(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """If a message is sent with and without its user at once, both callers get the same answer."""

    async def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("down")

    async def nothing_stored(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(sqlite_memory.runs.order, "add", failing)
    monkeypatch.setattr(sqlite_memory.pending, "record_joined", nothing_stored)
    model = ScriptedModel(["one", "two"])
    chat = make_chat(sqlite_memory, model)
    turns = [chat.begin(said("hi", ID, user_id="ann")), chat.begin(said("hi", ID))]
    assert [(await turn.answer()).response for turn in turns] == ["one", "one"]
    assert len(model.calls) == 1


async def test_an_answer_to_a_message_of_another_run_has_its_context(sqlite_memory: Memory, make_chat: Chats) -> None:
    session = sqlite_memory.session(ROOM)
    await session.append([Message(role="user", content="hi", id=ID, run_id="another-run")])
    answer = await make_chat(sqlite_memory, ScriptedModel(["hello"])).ask(said("hi", ID))
    assert (answer.response, answer.context.messages) == ("hello", 1)
    assert answer.context.tokens > 0


async def test_a_user_continues_the_last_session_in_an_outage(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """The chat remembers the last session of a user during an outage. Other users begin a session."""
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
