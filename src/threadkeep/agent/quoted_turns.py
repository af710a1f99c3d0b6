"""Older turns as one message of a prompt: dated, with their speakers, marked as quoted."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import HumanMessage

from threadkeep.context.manifest import Section
from threadkeep.context.quotation import QuotedTurn, turns_text

SECTION_KEY = "threadkeep_section"
"""In a message's `additional_kwargs`: which section of the context it is. Providers are not sent it."""


def turns_message(turns: Sequence[QuotedTurn], *, home: str) -> HumanMessage:
    """The block of these turns, in their order, in a prompt of the session `home`."""
    return section_message("selected", turns_text(turns, home=home))


def section_message(section: Section, text: str) -> HumanMessage:
    """A message that nobody said: a section of the context."""
    return HumanMessage(text, additional_kwargs={SECTION_KEY: section})
