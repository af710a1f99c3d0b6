"""Tests of the links inside of the repository."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Page, all_pages, linked_pages, page
from tests.docs.tables import code_in, table_rows

# `make bench` writes this page, so it may not exist.
GENERATED = {DOCS / "benchmarks.md"}


@cache
def anchors() -> dict[Path, set[str]]:
    """Return the anchors of every page."""
    return {one.path: one.anchors() for one in linked_pages()}


@pytest.mark.parametrize("page", linked_pages(), ids=lambda page: page.name)
def test_links_have_existing_targets(page: Page) -> None:
    broken = []
    for link in page.links():
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        if path in GENERATED and not path.exists():
            continue
        if not path.exists() or ROOT not in path.parents or (anchor and anchor not in anchors()[path]):
            broken.append(link)
    assert not broken


def test_links_of_the_site_stay_in_the_site() -> None:
    """The site has only the files in `docs`; other files are linked by their address."""
    outside = [
        (one.name, link)
        for one in linked_pages()
        for link in one.links()
        if DOCS in one.path.parents and "://" not in link
        if not (one.path.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert not outside


def test_every_page_is_linked_from_the_index() -> None:
    [index] = [one for one in all_pages() if one.path == DOCS / "index.md"]
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links()}
    missing = [one.name for one in all_pages() if DOCS in one.path.parents and one.path not in {*linked, index.path}]
    assert not missing


def test_the_first_page_names_every_extra() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert {code for row in table_rows(page("docs/index.md")) for code in code_in(row[0])} == set(extras)


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].split()
    listed = [word for word in lines if word.endswith(".md")]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name != "template.md"]
    assert sorted(listed) == sorted(pages)


def test_the_tests_named_by_the_guarantees_exist() -> None:
    [guarantees] = [one for one in all_pages() if one.name == "docs/explanation/guarantees.md"]
    files = {code for code in code_in(guarantees.prose) if code.endswith(".py")}
    assert len(files) > 10
    assert not {file for file in files if not (ROOT / file).is_file()}


def test_a_decision_has_one_page() -> None:
    """A printed page has 66 lines."""
    long = {path.name for path in DOCS.glob("adr/*.md") if len(path.read_text(encoding="utf-8").splitlines()) > 66}
    assert long == set()
