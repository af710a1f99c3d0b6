"""Parsing of the tables of a page into rows of cells."""

from __future__ import annotations

import re
from functools import cache

from tests.docs.pages import Page

_CELL_BORDER = re.compile(r"(?<!\\)\|")


@cache
def table_rows(page: Page) -> list[list[str]]:
    """Return the rows of all tables of a page, including headings."""
    lines = [line.strip() for line in page.prose.splitlines() if line.lstrip().startswith("|")]
    rows = [[cell.strip() for cell in _CELL_BORDER.split(line)[1:-1]] for line in lines]
    return [row for row in rows if not all(re.fullmatch(":?-+:?", cell) for cell in row)]


def row_of(page: Page, name: str) -> list[str]:
    """Return the first row whose first cell has a name in code marks."""
    for row in table_rows(page):
        if name in code_in(row[0]):
            return row
    raise AssertionError(f"{page.name} has no row for {name}")


def code_in(text: str) -> list[str]:
    """Return the texts in code marks."""
    return re.findall(r"`([^`]+)`", text)


def section(page: Page, heading: str) -> str:
    """Return the text under a heading, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) `?{re.escape(heading)}`?$", page.text, re.MULTILINE)
    assert found, f"{page.name} has no heading {heading}"
    rest = page.text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest
