"""Packing of the trace of a run that is over: its events as one compact text, its usage as another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep.records import Json, dump_json
from threadkeep.records.runs import RunEvent, TokenUsage
from threadkeep.store.codec import time_microseconds, time_of
from threadkeep.store.compact_json import compact, expanded
from threadkeep.store.runs.rows import json_of

MOST_EVENTS = 250
"""The maximum number of events in a packed trace; a page of a longer one would unpack too many others."""

_MOST_CHARACTERS = 60_000


@dataclass(frozen=True)
class StoredEvent:
    """A stored event: `data` is JSON text, `moment` is microseconds since 1970."""

    number: int
    kind: str
    node: str | None
    data: str
    moment: int


def event_of(row: Sequence[Any]) -> StoredEvent:
    """Return the event in a row of the table of events."""
    number, kind, node, data, created_at = row
    return StoredEvent(int(number), kind, node, data, time_microseconds(time_of(created_at)))


def packed_events(events: Iterable[StoredEvent]) -> bytes | None:
    """Return events in order as one text; None if there are too many or none."""
    parts: list[str] = []
    number = moment = 0
    for event in events:
        node = "null" if event.node is None else dump_json(event.node)
        parts.append(f"[{event.number - number},{event.moment - moment},{dump_json(event.kind)},{node},{event.data}]")
        number, moment = event.number, event.moment
    if not 0 < len(parts) <= MOST_EVENTS or sum(map(len, parts)) > _MOST_CHARACTERS:
        return None
    return compact(f"[{','.join(parts)}]")


def stored_events(packed: bytes | None) -> list[StoredEvent]:
    """Return the events of a packed trace."""
    found: list[StoredEvent] = []
    number = moment = 0
    for step, later, kind, node, data in json.loads(expanded(packed)) if packed else ():
        number, moment = number + step, moment + later
        found.append(StoredEvent(number, kind, node, dump_json(data), moment))
    return found


def run_event(run_id: str, event: StoredEvent) -> RunEvent:
    """Return a stored event as a `RunEvent`."""
    created_at = time_of(event.moment)
    return RunEvent(run_id, event.number, event.kind, event.node, json_of(event.data), created_at)


def usage_of(row: Sequence[Any]) -> TokenUsage:
    """Return the usage of a model in a row of the table of usage."""
    model, calls, input_tokens, output_tokens, cache_read_tokens, estimated_calls, cost = row
    return TokenUsage(
        model=model,
        calls=int(calls),
        input_tokens=int(input_tokens),
        output_tokens=int(output_tokens),
        cache_read_tokens=int(cache_read_tokens),
        estimated_calls=int(estimated_calls),
        cost=None if cost is None else float(cost),
    )


def packed_usage(usage: Iterable[TokenUsage]) -> str | None:
    """Return the usage of a run as one text; None if there is none."""
    rows: list[Json] = [
        [
            used.model,
            used.calls,
            used.input_tokens,
            used.output_tokens,
            used.cache_read_tokens,
            used.estimated_calls,
            used.cost,
        ]
        for used in usage
    ]
    return dump_json(rows) if rows else None


def stored_usage(packed: str | None) -> list[TokenUsage]:
    """Return the usage of a packed trace."""
    return [usage_of(row) for row in json_of(packed) or ()]


def added(usage: Iterable[TokenUsage]) -> list[TokenUsage]:
    """Return the sum of usage by model; the cost is set if any of the calls has a price."""
    sums: dict[str, TokenUsage] = {}
    for used in usage:
        before = sums.get(used.model)
        sums[used.model] = used if before is None else _sum(before, used)
    return [sums[model] for model in sorted(sums)]


def _sum(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    costs = [cost for cost in (one.cost, other.cost) if cost is not None]
    return TokenUsage(
        one.model,
        one.calls + other.calls,
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cache_read_tokens + other.cache_read_tokens,
        one.estimated_calls + other.estimated_calls,
        sum(costs) if costs else None,
    )
