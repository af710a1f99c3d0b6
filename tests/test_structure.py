"""Limits on the size of the code and on the functions that a message enters; they may only fall.

A feature that needs more removes code elsewhere, or raises a limit in a commit that says why. The limits of
functions have some reserve, because a busy machine takes other branches than a quiet one.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

import threadkeep
from scripts.mutants import MUTANTS
from tests.agent.talking import ask, make_agent
from tests.web.services import client_of, opened_app, say, settings_for
from threadkeep import MemoryOptions, SessionMemory, open_memory
from threadkeep.testing import ScriptedModel

SOURCE = Path(threadkeep.__file__).parent
MOST_FILES = 342
MOST_LINES = 83_046
MOST_BROAD_EXCEPTS = 9
MOST_BOUNDARIES = 46
MOST_LATE_IMPORTS = 15
CHAT_FILES, CHAT_FUNCTIONS = 65, 312
AGENT_FILES, AGENT_FUNCTIONS = 44, 236


# In one process, so that the modules are parsed once.
pytestmark = pytest.mark.xdist_group("structure")


# Only modules with such text are parsed, because parsing all takes seconds.
_COUNTED = re.compile(r"except\s*:|\b(Base)?Exception\b|\bErrorBoundary\(|^[ \t]+(import|from)[ \t]", re.MULTILINE)


@functools.cache
def counts() -> Counter[str]:
    """Count the limited constructs.

    Syntax trees are not stored, because each garbage collection would traverse them.
    """
    found: Counter[str] = Counter()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    counted = (ast.ExceptHandler, ast.Call, ast.Import, ast.ImportFrom)
    for path in SOURCE.rglob("*.py"):
        if not _COUNTED.search(text := path.read_text()):
            continue
        starts_light = path.relative_to(SOURCE).parts[0] == "cli"
        left: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
        while left:
            node, inside = left.pop()
            if isinstance(node, counted):
                found[_counted_as(node, inside=inside and not starts_light)] += 1
            inside = inside or isinstance(node, functions)
            left += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def _counted_as(node: ast.AST, *, inside: bool) -> str:
    match node:
        case ast.ExceptHandler(type=None | ast.Name(id="Exception" | "BaseException")):
            return "broad except"
        case ast.Call(func=ast.Name(id="ErrorBoundary")):
            return "boundary"
        case ast.Import() | ast.ImportFrom() if inside:
            return "late import"
    return ""


def test_the_package_does_not_grow() -> None:
    files = list(SOURCE.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert len(files) <= MOST_FILES
    assert lines <= MOST_LINES


def test_broad_excepts_do_not_grow() -> None:
    """A broad handler catches every exception, and names its reason beside `noqa`."""
    assert 0 < counts()["broad except"] <= MOST_BROAD_EXCEPTS


def test_boundaries_of_errors_do_not_grow() -> None:
    assert 0 < counts()["boundary"] <= MOST_BOUNDARIES


def test_late_imports_do_not_grow() -> None:
    """Imports in functions are limited outside of the command line, which uses them for a fast start."""
    assert 0 < counts()["late import"] <= MOST_LATE_IMPORTS


def test_every_mutant_applies() -> None:
    """After a change of a mutated line, update `scripts/mutants.py`."""
    sources = {mutant.module: (SOURCE / mutant.module).read_text() for mutant in MUTANTS}
    assert [mutant for mutant in MUTANTS if sources[mutant.module].count(mutant.line) != 1] == []


@contextmanager
def recorded_calls(entered: set[tuple[str, str]]) -> Iterator[None]:
    """Record the functions of the package that are entered, as (file, qualified name)."""
    ours = str(SOURCE)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            entered.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    threading.setprofile_all_threads(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        threading.setprofile_all_threads(None)
        sys.setprofile(before)


async def shortest_path(turn: Callable[[str], Awaitable[object]]) -> set[tuple[str, str]]:
    """Return the functions of the shortest of six warm turns, because background work runs during some of them."""
    for text in ("one", "two", "three"):
        await turn(text)
    ways: list[set[tuple[str, str]]] = []
    for text in ("four", "five", "six", "seven", "eight", "nine"):
        entered: set[tuple[str, str]] = set()
        with recorded_calls(entered):
            await turn(text)
        ways.append(entered)
    return min(ways, key=len)


async def test_the_call_path_of_a_chat_message_does_not_grow(tmp_path: Path) -> None:
    """The path is that of a warm message to the demo model on SQLite, from the request to the reply."""
    async with (
        opened_app(ScriptedModel(["ok"] * 9), settings_for(tmp_path)) as app,
        client_of(app) as client,
    ):
        entered = await shortest_path(lambda text: say(client, text, session_id="room"))
    assert len({file for file, _ in entered}) <= CHAT_FILES
    assert len(entered) <= CHAT_FUNCTIONS


async def test_the_call_path_of_an_agents_turn_does_not_grow(sqlite_url: str, memory_options: MemoryOptions) -> None:
    """The path is that of a warm turn of `create_agent` with `SessionMemory` on SQLite, without indexing."""
    async with open_memory(sqlite_url, options=replace(memory_options, background=False)) as memory:
        agent = make_agent(ScriptedModel(["ok"] * 9), [SessionMemory(memory)])
        entered = await shortest_path(lambda text: ask(agent, text))
    assert len({file for file, _ in entered}) <= AGENT_FILES
    assert len(entered) <= AGENT_FUNCTIONS
