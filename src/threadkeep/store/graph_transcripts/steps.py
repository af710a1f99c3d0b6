"""The item with the tool calls and results of an agent's newest turns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from threadkeep.store.graph_transcripts.chunks import size_of
from threadkeep.store.graph_transcripts.items import Value
from threadkeep.store.graph_transcripts.layout import ItemKey
from threadkeep.store.graph_transcripts.shapes import Conversation


def turns_in(item: Value | None, conversation: Conversation) -> list[dict[str, Any]]:
    """Return the valid turns of an item; none if it is damaged."""
    turns = item.get("turns") if item is not None else None
    if not isinstance(turns, Sequence) or not all(map(_is_turn, turns)):
        return []
    return [
        dict(turn)
        for turn in turns
        if turn["seq"] > conversation.deleted_seq and _superseded(conversation, turn) == turn["superseded"]
    ]


def steps_left(items: Mapping[ItemKey, Value | None], conversation: Conversation) -> dict[ItemKey, Value | None]:
    """Return items of steps without invalid turns; the value is None if no turn is left."""
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
    """Return a mark that later shows whether the question or an answer of a turn was superseded."""
    upto = conversation.last_seq
    return {"upto": upto, "superseded": size_of(conversation.superseded_between(seq, upto))}


def _superseded(conversation: Conversation, turn: Mapping[str, Any]) -> int:
    return size_of(conversation.superseded_between(turn["seq"], turn["upto"]))
