"""Where the laws of transcripts get what they check, and the messages that they check it with."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from threadkeep.records import Message, Turn
from threadkeep.store.transcripts import Transcripts


class TranscriptSource:
    """Gives an empty place for transcripts to each law."""

    def open_transcripts(self) -> AbstractAsyncContextManager[Transcripts]:
        """A place for transcripts with nothing in it, whose clock moves; it is closed when the block ends."""
        raise NotImplementedError("Give open_transcripts() in the class that takes the contract.")


def user(content: str, message_id: str | None = None) -> Message:
    """What a person said."""
    return Message(role="user", content=content, id=message_id)


def assistant(content: str, message_id: str | None = None, *, run_id: str | None = None) -> Message:
    """What the agent said."""
    return Message(role="assistant", content=content, id=message_id, run_id=run_id)


def note(content: str) -> Message:
    """A system row of the transcript."""
    return Message(role="system", content=content)


def turn(*messages: Message, session: str = "room:1", user_id: str | None = None) -> Turn:
    """A turn of the session that most laws speak of."""
    return Turn(session, messages, user_id)


def contents(messages: Iterable[Message]) -> list[str]:
    """What the messages say."""
    return [message.content for message in messages]


def places(messages: Iterable[Message]) -> list[int | None]:
    """Where the messages stand."""
    return [message.seq for message in messages]
