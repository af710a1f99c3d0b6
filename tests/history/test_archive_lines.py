"""Tests of the lines of an export."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.history.archive_lines import (
    BadLine,
    MessageLine,
    SessionLine,
    SummaryLine,
    message_line,
    parse_line,
    session_line,
    summary_line,
)
from threadkeep.records import Json, Message, SessionInfo, Summary
from threadkeep.store.summaries import ArchivedSummary

_NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
_TIMES = st.none() | st.datetimes(
    datetime.fromisoformat("0002-01-02"),
    datetime.fromisoformat("9998-12-30"),
    timezones=st.just(timezone(timedelta(hours=-3))),
)
_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)
_MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system"]),
    content=_TEXTS,
    id=st.none() | st.sampled_from(["m1", "telegram:42"]),
    seq=st.none() | st.integers(1, 2**40),
    sent_at=_TIMES,
    created_at=_TIMES,
    tokens=st.none() | st.integers(0, 2**31 - 1),
    status=st.sampled_from(["complete", "interrupted", "failed"]),
    confidence=st.none() | st.floats(0, 1),
    escalated=st.booleans(),
    metadata=st.dictionaries(_TEXTS, _JSON, max_size=3),
    original=_JSON,
)


def _summary_line(**changes: Json) -> bytes:
    """Return the line of a summary of three messages, with some fields changed."""
    summary = Summary("a", 1, 3, "Tea.", "test-model", "1", 7, id="s1", created_at=_NOW)
    values = json.loads(summary_line(ArchivedSummary(summary, 3, "m1", "m3")))
    return json.dumps({**values, **changes}).encode()


@given(message=_MESSAGES)
def test_a_message_is_parsed_from_its_line(message: Message) -> None:
    line = message_line("telegram:1", message)
    assert line.count("\n") == 1
    assert parse_line(line.encode()) == MessageLine("telegram:1", message)


@given(title=st.none() | _TEXTS, tags=st.lists(_TEXTS, max_size=3), metadata=st.dictionaries(_TEXTS, _JSON, max_size=3))
def test_a_session_is_parsed_from_its_line(title: str | None, tags: list[str], metadata: dict[str, Json]) -> None:
    info = SessionInfo("a", "u1", title, "last", 7, 7, 3, False, tuple(tags), metadata, _NOW, _NOW)
    parsed = parse_line(session_line(info).encode())
    assert parsed == SessionLine("a", "u1", title, tuple(tags), metadata, False, 3, _NOW, _NOW)


@given(
    first_seq=st.integers(1, 2**40),
    text=_TEXTS.filter(str.strip),
    level=st.integers(1, 9),
    created_at=_TIMES,
    left=st.integers(0, 5),
)
def test_a_summary_is_parsed_from_its_line(
    first_seq: int, text: str, level: int, created_at: datetime | None, left: int
) -> None:
    """The line has the number and the ends of the messages, to check that they are the same."""
    summary = Summary("a", first_seq, first_seq + 4, text, "test-model", "1", 7, level, created_at=created_at)
    ends = ("m1", "m5") if left else (None, None)
    archived = ArchivedSummary(summary, left, *ends)
    line = summary_line(archived)
    assert line.count("\n") == 1
    assert parse_line(line.encode()) == SummaryLine("a", archived)


def test_an_original_keeps_the_order_of_its_keys() -> None:
    """Metadata is sorted, so that its order does not depend on the database."""
    message = Message(role="user", content="hi", metadata={"b": 1, "a": {"d": 1, "c": 2}}, original={"b": 1, "a": 2})
    values = json.loads(message_line("a", message))
    assert json.dumps(values["metadata"]) == '{"a": {"c": 2, "d": 1}, "b": 1}'
    assert json.dumps(values["original"]) == '{"b": 1, "a": 2}'


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"type":"message","session_id":"a","role":"user","content":"x","confidence":NaN}', "not JSON"),
        (b"[]", "one JSON object"),
        (b'{"session_id":"a"}', "type is session, message or summary"),
        (b'{"type":"turn","session_id":"a"}', "type is session, message or summary"),
        (b'{"type":"session"}', "session_id"),
        (b'{"type":"session","session_id":7}', "session_id"),
        (b'{"type":"session","session_id":"telegram:"}', "no empty part"),
        (b'{"type":"session","session_id":"a","name":"x"}', "no field 'name'"),
        (b'{"type":"session","session_id":"a","active":1}', "active"),
        (b'{"type":"session","session_id":"a","reset_seq":true}', "reset_seq"),
        (b'{"type":"session","session_id":"a","reset_seq":-1}', "reset_seq"),
        (b'{"type":"session","session_id":"a","archived_seq":-1}', "archived_seq"),
        (b'{"type":"session","session_id":"a","deleted_seq":9007199254740992}', "deleted_seq"),
        (b'{"type":"session","session_id":"a","retention":[]}', "retention"),
        (b'{"type":"session","session_id":"a","retention":{"keep":1}}', "archive"),
        (b'{"type":"session","session_id":"a","retention":{"delete":{"max_messages":"1"}}}', "max_messages"),
        (b'{"type":"session","session_id":"a","tags":"x"}', "tags"),
        (b'{"type":"session","session_id":"a","tags":[1]}', "tags"),
        (b'{"type":"session","session_id":"a","metadata":null}', "metadata"),
        (b'{"type":"session","session_id":"a","created_at":"today"}', "created_at"),
        (b'{"type":"session","session_id":"a","created_at":"2026-01-01"}', "created_at"),
        (b'{"type":"message","session_id":"a","role":"user"}', "content"),
        (b'{"type":"message","session_id":"a","role":"user","content":"x","text":"y"}', "has only the fields"),
        (b'{"type":"message","session_id":"a","role":"robot","content":"x"}', "role"),
        (b'{"type":"message","session_id":"a","role":["user"],"content":"x"}', "role"),
        (b'{"type":"message","session_id":"a","role":"user","content":7}', "content"),
        (b'{"type":"message","session_id":"a","role":"user","content":"x","tokens":4294967296}', "tokens"),
        (b'{"type":"message","session_id":"a","role":"user","content":"x","sent_at":7}', "sent_at"),
        (
            b'{"type":"message","session_id":"a","role":"user","content":"x","created_at":"0001-01-01T00:00:00Z"}',
            "years",
        ),
        (b'{"type":"message","session_id":"a","role":"user","content":"x","metadata":[]}', "metadata"),
        (b'{"type":"summary","session_id":"a","text":"x"}', "has the fields"),
        (_summary_line(color="red"), "has the fields"),
        (_summary_line(text=" "), "text must not be blank"),
        (_summary_line(text=7), "text must not be blank"),
        (_summary_line(first_seq=0), "first_seq is a whole number from 1"),
        (_summary_line(first_seq="1"), "first_seq is a whole number"),
        (_summary_line(last_seq=0), "last_seq is a whole number from 1"),
        (_summary_line(level=2**31), "level is a whole number"),
        (_summary_line(tokens=True), "tokens is a whole number"),
        (_summary_line(id="a\nb"), "id is text of 1 to 512 printable"),
        (_summary_line(model=""), "model is text of 1 to 512 printable"),
        (_summary_line(messages=4), "messages is a whole number from 0 to 3, the length of the summary's range"),
        (_summary_line(messages=-1), "messages is a whole number from 0 to 3, the length of the summary's range"),
        (_summary_line(messages=2.0), "messages is a whole number from 0 to 3, the length of the summary's range"),
        (_summary_line(messages=0), "first_id and last_id"),
        (_summary_line(first_id=None), "first_id and last_id"),
        (_summary_line(last_id="a\u0000"), "first_id and last_id"),
        (_summary_line(created_at=7), "created_at is a time"),
        (_summary_line(created_at="0001-01-01T00:00:00Z"), "years"),
    ],
)
def test_an_invalid_line_is_refused(line: bytes, sentence: str) -> None:
    with pytest.raises(BadLine, match=sentence):
        parse_line(line)


def test_an_error_about_a_line_quotes_none_of_its_text() -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(b'{"type":"message","session_id":"a","role":"canary","content":"canary","metadata":"canary"}')
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("year", [1, 9999])
def test_every_platform_time_that_a_message_can_have_is_imported(year: int) -> None:
    """Platforms send a zero time for an unknown one, and the message is stored with it."""
    message = Message(role="user", content="hi", id="a", sent_at=datetime(year, 1, 1, tzinfo=UTC))
    assert parse_line(message_line("room", message).encode()) == MessageLine("room", message)
