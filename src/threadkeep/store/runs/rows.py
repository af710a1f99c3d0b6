"""Conversion between run records and table rows. Rows omit texts that the transcript has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import batched
from typing import Any

from threadkeep.errors import RecordUnreadable
from threadkeep.records import Json
from threadkeep.records.runs import DELETE, NO_BUDGET, RESET, RUN_ENDS, Run, RunBudget, RunCursor, RunInput, RunQuery
from threadkeep.store.codec import clean_json, clean_text, cursor_parameters, json_text, time_of, time_text
from threadkeep.store.compressed_json import compress, json_of, reads_record
from threadkeep.store.driver import Connection, Parameters, Row, RowLocked, Statement
from threadkeep.store.statements import Tables, for_values, load_statements

type Values = Mapping[str, Json]
type Texts = Mapping[str, str]
"""Texts of messages, by message id."""


def texts_in(values: Iterable[Values]) -> dict[str, str]:
    """Return the message texts in `values` (data of events or results of runs) by message id."""
    found = ((one.get(name), one.get(text)) for value in values for one, name, text in _places(value))
    return {key: str(clean_json(text)) for key, text in found if isinstance(key, str) and isinstance(text, str)}


def missing_in(values: Iterable[Values]) -> set[str]:
    """Return the ids of messages that `values` (such as the data of events) mention without their text."""
    found = (one.get(name) for value in values for one, name, text in _places(value) if text not in one)
    return {key for key in found if isinstance(key, str)}


def lookups(sql: str, run_id: str, message_ids: Iterable[str]) -> list[Statement]:
    """Return one statement per message id; it reads the message's text from the session of a run."""
    return [(sql, {"run_id": run_id, "message_id": message_id}) for message_id in sorted(message_ids)]


def texts_of(found: Iterable[Iterable[Row]]) -> dict[str, str]:
    """Return the message texts in the rows that the statements of `lookups` have returned, by message id."""
    return {message_id: content for rows in found for message_id, content in rows}


def shortened(value: Values, texts: Texts) -> dict[str, Json]:
    """Return an event's data without the message texts that `texts` has under the same message id."""

    def left_out(one: Values, name: str, text: str) -> dict[str, Json]:
        known = texts.get(str(one.get(name)))
        return {key: each for key, each in one.items() if key != text or known is None or clean_json(each) != known}

    return _changed(value, left_out)


def restored(value: Values, texts: Texts) -> dict[str, Json]:
    """Return an event's data with its omitted texts restored from `texts`."""

    def put_in(one: Values, name: str, text: str) -> dict[str, Json]:
        known = texts.get(str(one.get(name)))
        return {**one} if text in one or known is None else {**one, text: known}

    return _changed(value, put_in)


def short_result(result: Values) -> dict[str, Json] | None:
    """Return a run's result without the text, which its message has too; None if there is no text or message id."""
    text = result.get("text")
    if not isinstance(result.get("message_id"), str) or not isinstance(text, str):
        return None
    short = {name: value for name, value in result.items() if name != "text"}
    if short.setdefault("output", None) == {"text": text}:
        del short["output"]
    return short


def whole_result(result: Values, texts: Texts) -> dict[str, Json]:
    """Return a run's result, with its omitted text restored if `texts` contains it."""
    whole = restored(result, texts)
    if "text" in whole and "text" not in result and "output" not in whole:
        whole["output"] = {"text": whole["text"]}
    return {name: value for name, value in whole.items() if value is not None}


def _places(value: Values) -> Iterator[tuple[Values, str, str]]:
    """Yield each mapping in `value` that may hold a message, with the names of its id and text fields."""
    if "message_id" in value:
        yield value, "message_id", "text"
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and isinstance(data := message.get("data"), Mapping):
            yield data, "id", "content"


def _changed(value: Values, change: Callable[[Values, str, str], dict[str, Json]]) -> dict[str, Json]:
    changed = dict(value)
    if "message_id" in value:
        changed = change(value, "message_id", "text")
    messages = value.get("messages")
    if isinstance(messages, list):
        changed["messages"] = [
            {**one, "data": change(data, "id", "content")}
            if isinstance(one, Mapping) and isinstance(data := one.get("data"), Mapping)
            else one
            for one in messages
        ]
    return changed


# The columns of the statement `rows`, in the order of the fields of `Run`; the field `inputs` is the column `input`.
_COLUMNS = tuple(column.name for column in fields(Run) if column.name != "resumed")
_TIMES = ("started_at", "heartbeat_at", "ended_at", "cancel_requested_at", "created_at", "deadline_at")
_AT_ONCE = 200
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys((*_COLUMNS, "resumed")),
    "depth": 0,
    "inputs": (),
    "resumed": False,
    "budget": NO_BUDGET,
    "attempts": 1,
    "set_aside": False,
}


def run_of(row: Row, *, damaged: bool = False) -> Run:
    """Return the run in a row of the statement `rows`.

    Raises:
        RecordUnreadable: `damaged` is false, and a record cannot be read; the error names the run.
    """
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    for name in _TIMES:
        values[name] = values[name] and time_of(values[name])
    if values["owner"] is not None and values["heartbeat_at"] is None and values["status"] in RUN_ENDS:
        # The end of a run is also its last heartbeat, so this time is stored in one column only.
        values["heartbeat_at"] = values["ended_at"]
    values["resumed"] = values["resume_value"] is not None
    for name, read in _READERS.items():
        try:
            values[name] = read(values)
        except RecordUnreadable as error:
            if not damaged:
                raise type(error)(f"The run {values['run_id']} cannot be read. {error}") from None
            values[name], values["error"] = _DEFAULTS[name], type(error).__name__
    values["set_aside"] = bool(values["set_aside"])
    return Run(**values)


@reads_record
def inputs_of(stored: bytes | None, message_id: str | None = None) -> tuple[RunInput, ...]:
    """Return the inputs in a run's column `input`. An omitted text is None: it is in the message `message_id`."""
    entries: Sequence[Mapping[str, Any]] = json_of(stored, list) or ()
    return tuple(
        [
            RunInput({"text": None, **entry.get("values", {})}, message_id)
            if entry.get("said")
            else RunInput({**entry["values"]}, entry.get("message_id"))
            for entry in entries
        ]
    )


@reads_record
def _budget_of(stored: str | None) -> RunBudget:
    return RunBudget.from_dict(limits) if (limits := json_of(stored)) else NO_BUDGET


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "result": lambda values: json_of(values["result"], dict),
    "interrupt": lambda values: json_of(values["interrupt"]),
    "resume_value": lambda values: json_of(values["resume_value"]),
    "inputs": lambda values: inputs_of(values["inputs"], values["message_id"]),
    "budget": lambda values: _budget_of(values["budget"]),
}


def short_inputs(inputs: Sequence[RunInput], message_id: str | None) -> dict[str, str | bytes | None]:
    """Return the parameters for storing a run's only input without its text; all are None if that is not possible."""
    text = inputs[0].values.get("text") if len(inputs) == 1 else None
    if not isinstance(text, str) or message_id is None or inputs[0].message_id != message_id:
        return {"asked": None, "short_input": None}
    rest = {name: value for name, value in inputs[0].values.items() if name != "text"}
    entry: dict[str, Json] = {"said": True, **({"values": rest} if rest else {})}
    return {"asked": clean_text(text), "short_input": compress(json_text([entry]))}


def compressed_inputs(inputs: Iterable[RunInput]) -> bytes:
    """Return inputs in the format of their column, which is compressed JSON."""
    entries: list[Json] = []
    for given in inputs:
        entry: dict[str, Json] = {"values": dict(given.values)}
        if given.message_id is not None:
            entry["message_id"] = given.message_id
        entries.append(entry)
    return compress(json_text(entries))


async def fetch_runs(connection: Connection, run_ids: Sequence[str], *, damaged: bool = True) -> list[Run]:
    """Return the existing runs with these ids, in the order of the ids.

    A damaged run lacks the records that cannot be read. Its error is `RecordUnreadable` or `RecordTooNew`.

    Raises:
        RecordUnreadable: `damaged` is false, and a record cannot be read; the error names the run.
    """
    sql = load_statements("runs.sql")["rows"]
    found: dict[str, Run] = {}
    for some in batched(run_ids, _AT_ONCE):
        for row in await connection.fetch(*for_values(sql, "run_id", some)):
            run = run_of(row, damaged=damaged)
            found[run.run_id] = run
    await _put_in_texts(connection, found)
    return [found[run_id] for run_id in run_ids if run_id in found]


async def _put_in_texts(connection: Connection, runs: dict[str, Run]) -> None:
    """Restore the texts of results and inputs that were omitted because they are in the transcript."""
    lookup = load_statements("runs.sql")["message_texts"]
    referring: dict[str, set[str]] = {}
    for run in runs.values():
        asked = {given.message_id for given in run.inputs if given.message_id and lacks_text(given)}
        if ids := asked | missing_in([run.result] if run.result else []):
            referring[run.run_id] = ids
    if not referring:
        return
    statements = [one for run_id, ids in referring.items() for one in lookups(lookup, run_id, ids)]
    texts = texts_of(await connection.fetch_each(statements))
    for run_id in referring:
        run = runs[run_id]
        result = run.result and whole_result(run.result, texts)
        runs[run_id] = replace(run, result=result, inputs=tuple(_whole_input(given, texts) for given in run.inputs))


def lacks_text(given: RunInput) -> bool:
    """Return True if the text of an input is omitted because the transcript has it."""
    return given.values.get("text", "") is None


def _whole_input(given: RunInput, texts: Mapping[str, str]) -> RunInput:
    if not lacks_text(given):
        return given
    values = {**given.values, "text": texts.get(given.message_id or "")}
    return replace(given, values={name: value for name, value in values.items() if value is not None})


async def fetch_run(connection: Connection, run_id: str, *, damaged: bool = False) -> Run | None:
    """Return the run `run_id` or, if it was deleted, the data that is left of it; None if there is no data."""
    if found := await fetch_runs(connection, [run_id], damaged=damaged):
        return found[0]
    left = await connection.fetch(load_statements("runs.sql")["answered"], {"run_id": run_id})
    return _run_of_answered(left[0]) if left else None


def _run_of_answered(row: Row) -> Run:
    """Make a `Run` without texts for a deleted run, from the row that records which message it answered."""
    *texts, created_at, ended_at = row
    names = ("run_id", "session_id", "message_id", "workflow", "status", "user_id", "trigger")
    known = {**dict(zip(names, texts, strict=True)), "created_at": time_of(created_at), "ended_at": time_of(ended_at)}
    return Run(**{**_DEFAULTS, **known, "root_run_id": known["run_id"]})


@dataclass(frozen=True)
class RunCounts:
    """The numbers of runs that are queued, running, waiting, or set aside for a person, each counted up to a limit."""

    queued: int = 0
    running: int = 0
    waiting: int = 0
    set_aside: int = 0


class RunRecords(Tables, sql=("runs.sql", "runs_records.sql")):
    """A reader of stored runs: as lists, as trees of parents and children, and as counts. It also deletes runs."""

    async def runs(self, query: RunQuery) -> tuple[list[Run], RunCursor | None]:
        """Return one page of runs, newest first, and the cursor of the next page."""
        parameters = {
            **vars(query),
            "since": query.since and time_text(query.since),
            **cursor_parameters(query.cursor, "created_at", "run_id"),
            "limit": query.limit + 1,
            "reset": RESET,
            "delete": DELETE,
        }
        found = await self._fetch(_statement_for(query), parameters)
        if len(found) <= query.limit:
            return found, None
        last = found[query.limit - 1]
        return found[: query.limit], (last.created_at, last.run_id)

    async def of_sessions(self, session_ids: Sequence[str], *, user_id: str | None = None) -> list[Run]:
        """Return each session's newest turn, its first queued or running one, and its newest 20 waiting turns.

        The list is sorted, newest first. The runs lack the texts that the transcript has.
        """
        others = {"user_id": user_id, "reset": RESET, "delete": DELETE}
        async with self._driver.reading() as connection:
            found = await connection.fetch(*for_values(self._sql["of_sessions"], "session_id", session_ids, others))
            run_ids = [run_id for (run_id,) in found if run_id is not None]
            rows = await connection.fetch(*for_values(self._sql["rows"], "run_id", run_ids)) if run_ids else []
        return sorted([run_of(row, damaged=True) for row in rows], key=lambda run: run.created_at, reverse=True)

    async def tree(self, run_id: str, *, limit: int = 500) -> list[Run]:
        """Return up to `limit` runs of a run's tree, parents before children."""
        async with self._driver.reading() as connection:
            if not (roots := await connection.fetch(self._sql["root"], {"run_id": run_id})):
                left = await fetch_run(connection, run_id)
                return [] if left is None else [left]
        return await self._fetch("tree", {"root_run_id": roots[0][0], "limit": limit})

    async def counts(self, *, limit: int = 10_000) -> RunCounts:
        """Return the numbers of runs by state for operators, each counted only up to `limit`."""
        rows = await self._driver.fetch(self._sql["counts"], {"limit": limit})
        return RunCounts(**{state: int(count) for state, count in rows})

    async def without_workflow(self, *, limit: int = 1000) -> list[tuple[str, str]]:
        """Return the ids and workflows of unfinished runs that wait because a worker lacks their workflow."""
        return [(row[0], row[1]) for row in await self._driver.fetch(self._sql["without_workflow"], {"limit": limit})]

    async def forget_runs(self, run_ids: Sequence[str], *, only_idle: bool = False) -> int:
        """Delete runs, their roots, and all descendants, except runs that belong to a session; return the number.

        Raises:
            RowLocked: `only_idle` is true, and a run of their trees is queued or running; nothing was deleted.
        """
        deleted = 0
        async with self._driver.writing() as connection:
            for some in batched(run_ids, _AT_ONCE):
                if only_idle and await connection.fetch(*for_values(self._sql["alone_at_work"], "run_id", some)):
                    raise RowLocked("A run that must be deleted is queued or running; try again when it has ended.")
                deleted += await connection.execute(*for_values(self._sql["delete_alone"], "run_id", some))
        return deleted

    async def with_checkpoints(self, moment: datetime, *, limit: int) -> list[str]:
        """Return runs whose checkpoints may be removed: done, deleted, or ended before `moment` without a result."""
        asked = {"before": time_text(moment), "limit": limit}
        return [run_id for (run_id,) in await self._driver.fetch(self._sql["with_checkpoints"], asked)]

    async def checkpoints_expected(self, run_id: str) -> None:
        """Record that a run may have LangGraph checkpoints, so that `with_checkpoints` finds it."""
        await self._driver.write([(self._sql["may_have_checkpoints"], {"run_id": run_id})])

    async def checkpoints_removed(self, run_ids: Sequence[str]) -> None:
        """Record that runs have no LangGraph checkpoints any more, except runs that have been resumed since."""
        await self._driver.write([(self._sql["checkpoints_removed"], {"run_id": one}) for one in sorted(run_ids)])

    async def _fetch(self, statement: str, parameters: Parameters) -> list[Run]:
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql[statement], parameters)
            return await fetch_runs(connection, [run_id for (run_id,) in rows])


def _statement_for(query: RunQuery) -> str:
    """Return the name of the statement that uses the best index for a query."""
    if query.parent_run_id is not None:
        return "newest_of_parent"
    if query.set_aside:
        return "newest_set_aside"
    of = "_of_session" if query.session_id is not None else "_of_user" if query.user_id is not None else ""
    if query.status in ("queued", "running"):
        return "newest_open_of_session" if query.session_id is not None else f"newest_{query.status}"
    return f"newest{of}" if query.status in (None, "done") else f"newest{of}_by_status"
