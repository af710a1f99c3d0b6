"""Errors and findings: a message with advice for people, an object for programs, and an exit code."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Literal

import typer

from threadkeep.boundary import location_of
from threadkeep.errors import InvalidInput, InvalidKey, InvalidSettings, ThreadkeepError

FAILED = 1
WRONG_USE = 2


class WrongUse(Exception):
    """A command was called incorrectly. The message describes the correct usage."""


class NotDone(Exception):
    """A command could not do its work. The message says what to do next."""


type Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. Unless the level is `ok`, `cure` says how to fix the problem."""

    check: str
    level: Level
    detail: str
    cure: str = ""


@dataclass(frozen=True)
class Problem:
    """An error for output. `kind` is meant for programs and never changes."""

    kind: str
    sentence: str
    exit_code: int = FAILED

    def to_dict(self) -> dict[str, str | int]:
        """Return the problem as over HTTP, but with `exit_code` instead of `status`."""
        title = self.kind.replace("-", " ").capitalize()
        return {
            "type": f"urn:threadkeep:{self.kind}",
            "title": title,
            "detail": self.sentence,
            "exit_code": self.exit_code,
        }


def problem_of(error: BaseException) -> Problem:
    """Return the problem for an error. An unexpected error shows only its class and location."""
    if isinstance(error, ThreadkeepError | WrongUse | NotDone):
        usage = isinstance(error, WrongUse) or (
            isinstance(error, InvalidInput) and not isinstance(error, InvalidSettings)
        )
        notes = list(getattr(error, "__notes__", ()))
        if isinstance(error, InvalidKey):
            notes.append("List the ids with: threadkeep sessions list")
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
        return Problem(kind, " ".join((str(error), *notes)), WRONG_USE if usage else FAILED)
    if isinstance(error, typer.TyperException):
        kind = "wrong-use" if error.exit_code == WRONG_USE else "not-done"
        return Problem(kind, _usage_sentence(error), error.exit_code)
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return Problem("stopped", "Stopped before the command was done.")
    return _foreign(error)


def _foreign(error: BaseException) -> Problem:
    match error:
        case BrokenPipeError():
            return Problem("nobody-listens", "")
        case ModuleNotFoundError():
            sentence = f"This needs the package {error.name}; install it with: pip install 'threadkeep[server]'"
            return Problem("package-missing", sentence)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            sentence = "The disk is full, or a file reached its maximum size; free some space, and repeat the command."
            return Problem("disk-full", sentence)
        case OSError(errno=errno.EIO, filename=None):
            return Problem("file-trouble", "A file could not be read or written. Check the path and the disk.")
        case OSError(filename=str(name), strerror=str(reason)):
            return Problem("file-trouble", f"{name}: {reason}. Check the path, its permissions and the disk.")
        case _:
            sentence = f"{type(error).__name__} at {location_of(error)}: this is a bug, please report it."
            return Problem("unexpected", sentence)


def _usage_sentence(error: typer.TyperException) -> str:
    sentence = error.format_message().strip()
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "threadkeep")
    if "\n" in sentence:
        return sentence  # if only a command group is named, the message is the help text
    return f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} See: {command} --help".lstrip(". ")
