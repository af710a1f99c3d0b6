"""The database rows and notes that a soak leaves, and the check of every guarantee against them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, LiteralString

import psycopg

from bench.chaos_graphs import OUTPUT_TOKENS
from bench.chaos_notes import Note
from bench.chaos_soak import Told
from threadkeep.store.address import parse_address
from threadkeep.store.runs.trace import stored_usage

_RUNS: LiteralString = """
SELECT r.run_id, r.session_id, r.message_id, r.workflow, r.status, r.error, r.arrival, r.attempts, r.started_at,
    r.ended_at, r.cancel_reason, coalesce(sum(u.calls), 0), coalesce(sum(u.output_tokens), 0),
    (SELECT t.usage FROM chat_run_traces t WHERE t.run_id = r.run_id)
FROM chat_runs r LEFT JOIN chat_run_usage u ON u.run_id = r.run_id
GROUP BY r.run_id ORDER BY r.session_id, r.arrival
"""
_MESSAGES: LiteralString = """
SELECT m.session_id, m.role, m.content, m.status, m.run_id FROM chat_messages m ORDER BY m.session_id, m.seq
"""
_CHECKPOINTS: LiteralString = "SELECT run_id FROM chat_run_checkpoints"


@dataclass(frozen=True)
class Row:
    """A run as it is stored, with its reported usage."""

    run_id: str
    session_id: str | None
    message_id: str | None
    workflow: str
    status: str
    error: str | None
    arrival: int | None
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    cancel_reason: str | None
    calls: int
    output_tokens: int


@dataclass(frozen=True)
class Said:
    """A message of a transcript."""

    session_id: str
    role: str
    content: str
    status: str
    run_id: str | None


@dataclass(frozen=True)
class History:
    """The state after a soak: the records of callers, the notes, the runs and the messages."""

    told: Told
    notes: Sequence[Note]
    runs: Sequence[Row]
    messages: Sequence[Said]
    times_are_true: bool = True

    def faults(self) -> list[str]:
        """Return a sentence for each broken guarantee."""
        return [
            *self.told.faults,
            *self._unended(),
            *self._overlaps(),
            *overlapping(self.notes),
            *self._transcripts(),
            *self._payments(),
            *self._usage(),
        ]

    def _unended(self) -> Iterable[str]:
        for run in self.runs:
            if run.status in ("queued", "running", "waiting"):
                yield f"{run.message_id or run.run_id} of {run.workflow} is still {run.status}"
            elif run.status != "done" and not (run.status == "cancelled" and run.workflow == "interrupt"):
                yield f"{run.message_id or run.run_id} of {run.workflow} ended as {run.status}: {run.error}"

    def _overlaps(self) -> Iterable[str]:
        if not self.times_are_true:
            return
        turns: defaultdict[str, list[Row]] = defaultdict(list)
        for run in self.runs:
            # A run of `till` gets a new arrival when its question is answered, but keeps its first `started_at`.
            if run.session_id is not None and run.arrival is not None and run.workflow != "till" and run.started_at:
                turns[run.session_id].append(run)
        for session_id, rows in turns.items():
            for before, after in pairwise(rows):
                if before.ended_at is None or after.started_at is None or after.started_at < before.ended_at:
                    yield f"{session_id}: {after.message_id} began before {before.message_id} had ended"

    def _transcripts(self) -> Iterable[str]:
        accepted: defaultdict[str, list[str]] = defaultdict(list)
        for one in self.told.accepted:
            accepted[one.session_id].append(one.message_id)
        said: defaultdict[str, list[Said]] = defaultdict(list)
        for message in self.messages:
            said[message.session_id].append(message)
        for session_id, texts in accepted.items():
            workflow = session_id.partition("-")[0]
            if workflow in ("interrupt", "coalesce"):
                yield from _questions(session_id, texts, said[session_id])
            else:
                expected = [turn for text in texts for turn in (("user", text), ("assistant", f"re: {text}"))]
                found = [(one.role, one.content) for one in said[session_id]]
                if found != expected:
                    yield f"{session_id}: the transcript is {_difference(found, expected)}"

    def _payments(self) -> Iterable[str]:
        paid = Counter(note.text for note in self.notes if note.what == "paid")
        for text, times in paid.items():
            if times > 1:
                yield f"{text} was paid for {times} times"

    def _usage(self) -> Iterable[str]:
        """Check that each counted model call was made; a call just before a kill may be missing in the count."""
        made = Counter(note.text for note in self.notes if note.what == "called")
        counted: Counter[str] = Counter()
        texts = {run.run_id: run.message_id for run in self.runs}
        begun = {note.run_id: note.text for note in self.notes if note.what == "begin"}
        for run in self.runs:
            if run.output_tokens != run.calls * OUTPUT_TOKENS:
                yield f"{run.run_id} has {run.output_tokens} tokens for {run.calls} calls"
            text = begun.get(run.run_id) or texts[run.run_id]
            if run.workflow != "coalesce" and text is not None:
                counted[text] += run.calls
                if run.calls == 0 and run.status == "done" and run.attempts == 1 and run.workflow != "parent":
                    yield f"{text}: its call is not counted"
        for text, calls in counted.items():
            if calls > made[text]:
                yield f"{text}: {calls} calls are counted, and {made[text]} were made"


def overlapping(notes: Sequence[Note]) -> Iterable[str]:
    """Yield a sentence for each piece of work that began while other work of its session was running."""
    at_work: defaultdict[str, Counter[tuple[int, str, str]]] = defaultdict(Counter)
    for note in notes:
        if note.what == "dead":
            for holders in at_work.values():
                for holder in [one for one in holders if one[0] == note.pid]:
                    del holders[holder]
            continue
        holder = (note.pid, note.run_id, note.text)
        if note.what == "begin":
            if others := +at_work[note.session]:
                beside = ", ".join(f"{text} in {pid}" for pid, _, text in others)
                yield f"{note.text} in {note.pid} began beside {beside}"
            at_work[note.session][holder] += 1
        elif note.what == "end":
            at_work[note.session][holder] -= 1


async def history(url: str, told: Told, notes: Sequence[Note], *, times_are_true: bool = True) -> History:
    """Read the state after a soak. Times are not checked if the clocks were wrong."""
    runs = [_row(row) for row in await asyncio.to_thread(_rows, url, _RUNS)]
    said = [Said(*row) for row in await asyncio.to_thread(_rows, url, _MESSAGES)]
    return History(told, notes, runs, said, times_are_true)


def _questions(session_id: str, texts: Sequence[str], said: Sequence[Said]) -> Iterable[str]:
    """Yield a sentence if the questions are not stored once each and in order, or if two answers follow each other."""
    asked = [one.content for one in said if one.role == "user"]
    if asked != list(texts):
        yield f"{session_id}: the questions are {_difference(asked, texts)}"
    for before, after in pairwise(said):
        if before.role == after.role == "assistant":
            yield f"{session_id}: there are two answers to {before.content!r}"


def _difference[T](found: Sequence[T], expected: Sequence[T]) -> str:
    """Return in words the position and the entries at which two lists begin to differ."""
    parts = next(
        (index for index, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other),
        min(len(found), len(expected)),
    )
    window = slice(max(parts - 1, 0), parts + 3)
    return f"wrong at {parts}: {list(found[window])} for {list(expected[window])}"


def _row(row: Sequence[Any]) -> Row:
    *values, usage = row
    for index in (8, 9):
        values[index] = datetime.fromisoformat(values[index]) if isinstance(values[index], str) else values[index]
    # Usage that was recorded after the end of a run is in rows, which the database sums (to a Decimal on PostgreSQL).
    ended = stored_usage(usage)
    taken = sum(used.calls for used in ended), sum(used.output_tokens for used in ended)
    values[11:13] = [int(value) + more for value, more in zip(values[11:13], taken, strict=True)]
    return Row(*values)


def _rows(url: str, statement: LiteralString) -> list[tuple[Any, ...]]:
    address = parse_address(url)
    if address.path is not None:
        with closing(sqlite3.connect(address.path)) as connection:
            return connection.execute(statement).fetchall()
    assert address.dsn is not None
    with psycopg.connect(address.dsn) as server:
        return server.execute(statement).fetchall()
