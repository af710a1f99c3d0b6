"""Tests of quotations as JSON lines, which no text can leave."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.context.quotation import quoted_message, quoted_summary, quoted_text
from threadkeep.records import Message, Summary

_AT = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=8)))


def summary(first: int, last: int, text: str) -> Summary:
    """Return a summary of a range."""
    return Summary("room", first, last, text, "model", "1", 5)


def test_a_quoted_message_has_number_time_and_role() -> None:
    message = Message(role="user", content='她说 "hi"\n', seq=7, sent_at=_AT, created_at=datetime.now(UTC))
    assert quoted_message(message) == ('{"message":7,"at":"2026-02-28 17:30","from":"user","text":"她说 \\"hi\\"\\n"}')


def test_notes_and_interrupted_answers_are_marked() -> None:
    assert json.loads(quoted_message(Message(role="system", content="x", seq=1)))["from"] == "note"
    broken = Message(role="assistant", content="x", seq=1, status="interrupted")
    assert json.loads(quoted_message(broken))["status"] == "interrupted"


def test_a_part_of_a_message_has_its_number() -> None:
    said = json.loads(quoted_message(Message(role="user", content="abc", seq=1), "b", part="2 of 3"))
    assert (said["part"], said["text"]) == ("2 of 3", "b")


@given(st.text(max_size=50))
@example("a\x85b\u2028c\u2029d")
def test_any_text_stays_in_its_line(text: str) -> None:
    for line in (
        quoted_message(Message(role="user", content=text, seq=1)),
        quoted_summary(summary(1, 2, f".{text}")),
        quoted_text("text", text),
    ):
        assert len(line.splitlines()) == 1
        assert "</" not in line
        assert json.loads(line)["text"].endswith(text)
