"""What else bears on an input: where it is looked for, and how it stands in the prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from langchain_core.messages import BaseMessage

from threadkeep.context.manifest import Section
from threadkeep.context.tokens import TokenCounter
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.model_call import Extra

_RECENT_TURNS = 4


@dataclass(frozen=True)
class ExtraRequest:
    """The input that something is looked for, and what came before it.

    `earlier` are the turns before it, oldest first; `known_ids` are in the prompt already; `question_seq` is its place
    in the session, None before it has one.
    """

    session: Session
    question: Sequence[BaseMessage]
    earlier: Sequence[Message]
    known_ids: Collection[str]
    question_seq: int | None
    counter: TokenCounter
    now: datetime

    @property
    def text(self) -> str:
        """What was asked."""
        return "\n".join(text_of(message) for message in self.question)

    @property
    def recent(self) -> list[str]:
        """The last few messages before it, for inputs that point back with "it" and "that"."""
        return [message.content for message in self.earlier[-_RECENT_TURNS:]]


class ExtraSource(Protocol):
    """Finds one section of a prompt anew for each input.

    It never raises for what may fail in a running system: it tells of the failure, and finds nothing.
    """

    @property
    def section(self) -> Section:
        """Which section it fills."""
        ...

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """What bears on the input, in at most so many tokens by the request's counter; None if nothing does."""
        ...
