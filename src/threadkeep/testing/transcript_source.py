"""The source of transcripts for the guarantees, and helpers to create messages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from threadkeep.records import Message, Turn
from threadkeep.store.transcripts import Transcripts


class TranscriptSource:
    """A base class that opens empty transcripts for each guarantee."""

    def open_transcripts(self) -> AbstractAsyncContextManager[Transcripts]:
        """Open empty transcripts with a moving clock; they are closed when the block ends."""
        raise NotImplementedError("Give open_transcripts() in the class that takes the contract.")


def user(content: str, message_id: str | None = None) -> Message:
    """Return a message of a person."""
    return Message(role="user", content=content, id=message_id)


def assistant(content: str, message_id: str | None = None, *, run_id: str | None = None) -> Message:
    """Return a message of the agent."""
    return Message(role="assistant", content=content, id=message_id, run_id=run_id)


def note(content: str) -> Message:
    """Return a system row of the transcript."""
    return Message(role="system", content=content)


def turn(*messages: Message, session: str = "room:1", user_id: str | None = None) -> Turn:
    """Return a turn of the session that most guarantees use."""
    return Turn(session, messages, user_id)


def contents(messages: Iterable[Message]) -> list[str]:
    """Return the texts of the messages."""
    return [message.content for message in messages]


def seqs(messages: Iterable[Message]) -> list[int | None]:
    """Return the `seq` of each message."""
    return [message.seq for message in messages]
