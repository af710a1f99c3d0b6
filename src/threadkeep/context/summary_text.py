"""The text of a summary: prose, and lasting facts that are carried word for word from summary to summary.

A summarizer may end its text with a line `Facts:` and a line `- …` for each fact. A model writes a fact once; when
summaries are merged, only their prose is written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from threadkeep.context.cut import cut_end
from threadkeep.context.tokens import TokenCounter

_HEADING = re.compile(r"[\s#*_]*facts[\s:：*_]*", re.IGNORECASE)
_FACT = re.compile(r"\s*[-*•]\s+(\S.*)")
_MOST_CHARACTERS = 300
"""The maximum number of characters of a fact; a longer line is read as prose."""


@dataclass(frozen=True)
class SummaryText:
    """A summary's prose and its facts, oldest first."""

    prose: str
    facts: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> SummaryText:
        """Return the parts of a text. Without lines of facts after a heading, all of it is prose."""
        lines = text.strip().splitlines()
        heading = next((place for place, line in enumerate(lines) if _HEADING.fullmatch(line)), None)
        if heading is None:
            return cls(text.strip())
        prose, facts = lines[:heading], []
        for line in lines[heading + 1 :]:
            found = _FACT.fullmatch(line)
            if found and len(found[1]) <= _MOST_CHARACTERS:
                facts.append(found[1].strip())
            else:
                prose.append(line)
        return cls("\n".join(prose).strip(), tuple(facts)) if facts else cls(text.strip())

    def render(self) -> str:
        """Return the text that is stored and sent."""
        facts = "\n".join(("Facts:", *(f"- {fact}" for fact in self.facts))) if self.facts else ""
        return "\n\n".join(part for part in (self.prose, facts) if part)

    def within(self, tokens: int, facts_tokens: int, counter: TokenCounter) -> SummaryText:
        """Return the newest facts that fit `facts_tokens`, and the beginning of the prose that fits the rest."""
        text = replace(self, facts=fitting_facts(self.facts, facts_tokens, counter))
        if counter(text.render()) <= tokens:
            return text
        return replace(
            text, prose=cut_end(self.prose, tokens, lambda prose: counter(replace(text, prose=prose).render()))
        )


def merged_facts(texts: Iterable[SummaryText]) -> tuple[str, ...]:
    """Return the facts of texts, oldest first; of a repeated fact, the last occurrence counts."""
    found: dict[str, str] = {}
    for fact in (fact for text in texts for fact in text.facts):
        key = "".join(filter(str.isalnum, fact)).casefold()
        found.pop(key, None)
        found[key] = fact
    return tuple(found.values())


def fitting_facts(facts: Sequence[str], tokens: int, counter: TokenCounter) -> tuple[str, ...]:
    """Return the newest facts whose lines are within the tokens: a later fact may correct an earlier one."""
    kept = tuple(facts)
    while kept and counter(SummaryText("", kept).render()) > tokens:
        kept = kept[1:]
    return kept
