"""When a session is compressed, and which messages: arithmetic over places and sizes.

A session's messages are, in order: those that a summary stands for, those that come next (the range that may be
compressed), and the kept tail. The tail begins with a turn: with a user message that follows somebody else's. Sizes are
in LangChain's vocabulary: `("tokens", n)`, `("messages", n)`, or `("fraction", f)` of the budget of a model call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from threadkeep.errors import InvalidInput
from threadkeep.records import SPEAKERS, Message, Summary

type Size = tuple[Literal["tokens", "messages"], int] | tuple[Literal["fraction"], float]

_LEAST_SHARE = 8
_LEAST_SUMMARY_TOKENS = 100
_LEAST_INPUT_TOKENS = 400
_HEADER_TOKENS = 80  # what a prompt says of summaries before the first
_BLOCK_TOKENS = 30  # and around each of them
_FULL = 0.9


@dataclass(frozen=True)
class Extent:
    """How much a stretch of a session holds: user and assistant messages, and their tokens."""

    messages: int
    tokens: int


@dataclass(frozen=True)
class SummaryRoom:
    """How long summaries may be, in tokens.

    All active ones together have `all` at most, and `framed` with what stands around each; one with more than `one` is
    not accepted, and `asked` is what a model is asked for, since it cannot count. `record` is how much it is given to
    read at once, beside an earlier summary.
    """

    all: int
    framed: int
    one: int
    asked: int
    record: int

    @classmethod
    def within(cls, max_summary_tokens: int, budget: int, input_tokens: int) -> SummaryRoom:
        """The room for summaries by somebody who reads so many tokens at once.

        It is what the options say at most, and never more than a quarter of the budget of a model call less what it
        takes to say what they are.
        """
        framed = budget // 4 - _HEADER_TOKENS
        together = max(_LEAST_SUMMARY_TOKENS, min(max_summary_tokens, framed - 2 * _BLOCK_TOKENS))
        reading = max(input_tokens, _LEAST_INPUT_TOKENS)
        one = min(together, reading) // 2
        return cls(together, max(framed, together + 2 * _BLOCK_TOKENS), one, one * 3 // 5, reading - one)


@dataclass(frozen=True)
class WindowRoom:
    """How much of a session a window may hold, None for no such limit; when it is full it is cut back to a part."""

    tokens: int | None = None
    messages: int | None = None
    step: float = 0.5

    def nearly_full(self, extent: Extent) -> tuple[Size, ...]:
        """How much to keep so that the next call has no need to leave anything out; nothing while there is room.

        A part of the tokens is left free for the input that is to come; of the messages, the next turn's two.
        """
        keep: list[Size] = []
        if self.tokens is not None and extent.tokens > self.tokens * _FULL:
            keep.append(("tokens", max(1, int(self.tokens * self.step))))
        if self.messages is not None and extent.messages > self.messages:
            keep.append(("messages", max(1, int(self.messages * self.step) - 2)))
        return tuple(keep)


UNLIMITED = WindowRoom()


def check_size(name: str, size: Size) -> None:
    """Refuse what is not a size.

    Raises:
        InvalidInput: names the option.
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
    """A size as tokens or messages; a fraction is one of the budget."""
    unit, value = size
    if unit == "fraction":
        return "tokens", max(1, int(budget * value))
    return unit, int(value)


def reaches(extent: Extent, trigger: Size, budget: int) -> bool:
    """Whether there is so much that it is to be compressed."""
    unit, value = in_units(trigger, budget)
    return (extent.tokens if unit == "tokens" else extent.messages) >= value


def is_worth_it(extent: Extent, trigger: Size, budget: int) -> bool:
    """Whether a range holds an eighth of the trigger at least.

    A kept tail that is itself beyond the trigger would otherwise cost a model call for every turn.
    """
    unit, value = in_units(trigger, budget)
    return extent.messages > 0 and reaches(extent, (unit, max(1, value // _LEAST_SHARE)), budget)


def kept_from(rows: Sequence[Message], keep: Size, budget: int, *, complete: bool) -> int | None:
    """The `seq` with which the kept tail begins: the newest messages that `keep` names, and their turn from its start.

    The newest user message is always in it.

    Args:
        rows: the newest rows, newest first, without a gap.
        keep: so many messages at least, or the newest that have so many tokens at most.
        budget: of a model call.
        complete: whether the rows are all that follow the last summary. If they are not, None asks for more.
    """
    unit, value = in_units(keep, budget)
    spoken = _spoken(rows)
    held = value if unit == "messages" else _fitting(spoken, value)
    if held < len(spoken) or (unit == "messages" and held == len(spoken)):
        oldest = max(held - 1, 0)
        starts = (place for place in range(oldest, len(spoken)) if _starts_turn(spoken, place, complete=complete))
        if (place := next(starts, None)) is not None:
            return _seq(spoken[place])
        if complete and not any(row.role == "user" for row in spoken):
            return _seq(spoken[oldest])
    return _seq(rows[-1]) if complete and rows else None


def kept_after(rows: Sequence[Message], left_out_upto_seq: int, *, complete: bool) -> int | None:
    """The `seq` with which the tail begins when all up to a place is compressed: that of the next turn, or the newest.

    Args:
        rows: the newest rows, newest first, back to the place at least.
        left_out_upto_seq: the newest message that no window could hold.
        complete: whether the rows are all that follow the last summary. If they are not, None asks for more.
    """
    spoken = _spoken(rows)
    starts = [_seq(row) for place, row in enumerate(spoken) if _starts_turn(spoken, place, complete=complete)]
    if starts:
        return min((seq for seq in starts if seq > left_out_upto_seq), default=starts[0])
    return left_out_upto_seq + 1 if complete and not any(row.role == "user" for row in spoken) else None


def part_length(rows: Sequence[Message], sizes: Sequence[int], room: int) -> int:
    """How many of some rows, oldest first, make the next part that a model is given: as many as fit, one at least.

    It ends where a turn ends if that does not make it less than half of what fits.
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
    """Lines joined into records, each as many as fit and one at least."""
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
    """The room of each part when a whole is given in as few parts as it takes, all of about one size."""
    return -(-total // -(-total // room)) if total > room else room


def to_merge(summaries: Sequence[Summary], room: SummaryRoom) -> tuple[Summary, ...]:
    """Which active summaries, oldest first, are to become one: none while they are within their room together.

    The newest one stays as it is if there are two others: what was said last is wanted in most detail. Those with
    archived messages in between are not made one, which would stand for these too.
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


def _spoken(rows: Sequence[Message]) -> list[Message]:
    return [row for row in rows if row.role in SPEAKERS]


def _fitting(rows: Sequence[Message], tokens: int) -> int:
    """How many rows from the first on have at most so many tokens."""
    for place, row in enumerate(rows):
        tokens -= row.tokens or 0
        if tokens < 0:
            return place
    return len(rows)


def _starts_turn(spoken: Sequence[Message], place: int, *, complete: bool) -> bool:
    """Whether a turn begins with a row, of rows newest first: a user message after somebody else's."""
    if spoken[place].role != "user":
        return False
    return spoken[place + 1].role != "user" if place + 1 < len(spoken) else complete


def _seq(message: Message) -> int:
    return message.seq or 0
