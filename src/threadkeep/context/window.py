"""Windows: the newest stored rows that fit into a model call.

A window takes rows without gaps, from the newest one backwards, until a message does not fit. The newest user message
is always included, even if it is older than all others. If it exceeds the budget, it is cut, and no other message is
included. If the newest message does not fit beside the newest user message, it is cut, so that there is some history.
A limit of 0 allows no messages; None means no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from threadkeep.context.cut import CUT_MARK, cut_end
from threadkeep.context.tokens import TokenCounter, estimate, name_of
from threadkeep.errors import InvalidInput
from threadkeep.records import Message
from threadkeep.records.messages import messages_html

type ExclusionReason = Literal[
    "over_budget",
    "over_limit",
    "before_anchor",
    "reset",
    "summarised",
    "duplicate",
    "role",
    "orphan_tool",
    "archived",
    "empty",
    "folded",
    "superseded",
    "failed",
]


@dataclass(frozen=True)
class Cut:
    """A message that was cut, and marked as cut, to fit into the window, with its tokens before and after."""

    seq: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class Exclusion:
    """A range of excluded messages, both ends included, and the reason."""

    first_seq: int
    last_seq: int
    reason: ExclusionReason


def join_ranges(gaps: Iterable[Exclusion]) -> list[Exclusion]:
    """Join adjacent ranges with the same reason. Do not join summarised ranges, because each has its own summary."""
    joined: list[Exclusion] = []
    for gap in gaps:
        last = joined[-1] if joined else None
        if last is not None and last.reason == gap.reason != "summarised" and last.last_seq + 1 == gap.first_seq:
            joined[-1] = Exclusion(last.first_seq, gap.last_seq, gap.reason)
        else:
            joined.append(gap)
    return joined


@dataclass(frozen=True)
class WindowManifest:
    """The record of a window: which messages are in it, and which were excluded.

    `included` has the `seq` of its messages, in order. `dropped` counts the excluded messages, except messages that are
    excluded because they precede a reset, are archived or are superseded.
    """

    counter: str
    max_messages: int | None
    max_tokens: int | None
    tokens: int
    included: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    dropped: int = 0


@dataclass(frozen=True)
class Window:
    """The newest messages of a session that fit into the limits, oldest first."""

    messages: tuple[Message, ...]
    tokens: int
    manifest: WindowManifest

    def _repr_html_(self) -> str:
        """Return the window as an HTML table for notebooks."""
        title = f"Window of {len(self.messages)} messages, {self.tokens:,} tokens; {self.manifest.dropped:,} left out"
        return messages_html(title, self.messages)


# These exclusions have nothing to do with the limits, so `dropped` does not count them.
_NOT_DROPPED = ("reset", "archived", "superseded")


@dataclass(frozen=True)
class Limits:
    """The limits of a window, and the counter that measures its messages.

    Without a counter, the stored token counts are used.
    """

    max_messages: int | None = None
    max_tokens: int | None = None
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        """Reject negative limits and a counter that is no function."""
        for name, value in (("max_messages", self.max_messages), ("max_tokens", self.max_tokens)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidInput(f"{name} must be a whole number from 0 (0 means none), or None for no limit.")
        if self.counter is not None and not callable(self.counter):
            raise InvalidInput("counter must be a function that counts a text's tokens, a counter's name, or None.")

    @property
    def nothing(self) -> bool:
        """True if a limit is 0, so that the window is empty."""
        return self.max_messages == 0 or self.max_tokens == 0


@dataclass(frozen=True)
class Extent:
    """Three message numbers (`seq`) of a session, with which a window reports excluded messages that were not read.

    They belong to the oldest stored message, the last reset and the newest archived message; 0 means none.
    """

    first_seq: int = 1
    reset_seq: int = 0
    archived_seq: int = 0


def with_superseded(window: Window, superseded: Sequence[tuple[int, int]]) -> Window:
    """Return the window with the `seq` ranges of superseded (taken back or replaced) messages as extra exclusions."""
    if not superseded:
        return window
    excluded = [*window.manifest.excluded]
    for first, last in superseded:
        excluded = [part for gap in excluded for part in _without(gap, first, last)]
    excluded += [Exclusion(first, last, "superseded") for first, last in superseded]
    excluded.sort(key=lambda gap: gap.first_seq)
    return replace(
        window, manifest=replace(window.manifest, excluded=tuple(excluded), dropped=_dropped_places(excluded))
    )


def _without(gap: Exclusion, first_seq: int, last_seq: int) -> Iterator[Exclusion]:
    """Yield the parts of an excluded range before `first_seq` and after `last_seq`."""
    if gap.last_seq < first_seq or gap.first_seq > last_seq:
        yield gap
        return
    if gap.first_seq < first_seq:
        yield replace(gap, last_seq=first_seq - 1)
    if gap.last_seq > last_seq:
        yield replace(gap, first_seq=last_seq + 1)


def _dropped_places(excluded: Sequence[Exclusion]) -> int:
    return sum(gap.last_seq - gap.first_seq + 1 for gap in excluded if gap.reason not in _NOT_DROPPED)


class WindowChooser:
    """An object that chooses the rows of one window, page by page while they are read.

    Tokens for the newest user message are reserved first, so it must be in the first page or be `newest_user`::

        chooser = WindowChooser(limits, newest_user=...)
        while chooser.wants_more and (rows := await next_older_rows()):
            chooser.add(rows)
        window = chooser.window(extent)
    """

    def __init__(self, limits: Limits, *, newest_user: Message | None = None, before_question: bool = False) -> None:
        """Create a chooser. With `before_question`, the rows are the history before a question that is not among them.

        In this case, no message is cut, and the newest row is included even if it exceeds the budget.
        """
        self._limits = limits
        self._counter = limits.counter or estimate
        self._before_question = before_question
        self._pinned = None if before_question else newest_user  # reserved, but not yet found among the rows
        self._pinned_tokens = 0
        self._chosen: list[tuple[Message, int]] = []  # newest first
        self._cuts: list[Cut] = []
        self._used = 0
        self._newest_seq = 0
        self._stop: tuple[int, ExclusionReason] | None = None
        self._started = False

    @property
    def wants_more(self) -> bool:
        """True if older rows could still be in the window."""
        return not (self._limits.nothing or self._stop or self._full)

    def add(self, rows: Sequence[Message]) -> None:
        """Add the next rows, newest first; each must be older than the rows before it.

        Raises:
            InvalidInput: a row has no `seq`, or a role that is never in a window.
        """
        for row in rows:
            _check_row(row)
        if not self._started:
            rows = self._start(rows)
        for row in rows:
            if self._stop:
                return
            self._take(row)

    def window(self, extent: Extent | None = None) -> Window:
        """Return the messages chosen from the rows added so far, oldest first, with the record of the choice."""
        if not self._started:
            self.add(())
        pinned = [(self._pinned, self._pinned_tokens)] if self._pinned else []
        chosen = [*pinned, *reversed(self._chosen)]
        excluded = self._excluded(extent or Extent())
        manifest = WindowManifest(
            counter=name_of(self._counter),
            max_messages=self._limits.max_messages,
            max_tokens=self._limits.max_tokens,
            tokens=sum(tokens for _, tokens in chosen),
            included=tuple(_seq(message) for message, _ in chosen),
            cuts=tuple(sorted(self._cuts, key=lambda cut: cut.seq)),
            excluded=excluded,
            dropped=_dropped_places(excluded),
        )
        return Window(tuple(message for message, _ in chosen), manifest.tokens, manifest)

    @property
    def _full(self) -> bool:
        limit = self._limits.max_messages
        return limit is not None and len(self._chosen) + (self._pinned is not None) >= limit

    def _start(self, rows: Sequence[Message]) -> Sequence[Message]:
        """Reserve tokens for the newest user message. Return the rows, with this message first if it is newer."""
        self._started = True
        among = next((row for row in rows if row.role == "user"), None) if not self._before_question else None
        if self._pinned is None or (among and _seq(among) >= _seq(self._pinned)):
            self._pinned = among
        elif not rows or _seq(self._pinned) > _seq(rows[0]):
            rows = [self._pinned, *rows]
        self._newest_seq = _seq(rows[0]) if rows else 0
        if self._limits.nothing:
            self._pinned = None
            self._stop = (self._newest_seq, "over_limit" if self._limits.max_messages == 0 else "over_budget")
        elif self._pinned is not None:
            self._reserve(self._pinned)
        return rows

    def _reserve(self, user: Message) -> None:
        tokens = self._tokens(user)
        budget = self._limits.max_tokens
        if budget is None or tokens <= budget:
            self._pinned, self._pinned_tokens = user, tokens
        else:
            self._stop = (self._newest_seq, "over_budget")
            self._pinned, self._pinned_tokens = self._shorten(user, tokens, budget) or (None, 0)
        self._used = self._pinned_tokens

    def _take(self, row: Message) -> None:
        if self._pinned and row.seq == self._pinned.seq:
            self._chosen.append((self._pinned, self._pinned_tokens))
            self._pinned = None
            return
        if self._full:
            # The result must not depend on the size of pages, so treat a row beyond the limit as if it was not read.
            self._stop = (_seq(self._chosen[-1][0]) - 1 if self._chosen else _seq(row), "over_limit")
            return
        tokens, budget = self._tokens(row), self._limits.max_tokens
        if budget is None or self._used + tokens <= budget:
            self._chosen.append((row, tokens))
            self._used += tokens
            return
        self._stop = (_seq(row), "over_budget")
        if row.seq != self._newest_seq:
            return
        # Before a question, keep the newest row whole: the model call, which knows its budget, cuts it.
        newest = (row, tokens) if self._before_question else self._shorten(row, tokens, budget - self._used)
        if newest is not None:
            self._chosen.append(newest)
            self._stop = (_seq(row) - 1, "over_budget")

    def _shorten(self, message: Message, tokens: int, budget: int) -> tuple[Message, int] | None:
        """Return the message cut to `budget` tokens, and its new size; None if none of its text fits."""
        counter = _scaled(self._counter, message.content, tokens)
        content = cut_end(message.content, budget, counter)
        if content in ("", CUT_MARK):
            return None
        after = counter(content)
        self._cuts.append(Cut(_seq(message), tokens, after))
        return message.with_fields(content=content, tokens=after), after

    def _tokens(self, message: Message) -> int:
        if self._limits.counter is None and message.tokens is not None:
            return message.tokens
        return self._counter(message.content)

    def _excluded(self, extent: Extent) -> tuple[Exclusion, ...]:
        """Return the excluded ranges before the chosen messages, with reasons."""
        gaps: list[Exclusion] = []
        if extent.reset_seq >= extent.first_seq:
            gaps.append(Exclusion(extent.first_seq, extent.reset_seq, "reset"))
        low = max(extent.first_seq, extent.reset_seq + 1)
        if extent.archived_seq >= low:
            gaps.append(Exclusion(low, extent.archived_seq, "archived"))
            low = extent.archived_seq + 1
        last, reason = self._stop or (self._newest_seq, "over_limit")
        if not self._stop:
            if not self._full or not self._chosen:
                return tuple(gaps)
            last = _seq(self._chosen[-1][0]) - 1
        if self._pinned:
            gaps.append(Exclusion(low, min(_seq(self._pinned) - 1, last), reason))
            low = _seq(self._pinned) + 1
        gaps.append(Exclusion(low, last, reason))
        return tuple(gap for gap in gaps if gap.first_seq <= gap.last_seq)


def _scaled(counter: TokenCounter, content: str, tokens: int) -> TokenCounter:
    """Return a counter that multiplies the results of `counter` by a factor, so that `content` has `tokens` tokens."""
    counted = counter(content)
    if counted == tokens or counted == 0:
        return counter
    return lambda text: -(-counter(text) * tokens // counted)


def _seq(message: Message) -> int:
    return message.seq or 0


def _check_row(row: Message) -> None:
    if row.seq is None:
        raise InvalidInput("The rows of a window are stored messages with their seq; append them to the session first.")
    if row.role == "system":
        raise InvalidInput("A window has only user and assistant messages; do not add system messages.")
