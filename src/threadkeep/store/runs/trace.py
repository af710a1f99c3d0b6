"""What happened in runs, what it took, and which tools were begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from threadkeep.records import Json
from threadkeep.records.runs import RunEvent, TokenUsage, ToolCall, TraceEvent
from threadkeep.store.codec import time_of, time_text
from threadkeep.store.driver import Connection, Driver, Parameters, Row, Statement
from threadkeep.store.runs.rows import json_of, json_text
from threadkeep.store.runs.said import lookups, missing_in, restored, shortened, texts_in, texts_of
from threadkeep.store.statements import load_statements

TRACE_CUT: Final = "trace_cut"
"""The kind of the event that stands where a trace was cut."""

STATUS: Final = "status"
"""The kind of an event that is kept also where the trace is cut: those who follow a run wait for it."""


@dataclass(frozen=True)
class TraceLimits:
    """How much of a run's trace is kept: so many events, and so many characters of data in all."""

    max_events: int = 10_000
    max_characters: int = 4_000_000


@dataclass
class TraceGroup:
    """Events and usage that are stored together or not at all; `after` is the newest event that was stored before.

    When there are newer ones the group is there already: the answer to an earlier try was lost. None is not to look.
    """

    events: list[TraceEvent] = field(default_factory=list)
    usage: list[TokenUsage] = field(default_factory=list)
    after: int | None = None


@dataclass(frozen=True)
class _Extent:
    """How much trace there is."""

    last_number: int
    characters: int
    cut: bool


class RunTrace:
    """The tables `chat_run_events`, `chat_run_usage` and `chat_run_tool_calls`. All of it goes with the run."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime], limits: TraceLimits) -> None:
        self._driver = driver
        self._clock = clock
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
        """Store a group of events and what was used, in one transaction; answers the number of the newest event.

        Args:
            run_id: the run.
            events: what happened, in order. Beyond the limits nothing is kept but a mark, and events of the kind
                `status`.
            usage: added to what the run has used.
            owner: None is answered and nothing stored when the run is not this owner's any more.
            after: the newest event that the caller knows. When there are newer ones this group is there already (the
                answer to an earlier try was lost), and nothing is stored.

        Answers None when the run is gone.
        """
        group = TraceGroup(list(events), list(usage), after)
        async with self._driver.writing() as connection:
            keep = (self._sql["keep_run"], {"run_id": run_id})
            kept, *held = await connection.fetch_each([keep, *self.hold(run_id, group)])
            if not kept or (owner is not None and kept[0][0] != owner):
                return None
            return await self.store(connection, run_id, held, group)

    def hold(self, run_id: str, group: TraceGroup | None) -> list[Statement]:
        """What keeps others from a run's trace until the transaction ends, and says what there is of it already."""
        if group is None:
            return []
        said = texts_in(event.data for event in group.events)
        return [(self._sql["hold_trace"], {"run_id": run_id}), *lookups(self._sql["said"], run_id, said)]

    async def store(self, connection: Connection, run_id: str, held: Sequence[Sequence[Row]], group: TraceGroup) -> int:
        """Store a group in a transaction that holds the trace; answers the number of the newest event."""
        [(last_number, characters, cut)], *found = held
        before = _Extent(int(last_number), int(characters), bool(cut))
        if group.after is not None and before.last_number != group.after:
            return before.last_number
        said = texts_of(found)
        events = [replace(event, data=shortened(event.data, said)) for event in group.events]
        rows, extent = self._fitting(before, events)
        now = time_text(self._clock())
        statements: list[Statement] = [
            (self._sql["insert_event"], {"run_id": run_id, "created_at": now, **row}) for row in rows
        ]
        if group.usage and not rows:
            # A number although no event is kept: by that the same group is known when it comes again.
            extent = replace(extent, last_number=extent.last_number + 1)
        if rows or group.usage:
            trace = {"last_number": extent.last_number, "characters": extent.characters, "cut": extent.cut}
            statements.append((self._sql["set_trace"], {"run_id": run_id, **trace}))
        # In one order everywhere, so that nobody waits for anybody's rows in a circle.
        in_order = sorted(group.usage, key=lambda used: used.model)
        statements += [(self._sql["add_usage"], _usage_row(run_id, used)) for used in in_order]
        await connection.fetch_each(statements)
        return extent.last_number

    async def events(self, run_id: str, *, after: int = 0, limit: int = 200) -> list[RunEvent]:
        """The events of a run that follow a number, in order."""
        parameters = {"run_id": run_id, "after": after, "limit": limit}
        async with self._driver.reading() as connection:
            events = [_event_of(row) for row in await connection.fetch(self._sql["events"], parameters)]
            if not (ids := missing_in(event.data for event in events)):
                return events
            said = texts_of(await connection.fetch_each(lookups(self._sql["said"], run_id, ids)))
        return [replace(event, data=restored(event.data, said)) for event in events]

    async def last_number(self, run_id: str) -> int:
        """The number of a run's newest event; 0 when there is none."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["last_number"], {"run_id": run_id})
        return int(rows[0][0]) if rows else 0

    async def usage(self, run_id: str, *, with_children: bool = True) -> list[TokenUsage]:
        """What a run took, by model; with all below it, each once."""
        statement = self._sql["usage_with_children" if with_children else "usage"]
        async with self._driver.reading() as connection:
            return [_usage_of(row) for row in await connection.fetch(statement, {"run_id": run_id})]

    async def begin_tool(self, run_id: str, call_id: str, tool: str) -> ToolCall:
        """Whether a tool that may not be run twice may be run now: a call that is `fresh`."""
        place = {"run_id": run_id, "call_id": call_id, "tool": tool, "now": time_text(self._clock())}
        async with self._driver.writing() as connection:
            if not await connection.fetch(self._sql["keep_run"], place):
                return ToolCall("gone")
            if await connection.execute(self._sql["begin_tool"], place):
                return ToolCall("fresh")
            [(status, result)] = await connection.fetch(self._sql["tool_call"], place)
            if status == "finished":
                return ToolCall("finished", json_of(result))
        return ToolCall("begun_before")

    async def finish_tool(self, run_id: str, call_id: str, result: Json) -> bool:
        """Keep what a tool gave, so that it need not be run again; False when it was not begun, or is finished."""
        parameters = {
            "run_id": run_id,
            "call_id": call_id,
            "result": json_text(result),
            "now": time_text(self._clock()),
        }
        async with self._driver.writing() as connection:
            return await connection.execute(self._sql["finish_tool"], parameters) > 0

    def _fitting(self, extent: _Extent, events: Sequence[TraceEvent]) -> tuple[list[Mapping[str, object]], _Extent]:
        """The rows of the events that are kept, and how much there is then."""
        number, characters, cut = extent.last_number, extent.characters, extent.cut
        rows: list[Mapping[str, object]] = []
        for event in events:
            data = json_text(dict(event.data))
            fits = number < self._limits.max_events and characters + len(data) <= self._limits.max_characters
            kept = event.kind == STATUS or (fits and not cut)
            if not kept and cut:
                continue
            number += 1
            if kept:
                characters += len(data)
                rows.append({"number": number, "kind": event.kind, "node": event.node, "data": data})
            else:
                cut = True
                rows.append({"number": number, "kind": TRACE_CUT, "node": None, "data": "{}"})
        return rows, _Extent(number, characters, cut)


def _usage_row(run_id: str, used: TokenUsage) -> Parameters:
    return {
        "run_id": run_id,
        "model": used.model,
        "calls": used.calls,
        "estimated_calls": used.estimated_calls,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_tokens": used.cache_read_tokens,
        "cost": used.cost,
    }


def _event_of(row: Row) -> RunEvent:
    run_id, number, kind, node, data, created_at = row
    return RunEvent(run_id, int(number), kind, node, json_of(data), time_of(created_at))


def _usage_of(row: Row) -> TokenUsage:
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
