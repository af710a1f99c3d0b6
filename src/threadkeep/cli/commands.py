"""The tree of all commands, and the handling of their errors."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from functools import lru_cache
from importlib import import_module
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from threadkeep.cli.opening import synchronous
from threadkeep.cli.options import HELP_NAMES, with_common_options, with_previous_diffs
from threadkeep.cli.problems import problem_of
from threadkeep.cli.terminal import command_line, dump, terminal
from threadkeep.version import __version__

_CTRL_C = 130
# Servers and the chat have their own handlers. If a process that executes a run ends, another one continues the run.
_WITH_OWN_END = frozenset({"serve", "worker", "mcp", "chat", "workflows", "runs"})

# The function of each command, imported on demand: importing all takes longer than most commands run.
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
# Commands of groups whose functions are in another module.
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
        context_settings={"help_option_names": list(HELP_NAMES)},
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
    """Return a command group, if possible with only the command `verb`."""
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
    """Import a module of this package, and return one of its functions or command groups."""
    module, _, name = path.partition(".")
    return getattr(import_module(f"threadkeep.cli.{module}"), name)


def _commands_for(arguments: Sequence[str]) -> TyperGroup:
    """Return the command that the arguments name, or all commands."""
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
        with _terminated_like_ctrl_c(arguments):
            code = context_of_command.run(
                _commands_for(arguments).main,
                with_previous_diffs(arguments),
                prog_name="threadkeep",
                standalone_mode=False,
            )
    except SystemExit as end:
        # Do not end the process, although Typer raises SystemExit when it has completed a word for the shell.
        return end.code if isinstance(end.code, int) else 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the outermost handler: no traceback for a person
        return _fail(error, arguments)
    if code == _CTRL_C:
        return _fail(KeyboardInterrupt(), arguments)
    return code if isinstance(code, int) else 0


@contextmanager
def _terminated_like_ctrl_c(arguments: Sequence[str]) -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that commands remove their temporary files."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    is_default = on_main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not is_default or not _WITH_OWN_END.isdisjoint(arguments[:1]):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    """Show the problem of an error on stderr and return its exit code."""
    problem = problem_of(error)
    if "--json" in arguments:
        print(dump(problem.to_dict(), sys.stderr), file=sys.stderr)  # noqa: T201
    elif problem.sentence:
        terminal.error(problem.sentence)
    return problem.exit_code
