"""The tree of all commands, their common options, and the handling of their errors."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import copy_context
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
_NAMELESS = re.compile("home directory|uid not found|No username")  # errors for an unnamed user id, as in containers
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
    "sessions list": "sessions.list_sessions",
    "sessions show": "sessions.show_session",
    "sessions search": "sessions.search_messages",
    "sessions reset": "sessions.reset_session",
    "sessions delete": "sessions.delete_sessions",
    "sessions take-back": "sessions.take_back_messages",
    "sessions edit": "sessions.edit_message",
    "sessions branch": "sessions.branch_session",
    "sessions regenerate": "sessions.regenerate_answer",
    "sessions export": "imports.export_sessions",
    "sessions import": "imports.import_sessions",
    "sessions prune": "prune.prune_sessions",
    "import langgraph": "imports.import_langgraph",
    "import openai-agents": "imports.import_openai_agents",
    "import chatgpt": "imports.import_chatgpt",
    "import graph-store": "imports.import_graph_store",
    "import jsonl": "imports.import_sessions",
    "context show": "context.show_context",
    "workflows list": "workflows.list_workflows",
    "workflows show": "workflows.show_workflow",
    "workflows validate": "workflows.validate_workflows",
    "workflows graph": "workflows.draw_workflow",
    "workflows run": "runs.run_workflow",
    "runs list": "runs.list_runs",
    "runs show": "runs.show_run",
    "runs tree": "runs.show_tree",
    "runs trace": "runs.show_trace",
    "runs cancel": "runs.cancel_run",
    "runs resume": "runs.resume_run",
    "runs retry": "runs.retry_run",
    "runs prune": "prune.prune_runs",
    "facts list": "facts.list_facts",
    "facts show": "facts.show_fact",
    "facts add": "facts.add_fact",
    "facts forget": "facts.forget_facts",
    "facts proposals": "facts.list_proposals",
    "facts accept": "facts.accept_proposal",
    "facts reject": "facts.reject_proposal",
    "facts undo": "facts.undo_proposal",
    "facts export": "facts.export_facts",
    "facts import": "facts.import_facts",
    "persons list": "persons.list_persons",
    "persons merge": "persons.merge_persons",
    "persons unmerge": "persons.unmerge_person",
    "persons export": "persons.export_person",
    "knowledge status": "knowledge.show_status",
    "knowledge consent": "knowledge.decide_consent",
    "knowledge trust": "knowledge.trust_workspace",
    "knowledge test": "knowledge.check_server",
    "knowledge promote": "knowledge.promote_fact",
    "knowledge undo": "knowledge.undo_promotion",
    "knowledge backfill": "knowledge.backfill_turns",
    "knowledge deliveries": "knowledge.list_deliveries",
    "knowledge purge": "knowledge.purge_group",
    "pending list": "database.list_pending",
    "pending drop": "database.drop_pending",
    "erase user": "persons.erase_user",
    "erase session": "persons.erase_session",
    "erase verify": "persons.verify_receipt",
    "keys add": "serve.add_key",
    "keys list": "serve.list_keys",
    "keys rotate": "serve.rotate_key",
    "keys revoke": "serve.revoke_key",
    "channels list": "channels.list_channels",
    "channels status": "channels.show_status",
    "channels add": "channels.add_channel",
    "channels test": "channels.check_channel",
    "channels webhook": "channels.set_webhook",
    "channels send": "channels.send_text",
    "channels outbox": "channels.list_outbox",
    "channels outbox retry": "channels.retry_answer",
    "channels outbox drop": "channels.drop_answer",
}
# The help of each command group. A group that is also in `_COMMANDS` can be called without a subcommand.
_GROUPS: Mapping[str, str] = {
    "sessions": "List, show, search, export, import, prune, reset or delete sessions.",
    "import": "Import conversations of other systems; repeated imports add no duplicates.",
    "context": "Show the messages that the model saw, and the excluded ones.",
    "workflows": "Workflows and their files.",
    "runs": "The runs of workflows: list, show, cancel, answer or retry them.",
    "facts": "List, show, add, forget, export or import facts known beyond one session.",
    "persons": "List persons, export one, merge two of them, or undo a merge.",
    "knowledge": "Graphiti: consent, deliveries, tests of the server.",
    "pending": "Turns that are not written to a database yet.",
    "erase": "Erase a person or a session permanently.",
    "keys": "Add, list, rotate and revoke keys of the HTTP service.",
    "channels": "Bots and their answers to people.",
    "channels outbox": "Undelivered answers.",
}


@lru_cache(maxsize=64)
def commands(*words: str) -> TyperGroup:
    """Return the application with all commands, or only with those whose names begin with `words`."""
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
    groups = {"": application}
    for name, path in _COMMANDS.items():
        if not _begins_with(name, words):
            continue
        module, _, function = path.partition(".")
        command = synchronous(getattr(import_module(f"threadkeep.cli.{module}"), function))
        noun, _, verb = name.rpartition(" ")
        if name in _GROUPS:
            _group(name, groups).callback()(command)
        else:
            _group(noun, groups).command(verb)(command)
    return with_common_options(application)


def _group(name: str, groups: dict[str, typer.Typer]) -> typer.Typer:
    """Return the command group with this name. If it is not in `groups`, add it there and to its parent."""
    if name not in groups:
        is_command = name in _COMMANDS
        group = typer.Typer(
            help=_GROUPS[name], no_args_is_help=not is_command, invoke_without_command=is_command, rich_markup_mode=None
        )
        parent, _, noun = name.rpartition(" ")
        _group(parent, groups).add_typer(group, name=noun)
        groups[name] = group
    return groups[name]


def _begins_with(name: str, words: Sequence[str]) -> bool:
    return name.split()[: len(words)] == [*words]


def _commands_for(arguments: Sequence[str]) -> TyperGroup:
    """Return an application with the command or the group that the arguments name. If they name none, add all."""
    for words in (arguments[:2], arguments[:1]):
        if list(words) == ["--version"] or (words and any(_begins_with(name, words) for name in _COMMANDS)):
            return commands(*words)
    return commands()


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
        sys.stdout.flush()  # report output that cannot be written
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
    """Return an application with one empty command. Its options (`--database`, `--json`) are copied to all commands."""
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
        return {
            "type": f"urn:threadkeep:{self.kind}",
            "title": self.kind.replace("-", " ").capitalize(),
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
        case OSError(errno=errno.EIO | errno.EBADF, filename=None):
            sentence = "A file could not be read or written, or stdout is closed. Check the path and the disk."
            return Problem("file-trouble", sentence)
        case OSError(filename=str(name), strerror=str(reason)):
            return Problem("file-trouble", f"{name}: {reason}. Check the path, its permissions and the disk.")
        case RuntimeError() | KeyError() | OSError() if _NAMELESS.search(str(error)):
            kind, sentence = (
                "nameless-user",
                "This user has no home folder or no name; set HOME and USER.",
            )
        case _:
            kind = "unexpected"
            sentence = f"{type(error).__name__} at {location_of(error)}: this is a bug, please report it."
    return Problem(kind, sentence)


def _usage_sentence(error: typer.TyperException) -> str:
    sentence = error.format_message().strip()
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "threadkeep")
    if "\n" in sentence:
        return sentence  # if only a command group is named, the message is the help text
    return f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} See: {command} --help".lstrip(". ")
