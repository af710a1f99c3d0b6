"""Days in a text: dates, and words that count from today."""

from __future__ import annotations

from datetime import date

import pytest

from threadkeep.context.recall.spans import Span, spans_of

NOW = date(2024, 3, 20)  # a Wednesday
KNOWN = Span(date(2023, 6, 1).toordinal(), NOW.toordinal())


def days(text: str) -> list[tuple[str, str]]:
    """The spans of a text as ISO dates."""
    found = spans_of(text, KNOWN, NOW.toordinal())
    return [(date.fromordinal(span.first).isoformat(), date.fromordinal(span.last).isoformat()) for span in found]


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("on 2024-02-29", "2024-02-29", "2024-02-29"), ("7 May 2023", "2023-05-07", "2023-05-07"),
        ("May 7th, 2023", "2023-05-07", "2023-05-07"), ("in May 2023", "2023-05-01", "2023-05-31"),
        ("in 2022", "2022-01-01", "2022-12-31"), ("winter of 2023", "2023-12-01", "2024-02-29"),
        ("yesterday", "2024-03-19", "2024-03-19"), ("three days ago", "2024-03-17", "2024-03-17"),
        ("last Monday", "2024-03-18", "2024-03-18"), ("昨天", "2024-03-19", "2024-03-19"),
        ("2023年5月7日", "2023-05-07", "2023-05-07"), ("3天前", "2024-03-17", "2024-03-17"),
    ],
)  # fmt: skip
def test_dates_are_read(text: str, first: str, last: str) -> None:
    """Each way of writing gives its days."""
    assert (first, last) in days(text)


@pytest.mark.parametrize(
    "text", ["", "May I ask you something?", "We march on", "31 February 2024", "call 2024-13-40", "0年"]
)
def test_what_is_no_date_gives_no_days(text: str) -> None:
    """Words that look like months, and days that there are not."""
    assert days(text) == []


def test_a_month_without_a_year_is_looked_for_in_each_known_year() -> None:
    """Nobody says which February."""
    assert [first for first, _ in days("in February")] == ["2023-02-01", "2024-02-01"]
