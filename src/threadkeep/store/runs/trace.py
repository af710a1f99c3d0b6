"""Traces of runs: events, usage, and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from threadkeep.errors import RecordUnreadable
from threadkeep.records import Json, dump_json
from threadkeep.records.runs import STATUS, TRACE_CUT, RunEvent, TokenUsage, ToolCall, TraceEvent
from threadkeep.store.codec import json_text, time_microseconds, time_of, time_text
from threadkeep.store.compressed_json import compress, json_of, reads_record
from threadkeep.store.driver import Connection, Driver, Row, Statement
from threadkeep.store.runs.rows import lookups, missing_in, restored, shortened, texts_in, texts_of
from threadkeep.store.statements import load_statements

MOST_EVENTS = 250
"""The most events in a packed trace, because reading any page unpacks all of them."""

_MOST_CHARACTERS = 60_000
_json_name = lru_cache(maxsize=1024)(dump_json)
"""A function that returns a kind of events or the name of a node as JSON, cached because there are few of them."""


@dataclass(frozen=True)
class StoredEvent:
    """A stored event: `data` is JSON text, and `moment` is in microseconds since 1970."""

    number: int
    kind: str
    node: str | None
    data: str
    moment: int


def event_of(row: Sequence[Any]) -> StoredEvent:
    """Return the event in a row of `chat_run_events`."""
    number, kind, node, data, created_at = row
    return StoredEvent(int(number), kind, node, data, time_microseconds(time_of(created_at)))


def packed_events(events: Iterable[StoredEvent]) -> bytes | None:
    """Return events as one compressed value; None if there are no events, or if they are too many or too long."""
    parts: list[str] = []
    number = moment = 0
    for event in events:
        kind, node = _json_name(event.kind), _json_name(event.node)
        parts.append(f"[{event.number - number},{event.moment - moment},{kind},{node},{event.data}]")
        number, moment = event.number, event.moment
    if not 0 < len(parts) <= MOST_EVENTS or sum(map(len, parts)) > _MOST_CHARACTERS:
        return None
    return compress(f"[{','.join(parts)}]")


@reads_record
def stored_events(packed: bytes | None) -> list[StoredEvent]:
    """Return the events in the value from `packed_events`, or an empty list for None."""
    found: list[StoredEvent] = []
    number = moment = 0
    for step, later, kind, node, data in json_of(packed, list) or ():
        number, moment = number + step, moment + later
        found.append(StoredEvent(number, kind, node, dump_json(data), moment))
    return found


def run_event(run_id: str, event: StoredEvent) -> RunEvent:
    """Return a stored event as a `RunEvent`."""
    created_at = time_of(event.moment)
    return RunEvent(run_id, event.number, event.kind, event.node, json_of(event.data, dict), created_at)


def usage_of(row: Sequence[Any]) -> TokenUsage:
    """Return a model's token usage from a row of `chat_run_usage`, or from an entry of a packed trace."""
    model, *counts, cost = row
    values: list[Any] = [model, *map(int, counts), None if cost is None else float(cost)]
    return TokenUsage(*values)


def packed_usage(usage: Iterable[TokenUsage]) -> str | None:
    """Return the usage of a run as JSON text, or None if there is none."""
    rows: list[Json] = [list(astuple(used)) for used in usage]
    return dump_json(rows) if rows else None


@reads_record
def stored_usage(packed: str | None) -> list[TokenUsage]:
    """Return the usage in the text from `packed_usage`, or an empty list for None."""
    return [usage_of(row) for row in json_of(packed) or ()]


def added(usage: Iterable[TokenUsage]) -> list[TokenUsage]:
    """Return one `TokenUsage` for each model: the sum of its usage."""
    sums: dict[str, TokenUsage] = {}
    for used in usage:
        before = sums.get(used.model)
        sums[used.model] = used if before is None else before + used
    return [sums[model] for model in sorted(sums)]


@dataclass(frozen=True)
class TraceLimits:
    """The limits of a run's stored trace: the number of events, and the characters of their data."""

    max_events: int = 10_000
    max_characters: int = 4_000_000


@dataclass
class TraceGroup:
    """Events and usage that are stored together.

    `after` is the number of the newest event that the caller knows. If the trace has newer events, an earlier attempt
    has stored the group, and it is not stored again. If `after` is None, this is not checked.
    """

    events: list[TraceEvent] = field(default_factory=list)
    usage: list[TokenUsage] = field(default_factory=list)
    after: int | None = None


@dataclass(frozen=True)
class _Extent:
    """The size of a run's stored trace. `cut` is true if the trace has reached its `TraceLimits`."""

    last_number: int
    characters: int
    cut: bool


class RunTrace:
    """The tables `chat_run_events`, `chat_run_usage`, `chat_run_traces` and `chat_run_tool_calls`.

    During a run, each event is one row. When the run ends, all its events are packed into one row of `chat_run_traces`,
    unless they are too many or too long; later events are single rows again. All rows are deleted with the run.
    """

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime], limits: TraceLimits) -> None:
        self._driver = driver
        self.clock = clock
        self._limits = limits
        self._sql = load_statements("runs_trace.sql", "runs.sql", f"{driver.backend}/runs.sql")

    async def append(
        self,
        run_id: str,
        events: Sequence[TraceEvent] = (),
        *,
        usage: Sequence[TokenUsage] = (),
        owner: str | None = None,
        after: int | None = None,
    ) -> int | None:
        """Store events and usage atomically. Return the newest event's number; None if the run was deleted or lost.

        Args:
            run_id: the run.
            events: the events in order. Beyond the limits, only one `TRACE_CUT` and `STATUS` events are stored.
            usage: the token usage to add to that of the run.
            owner: if the run no longer belongs to this owner, it is lost, and nothing is stored.
            after: the number of the newest event that the caller knows; see `TraceGroup`.
        """
        group = TraceGroup(list(events), list(usage), after)
        async with self._driver.writing() as connection:
            keep = (self._sql["keep_run"], {"run_id": run_id})
            kept, *held = await connection.fetch_each([keep, *self.hold(run_id, group)])
            if not kept or (owner is not None and kept[0][0] != owner):
                return None
            return await self.store(connection, run_id, held, group)

    def hold(self, run_id: str, group: TraceGroup | None, *, ends: bool = False) -> list[Statement]:
        """Return the statements that lock a run's trace until the commit, and read the parts that `store` needs."""
        if group is None:
            return []
        texts = texts_in(event.data for event in group.events)
        statements: list[Statement] = [(self._sql["hold_trace"], {"run_id": run_id})]
        if ends:
            statements.append((self._sql["loose_events"], {"run_id": run_id, "limit": MOST_EVENTS + 1}))
            statements.append((self._sql["loose_usage"], {"run_id": run_id}))
        return [*statements, *lookups(self._sql["message_texts"], run_id, texts)]

    async def store(
        self,
        connection: Connection,
        run_id: str,
        held: Sequence[Sequence[Row]],
        group: TraceGroup,
        *,
        ends: bool = False,
    ) -> int:
        """Store a group in a transaction that has locked the trace; return the number of the newest event.

        `held`: the rows of the statements from `hold`. If the run `ends`, pack its trace, unless it is too long.
        """
        [(last_number, characters, cut, *packed)], *found = held
        before = _Extent(int(last_number), int(characters), bool(cut))
        if group.after is not None and before.last_number != group.after:
            return before.last_number
        loose, found = (found[:2], found[2:]) if ends else ([], found)
        events, extent = self._fitting(before, group.events, texts_of(found))
        if group.usage and not events:
            # Increase the number even if no event is stored, so that a repeated group is recognised.
            extent = replace(extent, last_number=extent.last_number + 1)
        statements = self._packing(run_id, packed, loose, (events, group.usage), extent) if ends else []
        await connection.fetch_each(statements or self._adding(run_id, events, group.usage, extent))
        return extent.last_number

    async def note_cancelled(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Store the end of runs that were cancelled; `rows` are the rows of the statement `cancel`.

        A run that never began gets no trace: if it is retried, the process that begins it expects an empty trace.
        """
        ended = TraceGroup([TraceEvent(STATUS, data={"status": "cancelled"})])
        for run_id in sorted(run_id for run_id, status, began in rows if status == "cancelled" and began):
            held = await connection.fetch_each(self.hold(run_id, ended, ends=True))
            await self.store(connection, run_id, held, ended, ends=True)

    def _adding(
        self, run_id: str, events: Sequence[StoredEvent], usage: Sequence[TokenUsage], extent: _Extent
    ) -> list[Statement]:
        statements: list[Statement] = []
        for event in events:
            columns = {"number": event.number, "kind": event.kind, "node": event.node, "data": event.data}
            of_run = {"run_id": run_id, "created_at": time_text(time_of(event.moment))}
            statements.append((self._sql["insert_event"], {**of_run, **columns}))
        if events or usage:
            statements.append((self._sql["set_trace"], {"run_id": run_id, **asdict(extent)}))
        # Write usage in the order that all writers use, which prevents deadlocks.
        in_order = sorted(usage, key=lambda used: used.model)
        return statements + [(self._sql["add_usage"], {"run_id": run_id, **asdict(used)}) for used in in_order]

    def _packing(
        self,
        run_id: str,
        packed: Sequence[Any],
        loose: Sequence[Sequence[Row]],
        new: tuple[Sequence[StoredEvent], Sequence[TokenUsage]],
        extent: _Extent,
    ) -> list[Statement]:
        """Return the statements that pack a trace into one row, or an empty list if it is too long or damaged."""
        (events_before, usage_before), (loose_events, loose_usage) = packed, loose
        try:
            events = [*stored_events(events_before), *map(event_of, loose_events), *new[0]]
            usage = added([*stored_usage(usage_before), *map(usage_of, loose_usage), *new[1]])
        except RecordUnreadable:
            return []  # the run must end; the damaged record stays for a repair
        if (in_one := packed_events(events)) is None:
            return []
        parameters = {"run_id": run_id, **asdict(extent), "events": in_one, "usage": packed_usage(usage)}
        statements: list[Statement] = [(self._sql["pack_trace"], parameters)]
        if loose_events:
            statements.append((self._sql["forget_events"], {"run_id": run_id}))
        if loose_usage:
            statements.append((self._sql["forget_usage"], {"run_id": run_id}))
        return statements

    async def events(self, run_id: str, *, after: int = 0, limit: int = 200) -> list[RunEvent]:
        """Return up to `limit` events of a run whose numbers are higher than `after`, in order."""
        parameters = {"run_id": run_id, "after": after, "limit": limit}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["events"], parameters)
            found = [event_of(row) for *row, packed in rows if packed is None]
            found += [event for *_, packed in rows for event in stored_events(packed) if event.number > after]
            found.sort(key=lambda event: event.number)
            events = [run_event(run_id, event) for event in found[:limit]]
            if not (ids := missing_in(event.data for event in events)):
                return events
            texts = texts_of(await connection.fetch_each(lookups(self._sql["message_texts"], run_id, ids)))
        return [replace(event, data=restored(event.data, texts)) for event in events]

    def whole(self, run_id: str, group: TraceGroup, texts: Mapping[str, str]) -> list[Statement]:
        """Return the statements that store a whole trace in one row, or an empty list if it is too long.

        `texts` maps message ids to the texts that the same transaction stores in the transcript. Only the owner of the
        run may execute the statements, because they replace the stored trace.
        """
        events, extent = self._fitting(_Extent(0, 0, cut=False), group.events, texts)
        if (packed := packed_events(events)) is None:
            return []
        usage, key = packed_usage(added(group.usage)), {"run_id": run_id}
        statements: list[Statement] = [
            (self._sql["put_trace"], {**key, **asdict(extent), "events": packed, "usage": usage})
        ]
        if group.after:
            statements += [(self._sql["forget_events"], key), (self._sql["forget_usage"], key)]
        return statements

    async def last_number(self, run_id: str) -> int:
        """Return the number of a run's newest event, or 0 if there is none."""
        rows = await self._driver.fetch(self._sql["last_number"], {"run_id": run_id})
        return int(rows[0][0]) if rows else 0

    async def usage(self, run_id: str, *, with_children: bool = True) -> list[TokenUsage]:
        """Return the token usage of a run by model, by default including its descendants; each call counts once."""
        statement = self._sql["usage_with_children" if with_children else "usage"]
        rows = await self._driver.fetch(statement, {"run_id": run_id})
        return added(used for *row, packed in rows for used in (stored_usage(packed) if packed else [usage_of(row)]))

    async def begin_tool(self, run_id: str, call_id: str, tool: str) -> ToolCall:
        """Record the start of a tool call that must not run twice; the tool may run only if the result is `fresh`."""
        parameters = {"run_id": run_id, "call_id": call_id, "tool": tool, "now": time_text(self.clock())}
        asked = [(self._sql[name], parameters) for name in ("keep_run", "begin_tool", "tool_call")]
        kept, fresh, found = await self._driver.write(asked)
        if not kept:
            return ToolCall("gone")
        if fresh:
            return ToolCall("fresh")
        [(status, result)] = found
        return ToolCall("finished", json_of(result)) if status == "finished" else ToolCall("begun_before")

    async def finish_tool(self, run_id: str, call_id: str, result: Json) -> bool:
        """Store a tool call's result, so that the call is not repeated. Return False unless the call is in progress."""
        parameters = {"run_id": run_id, "call_id": call_id, "result": json_text(result), "now": time_text(self.clock())}
        [finished] = await self._driver.write([(self._sql["finish_tool"], parameters)])
        return bool(finished)

    def _fitting(
        self, extent: _Extent, events: Sequence[TraceEvent], texts: Mapping[str, str]
    ) -> tuple[list[StoredEvent], _Extent]:
        """Return those events that `TraceLimits` still allows, without the texts in `texts`, and the new extent."""
        number, characters, cut = extent.last_number, extent.characters, extent.cut
        now = self.clock()
        kept_events: list[StoredEvent] = []
        for event in events:
            moment = time_microseconds(event.at or now)
            data = json_text(shortened(event.data, texts))
            fits = number < self._limits.max_events and characters + len(data) <= self._limits.max_characters
            kept = event.kind == STATUS or (fits and not cut)
            if not kept and cut:
                continue
            number += 1
            if kept:
                characters += len(data)
                kept_events.append(StoredEvent(number, event.kind, event.node, data, moment))
            else:
                cut = True
                kept_events.append(StoredEvent(number, TRACE_CUT, None, "{}", moment))
        return kept_events, _Extent(number, characters, cut)
