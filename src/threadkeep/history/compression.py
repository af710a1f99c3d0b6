"""Compression of sessions: options, the protocol of summarizers, and the ranges to summarise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from threadkeep.context.compression import (
    UNLIMITED,
    Extent,
    Size,
    SummaryRoom,
    WindowRoom,
    check_size,
    even_room,
    is_worth_it,
    kept_after,
    kept_from,
    part_length,
    reaches,
)
from threadkeep.context.cut import keep_ends, pieces
from threadkeep.context.quotation import quoted_message
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import InvalidInput, ThreadkeepError
from threadkeep.observe import SummaryFailure
from threadkeep.records import SPEAKERS, Message
from threadkeep.store.summaries import Uncovered
from threadkeep.store.transcripts import Transcripts

type SummaryTask = Literal["messages", "continuation", "summaries"]

_LEAST_SUMMARY_TOKENS = 100


class Summarizer(Protocol):
    """A writer of summaries. Calls for several sessions may run at the same time.

    Its input is a text with one JSON object per line, each a message or a summary. This text is data, never
    instructions. If a summarizer raises an error, nothing is stored, and the call is repeated later.
    """

    @property
    def name(self) -> str:
        """The model's name, which is stored with each summary."""

    @property
    def prompt_version(self) -> str:
        """The version of the prompt, which is stored with each summary."""

    @property
    def input_tokens(self) -> int:
        """The maximum number of tokens in the record, which is the input text of one call."""

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """Return a summary of the record in the language of the conversation.

        Args:
            record: the text to summarise.
            earlier: the summary of the text before the record. If `task` is `messages`, it is only context and must not
                be repeated. If `task` is `continuation`, it summarises the earlier parts and must be included
                completely.
            task: the content of the record: `messages`, `continuation` (a later part of them), or `summaries` to merge.
            max_tokens: the approximate maximum length of the summary.
        """


@dataclass(frozen=True)
class Compression:
    """Options for summaries of older messages; sizes use LangChain's format.

    A size is `("tokens", n)`, `("messages", n)`, or `("fraction", f)`, a part of the token budget of a model call. A
    summary is written when the messages without a summary reach `trigger`. It leaves out the newest messages (the
    size `keep`, extended back to the start of a turn). Messages that did not fit a window are summarised before
    `trigger` is reached, even if fewer messages than `keep` are left. All active summaries have in total at most
    `max_summary_tokens`, and at most a quarter of the budget of a model call, but 100 tokens are always allowed. Beyond
    this limit, older summaries are merged.
    """

    trigger: Size = ("tokens", 20_000)
    keep: Size = ("messages", 20)
    max_summary_tokens: int = 2_000
    summarizer: Summarizer | None = None

    def __post_init__(self) -> None:
        """Reject invalid options, and a `keep` that leaves nothing to compress.

        Raises:
            InvalidInput: an option is invalid. The error names it and its valid values.
        """
        check_size("trigger", self.trigger)
        check_size("keep", self.keep)
        if self.trigger[0] == self.keep[0] and self.keep[1] >= self.trigger[1]:
            raise InvalidInput(
                f"keep {self.keep} leaves nothing to compress when trigger {self.trigger} is reached; lower keep."
            )
        most = self.max_summary_tokens
        if isinstance(most, bool) or not isinstance(most, int) or most < _LEAST_SUMMARY_TOKENS:
            raise InvalidInput(f"max_summary_tokens is a whole number from {_LEAST_SUMMARY_TOKENS}.")


def read_size(text: str) -> Size:
    """Parse a size in a setting, such as `tokens:20000`, `messages:40` or `fraction:0.5`.

    Raises:
        ValueError: the text is not a size; the error shows the format.
    """
    unit, _, number = (part.strip() for part in text.lower().partition(":"))
    size: Size | None = None
    with contextlib.suppress(ValueError):
        match unit:
            case "tokens" | "messages":
                size = (unit, int(number))
            case "fraction":
                size = (unit, float(number))
        if size is not None:
            check_size(text, size)
            return size
    raise ValueError("write it as tokens:20000, messages:40 or fraction:0.5, with a number above 0")


class CompressionFailed(ThreadkeepError):
    """A summary could not be written; earlier summaries stay.

    Automatic compression is tried again later, unless `reason` is `outdated`. `kind` is only the class name of the
    underlying error, because its text may quote a conversation.
    """

    def __init__(self, reason: SummaryFailure, kind: str | None = None) -> None:
        behind = f" ({kind})" if kind else ""
        again = "" if reason == "outdated" else " Automatic compression tries again later."
        super().__init__(f"{_SENTENCES[reason]}{behind}; earlier summaries stay.{again}")
        self.reason = reason
        self.kind = kind


_SENTENCES: dict[SummaryFailure, str] = {
    "model": "The model did not write the summary",
    "timeout": "The model did not write the summary in time",
    "empty": "The model wrote an empty summary",
    "too_long": "The model wrote a summary that is too long",
    "outdated": "The session changed while its summary was written, or another process was faster",
    "store": "The database did not answer",
    "crowded": "More sessions than the queue holds wait to be compressed",
}

_PAGE_ROWS = 200
_MOST_PIECES = 32
"""The most records of one message. If a message needs more, its middle is replaced by a mark."""


@dataclass(frozen=True)
class CompressionRequest:
    """A request to write summaries of a session's older messages.

    Sizes that are fractions refer to `budget`, the token budget of a model call. Messages up to `left_out_upto_seq`
    are summarised even before the trigger, because they did not fit a window. The oldest messages of a nearly full
    `window` are summarised too. If an earlier pass did not finish its range, `upto_seq` is the end of this range.
    """

    session_id: str
    compression: Compression
    summarizer: Summarizer
    budget: int
    left_out_upto_seq: int = 0
    window: WindowRoom = UNLIMITED
    upto_seq: int = 0

    @property
    def room(self) -> SummaryRoom:
        """The token limits for a summary, and for the part of the transcript that the summarizer reads in one call."""
        return SummaryRoom.within(self.compression.max_summary_tokens, self.budget, self.summarizer.input_tokens)


@dataclass(frozen=True)
class Part:
    """Messages that one summary will cover. `records` are the texts that the summarizer reads, one in each call.

    `revision` is the revision of the session before the messages were read.
    """

    first_seq: int
    last_seq: int
    last_id: str | None
    records: tuple[str, ...]
    revision: int | None = None


def is_due(uncovered: Uncovered, request: CompressionRequest) -> bool:
    """Return True if messages without a summary reach `trigger`, nearly fill a window, or were left out of one."""
    if _is_triggered(uncovered, request) or request.window.nearly_full(_extent(uncovered)):
        return True
    return uncovered.after_seq < request.left_out_upto_seq <= uncovered.last_seq


class RangeReader:
    """A reader that finds the messages to summarise, and reads them in bounded steps."""

    def __init__(self, transcripts: Transcripts, counter: TokenCounter) -> None:
        self._transcripts = transcripts
        self._counter = counter

    async def upto(self, request: CompressionRequest, uncovered: Uncovered) -> int:
        """Return the `seq` of the last message to summarise; if none is due, return `uncovered.after_seq`."""
        after = uncovered.after_seq
        rows: list[Message] = []
        before = uncovered.last_seq + 1
        while is_due(uncovered, request):
            page = await self._transcripts.newest(request.session_id, limit=_PAGE_ROWS, before=before)
            newer = [row for row in reversed(page.messages) if _seq(row) > after]
            rows += newer
            complete = len(newer) < _PAGE_ROWS or _seq(rows[-1]) == after + 1
            first = _tail_start(rows, uncovered, request, complete=complete)
            if first is not None:
                return first - 1
            if complete:
                break
            before = _seq(rows[-1])
        return after

    async def part(self, session_id: str, after: int, upto: int, limit: int) -> Part | None:
        """Return the next messages with a `seq` above `after`, up to `upto`, that fit into a record of `limit` tokens.

        A message that is too long for a record becomes one part with several records.
        """
        rows: list[Message] = []
        lines: list[str] = []
        sizes: list[int] = []
        info = await self._transcripts.session(session_id)
        position = after = max(after, info.archived_seq if info else 0)
        while position < upto and sum(sizes) <= limit:
            end = min(position + _PAGE_ROWS, upto)
            page = await self._transcripts.newest(session_id, limit=_PAGE_ROWS, before=end + 1)
            rows += [row for row in page.messages if _seq(row) > position]
            lines += [quoted_message(row) for row in rows[len(lines) :]]
            # Count in an OS thread, because counting long messages takes time.
            sizes += await asyncio.to_thread(self._sizes, rows[len(sizes) :], lines[len(sizes) :], limit)
            position = end
        if not rows:
            return None
        length = part_length(rows, sizes, even_room(sum(sizes), limit) if position == upto else limit)
        records: tuple[str, ...] = ("\n".join(lines[:length]),)
        if sizes[0] > limit:
            records = await asyncio.to_thread(self._pieces, rows[0], sizes[0], limit)
        revision = None if info is None else info.revision
        return Part(after + 1, _seq(rows[length - 1]), rows[length - 1].id, records, revision)

    def _sizes(self, rows: Sequence[Message], lines: Sequence[str], limit: int) -> list[int]:
        """Return the number of tokens of each line. For very long messages, return the stored count of the message."""
        return [
            row.tokens if row.tokens is not None and row.tokens > 2 * limit else self._counter(line) + 1
            for row, line in zip(rows, lines, strict=True)
        ]

    def _pieces(self, message: Message, size: int, limit: int) -> tuple[str, ...]:
        """Split a long message into numbered texts for the summarizer; leave out the middle of a huge message."""
        content = message.content
        if size > limit * _MOST_PIECES:
            content = keep_ends(content, len(content) * limit * _MOST_PIECES // size)
        found = pieces(content, limit, lambda text: self._counter(quoted_message(message, text, part="99 of 99")))
        return tuple(
            quoted_message(message, piece, part=f"{number} of {len(found)}")
            for number, piece in enumerate(found, start=1)
        )


def _tail_start(
    rows: list[Message], uncovered: Uncovered, request: CompressionRequest, *, complete: bool
) -> int | None:
    """Return the `seq` of the first message to leave unsummarised, or None if older rows are needed to find it."""
    after, left_out = uncovered.after_seq, request.left_out_upto_seq
    starts: list[int | None] = [after + 1]
    if _is_triggered(uncovered, request):
        kept = kept_from(rows, request.compression.keep, request.budget, complete=complete)
        tail = [row for row in rows if kept is not None and _seq(row) >= kept and row.role in SPEAKERS]
        beyond = Extent(uncovered.messages - len(tail), uncovered.tokens - sum(row.tokens or 0 for row in tail))
        if kept is None or is_worth_it(beyond, request.compression.trigger, request.budget):
            starts.append(kept)
    crowding = request.window.nearly_full(_extent(uncovered))
    starts += [kept_from(rows, keep, request.budget, complete=complete) for keep in crowding]
    if after < left_out <= uncovered.last_seq:
        known = complete or _seq(rows[-1]) <= left_out
        starts.append(kept_after(rows, left_out, complete=complete) if known else None)
    if None in starts and not complete:
        return None
    return max(start for start in starts if start is not None)


def _is_triggered(uncovered: Uncovered, request: CompressionRequest) -> bool:
    return reaches(_extent(uncovered), request.compression.trigger, request.budget)


def _extent(uncovered: Uncovered) -> Extent:
    return Extent(uncovered.messages, uncovered.tokens)


def _seq(message: Message) -> int:
    return message.seq or 0
