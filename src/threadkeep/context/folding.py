"""Exchanges that repeat word for word, shown once with a visible count.

"ok" and "Done." five times in a row are five exchanges in the transcript, and stay so there; in a window four of them
tell a model nothing but the count. Only what follows each other without anything between is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.errors import InvalidInput
from threadkeep.records import Message


@dataclass(frozen=True)
class Fold:
    """Exchanges that one stands for: `times` of them, itself included, and the places of the messages left out.

    `seq` is the place of the user message that is shown with the count.
    """

    seq: int | None
    times: int
    left_out: tuple[int, ...]


@dataclass(frozen=True)
class Folded:
    """Messages in their order, and what was folded in them; the same messages when there was nothing to fold."""

    messages: tuple[Message, ...]
    folds: tuple[Fold, ...] = ()


def fold_mark(times: int) -> str:
    """What follows the user's words of an exchange that stands for several."""
    return f"… [this exchange {times} times in a row]"


def fold_repeats(messages: Sequence[Message], *, counter: TokenCounter | None = None, least: int = 2) -> Folded:
    """The messages with each run of equal exchanges folded into its newest one.

    An exchange is a user message with the assistant messages that answer it. Two are equal when they say the same words
    in the same order, and each message is complete. The newest stays, so the newest user message always does; what was
    not answered yet is never folded.

    Args:
        messages: user and assistant messages, oldest first.
        counter: counts the tokens of a user message that got the mark; the default estimate when None.
        least: how many equal exchanges in a row are folded; from 2.

    Raises:
        InvalidInput: `least` is below 2.
    """
    if isinstance(least, bool) or not isinstance(least, int) or least < 2:
        raise InvalidInput("least is a whole number from 2: one exchange alone does not repeat.")
    kept: list[Message] = []
    folds: list[Fold] = []
    for run in _runs(_exchanges(messages)):
        if len(run) < least or not _answered(run[0]):
            kept += [message for exchange in run for message in exchange]
            continue
        question, *answers = run[-1]
        kept += [_marked(question, len(run), counter or estimate), *answers]
        left_out = tuple(message.seq for exchange in run[:-1] for message in exchange if message.seq is not None)
        folds.append(Fold(question.seq, len(run), left_out))
    return Folded(tuple(kept), tuple(folds))


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages in pieces that each begin with a user message, but perhaps the first."""
    pieces: list[list[Message]] = []
    for message in messages:
        if message.role == "user" or not pieces:
            pieces.append([])
        pieces[-1].append(message)
    return pieces


def _runs(exchanges: Sequence[list[Message]]) -> list[list[list[Message]]]:
    """The exchanges in groups of equal ones that follow each other."""
    runs: list[list[list[Message]]] = []
    for exchange in exchanges:
        if runs and _said(runs[-1][-1]) == _said(exchange):
            runs[-1].append(exchange)
        else:
            runs.append([exchange])
    return runs


def _said(exchange: Sequence[Message]) -> list[tuple[str, str, str]]:
    return [(message.role, message.status, message.content.strip()) for message in exchange]


def _answered(exchange: Sequence[Message]) -> bool:
    return (
        len(exchange) > 1
        and exchange[0].role == "user"
        and all(message.role == "assistant" for message in exchange[1:])
        and all(message.status == "complete" for message in exchange)
    )


def _marked(question: Message, times: int, counter: TokenCounter) -> Message:
    content = f"{question.content.rstrip()} {fold_mark(times)}"
    return question.with_fields(content=content, tokens=counter(content))
