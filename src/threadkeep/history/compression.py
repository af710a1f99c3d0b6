"""How a session is compressed: the options, who writes the summaries, and what can go wrong."""

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
    """Writes summaries.

    What it is given to read is a record in JSON, one message or summary a line: data, whatever it says. It raises when
    it cannot do its work; nothing is stored then, and it is asked again later. It may be called for several sessions.
    """

    @property
    def name(self) -> str:
        """The model's name, which is kept with each summary."""
        ...

    @property
    def prompt_version(self) -> str:
        """What tells the summaries of one prompt from those of another; kept with each summary."""
        ...

    @property
    def input_tokens(self) -> int:
        """How many tokens of record it takes at once."""
        ...

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """The text that stands for a record, in the language of the talk.

        Args:
            record: what to summarise.
            earlier: what was said before it, in summary: for `messages` to understand the record by, not to be
                repeated; for `continuation` the summary of the record's first part, to be taken up whole.
            task: whether the record is `messages`, the `continuation` of one, or `summaries` that become one.
            max_tokens: about how long the answer may be.
        """
        ...


@dataclass(frozen=True)
class Compression:
    """When older messages become a summary, and how much stays as it was said; sizes are in LangChain's vocabulary.

    A size is `("tokens", n)`, `("messages", n)`, or `("fraction", f)` of the budget of a model call. `trigger` is how
    much there is without a summary when one is made, `keep` how much stays without one: the newest messages, from the
    beginning of a turn on. What a window had to leave out is summarised before the trigger too. `max_summary_tokens` is
    what all summaries that count may have together, and never more than a quarter of the budget of a model call; when
    they have more, older ones become one.
    """

    trigger: Size = ("tokens", 20_000)
    keep: Size = ("messages", 20)
    max_summary_tokens: int = 2_000
    summarizer: Summarizer | None = None

    def __post_init__(self) -> None:
        """Refuse what would never or always compress.

        Raises:
            InvalidInput: says which option, and what it may be.
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
    """A size as settings have it: `tokens:20000`, `messages:40` or `fraction:0.5`.

    Raises:
        ValueError: says how it is written.
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
    """A summary could not be made; nothing has changed, and it is tried again later.

    `reason` is `model`, `timeout`, `empty`, `too_long`, `outdated` or `store`; `kind` is the name of the class of the
    error behind it, whose own sentence may quote people.
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
