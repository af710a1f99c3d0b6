"""What a turn makes of a conversation: the items that change, and the receipt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from threadkeep.records import Message, Receipt
from threadkeep.store.codec import LAST_MESSAGE_CHARACTERS, TITLE_CHARACTERS, shorten
from threadkeep.store.graph_transcripts.chunks import chunk_of
from threadkeep.store.graph_transcripts.items import Value
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey
from threadkeep.store.graph_transcripts.shapes import Conversation, chunk_value, message_value
from threadkeep.store.preparing import Prepared


@dataclass(frozen=True)
class Place:
    """Where and when a turn goes: the messages of the chunk in which the next one goes are there already."""

    layout: GraphLayout
    last_chunk: Sequence[Value]
    now: datetime


@dataclass(frozen=True)
class Appended:
    """A conversation with a turn behind it, and the other items that change with it; none where nothing was new."""

    conversation: Conversation
    items: Mapping[ItemKey, Value]
    receipt: Receipt


def append(conversation: Conversation, prepared: Prepared, *, there: Mapping[str, int], place: Place) -> Appended:
    """Put a turn behind a conversation; `there` says where the messages are whose ids it has already."""
    known = dict(there)
    fresh: dict[str, tuple[Message, dict[str, object]]] = {}
    for message, columns in zip(prepared.messages, prepared.columns, strict=True):
        message_id = str(message.id)
        if message_id in fresh:
            known[message_id] = 0
        elif message_id not in there:
            fresh[message_id] = (message, columns)
    if not fresh and not known:
        return Appended(conversation, {}, _receipt(prepared, 0, -1, known))
    if not fresh:
        return Appended(conversation, {}, _receipt(prepared, min(known.values()), max(known.values()), known))
    first = conversation.last_seq + 1
    layout = place.layout
    grown = _grown(conversation, [message for message, _ in fresh.values()], place.now)
    values = [message_value(seq, row, layout.value_field) for seq, (_, row) in enumerate(fresh.values(), start=first)]
    items: dict[ItemKey, Value] = {
        layout.message_id(conversation.session_id, message_id): {"seq": seq}
        for seq, message_id in enumerate(fresh, start=first)
    }
    # What stands at the places that are given now is left of a turn that was never finished.
    before = [message for message in place.last_chunk if message["seq"] < first]
    items |= _chunk_items(conversation, [*before, *values], place)
    return Appended(grown, items, _receipt(prepared, first, grown.last_seq, known))


def _grown(conversation: Conversation, fresh: Sequence[Message], now: datetime) -> Conversation:
    first_user = next((message.content for message in fresh if message.role == "user"), None)
    title = conversation.title
    if title is None and first_user is not None:
        title = shorten(first_user, TITLE_CHARACTERS)
    newest_user = max((place for place, message in enumerate(fresh, start=1) if message.role == "user"), default=0)
    return replace(
        conversation,
        last_seq=conversation.last_seq + len(fresh),
        last_user_seq=conversation.last_seq + newest_user if newest_user else conversation.last_user_seq,
        title=title,
        last_message=shorten(fresh[-1].content, LAST_MESSAGE_CHARACTERS),
        updated_at=max(conversation.updated_at, now),
    )


def _chunk_items(conversation: Conversation, messages: Sequence[Value], place: Place) -> dict[ItemKey, Value]:
    """The chunks of some messages, which are in order."""
    found: dict[ItemKey, Value] = {}
    for chunk, within in groupby(messages, key=lambda message: chunk_of(message["seq"], conversation.chunk_size)):
        key = place.layout.chunk(conversation.session_id, chunk)
        found[key] = chunk_value(conversation, chunk, list(within), now=place.now)
    return found


def _receipt(prepared: Prepared, first_seq: int, last_seq: int, there: Mapping[str, int]) -> Receipt:
    return Receipt(
        first_seq=first_seq,
        last_seq=last_seq,
        duplicates=tuple(there),
        cleaned=prepared.cleaned,
        ids=tuple(str(message.id) for message in prepared.messages),
    )
