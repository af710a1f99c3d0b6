"""Tests that the examples of the docs work and have the shown output."""

from __future__ import annotations

import ast
import codeop
from collections.abc import Callable

import pytest

import threadkeep
from tests.docs.pages import Page, all_pages
from tests.docs.running import RUNNABLE, Placeholders, run_page

PAGES = [page for page in all_pages() if page.blocks_in(*RUNNABLE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_a_page_can_be_executed(
    page: Page, placeholders_of: Callable[[Page], Placeholders], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python, commands and requests work in their order, and their output is in the block that follows."""
    run_page(page, placeholders_of(page), monkeypatch.setenv)


def test_python_can_be_pasted_into_the_shell() -> None:
    """In `python -m asyncio` before Python 3.13, only an empty line ends an indented block."""
    for page in all_pages():
        for block in page.blocks_in("python", "python3"):
            compiler = codeop.CommandCompiler()
            compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            entered: list[str] = []
            for number, line in enumerate([*block.text.splitlines(), ""]):
                entered.append(line)
                where = f"{page.name}:{block.line + number}"
                if compiler("\n".join(entered), where, "single") is not None:
                    entered = []


def test_blocks_with_other_packages_import_existing_names() -> None:
    """Blocks in `python3` are not executed, because they import packages that are not installed."""
    blocks = [(page, block) for page in all_pages() for block in page.blocks_in("python3")]
    assert blocks
    for page, block in blocks:
        tree = ast.parse(block.text, filename=page.name)
        imported = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module == "threadkeep"]
        assert imported
        assert all(hasattr(threadkeep, name.name) for one in imported for name in one.names)
