"""Tests that the docs show only existing commands, options and extras."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.shell import Command, commands_of
from tests.docs.tables import code_in
from threadkeep.cli.commands import commands

GROUP = commands()
# Described once, at the beginning of the page.
HELP = {"-h", "--help", "--database"}
# Other programs that the docs may use.
_OTHERS = {"pip", "python", "python3", "curl", "sqlite3", "createdb", "echo", "export", ""}

type Options = dict[str, set[str]]


def options_of(command: object, name: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the options of every command below a command."""
    if isinstance(command, TyperGroup):
        for verb, inner in command.commands.items():
            yield from options_of(inner, f"{name} {verb}")
        if not command.invoke_without_command:
            return
    parameters = getattr(command, "params", [])
    opts = {word for one in parameters for word in (*one.opts, *one.secondary_opts) if word.startswith("-")}
    yield name, opts - HELP


EXISTING: Options = dict(options_of(GROUP, "threadkeep"))


@pytest.mark.parametrize("one", all_pages(), ids=lambda one: one.name)
def test_every_shown_command_exists(one: Page) -> None:
    shown = [command for block in one.blocks_in("sh") for command in commands_of(block.text)]
    assert not {command.program for command in shown} - _OTHERS - {"threadkeep", "make"}
    for code in code_in(one.prose):
        if code.startswith(("threadkeep ", "make ")):
            shown += commands_of(code)
    wrong = [command for command in shown if not exists(command)]
    assert not wrong


def test_every_command_that_the_console_names_exists() -> None:
    pages = [path.read_text() for path in (ROOT / "src/threadkeep/web/console/templates").iterdir()]
    named = re.findall("<code>(threadkeep .+?)</code>|`(threadkeep .+?)`", "".join(pages))
    shown = [command for texts in named for command in commands_of("".join(texts).replace("…", "words"))]
    assert len(shown) > 5
    assert [command for command in shown if not exists(command)] == []


def test_every_shown_extra_exists() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        there = set(tomllib.load(file)["project"]["optional-dependencies"])
    shown = {
        extra
        for one in all_pages()
        for extras in re.findall(r"threadkeep\[([\w,]+)\]", one.text)
        for extra in extras.split(",")
    }
    assert shown <= there


def exists(command: Command) -> bool:
    """Return whether a command of Threadkeep, or a target of make, exists."""
    if command.program == "make":
        verbs = [word for word in command.arguments if "=" not in word]
        return set(verbs) <= set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if command.program != "threadkeep":
        return True
    options = {word.partition("=")[0] for word in command.arguments if word.startswith("-") and word != "-"}
    if options <= HELP | {"--version", "--install-completion"}:
        options = set()
    words = " ".join(["threadkeep", *[word for word in command.arguments if not word.startswith("-")]])
    known = [name for name in EXISTING if f"{words} ".startswith(f"{name} ") or f"{name} ".startswith(f"{words} ")]
    return any(options <= EXISTING[name] for name in known)
