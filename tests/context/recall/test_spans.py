"""Tests of finding days in a text: dates and words relative to today."""

from __future__ import annotations

from datetime import date

import pytest

from threadkeep.context.recall.spans import Span, spans_of

NOW = date(2024, 3, 20)  # a Wednesday
KNOWN = Span(date(2023, 6, 1).toordinal(), NOW.toordinal())


def days(text: str) -> list[tuple[str, str]]:
    """Return the spans of a text as ISO dates."""
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
    assert (first, last) in days(text)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("am 5. März 2024", "2024-03-05", "2024-03-05"), ("vor zwei Wochen", "2024-03-03", "2024-03-09"),
        ("Was war letzten Montag?", "2024-03-18", "2024-03-18"), ("letztes Jahr im Garten", "2022-09-20", "2023-11-20"),
        ("el 3 de mayo de 2023", "2023-05-03", "2023-05-03"), ("hace 3 días", "2024-03-17", "2024-03-17"),
        ("le 1er mars 2024", "2024-03-01", "2024-03-01"), ("en juillet 2023", "2023-07-01", "2023-07-31"),
        ("il y a deux jours", "2024-03-18", "2024-03-18"), ("tre giorni fa", "2024-03-17", "2024-03-17"),
        ("ontem à noite", "2024-03-19", "2024-03-19"), ("drie dagen geleden", "2024-03-17", "2024-03-17"),
        ("9 maja 2023", "2023-05-09", "2023-05-09"), ("dwa dni temu", "2024-03-18", "2024-03-18"),
        ("9 мая 2023 года", "2023-05-09", "2023-05-09"), ("три дня назад", "2024-03-17", "2024-03-17"),
        ("в прошлом месяце", "2024-02-04", "2024-03-10"), ("вчора ввечері", "2024-03-19", "2024-03-19"),
        ("15 Mart'ta", "2024-03-15", "2024-03-15"), ("üç gün önce", "2024-03-17", "2024-03-17"),
        ("στις 5 Μαρτίου 2024", "2024-03-05", "2024-03-05"), ("5 مارس 2024", "2024-03-05", "2024-03-05"),
        ("قبل 3 أيام", "2024-03-17", "2024-03-17"), ("5 मार्च 2024", "2024-03-05", "2024-03-05"),
        ("तीन दिन पहले", "2024-03-17", "2024-03-17"), ("2023年5月7日に", "2023-05-07", "2023-05-07"),
        ("先週は忙しかった", "2024-03-10", "2024-03-18"), ("3日前に", "2024-03-17", "2024-03-17"),
        ("2023년 5월 7일에", "2023-05-07", "2023-05-07"), ("어제는 뭐 했어", "2024-03-19", "2024-03-19"),
        ("3일 전에", "2024-03-17", "2024-03-17"), ("지난달에", "2024-02-04", "2024-03-10"),
    ],
)  # fmt: skip
def test_dates_of_other_languages_are_read(text: str, first: str, last: str) -> None:
    """Inflected words and suffixes without spaces are recognized."""
    assert (first, last) in days(text)


@pytest.mark.parametrize("text", ["la cera de marzo", "hier ist es schön", "mars attacks", "fa caldo", "an on lat"])
def test_foreign_months_and_units_alone_yield_no_days(text: str) -> None:
    """A lower-case month name is a month only beside a number."""
    assert days(text) == []


@pytest.mark.parametrize(
    "text", ["", "May I ask you something?", "We march on", "31 February 2024", "call 2024-13-40", "0年"]
)
def test_invalid_dates_and_similar_words_yield_no_days(text: str) -> None:
    assert days(text) == []


def test_a_month_without_a_year_is_looked_for_in_each_known_year() -> None:
    assert [first for first, _ in days("in February")] == ["2023-02-01", "2024-02-01"]
