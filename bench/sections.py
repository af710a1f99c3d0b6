"""Sections of a page of the docs, each between two marks and written by its own bench; other benches keep it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = "benchmarks.md"
"""The page, below docs, to which several benches add a section each."""

_SECTION = re.compile(r"<!-- section: (?P<name>[a-z]+) -->\n.*?<!-- end of section -->\n", re.DOTALL)


def put_section(path: Path, name: str, text: str) -> None:
    """Write a section into a page, in its old position or at the end."""
    path.write_text(with_section(path.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def with_section(page: str, name: str, text: str) -> str:
    """Return the page with a section in its old position, or at the end."""
    return _with(page, name, f"<!-- section: {name} -->\n{text.strip()}\n<!-- end of section -->\n")


def carried_over(old: str, new: str) -> str:
    """Return the new page with the sections of the old one."""
    for found in _SECTION.finditer(old):
        new = _with(new, found["name"], found[0])
    return new


def _with(page: str, name: str, section: str) -> str:
    for found in _SECTION.finditer(page):
        if found["name"] == name:
            return page[: found.start()] + section + page[found.end() :]
    return f"{page.rstrip()}\n\n{section}"
