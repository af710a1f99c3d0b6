"""What every error becomes: one sentence with its cure for people, a problem object for programs, an exit code."""

from __future__ import annotations

import json
import re
import sys
import traceback
from dataclasses import dataclass

import typer

from threadkeep.cli.terminal import Terminal
from threadkeep.errors import InvalidInput, InvalidSettings, ThreadkeepError

FAILED = 1
WRONG_USE = 2


class WrongUse(Exception):
    """The command was called in a way that it does not take; the sentence says how it is called."""


class NotDone(Exception):
    """The command could not do what it was told; the sentence says what to do instead."""


@dataclass(frozen=True)
class Problem:
    """An error as it is told. `kind` is stable, for programs; a `sentence` that is empty is not shown."""

    kind: str
    sentence: str
    exit_code: int = FAILED

    def to_dict(self) -> dict[str, str | int]:
        """The problem as JSON values, with the members that the HTTP face's problems have too."""
        title = self.kind.replace("-", " ").capitalize()
        return {
            "type": f"urn:threadkeep:{self.kind}",
            "title": title,
            "detail": self.sentence,
            "exit_code": self.exit_code,
        }


def problem_of(error: BaseException) -> Problem:
    """What to tell of an error; one that nobody foresaw is named by its class and place, without its own sentence."""
    if isinstance(error, ThreadkeepError | WrongUse | NotDone):
        usage = isinstance(error, WrongUse) or (
            isinstance(error, InvalidInput) and not isinstance(error, InvalidSettings)
        )
        sentence = " ".join((str(error), *getattr(error, "__notes__", ())))
        return Problem(_kind(error), sentence, WRONG_USE if usage else FAILED)
    if isinstance(error, typer.TyperException):
        kind = "wrong-use" if error.exit_code == WRONG_USE else "not-done"
        return Problem(kind, _usage_sentence(error), error.exit_code)
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return Problem("stopped", "Stopped before it was done.")
    return _foreign(error)


def _foreign(error: BaseException) -> Problem:
    match error:
        case BrokenPipeError():
            return Problem("nobody-listens", "")
        case ModuleNotFoundError():
            sentence = f"This needs the package {error.name}; install it with: pip install 'threadkeep[server]'"
            return Problem("package-missing", sentence)
        case OSError(filename=str(name), strerror=str(reason)):
            return Problem("file-trouble", f"{name}: {reason}. Check the path, its permissions and the disk.")
        case _:
            sentence = f"{type(error).__name__} at {_place(error)}: this is a bug, please report it."
            return Problem("unexpected", sentence)


def show_problem(problem: Problem, *, as_json: bool) -> None:
    """Tell of a problem on stderr."""
    if as_json:
        print(json.dumps(problem.to_dict(), ensure_ascii=not _writes_utf8()), file=sys.stderr)  # noqa: T201
    elif problem.sentence:
        Terminal().error(problem.sentence)


def _usage_sentence(error: typer.TyperException) -> str:
    sentence = error.format_message().strip()
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "threadkeep")
    if "\n" in sentence:
        return sentence  # the help itself, for a command without a verb
    return f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} See: {command} --help".lstrip(". ")


def _kind(error: Exception) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _writes_utf8() -> bool:
    return (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
