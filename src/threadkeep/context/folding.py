"""Folding of repeated exchanges, which then appear only once in a window, with a visible count.

If "ok" and "Done." are exchanged five times in a row, the window shows them once, with the count 5, because repetitions
tell a model nothing. The transcript keeps them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.records import Message


@dataclass(frozen=True)
class Fold:
    """A group of equal exchanges, of which the window has only the newest, with a count.

    `seq` is the position of the user message with the count; `left_out` has the positions of the omitted messages.
    """

    seq: int | None
    times: int
    left_out: tuple[int, ...]


@dataclass(frozen=True)
class Folded:
    """The result of `fold_repeats`: the remaining messages, in order, and the groups of exchanges that were folded."""

    messages: tuple[Message, ...]
    folds: tuple[Fold, ...] = ()


def fold_mark(times: int) -> str:
    """Return the text to append to the user message of an exchange that was repeated `times` times."""
    return f"… [this exchange {times} times in a row]"


def fold_repeats(messages: Sequence[Message], *, counter: TokenCounter = estimate) -> Folded:
    """Replace each sequence of equal exchanges by its newest exchange, with the count.

    An exchange is a user message with its answers. Exchanges are equal if their texts are the same, in the same order.
    Only complete exchanges with an answer are folded.

    Args:
        messages: user and assistant messages, oldest first.
        counter: counts the tokens of user messages to which a mark is appended.
    """
    kept: list[Message] = []
    folds: list[Fold] = []
    for run in _runs(_exchanges(messages)):
        if len(run) == 1 or not _answered(run[0]):
            kept += [message for exchange in run for message in exchange]
            continue
        question, *answers = run[-1]
        kept += [_marked(question, len(run), counter), *answers]
        left_out = tuple(message.seq for exchange in run[:-1] for message in exchange if message.seq is not None)
        folds.append(Fold(question.seq, len(run), left_out))
    return Folded(tuple(kept), tuple(folds))


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """Split the messages into groups that begin with a user message."""
    pieces: list[list[Message]] = []
    for message in messages:
        if message.role == "user" or not pieces:
            pieces.append([])
        pieces[-1].append(message)
    return pieces


def _runs(exchanges: Sequence[list[Message]]) -> list[list[list[Message]]]:
    runs: list[list[list[Message]]] = []
    for exchange in exchanges:
        if runs and _texts(runs[-1][-1]) == _texts(exchange):
            runs[-1].append(exchange)
        else:
            runs.append([exchange])
    return runs


def _texts(exchange: Sequence[Message]) -> list[tuple[str, str, str]]:
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
