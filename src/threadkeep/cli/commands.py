"""The tree of all commands, their common options, and the handling of their errors."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from threadkeep.boundary import location_of
from threadkeep.cli.shared import chosen_database, synchronous
from threadkeep.cli.terminal import NotDone, WrongUse, command_line, dump, json_chosen, terminal
from threadkeep.errors import InvalidInput, InvalidKey, InvalidSettings, ThreadkeepError
from threadkeep.version import __version__

if TYPE_CHECKING:
    from typer._click import Context
    from typer.core import _TyperParameter

PREVIOUS = "previous"
"""The value of `--diff` if the option is given without a number."""

_FAILED = 1
_WRONG_USE = 2
_CTRL_C = 130
_HELP_NAMES = ("-h", "--help")
# Maps a package to the extra that installs it. The extra `server` installs all other packages that commands need.
_EXTRAS = {"cryptography": "channels", "mcp": "mcp", "mcp_types": "mcp", "mermaidx": "draw", "psycopg": "postgres"}

# The function of each command, imported on demand: importing all of them takes longer than most commands run.
_COMMANDS: Mapping[str, str] = {
    "serve": "serve.serve_http",
    "worker": "serve.work",
    "chat": "chat.chat",
    "explain-key": "workflows.explain_keys",
    "doctor": "doctor.doctor",
    "migrate": "database.migrate_schema",
    "backup": "database.backup_database",
    "restore": "database.restore_database",
    "partition": "database.partition_tables",
    "bench": "serve.bench",
    "mcp": "serve.serve_mcp",
}
# The typer application of each command group (noun), which contains its commands (verbs).
_NOUNS: Mapping[str, str] = {
    "sessions": "sessions.commands",
    "import": "imports.commands",
    "context": "context.commands",
    "workflows": "workflows.commands",
    "runs": "runs.commands",
    "facts": "facts.commands",
    "persons": "persons.commands",
    "knowledge": "knowledge.commands",
    "pending": "database.pending_commands",
    "erase": "persons.erase_commands",
    "keys": "serve.keys_commands",
    "channels": "channels.commands",
}
# Commands (verbs) of a group that are defined in another module than the group.
_VERBS: Mapping[str, Mapping[str, str]] = {
    "sessions": {
        "export": "imports.export_sessions",
        "import": "imports.import_sessions",
        "prune": "prune.prune_sessions",
    },
    "workflows": {"run": "runs.run_workflow"},
    "runs": {"prune": "prune.prune_runs"},
}


@lru_cache(maxsize=64)
def commands(noun: str | None = None, verb: str | None = None) -> TyperGroup:
    """Return the application with all commands, or only with the named group or command."""
    application = typer.Typer(
        name="threadkeep",
        help="The memory of LangGraph agents: serve it, chat with it, inspect it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Rich output would double the time that `--help` takes.
        rich_markup_mode=None,
        context_settings={"help_option_names": list(_HELP_NAMES)},
    )
    application.callback()(_root)
    for name, path in _COMMANDS.items():
        if noun in (None, name):
            application.command(name)(synchronous(_attribute(path)))
    for name in _NOUNS:
        if noun in (None, name):
            application.add_typer(_verbs_of(name, verb), name=name)
    return with_common_options(application)


def _verbs_of(noun: str, verb: str | None) -> typer.Typer:
    """Return a command group. If it has the command `verb`, leave out its other commands."""
    group = copy(_attribute(_NOUNS[noun]))
    assert isinstance(group, typer.Typer)  # noqa: S101 - for the type checker
    own = [command for command in group.registered_commands if command.name == verb]
    elsewhere = _VERBS.get(noun, {})
    if own or verb in elsewhere:
        group.registered_commands = own
        elsewhere = {name: path for name, path in elsewhere.items() if name == verb}
    else:
        group.registered_commands = [*group.registered_commands]
    for name, path in elsewhere.items():
        group.command(name)(_attribute(path))
    group.registered_commands = [copy(command) for command in group.registered_commands]
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = synchronous(command.callback)
    return group


def _attribute(path: str) -> Any:
    """Import the object at `path` (`MODULE.NAME` in this package): the function of a command, or a command group."""
    module, _, name = path.partition(".")
    return getattr(import_module(f"threadkeep.cli.{module}"), name)


def _commands_for(arguments: Sequence[str]) -> TyperGroup:
    """Return an application with only the command that the arguments name, or with all commands."""
    noun, verb = (*arguments, "", "")[:2]
    return commands(noun, verb) if noun in _COMMANDS or noun in _NOUNS or noun == "--version" else commands()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"threadkeep {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The memory of LangGraph agents: serve it, chat with it, inspect it."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. An error is shown on stderr."""
    # Run in a copy of the context: options set context variables, which must not outlive the command.
    context_of_command = copy_context()
    context_of_command.run(command_line.set, arguments)
    try:
        code = context_of_command.run(
            _commands_for(arguments).main,
            with_previous_diffs(arguments),
            prog_name="threadkeep",
            standalone_mode=False,
        )
    except SystemExit as end:
        # Typer raises SystemExit after it has completed a word for the shell. Return the code, as after other commands.
        return end.code if isinstance(end.code, int) else 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the outermost handler: no traceback for a person
        return _fail(error, arguments)
    if code == _CTRL_C:
        return _fail(KeyboardInterrupt(), arguments)
    return code if isinstance(code, int) else 0


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    """Describe an error on stderr and return its exit code."""
    problem = problem_of(error)
    if "--json" in arguments:
        print(dump(problem.to_dict(), sys.stderr), file=sys.stderr)  # noqa: T201
    elif problem.sentence:
        terminal.error(problem.sentence)
    return problem.exit_code


def with_previous_diffs(arguments: Sequence[str]) -> list[str]:
    """Add the value `previous` to each `--diff` without a number, because typer requires a value."""
    whole: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":  # options end here
            return [*whole, *arguments[position:]]
        whole.append(word)
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if word == "--diff" and not following.isdigit():
            whole.append(PREVIOUS)
    return whole


def with_common_options(application: typer.Typer) -> TyperGroup:
    """Return the commands of an application, with `--database` and `--json` added."""
    group = get_command(application)
    assert isinstance(group, TyperGroup)  # noqa: S101 - for the type checker
    options = {option.name: option for option in get_command(_common()).params if isinstance(option, TyperOption)}
    for option in options.values():
        option.expose_value = False
    _add(group, options["database"], options["as_json"])
    return group


class _Conversion(RuntimeParam):
    """A converter of option values that imports pydantic only if necessary.

    An empty string is rejected, because a script may pass an unset variable.
    """

    def _coerce_value(self, value: Any, param: _TyperParameter, ctx: Context) -> Any:
        if value == param.default:
            return value
        if isinstance(param, TyperOption) and "" in (value if param.multiple else [value]):
            raise WrongUse(f"{param.opts[0]} needs at least one character; give it a value, or omit it.")
        if self.annotation in (str, str | None) and isinstance(value, str):
            return value
        return build_runtime_param(param.type_descriptor).coerce(value, param, ctx)


def _add(command: TyperCommand | TyperGroup, database: TyperOption, as_json: TyperOption) -> None:
    command.params.append(database)
    inner = command.commands.values() if isinstance(command, TyperGroup) else ()
    if not isinstance(command, TyperGroup) or (command.name and command.invoke_without_command):
        command.params.append(as_json)
    for parameter in command.get_params(typer.Context(command, help_option_names=list(_HELP_NAMES))):
        if isinstance(parameter, TyperOption | TyperArgument):
            descriptor = parameter.type_descriptor
            conversion = _Conversion(descriptor.parameter_info, descriptor.annotation)
            parameter._runtime_param = conversion  # noqa: SLF001 - typer has no option for it
    for one in inner:
        if isinstance(one, TyperCommand | TyperGroup):
            _add(one, database, as_json)


def _common() -> typer.Typer:
    """Return an application with one empty command: all others get copies of its options `--database` and `--json`."""
    application = typer.Typer()

    @application.command()
    def _(
        database: Annotated[
            str | None,
            typer.Option(
                metavar="URL",
                callback=_choose_database,
                help="The database, or the path of a SQLite file, instead of THREADKEEP_DATABASE_URL.",
            ),
        ] = None,
        as_json: Annotated[
            bool, typer.Option("--json", callback=_choose_json, help="Print JSON, for programs.")
        ] = False,
    ) -> None: ...

    return application


def _choose_json(value: bool) -> None:
    json_chosen.set(value)


def _choose_database(value: str | None) -> None:
    if value is None:
        return
    from threadkeep.store.address import parse_address

    try:
        url = value if "://" in value else f"sqlite:///{quote(str(Path(value).expanduser().absolute()))}"
    except UnicodeEncodeError:
        raise WrongUse("The path in --database is not UTF-8; name a file whose path is.") from None
    parse_address(url, variable="--database")
    chosen_database.set(url)


@dataclass(frozen=True)
class Problem:
    """The description of an error for output. Programs can rely on `kind`: it never changes."""

    kind: str
    sentence: str
    exit_code: int = _FAILED

    def to_dict(self) -> dict[str, str | int]:
        """Return the description in the format of the HTTP API's errors, but with `exit_code` instead of `status`."""
        title = self.kind.replace("-", " ").capitalize()
        return {
            "type": f"urn:threadkeep:{self.kind}",
            "title": title,
            "detail": self.sentence,
            "exit_code": self.exit_code,
        }


def problem_of(error: BaseException) -> Problem:
    """Return the description of an error for output. An unexpected error shows only its class and location."""
    if isinstance(error, ThreadkeepError | WrongUse | NotDone):
        usage = isinstance(error, WrongUse) or (
            isinstance(error, InvalidInput) and not isinstance(error, InvalidSettings)
        )
        notes = list(getattr(error, "__notes__", ()))
        if isinstance(error, InvalidKey):
            notes.append("List the ids with: threadkeep sessions list")
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
        return Problem(kind, " ".join((str(error), *notes)), _WRONG_USE if usage else _FAILED)
    if isinstance(error, typer.TyperException):
        kind = "wrong-use" if error.exit_code == _WRONG_USE else "not-done"
        return Problem(kind, _usage_sentence(error), error.exit_code)
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return Problem("stopped", "Stopped before the command was done.")
    return _foreign(error)


def _foreign(error: BaseException) -> Problem:
    match error:
        case BrokenPipeError():
            return Problem("nobody-listens", "")
        case ModuleNotFoundError():
            extra = _EXTRAS.get((error.name or "").partition(".")[0], "server")
            sentence = f"This needs the package {error.name}; install it with: pip install 'threadkeep[{extra}]'"
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
