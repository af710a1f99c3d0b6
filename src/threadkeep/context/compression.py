"""The rules of compression: when summaries replace messages of a session, and which messages they replace.

A session has, in order: summarised messages, messages that may be summarised next, and the tail, which stays. The
tail begins at the start of a turn: a user message after a message of another role. Sizes use LangChain's notation:
`("tokens", n)`, `("messages", n)`, or `("fraction", f)` of the budget of a model call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from threadkeep.context.cut import cut_end
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import InvalidInput
from threadkeep.records import SPEAKERS, Message, Summary

type Size = tuple[Literal["tokens", "messages"], int] | tuple[Literal["fraction"], float]

_LEAST_SHARE = 8
_LEAST_SUMMARY_TOKENS = 100
_LEAST_INPUT_TOKENS = 400
_HEADER_TOKENS = 80  # tokens of the introduction before the first summary in a prompt
_BLOCK_TOKENS = 30  # tokens of the frame around each summary
_FULL = 0.9


@dataclass(frozen=True)
class Extent:
    """The size of a range of messages: the number of user and assistant messages, and their tokens in all."""

    messages: int
    tokens: int


@dataclass(frozen=True)
class SummaryRoom:
    """Limits for the length of summaries, in tokens.

    all: all active summaries in total.
    framed: all active summaries with the text around them in a prompt.
    one: one summary.
    asked: the length that the prompt asks for. It is below `one`, because a model does not count exactly.
    record: the part of the transcript that a model reads in one call.
    """

    all: int
    framed: int
    one: int
    asked: int
    record: int

    @property
    def facts(self) -> int:
        """The maximum number of tokens for the facts of one summary."""
        return self.one * 2 // 3

    @classmethod
    def within(cls, max_summary_tokens: int, budget: int, input_tokens: int) -> SummaryRoom:
        """Return the limits for a model that reads `input_tokens` at once.

        All summaries together may have `max_summary_tokens`, but at most a quarter of `budget`, the tokens of a model
        call. At least 100 tokens are always allowed.
        """
        framed = budget // 4 - _HEADER_TOKENS
        together = max(_LEAST_SUMMARY_TOKENS, min(max_summary_tokens, framed - 2 * _BLOCK_TOKENS))
        reading = max(input_tokens, _LEAST_INPUT_TOKENS)
        one = min(together, reading) // 2
        return cls(together, max(framed, together + 2 * _BLOCK_TOKENS), one, one * 3 // 5, reading - one)


@dataclass(frozen=True)
class WindowRoom:
    """Limits of history (window) in a call; None means no limit. A full window is cut to `step` times these limits."""

    tokens: int | None = None
    messages: int | None = None
    step: float = 0.4

    def nearly_full(self, extent: Extent) -> tuple[Size, ...]:
        """Return the sizes to cut the window to if messages of this extent nearly fill it, else an empty tuple."""
        keep: list[Size] = []
        if self.tokens is not None and extent.tokens > self.tokens * _FULL:
            keep.append(("tokens", max(1, int(self.tokens * self.step))))
        if self.messages is not None and extent.messages > self.messages:
            keep.append(("messages", max(1, int(self.messages * self.step) - 2)))
        return tuple(keep)


UNLIMITED = WindowRoom()


def check_size(name: str, size: Size) -> None:
    """Check `size`, the value of the option `name`.

    Raises:
        InvalidInput: the size is not a `Size`, or its number is not in the range that the error states.
    """
    pair = tuple(size) if isinstance(size, tuple | list) else ()
    if len(pair) == 2 and not isinstance(pair[1], bool):
        unit, value = pair
        if unit in ("tokens", "messages") and isinstance(value, int) and value >= 1:
            return
        if unit == "fraction" and isinstance(value, int | float) and 0 < value <= 1:
            return
    raise InvalidInput(
        f'{name} is ("tokens", n) or ("messages", n) with a whole number from 1, or ("fraction", f) of the budget of a '
        "model call, with f above 0 and at most 1."
    )


def in_units(size: Size, budget: int) -> tuple[Literal["tokens", "messages"], int]:
    """Convert a size to tokens or messages. A fraction becomes that part of `budget`, in tokens."""
    unit, value = size
    if unit == "fraction":
        return "tokens", max(1, int(budget * value))
    return unit, int(value)


def reaches(extent: Extent, trigger: Size, budget: int) -> bool:
    """Return True if messages of this extent have at least the size `trigger`, which starts a compression."""
    unit, value = in_units(trigger, budget)
    return (extent.tokens if unit == "tokens" else extent.messages) >= value


def is_worth_it(extent: Extent, trigger: Size, budget: int) -> bool:
    """Return True if a range of messages is long enough to be summarised: at least an eighth of `trigger`.

    Without this rule, a session whose newest messages alone exceed the trigger would be compressed in every turn.
    """
    unit, value = in_units(trigger, budget)
    return extent.messages > 0 and reaches(extent, (unit, max(1, value // _LEAST_SHARE)), budget)


def kept_from(rows: Sequence[Message], keep: Size, budget: int, *, complete: bool) -> int | None:
    """Return the `seq` at which the tail begins, or None if older rows are needed to find out.

    The tail is the newest turns, which are not summarised. It always contains the newest user message.

    Args:
        rows: the newest rows, newest first, without gaps.
        keep: the number of messages or the most tokens of the tail, before it is extended to the start of a turn.
        budget: the budget of a model call, in tokens.
        complete: True if the rows include everything after the last summary.
    """
    unit, value = in_units(keep, budget)
    spoken = _spoken(rows)
    held = value if unit == "messages" else _fitting(spoken, value)
    if held < len(spoken) or (unit == "messages" and held == len(spoken)):
        oldest = max(held - 1, 0)
        starts = (index for index in range(oldest, len(spoken)) if _starts_turn(spoken, index, complete=complete))
        if (index := next(starts, None)) is not None:
            return _seq(spoken[index])
        if complete and not any(row.role == "user" for row in spoken):
            return _seq(spoken[oldest])
    return _seq(rows[-1]) if complete and rows else None


def kept_after(rows: Sequence[Message], left_out_upto_seq: int, *, complete: bool) -> int | None:
    """Return the `seq` of the first turn that is not summarised, or None if older rows are needed to find out.

    This is the first turn after `left_out_upto_seq` or, if there is none, the newest turn.

    Args:
        rows: the newest rows, newest first, at least back to `left_out_upto_seq`.
        left_out_upto_seq: the `seq` of the newest message that did not fit into the window.
        complete: True if the rows include everything after the last summary.
    """
    spoken = _spoken(rows)
    starts = [_seq(row) for index, row in enumerate(spoken) if _starts_turn(spoken, index, complete=complete)]
    if starts:
        return min((seq for seq in starts if seq > left_out_upto_seq), default=starts[0])
    return left_out_upto_seq + 1 if complete and not any(row.role == "user" for row in spoken) else None


def part_length(rows: Sequence[Message], sizes: Sequence[int], room: int) -> int:
    """Return how many of the oldest `rows` the next call of the summarizer reads: whole turns if possible.

    It reads at most `room` tokens in total, but at least one row, which may be longer. `sizes`: the tokens of each row.
    """
    used = fitting = 0
    for size in sizes:
        used += size
        if used > room:
            break
        fitting += 1
    if fitting == len(rows):
        return fitting
    borders = [end for end in range(max(fitting // 2, 1), fitting + 1) if rows[end].role == "user"]
    return borders[-1] if borders else max(fitting, 1)


def packed(lines: Sequence[str], sizes: Sequence[int], room: int) -> tuple[str, ...]:
    """Join lines into texts of at most `room` tokens, which a model can read at once. A longer line stays alone."""
    records: list[list[str]] = []
    used = 0
    for line, size in zip(lines, sizes, strict=True):
        used += size
        if not records or used > room:
            records.append([])
            used = size
        records[-1].append(line)
    return tuple("\n".join(record) for record in records)


def even_room(total: int, room: int) -> int:
    """Divide `total` tokens into equal parts of at most `room`, and return their size; `room` if one part is enough."""
    return -(-total // -(-total // room)) if total > room else room


def to_merge(summaries: Sequence[Summary], room: SummaryRoom) -> tuple[Summary, ...]:
    """Return the summaries that must be merged into one, oldest first; none if all of them fit into `room`.

    If there are more than two, the newest is not merged, because recent details matter most. Summaries with archived
    messages between them are not merged, because the result would cover the archived messages as well.
    """
    together = sum(summary.tokens for summary in summaries)
    if together <= room.all and together + _BLOCK_TOKENS * len(summaries) <= room.framed:
        return ()
    older = summaries[:-1] if len(summaries) > 2 else summaries
    runs = [[older[0]]]
    for former, latter in pairwise(older):
        if former.last_seq + 1 == latter.first_seq:
            runs[-1].append(latter)
        else:
            runs.append([latter])
    return next((tuple(run) for run in runs if len(run) >= min(len(older), 2)), ())


def sources_of(summaries: Sequence[Summary], parts: Mapping[str, Sequence[Summary]], tokens: int) -> Sequence[Summary]:
    """Return the summaries that a model reads in order to merge `summaries`.

    Repeated merging loses details. If the oldest summary is itself merged, its parts are read instead, if they fit.

    Args:
        summaries: the summaries to merge, oldest first.
        parts: maps the id of each merged summary to the summaries from which it was made, oldest first.
        tokens: the maximum number of tokens to read.
    """
    node, later = summaries[0], list(summaries[1:])
    level = node.level
    while node.level == level > 1:
        found = parts.get(node.id, ())
        if not found or (found[0].first_seq, found[-1].last_seq) != (node.first_seq, node.last_seq):
            return summaries
        node, later = found[0], [*found[1:], *later]
    return [node, *later] if sum(one.tokens for one in (node, *later)) <= tokens else summaries


def _spoken(rows: Sequence[Message]) -> list[Message]:
    return [row for row in rows if row.role in SPEAKERS]


def _fitting(rows: Sequence[Message], tokens: int) -> int:
    """Return how many of the leading rows have at most `tokens` tokens in total."""
    for index, row in enumerate(rows):
        tokens -= row.tokens or 0
        if tokens < 0:
            return index
    return len(rows)


def _starts_turn(spoken: Sequence[Message], index: int, *, complete: bool) -> bool:
    """Return True if a turn begins at `index`. Rows are newest first; the oldest begins a turn only if `complete`."""
    if spoken[index].role != "user":
        return False
    return spoken[index + 1].role != "user" if index + 1 < len(spoken) else complete


def _seq(message: Message) -> int:
    return message.seq or 0


_HEADING = re.compile(r"[\s#*_]*facts[\s:：*_]*", re.IGNORECASE)
_FACT = re.compile(r"\s*[-*•]\s+(\S.*)")
_MOST_CHARACTERS = 300  # of a fact; a longer line counts as prose


@dataclass(frozen=True)
class SummaryText:
    """The text of a summary, divided into prose and a list of facts, oldest first."""

    prose: str
    facts: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> SummaryText:
        """Split a text into prose and the list of facts below a heading "Facts"."""
        lines = text.strip().splitlines()
        heading = next((index for index, line in enumerate(lines) if _HEADING.fullmatch(line)), None)
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
        """Return the prose and the facts as one text, which is stored and sent to models."""
        facts = "\n".join(("Facts:", *(f"- {fact}" for fact in self.facts))) if self.facts else ""
        return "\n\n".join(part for part in (self.prose, facts) if part)

    def within(self, tokens: int, facts_tokens: int, counter: TokenCounter) -> SummaryText:
        """Return the text with the newest facts that fit `facts_tokens`; cut the prose so that all fits `tokens`."""
        text = replace(self, facts=fitting_facts(self.facts, facts_tokens, counter))
        if counter(text.render()) <= tokens:
            return text
        return replace(
            text, prose=cut_end(self.prose, tokens, lambda prose: counter(replace(text, prose=prose).render()))
        )


def merged_facts(texts: Iterable[SummaryText]) -> tuple[str, ...]:
    """Return the facts of all texts, oldest first. Of equal facts, keep only the last."""
    found: dict[str, str] = {}
    for fact in (fact for text in texts for fact in text.facts):
        key = " ".join(fact.casefold().split()).rstrip(" .!。！")
        found.pop(key, None)
        found[key] = fact
    return tuple(found.values())


def fitting_facts(facts: Sequence[str], tokens: int, counter: TokenCounter) -> tuple[str, ...]:
    """Return the newest facts that fit into `tokens`. Drop older facts first, because newer ones may correct them."""
    kept = tuple(facts)
    while kept and counter(SummaryText("", kept).render()) > tokens:
        kept = kept[1:]
    return kept
