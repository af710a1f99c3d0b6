"""The size of the code, and the way of a message through it: the figures may only fall.

A feature that needs more pays for it elsewhere, or raises a figure in a commit that says why. The ways have a few
functions of room, because a busy machine takes some branches that a quiet one does not.
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
MOST_FILES = 366
# Repairs of erase, export and the doors of the service, which a review asked for, brought 350 lines. Those of facts
# and of deliveries to Graphiti brought 100.
# Answers to the questions of a run in a chat brought 165, threads of LangGraph's API 115.
# Bounds and repairs of recall, which a review asked for, brought 220.
# Shorter ways of a turn brought 105: hooks and blocks that are no generators, and checks that nothing is left out.
# Blocking verbs that the reference promised, and estimated usage in the form of OpenAI, brought 11.
# The check of doctor for messages in the other place brought 19.
# The filter of sessions by channel brought 24.
# Messages that are taken again if their process died before their run brought 60.
# Repairs of the console brought 11.
# Consent before each message of a batch, and facts taken back at once, brought 27.
# What ChatKit's page quotes, and forgetting who has no conversation left, brought 14.
# Directives without an owner, and keys that are forgotten together, brought 27.
# Cuts of a long answer beside its markup brought 19.
# What a key may do in the console brought 11.
# Backfills that go to no group brought 8.
# Indexes of long sessions that are stored, so that a start does not make them again, brought 307, and two files.
# Failed runs on the page of a session, and charts far below a limit, brought 19.
# Checks of names in requests about Graphiti brought 15.
# Workspaces of tools brought 8.
# The message in the first values of a streamed run brought 8.
# Facts that change during an export brought 16.
# Rows of the outbox that cannot be read brought 9.
# Messages that leave the outbox early brought 11.
# Threads that end with their sessions, and with those of their users, brought 33.
# Threads that are created once, decisions in the console, and the repairs of a review beside them, brought 35.
# Blocks of recalled turns that are counted once, and long texts that hold up no other task, brought 88.
# Messages that their first chunk alone names brought 5.
# Named helpers that had been inlined, and the repairs of a review, brought 214.
# Going back in the transaction of a write brought 28.
# Messages of a graph store that are checked once brought 90, and a file.
# Fields of manifests that are required in responses brought 7.
# Workspaces that cannot be used, which cost no turn, brought 17.
# Estimates for the tokenizers of ten families of models brought 54.
# Messages that stream at once, which end each on its own, brought 26.
# Turns of a graph store that are read once, and written once with their rows, brought 237.
# Turns that are left out before they are ranked, and shares of topics that are read once, brought 13.
# Indexes that are copied in parts and bounded by their bytes brought 28.
# Turns of a graph store that a locked row delays for a moment only, and that keep their order, brought 32.
# Messages of a run in the order of their pieces, and items of ChatKit that are stored and stay, brought 34.
# Names of distilled models, and of Claude 4.7 and later versions, brought 4.
# The room of a window by the messages of the chat alone brought 9.
# Sentences that got back what they had lost in a rewrite brought 12.
# Tools that name the scopes without which they recalled brought 14.
# Learned factors that belong to an estimate brought 15.
# Summaries in an index for recall that are bounded over all of its sessions brought 37.
# Indexes of users that are joined from the stored ones of their sessions brought 175, and a file.
# Sums of term counts in a list brought 1.
# Chunks of a graph store that are compared and extended in their stored form brought 179.
# Memory of chunks that is counted whole, and the repairs of recall that a review asked for, brought 33.
# Indexes of conversations in a graph store that are kept across a start brought 197, and a file.
# Factors by script for models of unknown families brought 127.
# Errors of text that no database stores brought 37.
# Questions that other middleware removes, and that are sent nevertheless, brought 38.
# The ids of a turn in a 503, and a PNG that is refused as JSON, brought 10.
# Updates of a message that is told once brought 2.
# Streams of recorded graphs that their readers leave brought 13.
# Cures for a channels file that cannot be used brought 5.
# Steps of a run that no model call followed brought 37.
# Repeated answers that a checkpointer keeps, and that are sent once, brought 8.
# The newest turns while a stored index is loaded, and what others leave of a deleted conversation, brought 26.
# Owners that can own no knowledge, and user ids that are only spaces, brought 9.
MOST_LINES = 82_320
MOST_BROAD_EXCEPTS = 10
MOST_BOUNDARIES = 46
MOST_LATE_IMPORTS = 23
CHAT_FILES, CHAT_FUNCTIONS = 84, 497
AGENT_FILES, AGENT_FUNCTIONS = 48, 325


# In one process the modules are parsed once.
pytestmark = pytest.mark.xdist_group("structure")


# Only modules in which one of these stands are parsed: it takes seconds for all.
_COUNTED = re.compile(r"except\s*:|\b(Base)?Exception\b|\bErrorBoundary\(|^[ \t]+(import|from)[ \t]", re.MULTILINE)


@functools.cache
def counts() -> Counter[str]:
    """How often there is what may not grow. Trees of modules are not kept: each search for garbage would walk them."""
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
    """By files and by lines."""
    files = list(SOURCE.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert len(files) <= MOST_FILES
    assert lines <= MOST_LINES


def test_broad_excepts_do_not_grow() -> None:
    """Handlers of every error; each names its reason beside `noqa`."""
    assert 0 < counts()["broad except"] <= MOST_BROAD_EXCEPTS


def test_boundaries_of_errors_do_not_grow() -> None:
    """Uses of `ErrorBoundary`, which stops any error as well, and reports it."""
    assert 0 < counts()["boundary"] <= MOST_BOUNDARIES


def test_late_imports_do_not_grow() -> None:
    """Imports in functions, outside of the command line, which starts light by them."""
    assert 0 < counts()["late import"] <= MOST_LATE_IMPORTS


def test_every_mutant_can_be_planted() -> None:
    """A line that was rewritten is mended in `scripts/mutants.py` too."""
    sources = {mutant.module: (SOURCE / mutant.module).read_text() for mutant in MUTANTS}
    assert [mutant for mutant in MUTANTS if sources[mutant.module].count(mutant.line) != 1] == []


@contextmanager
def walked(entered: set[tuple[str, str]]) -> Iterator[None]:
    """Note the functions of the package that are entered, as (file, qualified name)."""
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


async def shortest_way(turn: Callable[[str], Awaitable[object]]) -> set[tuple[str, str]]:
    """Return the functions that the shortest of three warm turns enters: work in the background falls into some."""
    for text in ("one", "two", "three"):
        await turn(text)
    ways: list[set[tuple[str, str]]] = []
    for text in ("four", "five", "six"):
        entered: set[tuple[str, str]] = set()
        with walked(entered):
            await turn(text)
        ways.append(entered)
    return min(ways, key=len)


async def test_the_way_of_a_chat_message_does_not_grow(tmp_path: Path) -> None:
    """A warm message to the demo model on SQLite, from the request to the answer."""
    async with (
        opened_app(ScriptedModel(["ok"] * 6), settings_for(tmp_path)) as app,
        client_of(app) as client,
    ):
        entered = await shortest_way(lambda text: say(client, text, session_id="room"))
    assert len({file for file, _ in entered}) <= CHAT_FILES
    assert len(entered) <= CHAT_FUNCTIONS


async def test_the_way_of_an_agents_turn_does_not_grow(sqlite_url: str, memory_options: MemoryOptions) -> None:
    """A warm turn of `create_agent` with `SessionMemory`, on SQLite."""
    async with open_memory(sqlite_url, options=memory_options) as memory:
        agent = make_agent(ScriptedModel(["ok"] * 6), [SessionMemory(memory)])
        entered = await shortest_way(lambda text: ask(agent, text))
    assert len({file for file, _ in entered}) <= AGENT_FILES
    assert len(entered) <= AGENT_FUNCTIONS
