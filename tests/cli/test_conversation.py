"""Tests of a chat at the terminal, line by line, with a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from tests.runs.chatting import Chats
from threadkeep.agent.context_view import PreviewOptions
from threadkeep.agent.turn_options import ChatOptions
from threadkeep.cli.chat import Conversation, Notices
from threadkeep.cli.context import CallChoice
from threadkeep.cli.terminal import json_chosen
from threadkeep.errors import StoreUnavailable
from threadkeep.history.memory import Memory
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.memory import open_memory
from threadkeep.observe import ReadFailed, WriteDeferred, WriteRecovered
from threadkeep.runs.chat import Chat
from threadkeep.testing import Gate, ScriptedModel

type Stored = tuple[str, str, str]

_PREVIEW = PreviewOptions(ChatOptions().turn_options())


async def typed(lines: Iterable[str]) -> AsyncIterator[str]:
    """Yield the lines that a person types before the input ends."""
    for line in lines:
        yield line


async def _talk(
    lines: list[str],
    model: ScriptedModel,
    *,
    as_json: bool = False,
    prompted: bool = True,
    interrupt: Gate | None = None,
) -> tuple[bool, list[Stored]]:
    """Run a chat; return whether it succeeded, and the stored messages.

    Press Ctrl-C when the model is at a gate.
    """
    async with open_memory("sqlite://") as memory:
        chats = Chats()
        chat = chats(memory, model)
        conversation = _conversation(memory, chat, as_json=as_json)
        task = asyncio.create_task(conversation.run(typed(lines), prompted=prompted))
        if interrupt is not None:
            await interrupt.reached()
            os.kill(os.getpid(), signal.SIGINT)
        well = await task
        await chats.close()
        stored: list[Stored] = [(m.role, m.content, m.status) for m in await memory.session("a").tail(50)]
    return well, stored


def _conversation(memory: Memory, chat: Chat, *, as_json: bool = False) -> Conversation:
    json_chosen.set(as_json)
    return Conversation(chat, memory, CallChoice("a"), preview=_PREVIEW, notices=Notices())


async def test_each_line_is_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    well, stored = await _talk(["hi", "", "  ", "and you?"], ScriptedModel(["Hello there.", "I am well."]))
    assert well
    assert capsys.readouterr().out == "Hello there.\nI am well.\n"
    assert [content for _, content, _ in stored] == ["hi", "Hello there.", "and you?", "I am well."]


async def test_a_model_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, stored = await _talk(["hi"], ScriptedModel(["A \x1b[2J B"]))
    assert capsys.readouterr().out == "A \ufffd[2J B\n"
    assert stored[1][1] == "A \x1b[2J B"


async def test_an_answer_that_does_not_stream_is_shown_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    await _talk(["hi"], ScriptedModel(["Hello there."], disable_streaming=True))
    assert capsys.readouterr().out == "Hello there.\n"


async def test_ctrl_c_stops_the_answer_and_keeps_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """The part so far is stored as interrupted, and the next turn works."""
    gate = Gate()
    model = ScriptedModel([["This is ", gate, "never said"], "Back again."])
    well, stored = await _talk(["tell me", "still there?"], model, interrupt=gate)
    assert well
    captured = capsys.readouterr()
    assert captured.out == "This is \nBack again.\n"
    assert captured.err == "Stopped; the part so far is stored as interrupted.\n"
    assert stored[:2] == [("user", "tell me", "complete"), ("assistant", "This is ", "interrupted")]
    assert stored[3] == ("assistant", "Back again.", "complete")


async def test_ctrl_c_ends_a_chat_by_pipe() -> None:
    """A pipe is not read further after Ctrl-C."""
    gate = Gate()
    model = ScriptedModel([["This is ", gate]])
    well, stored = await _talk(["tell me", "not asked"], model, interrupt=gate, prompted=False)
    assert not well
    assert [content for _, content, _ in stored] == ["tell me", "This is "]


async def test_a_failing_model_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The question is stored and the chat continues. A pipe reports the failure by its exit code."""
    for prompted in (True, False):
        model = ScriptedModel([RuntimeError("it quotes what you said"), "Now it works."])
        well, stored = await _talk(["hi", "again"], model, prompted=prompted)
        assert well is prompted
        captured = capsys.readouterr()
        assert captured.out == "Now it works.\n"
        assert captured.err.startswith("The model did not answer (RuntimeError).")
        assert "quotes" not in captured.err
        assert stored[0] == ("user", "hi", "complete")


async def test_with_json_each_turn_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Each object is a reply or a problem. Commands of the chat print objects, too."""
    model = ScriptedModel(["Hello there.", RuntimeError("no")])
    await _talk(["hi", "again", "/stats", "/context", "/reset", "/help"], model, as_json=True)
    answer, problem, stats, context, reset, shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (answer["session_id"], answer["response"]) == ("a", "Hello there.")
    assert set(answer) == {
        "session_id", "run_id", "message_id", "response", "confidence", "escalated", "usage", "context",
    }  # fmt: skip
    assert problem["type"] == "urn:threadkeep:model-call-failed"
    assert (stats["messages"], stats["turns"], stats["failed"]) == (3, 1, 1)
    assert [message["content"] for message in context["messages"]] == ["hi", "Hello there.", "again"]
    assert reset["reset_seq"] == 3
    assert "/quit" in shown["commands"]


async def test_the_last_call_and_the_next_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    await _talk(["first", "second", "/context"], ScriptedModel(["One.", "Two."]))
    out = capsys.readouterr().out
    assert "Call 1 of run " in out
    assert "second" in out
    assert "The built-in chat's next call would see messages 1 to 4 and its input" in out


async def test_a_reset_hides_earlier_messages(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(["One.", "Two."])
    _, stored = await _talk(["first", "/reset", "/context", "second"], model)
    assert [[str(message.content) for message in call] for call in model.calls] == [["first"], ["second"]]
    assert [content for _, content, _ in stored] == ["first", "One.", "second", "Two."]
    assert "messages 1 to 2" in capsys.readouterr().out


async def test_commands_are_not_sent_to_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(["One."])
    _, stored = await _talk(["/stats", "/hlep", "/help", "hi", "/STATS", "/quit", "never"], model)
    captured = capsys.readouterr()
    assert "This session has no messages yet." in captured.out
    assert "no command /hlep" in captured.err
    assert "/context" in captured.out
    assert "a: 2 messages in all. Here: 1 turn," in captured.out
    assert len(stored) == 2


async def test_memory_failures_are_shown_after_the_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("The database is down.")

    url = f"sqlite:///{tmp_path}/threadkeep.db"
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        notices = Notices()
        memory.observers.add(notices)
        chats = Chats()
        chat = chats(memory, ScriptedModel(["Here I am."]))
        conversation = Conversation(chat, memory, CallChoice("a"), preview=_PREVIEW, notices=notices)
        with monkeypatch.context() as patch:
            patch.setattr("threadkeep.store.tables.TableTranscripts.append", fail)
            patch.setattr("threadkeep.store.tables.TableTranscripts.append_joined", fail)
            patch.setattr("threadkeep.store.tables.TableTranscripts.recent", fail)
            assert await conversation.run(typed(["hi"]), prompted=False)
        await chats.close()
    captured = capsys.readouterr()
    assert captured.out == "Here I am.\n"
    assert "kept on disk" in captured.err
    assert "does not use earlier messages" in captured.err


def test_equal_notices_are_shown_once() -> None:
    notices = Notices()
    for _ in range(3):
        notices.notify(WriteDeferred(backend="sqlite", messages=1))
    notices.notify(WriteRecovered(backend="sqlite", tries=1))
    notices.notify(ReadFailed(backend="sqlite", outcome="error", error="StoreUnavailable"))
    assert len(notices.take()) == 2
    assert notices.take() == []
