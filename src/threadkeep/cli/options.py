"""Options that several commands share, and the files that these options name."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal
from urllib.parse import quote

import typer
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from threadkeep.boundary import ErrorBoundary
from threadkeep.cli.opening import chosen_database, command_settings
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import json_chosen, terminal
from threadkeep.store.private_files import locked_part

if TYPE_CHECKING:
    from typer._click import Context
    from typer.core import _TyperParameter

    from threadkeep.records import Json

HELP_NAMES = ("-h", "--help")
PREVIOUS = "previous"
"""The value of `--diff` if the option is given without a number."""

_COMPLETION_SECONDS = 2.0
_PAYLOAD_BYTES = 2_097_152
_DESCRIPTOR = re.compile(r"/dev/(?:stdout|fd/(\d+))")

type Cursor = tuple[datetime, str]


def session_ids(incomplete: str) -> list[str]:
    """Return session ids with a prefix, for shell completion."""
    import asyncio

    # Suppress errors: the shell would print a traceback into the line that is being typed.
    with ErrorBoundary():
        return asyncio.run(_session_ids(incomplete))
    return []


async def _session_ids(beginning: str) -> list[str]:
    import asyncio

    from threadkeep.store.driver import StoreOptions
    from threadkeep.store.opening import open_database
    from threadkeep.store.statements import load_statements

    options = StoreOptions(lock_timeout_seconds=_COMPLETION_SECONDS, pool_timeout_seconds=_COMPLETION_SECONDS)
    sql = load_statements("completion.sql")
    async with (
        asyncio.timeout(_COMPLETION_SECONDS),
        open_database(command_settings().database, options, read_only=True) as driver,
    ):
        rows = await driver.fetch(sql["session_ids"], {"beginning": beginning})
    return [str(session_id) for (session_id,) in rows]


UserId = Annotated[str | None, typer.Option("--user", metavar="ID", help="Only sessions of this user.")]
SessionIdArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="The session's id, such as telegram:123.", autocompletion=session_ids),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="The maximum number.")]
CursorOption = Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue where the last list ended.")]
ViewOption = Annotated[
    Literal["active", "history"], typer.Option("--view", help="Exclude superseded messages, or include them.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; by default stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the data that would be deleted; write nothing.")]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def verbs(help_text: str) -> typer.Typer:
    """Return an empty command group without rich help, which would double the time of `--help`."""
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)


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


def one_of[T: str](option: str, text: str | None, allowed: Sequence[T]) -> T | None:
    """Return the value of an option if it was given; reject values that are not allowed."""
    for value in allowed:
        if value == text:
            return value
    if text is None:
        return None
    raise WrongUse(f"{option} must be one of {', '.join(allowed)}.")


def write_cursor(cursor: Cursor | None) -> str | None:
    """Return the cursor as the text for `--cursor`, or None if there is none."""
    return None if cursor is None else f"{cursor[0].isoformat()}~{cursor[1]}"


def read_cursor(text: str | None) -> Cursor | None:
    """Parse a cursor that `write_cursor` returned."""
    if text is None:
        return None
    moment, separator, key = text.partition("~")
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        found = None
    if not separator or found is None or found.tzinfo is None:
        raise WrongUse("This is not a cursor; use the one that the last list printed.")
    return found, key


def read_payload(path: str) -> dict[str, Any]:
    """Return the JSON object in a file of at most 2 MiB. The path `-` is stdin."""
    with opened_input(path) as stream:
        data = stream.read(_PAYLOAD_BYTES + 1)
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise WrongUse("The payload is not JSON in UTF-8; name a file with one JSON object.") from None
    if len(data) > _PAYLOAD_BYTES or not isinstance(value, dict):
        raise WrongUse("The payload must be a JSON object of at most 2 MiB, such as the channel delivers.")
    return value


@contextmanager
def opened_input(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading. The path `-` is stdin."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as stream:
        yield stream


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing. It appears only when it is complete, and only its owner can read it.

    A device, a pipe or an open descriptor such as `/dev/stdout` is written directly. Of a symbolic link, the target is
    replaced.
    """
    if found := _DESCRIPTOR.fullmatch(str(path)):
        with os.fdopen(os.dup(int(found[1] or 1)), "wb") as stream:
            yield stream
        return
    if path.is_dir():
        raise WrongUse(f"{path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    try:
        path = path.resolve()
    except RuntimeError:
        raise WrongUse(f"{path} is a link that leads to itself; name a file.") from None
    part = path.with_name(path.name + ".part")
    with locked_part(part) as descriptor:
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as stream:
                stream.truncate()
                yield stream
                stream.flush()
                os.fsync(descriptor)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def opened_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open stdout if the path is None or `-`; otherwise create the file with `new_file`."""
    if path is None or not _is_file(path):
        yield sys.stdout.buffer
        return
    with new_file(path) as stream:
        yield stream


def _is_file(path: Path | None) -> bool:
    return path is not None and str(path) != "-"


def show_exported(counts: Mapping[str, object], words: str, output: Path | None) -> None:
    """Show the result of an export, as a note or as JSON."""
    if _is_file(output) and terminal.as_json:
        terminal.json({**counts, "file": str(output)})
    else:
        terminal.note(f"Exported {words}" + (f" to {output}." if _is_file(output) else "."))


def json_or_text(text: str) -> Json:
    """Return the text parsed as JSON, or the text itself if it is not JSON."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


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
    for parameter in command.get_params(typer.Context(command, help_option_names=list(HELP_NAMES))):
        if isinstance(parameter, TyperOption | TyperArgument):
            descriptor = parameter.type_descriptor
            conversion = _Conversion(descriptor.parameter_info, descriptor.annotation)
            parameter._runtime_param = conversion  # noqa: SLF001 - typer has no option for it
    for one in inner:
        if isinstance(one, TyperCommand | TyperGroup):
            _add(one, database, as_json)


def _common() -> typer.Typer:
    """Return an application whose only command declares the common options."""
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

    url = value if "://" in value else f"sqlite:///{quote(str(Path(value).expanduser().absolute()))}"
    parse_address(url, variable="--database")
    chosen_database.set(url)
