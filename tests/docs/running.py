"""Execution of a page from top to bottom: its Python, its commands and its requests."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from unittest.mock import patch

import httpx2

from tests.docs.examples import differences, json_documents
from tests.docs.pages import Block, Page
from tests.docs.service import (
    Request,
    check_body,
    check_response,
    opened_service,
    request_of_block,
    request_of_curl,
    send,
)
from tests.docs.shell import Command, commands_of
from threadkeep.cli import main

PYTHON = ("python", "py")
RUNNABLE = (*PYTHON, "sh", "http")
# These commands need a person, serve until they are stopped, or need data that no page has.
_NOT_RUN = frozenset({("serve",), ("mcp",), ("chat",), ("bench",), ("pending", "drop")})


@dataclass(frozen=True)
class Placeholders:
    """The placeholders for paths and addresses in the docs, and their values in a test."""

    replacements: Mapping[str, str]

    def to_real(self, text: str) -> str:
        """Return a text with the values of this test."""
        for shown, real in self.replacements.items():
            text = text.replace(shown, real)
        return text

    def to_shown(self, text: str) -> str:
        """Return a text with the placeholders of the docs."""
        for shown, real in self.replacements.items():
            text = text.replace(real, shown)
        return text


def run_page(page: Page, place: Placeholders, set_variable: Callable[[str, str], None]) -> None:
    """Execute a page. The output of a block must equal the following block, if that shows output."""
    with asyncio.Runner() as runner:
        run = PageRun(page, place, runner, set_variable)
        try:
            for index, block in enumerate(page.blocks):
                following = page.blocks[index + 1] if index + 1 < len(page.blocks) else None
                run.block(block, following)
        finally:
            run.close_service()


@dataclass
class PageRun:
    """The state between the blocks of a page: the names of the Python blocks, and the service once it is used."""

    page: Page
    place: Placeholders
    runner: asyncio.Runner
    set_variable: Callable[[str, str], None]
    # A page is like a session of `python -m asyncio`, in which `await` works at the top level.
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)
    client: httpx2.AsyncClient | None = None

    def block(self, block: Block, following: Block | None) -> None:
        """Execute one block."""
        where = f"{self.page.name}:{block.line}"
        if block.language in PYTHON:
            self._compare_text(self._python(block), following, where, required=True)
        elif block.language == "sh":
            for command in commands_of(self.place.to_real(block.text)):
                self._command(command, following, where)
        elif block.language == "http" and not block.text.startswith("HTTP/"):
            response = self._ask(request_of_block(block.text))
            assert following is not None, f"{where} shows no answer"
            assert following.text.startswith("HTTP/"), f"{where} shows no answer"
            check_response(following.text, response, where)

    def _python(self, block: Block) -> str:
        tree = ast.parse(self.place.to_real(block.text), filename=str(self.page.path))
        # A traceback names the line of the page.
        ast.increment_lineno(tree, block.line - 1)
        code: CodeType = compile(tree, str(self.page.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            outcome = eval(code, self.names)  # noqa: S307 - the docs are ours
            if inspect.iscoroutine(outcome):
                self.runner.run(outcome)
        return printed.getvalue()

    def _command(self, command: Command, following: Block | None, where: str) -> None:
        starts_service = command.program == "make" and "run" in command.arguments
        if starts_service or (command.program == "threadkeep" and "serve" in command.arguments):
            for name, value in command.environment.items():
                self.set_variable(name, value.replace("$PWD", str(Path.cwd())))
        elif command.piped:
            return
        elif command.program == "curl":
            response = self._ask(request_of_curl(command))
            assert response.is_success, f"{where}: {response.text}"
            if following is not None and following.language in ("json", "text"):
                check_body(following.text, response, where)
        elif command.program == "sqlite3":
            self._compare_text(_sqlite(*command.arguments[-2:]), following, where, required=False)
        elif command.program == "threadkeep" and not {command.arguments[:1], command.arguments[:2]} & _NOT_RUN:
            self.close_service()
            _compare_output(self.place.to_shown(_threadkeep(command, where)), following, where)

    def close_service(self) -> None:
        """Close the service, because nothing in this loop runs between blocks, and a lock would stay held."""
        self.runner.run(self.opened.aclose())
        self.client = None

    def _ask(self, request: Request) -> httpx2.Response:
        if self.client is None:
            self.client = self.runner.run(self.opened.enter_async_context(opened_service()))
        return self.runner.run(send(self.client, request))

    def _compare_text(self, output: str, following: Block | None, where: str, *, required: bool) -> None:
        if not output.strip():
            return
        shows = following is not None and following.language == "text"
        assert shows or not required, f"{where} prints, and no text block follows:\n{output}"
        if shows and following is not None:
            printed = self.place.to_shown(output).strip()
            assert printed == following.text.strip(), f"{where} prints something else:\n{printed}"


def _sqlite(path: str, statement: str) -> str:
    """Return the output of `sqlite3` for a statement."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(statement).fetchall()
    return "\n".join("|".join("" if value is None else str(value) for value in row) for row in rows)


def _threadkeep(command: Command, where: str) -> str:
    """Return the output of a `threadkeep` command."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed), patch.dict(os.environ, command.environment):
        exit_code = main(command.arguments)
    printed.seek(0)
    output = printed.read()
    assert exit_code == 0, f"{where}: threadkeep {' '.join(command.arguments)} ended with {exit_code}\n{output}"
    return output


def _compare_output(output: str, following: Block | None, where: str) -> None:
    """Compare JSON output of a command with the block that shows it. Output for people is not compared."""
    if following is not None and following.language == "json" and output.startswith("{"):
        found = differences(json_documents(following.text), json_documents(output))
        assert not found, f"{where}: {'; '.join(found)}\n{output}"
