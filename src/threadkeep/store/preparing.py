"""Preparation of turns for storage: ids, cleaning, columns, and rows for Graphiti."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from threadkeep.errors import InvalidMessage
from threadkeep.records import Message, Turn
from threadkeep.records.graphiti import CONSENT_VERSION
from threadkeep.store.codec import Counter, clean_message, identified, message_parameters, time_text


@dataclass(frozen=True)
class Prepared:
    """Messages and their columns; `cleaned` are the ids of messages in which characters were replaced."""

    messages: list[Message]
    columns: list[dict[str, object]]
    cleaned: tuple[str, ...] = ()


def prepare_turn(turn: Turn, *, count: Counter, now: str) -> Prepared:
    """Return the messages of a turn, ready to be stored; delivered answers are marked.

    Raises:
        InvalidMessage: there are none, or one of them cannot be stored.
    """
    ready = prepare(turn.messages, count=count, stored_at=lambda _: now)
    if turn.told or turn.told_at is not None:
        told_at = now if turn.told_at is None else time_text(turn.told_at)
        for message, columns in zip(ready.messages, ready.columns, strict=True):
            columns["told_at"] = told_at if message.role == "assistant" else None
    return ready


def prepare(messages: Sequence[Message], *, count: Counter, stored_at: Callable[[Message], str]) -> Prepared:
    """Return the messages of a turn, ready to be stored.

    Raises:
        InvalidMessage: there are none, or one of them cannot be stored.
    """
    if not messages:
        raise InvalidMessage("A turn has at least one message.")
    kept: list[Message] = []
    cleaned: list[str] = []
    for given in messages:
        with_id = identified(given)
        message = clean_message(with_id)
        if message is not with_id:
            cleaned.append(str(message.id))
        kept.append(message)
    columns = [message_parameters(message, count=count, now=stored_at(message)) for message in kept]
    return Prepared(kept, columns, tuple(cleaned))


@dataclass(frozen=True)
class GraphTurns:
    """The selection of turns for Graphiti: turns with a complete answer, if they may be sent to the endpoint.

    The statement that stores the row checks the permission. `workspace` applies to turns that name none.
    """

    endpoint: str
    workspace: str | None = None

    def row(self, turn: Turn, messages: Sequence[Message], *, now: str) -> dict[str, object] | None:
        """Return the columns of a turn's row without the `seq` values; None if the turn has no answer."""
        if not any(message.role == "assistant" and message.status == "complete" for message in messages):
            return None
        return {
            "session_id": turn.session_id,
            "workspace": turn.workspace or self.workspace,
            "endpoint": self.endpoint,
            "version": CONSENT_VERSION,
            "now": now,
        }
