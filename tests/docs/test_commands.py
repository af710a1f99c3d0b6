"""No page shows a command, an option or an extra that is not there."""

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
# Said once, at the beginning of the page.
HELP = {"-h", "--help", "--database"}
# Programs that the docs may use beside our own and make.
_OTHERS = {"pip", "python", "python3", "curl", "sqlite3", "createdb", "echo", "export", ""}

type Options = dict[str, set[str]]


def options_of(command: object, name: str) -> Iterator[tuple[str, set[str]]]:
    """Every command below a command by its name, with its options."""
    if isinstance(command, TyperGroup):
        for verb, inner in command.commands.items():
            yield from options_of(inner, f"{name} {verb}")
        if not command.invoke_without_command:
            return
    parameters = getattr(command, "params", [])
    opts = {word for one in parameters for word in (*one.opts, *one.secondary_opts) if word.startswith("-")}
    yield name, opts - HELP


THERE: Options = dict(options_of(GROUP, "threadkeep"))


@pytest.mark.parametrize("one", all_pages(), ids=lambda one: one.name)
def test_every_command_that_is_shown_is_there(one: Page) -> None:
    """In shell blocks and in code marks: its name and its options; and every verb of make."""
    shown = [command for block in one.blocks_in("sh") for command in commands_of(block.text)]
    assert not {command.program for command in shown} - _OTHERS - {"threadkeep", "make"}
    for code in code_in(one.prose):
        if code.startswith(("threadkeep ", "make ")):
            shown += commands_of(code)
    wrong = [command for command in shown if not is_there(command)]
    assert not wrong


def test_every_extra_that_is_shown_is_there() -> None:
    """What stands in brackets after the package's name, where it is installed."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        there = set(tomllib.load(file)["project"]["optional-dependencies"])
    shown = {
        extra
        for one in all_pages()
        for extras in re.findall(r"threadkeep\[([\w,]+)\]", one.text)
        for extra in extras.split(",")
    }
    assert shown <= there


def is_there(command: Command) -> bool:
    """Whether a command of ours, or a verb of make, is what it says."""
    if command.program == "make":
        verbs = [word for word in command.arguments if "=" not in word]
        return set(verbs) <= set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if command.program != "threadkeep":
        return True
    options = {word.partition("=")[0] for word in command.arguments if word.startswith("-") and word != "-"}
    if options <= HELP | {"--version", "--install-completion"}:
        options = set()
    words = " ".join(["threadkeep", *[word for word in command.arguments if not word.startswith("-")]])
    known = [name for name in THERE if f"{words} ".startswith(f"{name} ") or f"{name} ".startswith(f"{words} ")]
    return any(options <= THERE[name] for name in known)
