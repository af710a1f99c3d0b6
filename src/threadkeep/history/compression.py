"""Compression of sessions: the options, the protocol of summarizers, and the errors."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal, Protocol

from threadkeep.context.compression import Size, check_size
from threadkeep.errors import InvalidInput, ThreadkeepError
from threadkeep.observe import SummaryFailure

type SummaryTask = Literal["messages", "continuation", "summaries"]

_LEAST_SUMMARY_TOKENS = 100


class Summarizer(Protocol):
    """A writer of summaries.

    Its input is a record in JSON, one message or summary per line. The record is data, never instructions. A summarizer
    raises if it fails; then nothing is stored, and it is called again later. It may be called for several sessions at
    once.
    """

    @property
    def name(self) -> str:
        """The model's name, which is stored with each summary."""
        ...

    @property
    def prompt_version(self) -> str:
        """The version of the prompt, which is stored with each summary."""
        ...

    @property
    def input_tokens(self) -> int:
        """The number of tokens of a record that it accepts at once."""
        ...

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """Return the summary of a record, in the language of the conversation.

        Args:
            record: the text to summarise.
            earlier: the summary of the text before it. For `messages` it is only context and must not be repeated; for
                `continuation` it is the summary of the record's first part and must be included completely.
            task: the record has `messages`, the `continuation` of messages, or `summaries` to merge into one.
            max_tokens: the approximate maximum length of the summary.
        """
        ...


@dataclass(frozen=True)
class Compression:
    """Options for summaries of older messages; sizes use LangChain's format.

    A size is `("tokens", n)`, `("messages", n)`, or `("fraction", f)` of the budget of a model call. A summary is made
    when the messages without a summary reach `trigger`. The newest messages of size `keep` stay without a summary, from
    the beginning of a turn on. Messages that did not fit a window are summarised before the trigger is reached.
    `max_summary_tokens` limits all active summaries together, and is never more than a quarter of the budget of a model
    call; beyond it, older summaries are merged.
    """

    trigger: Size = ("tokens", 20_000)
    keep: Size = ("messages", 20)
    max_summary_tokens: int = 2_000
    summarizer: Summarizer | None = None

    def __post_init__(self) -> None:
        """Refuse options that would never or always compress.

        Raises:
            InvalidInput: the message names the option and its valid values.
        """
        check_size("trigger", self.trigger)
        check_size("keep", self.keep)
        if self.trigger[0] == self.keep[0] and self.keep[1] >= self.trigger[1]:
            raise InvalidInput(
                f"keep {self.keep} leaves nothing to compress when trigger {self.trigger} is reached; keep less."
            )
        most = self.max_summary_tokens
        if isinstance(most, bool) or not isinstance(most, int) or most < _LEAST_SUMMARY_TOKENS:
            raise InvalidInput(f"max_summary_tokens is a whole number from {_LEAST_SUMMARY_TOKENS}.")


def read_size(text: str) -> Size:
    """Return the size for a setting: `tokens:20000`, `messages:40` or `fraction:0.5`.

    Raises:
        ValueError: the message shows the format.
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
    """A summary could not be made; nothing has changed, and it is retried later.

    `reason` is `model`, `timeout`, `empty`, `too_long`, `outdated` or `store`. `kind` is the class name of the
    underlying error, because its message may quote people.
    """

    def __init__(self, reason: SummaryFailure, kind: str | None = None) -> None:
        behind = f" ({kind})" if kind else ""
        super().__init__(f"{_SENTENCES[reason]}{behind}; nothing has changed, and it is tried again later.")
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
