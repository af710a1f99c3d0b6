"""Messages made ready to be stored: with ids, cleaned, and as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from threadkeep.errors import InvalidMessage
from threadkeep.records import Message
from threadkeep.store.codec import Counter, clean_message, identified, message_parameters


@dataclass(frozen=True)
class Prepared:
    """Messages and their columns; `cleaned` are the ids of those in which characters had to be replaced."""

    messages: list[Message]
    columns: list[dict[str, object]]
    cleaned: tuple[str, ...] = ()


def prepare(messages: Sequence[Message], *, count: Counter, stored_at: Callable[[Message], str]) -> Prepared:
    """The messages of a turn, ready to be stored.

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
