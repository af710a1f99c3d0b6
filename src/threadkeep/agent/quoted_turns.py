"""Older turns as one message of a prompt: dated, with their speakers, marked as quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import HumanMessage

from threadkeep.context.manifest import Section
from threadkeep.context.quotation import TURNS_HEADER, Quote, attribution, quote_of_turn, render
from threadkeep.records import Message

SECTION_KEY = "threadkeep_section"
"""In a message's `additional_kwargs`: which section of the context it is. Providers are not sent it."""


@dataclass(frozen=True)
class QuotedTurn:
    """A stored message of some session, to be quoted."""

    session_id: str
    message: Message

    def quote(self, home: str) -> Quote:
        """Return the text for a prompt of the session `home`."""
        message = self.message
        return quote_of_turn(
            attribution(message.role, message.author),
            message.content,
            message.sent_at or message.created_at,
            seq=message.seq or 0,
            elsewhere=self.session_id != home,
        )


def turns_message(turns: Sequence[QuotedTurn], *, home: str) -> HumanMessage:
    """The block of these turns, in their order, in a prompt of the session `home`."""
    return section_message("selected", render(TURNS_HEADER, [turn.quote(home) for turn in turns]))


def section_message(section: Section, text: str) -> HumanMessage:
    """A message that nobody said: a section of the context."""
    return HumanMessage(text, additional_kwargs={SECTION_KEY: section})
