"""Parsing of shell blocks into commands: variables, the program and its arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_ENDS = frozenset({"|", ";", "&&", "||", "&"})
_REDIRECTIONS = frozenset({">", ">>", "<"})


@dataclass(frozen=True)
class Command:
    """A command of a shell block. `piped` is True for a part of a pipe or list, or with redirected output."""

    environment: Mapping[str, str]
    program: str
    arguments: tuple[str, ...]
    piped: bool = False


def commands_of(script: str) -> Iterator[Command]:
    """Yield all commands of a block, in order. Comments are skipped, and continued lines are joined."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
        words.whitespace_split = True
        yield from _commands(list(words))


def _commands(words: list[str]) -> Iterator[Command]:
    piped = any(word in _ENDS | _REDIRECTIONS for word in words)
    part: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            part.append(word)
        elif part:
            yield _command(part, piped=piped)
            part = []


def _command(words: list[str], *, piped: bool) -> Command:
    environment: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        environment[found[1]] = found[2]
        words = words[1:]
    cut = next((place for place, word in enumerate(words) if word in _REDIRECTIONS), len(words))
    program = words[0].rpartition("/")[2] if words else ""
    return Command(environment, program, tuple(words[1:cut]), piped)
