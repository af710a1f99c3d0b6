"""What the docs show works as it stands, and answers what they say."""

from __future__ import annotations

import ast
import codeop
from collections.abc import Callable

import pytest

import threadkeep
from tests.docs.pages import Page, all_pages
from tests.docs.running import RUNNABLE, Place, run_page

PAGES = [page for page in all_pages() if page.blocks_in(*RUNNABLE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_a_page_can_be_carried_out(
    page: Page, place_of: Callable[[Page], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python, commands and requests work in their order, and what they print stands in the block that follows."""
    run_page(page, place_of(page), monkeypatch.setenv)


def test_python_can_be_pasted_into_the_shell() -> None:
    """Into `python -m asyncio`: before Python 3.13 an empty line ends an indented block, and nothing else does."""
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


def test_code_that_needs_other_packages_uses_names_that_are_there() -> None:
    """Blocks in `python3` are not run, since they import what this project does not install."""
    blocks = [(page, block) for page in all_pages() for block in page.blocks_in("python3")]
    assert blocks
    for page, block in blocks:
        tree = ast.parse(block.text, filename=page.name)
        imported = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module == "threadkeep"]
        assert imported
        assert all(hasattr(threadkeep, name.name) for one in imported for name in one.names)
