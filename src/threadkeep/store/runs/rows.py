"""Conversion of runs between records and table rows; texts that the transcript has are stored by reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from threadkeep.records import Json
from threadkeep.records.runs import RUN_ENDS, Run, RunBudget, RunInput
from threadkeep.store.codec import clean_json, clean_text, json_text, time_of
from threadkeep.store.compact_json import compact, expanded
from threadkeep.store.driver import Connection, Row, Statement
from threadkeep.store.statements import for_rows, load_statements, row_parameters

type Values = Mapping[str, Json]
type Texts = Mapping[str, str]
"""Texts by the ids of their messages."""


def texts_in(values: Iterable[Values]) -> dict[str, str]:
    """Return the full texts in values, by the ids of their messages."""
    found = ((one.get(name), one.get(text)) for value in values for one, name, text in _places(value))
    return {key: str(clean_json(text)) for key, text in found if isinstance(key, str) and isinstance(text, str)}


def missing_in(values: Iterable[Values]) -> set[str]:
    """Return the ids of messages whose texts are left out of values."""
    found = (one.get(name) for value in values for one, name, text in _places(value) if text not in one)
    return {key for key in found if isinstance(key, str)}


def lookups(sql: str, run_id: str, message_ids: Iterable[str]) -> list[Statement]:
    """Return the statements that read messages of a run's session."""
    return [(sql, {"run_id": run_id, "message_id": message_id}) for message_id in sorted(message_ids)]


def texts_of(found: Iterable[Iterable[Row]]) -> dict[str, str]:
    """Return the texts that `lookups` found."""
    return {message_id: content for rows in found for message_id, content in rows}


def shortened(value: Values, said: Texts) -> dict[str, Json]:
    """Return an event's data without the texts that the transcript has."""

    def left_out(one: Values, name: str, text: str) -> dict[str, Json]:
        known = said.get(str(one.get(name)))
        return {key: each for key, each in one.items() if key != text or known is None or clean_json(each) != known}

    return _changed(value, left_out)


def restored(value: Values, said: Texts) -> dict[str, Json]:
    """Return an event's data with its omitted texts restored, if the transcript still has them."""

    def put_in(one: Values, name: str, text: str) -> dict[str, Json]:
        known = said.get(str(one.get(name)))
        return {**one} if text in one or known is None else {**one, text: known}

    return _changed(value, put_in)


def short_result(result: Values) -> dict[str, Json] | None:
    """Return a run's result without its text, which is often its output too; None if it is no message's text."""
    text = result.get("text")
    if not isinstance(result.get("message_id"), str) or not isinstance(text, str):
        return None
    short = {name: value for name, value in result.items() if name != "text"}
    if short.setdefault("output", None) == {"text": text}:
        del short["output"]
    return short


def whole_result(result: Values, said: Texts) -> dict[str, Json]:
    """Return a run's result with its omitted text restored, if the transcript still has it."""
    whole = restored(result, said)
    if "text" in whole and "text" not in result and "output" not in whole:
        whole["output"] = {"text": whole["text"]}
    return {name: value for name, value in whole.items() if value is not None}


def _places(value: Values) -> Iterator[tuple[Values, str, str]]:
    """Yield the messages in a value, with the names of their id and text fields."""
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


# The columns of the statement, in the order of the record; the column of `inputs` is called input.
_COLUMNS = tuple(column.name for column in fields(Run) if column.name != "resumed")
_TIMES = ("started_at", "heartbeat_at", "ended_at", "cancel_requested_at", "created_at", "deadline_at")
_AT_ONCE = 200
_NOT_KEPT: Mapping[str, Any] = {
    **dict.fromkeys((*_COLUMNS, "resumed")),
    "depth": 0,
    "inputs": (),
    "resumed": False,
    "budget": RunBudget(),
    "attempts": 1,
    "set_aside": False,
}


def run_of(row: Row) -> Run:
    """Return the run in a row of the statement `rows`."""
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    for name in _TIMES:
        values[name] = values[name] and time_of(values[name])
    if values["owner"] is not None and values["heartbeat_at"] is None and values["status"] in RUN_ENDS:
        # The last sign of its owner is the end of the run, which is stored once.
        values["heartbeat_at"] = values["ended_at"]
    values["resumed"] = values["resume_value"] is not None
    for name in ("result", "interrupt", "resume_value"):
        values[name] = json_of(values[name])
    values["inputs"] = inputs_of(values["inputs"], values["message_id"])
    values["budget"] = RunBudget.from_dict(json_of(values["budget"]) or {})
    values["set_aside"] = bool(values["set_aside"])
    return Run(**values)


def json_of(text: str | bytes | None) -> Any:
    """Return the value of a column with JSON or compact JSON; None for NULL."""
    return None if text is None else json.loads(expanded(text) if isinstance(text, bytes) else text)


def inputs_of(stored: bytes | None, message_id: str | None = None) -> tuple[RunInput, ...]:
    """Return the inputs in a column; a text is None if the transcript has it under the `message_id`."""
    entries: Sequence[Mapping[str, Any]] = json_of(stored) or ()
    return tuple(
        RunInput({"text": None, **entry.get("values", {})}, message_id)
        if entry.get("said")
        else RunInput(entry["values"], entry.get("message_id"))
        for entry in entries
    )


def short_inputs(inputs: Sequence[RunInput], message_id: str | None) -> dict[str, str | bytes | None]:
    """Return parameters that leave out the text of a single message if the transcript may have it."""
    text = inputs[0].values.get("text") if len(inputs) == 1 else None
    if not isinstance(text, str) or message_id is None or inputs[0].message_id != message_id:
        return {"input": None, "asked": None, "short_input": None}
    rest = {name: value for name, value in inputs[0].values.items() if name != "text"}
    entry: dict[str, Json] = {"said": True, **({"values": rest} if rest else {})}
    return {"input": compact_inputs(inputs), "asked": clean_text(text), "short_input": compact(json_text([entry]))}


def compact_inputs(inputs: Iterable[RunInput]) -> bytes:
    """Return inputs in the format of their column."""
    entries: list[Json] = []
    for given in inputs:
        entry: dict[str, Json] = {"values": dict(given.values)}
        if given.message_id is not None:
            entry["message_id"] = given.message_id
        entries.append(entry)
    return compact(json_text(entries))


async def fetch_runs(connection: Connection, run_ids: Sequence[str]) -> list[Run]:
    """Return the existing runs with these ids, in the order of the ids."""
    sql = load_statements("runs.sql")["rows"]
    found: dict[str, Run] = {}
    for start in range(0, len(run_ids), _AT_ONCE):
        rows = [{"run_id": run_id} for run_id in run_ids[start : start + _AT_ONCE]]
        for row in await connection.fetch(for_rows(sql, len(rows)), row_parameters(rows)):
            run = run_of(row)
            found[run.run_id] = run
    await _put_in_texts(connection, found)
    return [found[run_id] for run_id in run_ids if run_id in found]


async def _put_in_texts(connection: Connection, runs: dict[str, Run]) -> None:
    """Fill in the texts to which results and inputs refer."""
    said = load_statements("runs.sql")["said"]
    referring = {run.run_id: ids for run in runs.values() if (ids := _ids_of_texts(run))}
    if not referring:
        return
    statements = [one for run_id, ids in referring.items() for one in lookups(said, run_id, ids)]
    texts = texts_of(await connection.fetch_each(statements))
    for run_id in referring:
        run = runs[run_id]
        result = run.result and whole_result(run.result, texts)
        runs[run_id] = replace(run, result=result, inputs=tuple(_whole_input(given, texts) for given in run.inputs))


def _ids_of_texts(run: Run) -> set[str]:
    """Return the messages whose texts are left out of a run."""
    asked = {given.message_id for given in run.inputs if given.message_id and lacks_text(given)}
    return asked | missing_in([run.result] if run.result else [])


def lacks_text(given: RunInput) -> bool:
    """Return whether the text of an input is only in the transcript."""
    return given.values.get("text", "") is None


def _whole_input(given: RunInput, said: Mapping[str, str]) -> RunInput:
    if not lacks_text(given):
        return given
    text = said.get(given.message_id or "")
    return replace(
        given, values={name: value for name, value in {**given.values, "text": text}.items() if value is not None}
    )


async def fetch_run(connection: Connection, run_id: str) -> Run | None:
    """Return the run with an id; for a run that is no longer stored, the remaining record."""
    found = await fetch_runs(connection, [run_id])
    if found:
        return found[0]
    left = await connection.fetch(load_statements("runs.sql")["answered"], {"run_id": run_id})
    return _run_left(left[0]) if left else None


def _run_left(row: Row) -> Run:
    """Return a run of which only the answered message is known: it is over and has no texts."""
    run_id, session_id, message_id, workflow, status, user_id, trigger, created_at, ended_at = row
    known = {
        "run_id": run_id,
        "root_run_id": run_id,
        "session_id": session_id,
        "message_id": message_id,
        "workflow": workflow,
        "status": status,
        "user_id": user_id,
        "trigger": trigger,
        "created_at": time_of(created_at),
        "ended_at": time_of(ended_at),
    }
    return Run(**{**_NOT_KEPT, **known})
