"""Tests of the published errors of the token estimates: they are current, within the aim, and from unseen texts."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

if find_spec("bpe_openai") is None:
    pytest.skip("the extra `tokens` is not installed", allow_module_level=True)

from bench.tables import markdown
from bench.token_families import real_counts
from bench.token_patterns import all_patterns, pattern_counts
from bench.token_samples import LONGEST, SHORTEST, Half, rows, texts
from bench.tokens import EXACT, PAGE, Row, error_sheet, family_sheet, measure, misses
from threadkeep.context.estimates import FAMILIES, Family
from threadkeep.context.tokens import FAMILY_ESTIMATES, counter_named

HALVES: tuple[Half, ...] = ("fit", "published")
DOCS = Path(__file__).parents[2] / "docs"
LANGUAGES = {one.row for one in texts() if one.kind == "prose"}
FITTED = frozenset(rows("fit"))
"""Rows with another half that was used for the fit; eight languages have none."""


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    """Return the rows of the table."""
    return measure()


def test_the_published_table_is_current(measured: list[Row]) -> None:
    """After a change of the estimate, run `python -m bench tokens`."""
    page = (DOCS / PAGE).read_text(encoding="utf-8")
    assert markdown(error_sheet(measured)) in page
    assert misses(measured) in page
    assert markdown(family_sheet(measured)) in page


def test_the_stored_counts_are_current() -> None:
    """After a change of a text, count the texts again with all tokenizers."""
    for half in HALVES:
        for encoding in EXACT:
            count = counter_named(encoding)
            found = {title: [count(text) for text in own] for title, own in rows(half).items()}
            assert real_counts()[half][encoding] == found
        sizes = {title: len(own) for title, own in rows(half).items()}
        assert all({t: len(n) for t, n in real_counts()[half][family].items()} == sizes for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_language_has_a_large_error(family: Family) -> None:
    for title, own in rows("published").items():
        if title.endswith((": prose", ": chat")):
            real = sum(real_counts()["published"][family][title])
            least, most = (-0.05, 0.35) if title in FITTED else (-0.15, 0.5)
            assert least <= sum(map(FAMILY_ESTIMATES[family], own)) / real - 1 <= most, title


def test_nearly_all_rows_meet_the_aim(measured: list[Row]) -> None:
    """The aim is an error of at most -10 % or +33 %. A few rows miss it by a little."""
    errors = [row.errors[encoding] for row in measured for encoding in EXACT if row.title in FITTED]
    assert sum(not found.is_within for found in errors) <= 3
    assert min(found.p5 for found in errors) >= -0.12
    assert max(found.p95 for found in errors) <= 0.55
    others = [row.errors[encoding] for row in measured for encoding in EXACT if row.title not in FITTED]
    assert sum(not found.is_within for found in others) <= 9
    assert min(found.p5 for found in others) >= -0.2


def test_twenty_four_languages_and_a_dozen_kinds_of_content_are_measured(measured: list[Row]) -> None:
    titles = {row.title for row in measured}
    assert len(LANGUAGES) == 24
    assert {f"{language}: {kind}" for language in LANGUAGES for kind in ("prose", "chat")} <= titles
    assert {"Python", "C", "HTML", "JSON", "CSV", "base64", "web addresses", "UI strings", "mixed"} <= titles


@pytest.mark.parametrize("half", HALVES)
def test_samples_have_the_stated_lengths(half: Half) -> None:
    assert all(SHORTEST <= len(text) <= LONGEST for own in rows(half).values() for text in own)


def test_published_texts_were_not_used_for_the_fit() -> None:
    own = {half: {line for one in texts() if one.half == half for line in one.text.split("\n")} for half in HALVES}
    shared = {line for line in own["fit"] & own["published"] if len(line) >= 20}
    assert not shared
    assert not {t for own_texts in rows("fit").values() for t in own_texts} & {
        t for own_texts in rows("published").values() for t in own_texts
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_is_the_sum_over_its_patterns(family: Family) -> None:
    """The optimized estimate agrees with the plain count that the costs are fitted with."""
    costs = [costs[FAMILIES.index(family)] for _, costs in all_patterns()]
    samples = st.sampled_from([text for own in rows("published").values() for text in own])

    @given(samples | st.text(min_size=1) | st.text("aA.0 \n-é中ก👍Дд\ud800", min_size=1, max_size=60))
    def agree(text: str) -> None:
        total = math.sumprod(costs, pattern_counts(text))
        assert FAMILY_ESTIMATES[family](text) == pytest.approx(max(1, len(text) // 10, total), abs=0.51)

    agree()
