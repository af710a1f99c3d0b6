"""Python blocks of a page, run one after the other in one namespace."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType

from tests.docs.pages import Block, Page

PYTHON = ("python", "py")


@dataclass(frozen=True)
class Place:
    """What stands in the docs for places of a real machine, and what a test puts there."""

    replacements: Mapping[str, str]

    def here(self, text: str) -> str:
        """The text with this test's own places."""
        for shown, real in self.replacements.items():
            text = text.replace(shown, real)
        return text

    def shown(self, text: str) -> str:
        """The text with the places of the docs again."""
        for shown, real in self.replacements.items():
            text = text.replace(real, shown)
        return text


def run_blocks(page: Page, place: Place) -> None:
    """Run every Python block of a page; what one prints has to be in the `text` block that follows it."""
    # A page stands for a module that a reader types: names live on from block to block, and `await` works at the top.
    names: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for index, block in enumerate(page.blocks):
            if block.language not in PYTHON:
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                outcome = eval(_compiled(page, block, place), names)  # noqa: S307 - the docs are ours
                if inspect.iscoroutine(outcome):
                    runner.run(outcome)
            if output := place.shown(printed.getvalue()).strip():
                following = page.blocks[index + 1] if index + 1 < len(page.blocks) else None
                assert following is not None, f"{page.name}:{block.line} prints, and no text block follows"
                assert following.language == "text", f"{page.name}:{block.line} prints, and no text block follows"
                assert output == following.text.strip(), f"{page.name}:{block.line} prints something else"


def _compiled(page: Page, block: Block, place: Place) -> CodeType:
    tree = ast.parse(place.here(block.text), filename=str(page.path))
    # A traceback then names the line of the page.
    ast.increment_lineno(tree, block.line - 1)
    code: CodeType = compile(tree, str(page.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code
