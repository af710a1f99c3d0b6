"""Update the lists of the reference: commands from typer, signatures from classes, endpoints from OpenAPI.

Explanations are written by hand and stay. A new option, method or command gets its help or the first line of its
docstring. A removed command, option or endpoint is an error, because a person has to remove its explanation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

import threadkeep
from threadkeep.cli.commands import commands
from threadkeep.history import memory as history
from threadkeep.history.session import Session
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.persons import Persons
from threadkeep.knowledge.procedures import Procedures
from threadkeep.memory import Memory

REFERENCE = Path(__file__).parents[1] / "docs/reference"
# Explained once, at the beginning of the page.
COMMON_OPTIONS = {"-h", "--help", "--database"}
CLASSES: Mapping[str, tuple[type, ...]] = {
    "Memory": (history.Memory, Memory),
    "Session": (Session,),
    "Facts": (Knowledge,),
    "Procedures": (Procedures,),
    "Persons": (Persons,),
}
# Methods for other packages of Threadkeep, which the reference does not list.
INTERNAL = frozenset(
    """
    answers_to append_instead at before_closing begin_joined belong_to check_owner empty_messages finish has_graph_store
    has_namespace keep_index leave_work_for_all memory_of namespace namespaces null_memory recall record_joined settle
    settle_run start tell report_write_failed timeout turn valid_in valid_statements
    """.split()  # noqa: SIM905 - a list of words
)
_CODE = re.compile(r"`([^`]+)`")
_CELLS = re.compile(r"(?<!\\)\|")


class Outdated(Exception):
    """An error: the page explains something that no longer exists."""


def cli_page(page: str) -> str:
    """Return the page of the command line with the commands and options that exist."""
    known = dict(_commands(commands(), "threadkeep"))
    if gone := set(re.findall(r"^## (threadkeep .+)$", page, re.MULTILINE)) - set(known):
        raise Outdated(f"Remove the section of {', '.join(sorted(gone))}.")
    for name, command in known.items():
        if not re.search(rf"^## {name}$", page, re.MULTILINE):
            page = f"{page.rstrip()}\n\n## {name}\n\n{inspect.cleandoc(getattr(command, 'help', None) or '')}\n"
        before, section, after = _split(page, f"## {name}")
        page = before + _with_table(section, "option", _options(command)) + after
    return page


def python_page(page: str) -> str:
    """Return the page of the library with the signatures of its functions, records and methods."""
    for name in threadkeep.__all__:
        thing = getattr(threadkeep, name)
        if (
            not (inspect.isfunction(thing) or dataclasses.is_dataclass(thing))
            or not callable(thing)
            or f"\n### {name}\n" not in page
        ):
            continue
        before, section, after = _split(page, f"### {name}")
        shown = re.compile(rf"^`{name}\([^`]*\)`", re.MULTILINE)
        page = before + shown.sub(f"`{signature(name, thing)}`", section, count=1) + after
    for heading, kinds in CLASSES.items():
        before, section, after = _split(page, f"### {heading}")
        methods = {first: line for kind in kinds for first, line in _methods(kind).items()}
        page = before + _with_table(section, "method", methods, by_name=True) + after
    return page


def http_page(page: str, document: Mapping[str, Any]) -> str:
    """Return the page of the HTTP API with all endpoints of an OpenAPI document in the table at its beginning."""
    endpoints = {
        _anchor(f"{method.upper()} {path}"): (f"{method.upper()} {path}", operation["summary"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    table = re.search(r"^\| request \| purpose \|\n\|[-|]+\|\n(?:\|[^\n]*\n)+", page, re.MULTILINE)
    if table is None:
        raise Outdated("The page has no table of endpoints.")
    linked = set(re.findall(r"\(#((?:get|post|put|patch|delete)-[^)]*)\)", table[0]))
    if gone := linked - endpoints.keys():
        raise Outdated(f"Remove the rows of {', '.join(sorted(gone))}.")
    rows = [
        f"| [`{name}`](#{anchor}) | {_sentence(summary)} |\n"
        for anchor, (name, summary) in endpoints.items()
        if anchor not in linked
    ]
    return page[: table.end()] + "".join(rows) + page[table.end() :]


def signature(name: str, function: Callable[..., object]) -> str:
    """Return a signature as the page has it: names and defaults, without types."""
    words, starred = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        default = "" if parameter.default is inspect.Parameter.empty else f"={_default(parameter.default)}"
        stars = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
        words.append(f"{stars}{parameter.name}{default}")
    return f"{name}({', '.join(words)})"


def _commands(command: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(command, TyperGroup):
        for verb, inner in command.commands.items():
            yield from _commands(inner, f"{name} {verb}")
        if not command.invoke_without_command:
            return
    yield name, command


def _options(command: object) -> dict[str, str]:
    """Return the options of a command, as the first column of the table has them, with their help."""
    found: dict[str, str] = {}
    for parameter in getattr(command, "params", []):
        words = [word for word in (*parameter.opts, *parameter.secondary_opts) if word.startswith("-")]
        if words and not COMMON_OPTIONS & set(words):
            found[", ".join(f"`{word}`" for word in words)] = _sentence(parameter.help or "")
    return found


def _methods(kind: type) -> dict[str, str]:
    """Return the signatures of a class's methods for users, with the first lines of their docstrings."""
    return {
        f"`{signature(name, method)}`": _sentence((method.__doc__ or "").partition("\n")[0])
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in INTERNAL
    }


def _with_table(section: str, head: str, rows: Mapping[str, str], *, by_name: bool = False) -> str:
    """Return a section whose first table with this head has a row for each of `rows`; existing explanations stay.

    A row that explains several options together stays one row. Other rows stay if `by_name`; otherwise they are an
    error.
    """
    table = re.search(rf"^\| {head} \|[^\n]*\n\|[-| :]+\|\n(?:\|[^\n]*\n)*", section, re.MULTILINE)
    lines = table[0].splitlines() if table else [f"| {head} | |", "|---|---|"]
    there = [(_names(cells[0], by_name=by_name), cells) for cells in map(_cells_of, lines[2:])]
    written: dict[frozenset[str], list[str]] = {}
    for first, explanation in rows.items():
        names = _names(first, by_name=by_name)
        key, cells = next((one for one in there if names <= one[0]), (names, ["", explanation]))
        firsts = [*([written[key][0]] if key in written else []), first]
        written[key] = [", ".join(firsts), *cells[1:]]
    rest = [(names, cells) for names, cells in there if names not in written]
    if rest and not by_name:
        raise Outdated(f"Remove the rows of {', '.join(cells[0] for _, cells in rest)}.")
    # Methods that a class inherits are described by hand.
    shown = [*written.values(), *(cells for _, cells in rest)]
    text = "\n".join([*lines[:2], *(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in shown)]) + "\n"
    if table:
        return section[: table.start()] + text + section[table.end() :]
    if not rows:
        return section
    paragraph, _, remaining = section.lstrip("\n").partition("\n\n")
    return f"\n\n{paragraph.rstrip()}\n\n{text}\n{remaining}".rstrip() + "\n\n"


def _split(page: str, heading: str) -> tuple[str, str, str]:
    """Return the page before the text under a heading, that text, and the rest."""
    found = re.search(rf"^{re.escape(heading)}$", page, re.MULTILINE)
    if found is None:
        raise Outdated(f"The page has no heading {heading!r}.")
    depth = len(heading.partition(" ")[0])
    following = re.compile(rf"^#{{1,{depth}}} ", re.MULTILINE).search(page, found.end())
    end = following.start() if following else len(page)
    return page[: found.end()], page[found.end() : end], page[end:]


def _anchor(heading: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    return re.sub(r"[^a-z0-9_-]", "", heading.lower().replace(" ", "-"))


def _cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in _CELLS.split(line)[1:-1]]


def _names(first: str, *, by_name: bool) -> frozenset[str]:
    """Return the names that identify a row: the name of a method, or the names of an option."""
    codes = _CODE.findall(first)
    return frozenset(codes[0].partition("(")[:1]) if by_name and codes else frozenset(codes)


def _sentence(text: str) -> str:
    text = text.rstrip(".").replace("|", "\\|")
    return text[:1].lower() + text[1:]


def _default(value: object) -> str:
    if inspect.isfunction(value):
        return value.__name__
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return "{}" if "factory" in repr(value) else repr(value)


@cache
def openapi_document() -> Mapping[str, Any]:
    """Return the OpenAPI document of the service, over a database in memory."""
    from threadkeep.app import open_app
    from threadkeep.settings import load_settings
    from threadkeep.web.service import create_service

    async def build() -> Mapping[str, Any]:
        async with open_app(load_settings(database_url="sqlite://")) as app:
            return create_service(app).openapi()

    return asyncio.run(build())


def main() -> int:
    """Write the pages, or check with `--check` whether they are up to date."""
    pages: dict[str, Callable[[str], str]] = {
        "cli.md": cli_page,
        "python.md": python_page,
        "http.md": lambda page: http_page(page, openapi_document()),
    }
    outdated = []
    for name, write in pages.items():
        path = REFERENCE / name
        before = path.read_text(encoding="utf-8")
        after = write(before)
        if after != before:
            outdated.append(name)
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    print(f"changed: {', '.join(outdated)}" if outdated else "The lists of the reference are up to date.")
    return 1 if outdated and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
