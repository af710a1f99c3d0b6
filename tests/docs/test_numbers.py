"""Tests that measured numbers quoted elsewhere are those of docs/benchmarks.md."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, Page, all_pages

BENCHMARKS = DOCS / "benchmarks.md"
_MEASURED = re.compile(r"\d[\d,]*(?:\.\d+)?(?= ?(?:ms\b|×|turns a second|turns/s))")


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_quoted_measurements_are_those_of_the_benchmarks(page: Page) -> None:
    """The test checks numbers with a unit of speed, in paragraphs that link to the benchmarks."""
    if page.path == BENCHMARKS:
        return
    quoted = {
        number
        for paragraph in page.paragraphs()
        if "benchmarks.md" in paragraph
        for number in _MEASURED.findall(paragraph)
    }
    if quoted:
        assert quoted <= set(re.findall(r"\d[\d,]*(?:\.\d+)?", BENCHMARKS.read_text(encoding="utf-8")))
