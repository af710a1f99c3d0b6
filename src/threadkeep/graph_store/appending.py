"""The store items (metadata and chunks of messages) that change when a turn is appended, computed without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from threadkeep.graph_store.items import Value
from threadkeep.graph_store.layout import GraphLayout, ItemKey, chunk_of, joined, size_of
from threadkeep.graph_store.shapes import Conversation, chunk_value, message_value, notes_of
from threadkeep.records import Message, Receipt
from threadkeep.store.codec import Prepared, listed_texts
from threadkeep.store.superseding import ranges_of


@dataclass(frozen=True)
class Appended:
    """A conversation with an appended turn.

    `items` has the changed items, except the metadata. `rows` has the column values of each new message. Both are empty
    if no message was new.
    """

    conversation: Conversation
    items: Mapping[ItemKey, Value]
    receipt: Receipt
    rows: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True)
class Written:
    """The result of writing a turn.

    If messages were appended and nothing else changed, `former_version` is the conversation's version before the write,
    and `appended` has the changes. `rows` has the rows returned by the statements of `ConversationWriter.beside`.
    """

    receipt: Receipt
    former_version: int = -1
    appended: Appended | None = None
    rows: Sequence[Sequence[object]] = ()

    @property
    def is_indexed(self) -> bool:
        """True if the same transaction wrote the turn's rows in Threadkeep's tables too (see `SessionIndex`)."""
        return bool(self.rows and self.rows[-1])


def append(
    conversation: Conversation,
    prepared: Prepared,
    *,
    there: Mapping[str, int],
    layout: GraphLayout,
    last_chunk: Value | None,
    now: datetime,
) -> Appended:
    """Return the changes that append a turn. `there` maps the ids of messages that are stored already to their `seq`.

    `last_chunk` is the stored chunk to extend, if any.
    """
    known = dict(there)
    fresh: dict[str, tuple[Message, dict[str, object]]] = {}
    for message, columns in zip(prepared.messages, prepared.columns, strict=True):
        message_id = str(message.id)
        if message_id in fresh:
            known[message_id] = 0
        elif message_id not in there:
            fresh[message_id] = (message, columns)
    if not fresh:
        first_seq, last_seq = min(known.values(), default=0), max(known.values(), default=-1)
        return Appended(conversation, {}, _receipt(prepared, first_seq, last_seq, known))
    first = conversation.last_seq + 1
    grown = _grown(conversation, list(fresh.values()), now)
    values = [message_value(seq, row, layout.value_field) for seq, (_, row) in enumerate(fresh.values(), start=first)]
    items = notes_of(layout, conversation.session_id, values)
    # Drop messages of a write that was interrupted before the metadata were written.
    before = [] if last_chunk is None else list(last_chunk["messages"])
    while before and before[-1]["seq"] >= first:
        before.pop()
    items |= chunk_items(layout, conversation, [*before, *values], now, last_chunk)
    rows = [{**row, "seq": seq} for seq, (_, row) in enumerate(fresh.values(), start=first)]
    return Appended(grown, items, _receipt(prepared, first, grown.last_seq, known), rows)


def _grown(
    conversation: Conversation, fresh: Sequence[tuple[Message, Mapping[str, object]]], now: datetime
) -> Conversation:
    first = conversation.last_seq + 1
    placed = [(seq, message) for seq, (message, row) in enumerate(fresh, start=first) if not row.get("superseded_at")]
    superseded = ranges_of(seq for seq, (_, row) in enumerate(fresh, start=first) if row.get("superseded_at"))
    title, last_message = listed_texts([message for _, message in placed])
    return replace(
        conversation,
        last_seq=conversation.last_seq + len(fresh),
        last_user_seq=max(
            (seq for seq, message in placed if message.role == "user"), default=conversation.last_user_seq
        ),
        title=title if conversation.title is None else conversation.title,
        last_message=last_message or conversation.last_message,
        updated_at=max(conversation.updated_at, now),
        superseded=joined(conversation.superseded, superseded),
        revision=conversation.revision + bool(superseded),
    )


def chunk_items(
    layout: GraphLayout,
    conversation: Conversation,
    messages: Iterable[Value],
    now: datetime,
    last_chunk: Value | None = None,
) -> dict[ItemKey, Value]:
    """Return the chunk items for `messages`, which are in order and begin with the messages of any `last_chunk`."""
    found: dict[ItemKey, Value] = {}
    size = conversation.chunk_size
    for chunk, within in groupby(messages, key=lambda message: chunk_of(message["seq"], size)):
        former = last_chunk if chunk == chunk_of(conversation.last_seq + 1, size) else None
        found[layout.chunk(conversation.session_id, chunk)] = chunk_value(
            conversation, chunk, list(within), now=now, former=former
        )
    return found


def receipt_of(prepared: Prepared, adopted: Value) -> Receipt:
    """Return the receipt for an answer that was not stored: its question already has the stored answer `adopted`."""
    seq = int(adopted["seq"])
    return replace(_receipt(prepared, seq, seq, {}), adopted=str(adopted.get("id")))


def _receipt(prepared: Prepared, first_seq: int, last_seq: int, there: Mapping[str, int]) -> Receipt:
    ids = tuple([str(message.id) for message in prepared.messages])
    return Receipt(
        first_seq=first_seq,
        last_seq=last_seq,
        duplicates=tuple([message_id for message_id in dict.fromkeys(ids) if message_id in there]),
        cleaned=prepared.cleaned,
        ids=ids,
    )


def turns_in(item: Value | None, conversation: Conversation) -> list[dict[str, Any]]:
    """Return the turns whose tool calls are in a store item, without turns that were deleted or superseded later."""
    turns = item.get("turns") if item is not None else None
    if not isinstance(turns, Sequence) or not all(map(_is_turn, turns)):
        return []
    return [
        dict(turn)
        for turn in turns
        if turn["seq"] > conversation.deleted_seq
        and size_of(conversation.superseded_between(turn["seq"], turn["upto"])) == turn["superseded"]
    ]


def steps_left(items: Mapping[ItemKey, Value | None], conversation: Conversation) -> dict[ItemKey, Value | None]:
    """Drop deleted and superseded turns from store items with tool calls. An item without other turns becomes None."""
    changed: dict[ItemKey, Value | None] = {}
    for key, item in items.items():
        turns = turns_in(item, conversation)
        changed[key] = {**item, "turns": turns} if item is not None and turns else None
    return changed


def _is_turn(turn: object) -> bool:
    numbers = ("seq", "ordinal", "upto", "superseded")
    if not isinstance(turn, Mapping) or not isinstance(turn.get("body"), str):
        return False
    return all(isinstance(turn.get(name), int) and not isinstance(turn.get(name), bool) for name in numbers)


def mark_of(conversation: Conversation, seq: int) -> dict[str, int]:
    """Return fields to store with a turn's tool calls. They show `turns_in` whether the turn was superseded later."""
    upto = conversation.last_seq
    return {"upto": upto, "superseded": size_of(conversation.superseded_between(seq, upto))}
