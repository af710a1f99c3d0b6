"""The base class that opens transcripts for the contract tests, and helpers that create messages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from threadkeep.records import Message, Turn
from threadkeep.store.transcripts import Transcripts


class TranscriptSource:
    """A base class of the contract tests; subclasses open empty transcripts for each test."""

    def open_transcripts(self) -> AbstractAsyncContextManager[Transcripts]:
        """Open empty transcripts with a clock that advances; close them when the block ends."""
        raise NotImplementedError("Implement open_transcripts() in the subclass of TranscriptContract.")


def user(content: str, message_id: str | None = None) -> Message:
    """Return a message from a person."""
    return Message(role="user", content=content, id=message_id)


def assistant(content: str, message_id: str | None = None, *, run_id: str | None = None) -> Message:
    """Return a message from the agent."""
    return Message(role="assistant", content=content, id=message_id, run_id=run_id)


def note(content: str) -> Message:
    """Return a message with the role `system`."""
    return Message(role="system", content=content)


def turn(*messages: Message, session: str = "room:1", user_id: str | None = None) -> Turn:
    """Return a turn with these messages."""
    return Turn(session, messages, user_id)


def contents(messages: Iterable[Message]) -> list[str]:
    """Return the texts of the messages."""
    return [message.content for message in messages]


def seqs(messages: Iterable[Message]) -> list[int | None]:
    """Return the `seq` of each message."""
    return [message.seq for message in messages]
