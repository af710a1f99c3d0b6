"""Tests of messages: invalid values are refused, and JSON is a lossless form."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep import InvalidInput, InvalidMessage, Message, RetentionLimits
from threadkeep.records import Json, dump_json

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_IDS = st.none() | st.from_regex(r"[a-zA-Z0-9:._\-]{1,40}", fullmatch=True)
_TIMES = st.none() | st.datetimes(timezones=st.just(UTC)).map(
    lambda time: time.astimezone(timezone(timedelta(hours=8))) if 1 < time.year < 9999 else time
)
_COUNTS = st.none() | st.integers(0, 2**53 - 1)
_MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system"]),
    content=st.text(st.characters()),
    id=_IDS,
    seq=_COUNTS,
    sent_at=_TIMES,
    created_at=_TIMES,
    tokens=_COUNTS,
    status=st.sampled_from(["complete", "interrupted", "failed"]),
    confidence=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    escalated=st.booleans(),
    run_id=_IDS,
    metadata=st.dictionaries(_TEXT, _JSON, max_size=3),
    original=_JSON,
)


@given(_MESSAGES)
def test_a_message_is_equal_after_a_round_trip_through_json(message: Message) -> None:
    assert Message.from_json(message.to_json()) == message
    assert Message.from_dict(json.loads(message.to_json())) == message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"role": "tool"}, "role is one of user, assistant, system"),
        ({"content": None}, "content is text"),
        ({"content": [{"type": "text"}]}, "content is text"),
        ({"status": "done"}, "status is one of"),
        ({"id": ""}, "id is text of 1 to 512"),
        ({"id": "x" * 513}, "id is text of 1 to 512"),
        ({"id": 42}, "id is text"),
        ({"id": "a\nb"}, "id has characters that cannot be printed"),
        ({"run_id": "a\x00"}, "run_id has characters that cannot be printed"),
        ({"sent_at": datetime(2026, 1, 1)}, "sent_at is a datetime with a time zone"),  # noqa: DTZ001
        ({"created_at": "2026-01-01"}, "created_at is a datetime with a time zone"),
        ({"sent_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=8)))}, "sent_at"),
        ({"sent_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-8)))}, "sent_at"),
        ({"seq": -1}, "seq is a whole number"),
        ({"tokens": 2**53}, "tokens is a whole number"),
        ({"tokens": True}, "tokens is a whole number"),
        ({"confidence": float("nan")}, "confidence is a finite number"),
        ({"confidence": 10**400}, "confidence is a finite number"),
        ({"confidence": "high"}, "confidence is a finite number"),
        ({"escalated": 1}, "escalated is True or False"),
        ({"metadata": ["a"]}, "metadata is a mapping"),
        ({"metadata": {"score": float("nan")}}, "finite numbers"),
        ({"metadata": {"a": {"b": [b"bytes"]}}}, "no bytes"),
        ({"metadata": {1: "a"}}, "text keys"),
        ({"metadata": {"a": {0: "b"}}}, "text keys"),
        ({"original": {"logprob": float("-inf")}}, "finite numbers"),
        ({"original": {"a": {1, 2}}}, "must be JSON"),
        ({"original": object()}, "must be JSON"),
    ],
)
def test_invalid_values_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        Message(**{"role": "user", "content": "hi", **fields})


@pytest.mark.parametrize("limit", [{"max_age_days": 10**400}, {"max_idle_days": 0}, {"max_messages": 1.5}])
def test_limits_of_retention_that_are_no_limits_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(limit))} is a"):
        RetentionLimits(**limit)


def test_sequences_and_mappings_become_lists_and_dicts() -> None:
    """A message is equal after a round trip, and a later change of the given values does not change the message."""
    inner: dict[str, Json] = {"b": (1, (2, 3))}
    message = Message(role="user", content="hi", metadata=MappingProxyType({"a": inner}), original=({"c": ()},))
    inner["b"] = ()
    assert message.metadata == {"a": {"b": [1, [2, 3]]}}
    assert message.original == [{"c": []}]
    assert Message.from_json(message.to_json()) == message


def test_errors_never_quote_the_input() -> None:
    """Neither the error nor its context has the input, which may be text of a person."""
    secret = "canary"
    good = {"role": "user", "content": "hi"}
    wrong: list[dict[str, Any]] = [
        {**good, secret: 1},
        {**good, "sent_at": secret},
        {**good, "role": secret},
        {**good, "metadata": {"a": {secret}}},
        {**good, "original": {secret: float("nan")}},
    ]
    reads: list[Callable[[], Message]] = [partial(Message.from_dict, values) for values in wrong]
    reads.append(partial(Message.from_json, f'{{"{secret}'))
    for read in reads:
        with pytest.raises(InvalidMessage) as refused:
            read()
        error = refused.value
        assert error.__suppress_context__ or error.__context__ is None
        assert secret not in str(error)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": float("inf")}, "finite numbers"),
        ({"a": b"bytes"}, "no bytes"),
        ({1: "a"}, "text keys"),
        ({"a": {"b": [{2: None}]}}, "text keys"),
        ({"a": {1, 2}}, "must be JSON"),
    ],
)
def test_values_that_are_no_json_are_refused(value: object, says: str) -> None:
    """Numeric keys would become text keys after a round trip."""
    with pytest.raises(InvalidMessage, match=says):
        dump_json(value)


def test_deeply_nested_json_is_refused() -> None:
    """Deeply nested JSON could be stored but never read."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidMessage, match="not too deep"):
        dump_json(deep)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: Message.from_json("{"), "is not JSON"),
        (lambda: Message.from_json("[]"), "one object, not a list"),
        (lambda: Message.from_json('{"role": "user"}'), "needs the field 'content'"),
        (lambda: Message.from_json('{"role": "user", "content": "", "mood": 1}'), "has only the fields"),
        (lambda: Message.from_json('{"role": "user", "content": "", "sent_at": "noon"}'), "ISO 8601"),
        (lambda: Message.from_json('{"role": "user", "content": "", "sent_at": "2026-01-01T00:00"}'), "time zone"),
    ],
)
def test_json_that_is_no_message_is_refused(read: Callable[[], Message], says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        read()
