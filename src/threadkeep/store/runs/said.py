"""References to messages: texts are stored once, in the transcript, and runs and traces refer to them by id.

A result and an event of one message have `message_id` and `text`; events of agents have LangChain's messages, which
have `id` and `content`. A text that the transcript has verbatim is left out, and filled in when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from threadkeep.records import Json
from threadkeep.store.codec import clean_json
from threadkeep.store.driver import Row, Statement

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
    """Return an event's data with the omitted texts, as far as the transcript still has them."""

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
    """Return a run's result with the omitted text, if the transcript still has it."""
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
