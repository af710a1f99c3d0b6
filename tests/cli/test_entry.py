"""Tests of the command line as a whole: start, exit codes and errors."""

from __future__ import annotations

import builtins
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest
from typer.core import TyperCommand, TyperGroup

from tests.cli.running import CommandLine, start
from tests.limits import HANG_SECONDS
from threadkeep.cli import main
from threadkeep.cli.commands import commands
from threadkeep.version import __version__


def test_the_version_is_shown(cli: CommandLine) -> None:
    assert cli("--version").out == f"threadkeep {__version__}\n"


def test_every_verb_is_in_the_help(cli: CommandLine) -> None:
    shown = cli("--help").out
    assert "--install-completion" in shown
    for noun in ("serve", "chat", "sessions", "context", "doctor", "migrate", "bench", "pending"):
        assert f"\n  {noun} " in shown
    verbs = cli("sessions", "--help").out
    for verb in ("list", "show", "search", "export", "import", "reset", "delete"):
        assert f"\n  {verb} " in verbs


@pytest.mark.parametrize(
    "command",
    ["serve", "chat", "doctor", "migrate", "bench", "context show", "pending list", "pending drop"]
    + [f"sessions {verb}" for verb in ("list", "show", "search", "export", "import", "reset", "delete")],
)
def test_every_verb_takes_json(cli: CommandLine, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.exit_code == 0
    assert "--json" in outcome.out


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("workflows validate", "[PATH]..."),
        ("sessions export", "[SESSION]..."),
        ("sessions prune", "[SESSION]..."),
        ("knowledge deliveries", "[list|retry|drop] [NUMBER]"),
    ],
)
def test_the_usage_has_each_argument_once_in_brackets(cli: CommandLine, words: str, usage: str) -> None:
    assert f"threadkeep {words} [OPTIONS] {usage}\n" in cli(*words.split(), "--help").out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sessions"],
        ["sessionz"],
        ["sessions", "list", "--limit", "many"],
        ["sessions", "list", "--cursor", "here"],
        ["sessions", "show"],
        ["sessions", "show", "telegram:"],
        ["sessions", "export"],
        ["sessions", "export", "a", "--all"],
        ["sessions", "delete", "a"],
        ["context", "show"],
    ],
    ids=" ".join,
)
def test_a_usage_error_exits_with_2(cli: CommandLine, arguments: list[str]) -> None:
    outcome = cli(*arguments)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err

    outcome = cli(*arguments, "--json")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.problem["exit_code"] == 2
    assert outcome.problem["type"].startswith("urn:threadkeep:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list", "--user", ""],
        ["sessions", "list", "--query="],
        ["sessions", "export", "--all", "--output", ""],
        ["import", "langgraph", "file.db", "--channel", ""],
        ["runs", "list", "--session", ""],
        ["explain-key", "--payload", "-", "--workflow", ""],
        ["knowledge", "backfill", "--session", "a", "--session", ""],
        ["doctor", "--database", ""],
    ],
    ids=" ".join,
)
def test_an_empty_option_is_refused(cli: CommandLine, arguments: list[str]) -> None:
    """An unset variable of a script must not give the result of an empty database."""
    cli.store("room", "hi", user_id="u1")
    outcome = cli(*arguments)
    option = [word for word in arguments if word.startswith("--")][-1].rstrip("=")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err == f"{option} needs at least one character; give it a value, or omit it.\n"


def test_a_failure_is_one_sentence_and_exits_with_1(cli: CommandLine) -> None:
    outcome = cli("sessions", "show", "telegram:1")
    assert outcome.exit_code == 1
    assert outcome.err == (
        "There is no session 'telegram:1' here; list what there is with `threadkeep sessions list`. "
        f"The database is {cli.url}; set another with --database or THREADKEEP_DATABASE_URL.\n"
    )
    problem = cli("sessions", "show", "telegram:1", "--json").problem
    assert problem["type"] == "urn:threadkeep:session-not-found"
    assert "threadkeep sessions list" in problem["detail"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("sqlite://relative.db", "relative path"), ("mysql://host/db", "not supported"), ("nothing", "database URL")],
)
def test_an_invalid_setting_is_named(cli: CommandLine, url: str, sentence: str) -> None:
    cli.set(THREADKEEP_DATABASE_URL=url)
    outcome = cli("sessions", "list")
    assert outcome.exit_code == 1
    assert "THREADKEEP_DATABASE_URL" in outcome.err
    assert sentence in outcome.err


def test_every_command_takes_a_database(cli: CommandLine, tmp_path: Path, empty_postgres_url: str) -> None:
    """`--database` takes a URL or a path, before or after the command, and applies to one call only."""
    cli.store("a", "hi")
    other = f"sqlite:///{tmp_path}/a%20folder/other.db"
    (tmp_path / "a folder").mkdir()
    for name in (other, "a folder/other.db", str(tmp_path / "a folder" / "other.db"), empty_postgres_url):
        assert cli("migrate", "--database", name).exit_code == 0
        assert cli("sessions", "list", "--json", "--database", name).json["sessions"] == []
        assert cli("--database", name, "sessions", "list", "--json").json["sessions"] == []
        assert len(cli("sessions", "list", "--json").json["sessions"]) == 1
    assert [path.name for path in (tmp_path / "a folder").glob("*.db")] == ["other.db"]
    missing = cli("sessions", "show", "a", "--database", other)
    assert f"The database is {other.replace('%20', ' ')}; set another with --database" in missing.err
    assert "--database starts with mysql://" in cli("doctor", "--database", "mysql://host").err


@pytest.mark.process
def test_short_commands_import_little(cli: CommandLine) -> None:
    """`sessions list` and helps import no agent or history package, and `--version` does not import the store."""
    cli.store("a", "hi")
    code = (
        "import sys\n"
        "from threadkeep.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('threadkeep', 'langgraph', 'pydantic.'))))"
    )

    def imported(*arguments: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split()

    listing = imported("sessions", "list", "--json")
    assert "threadkeep.store.transcripts" in listing
    packages = ("history", "context", "agent", "observe")
    heavy = (*[f"threadkeep.{name}" for name in packages], "langgraph", "pydantic")
    assert not [name for name in listing if name.startswith(heavy)]
    assert imported("sessions", "list") == listing
    assert not [name for name in imported("--version") if name.startswith(("threadkeep.store", "pydantic"))]
    assert not [name for name in imported("context", "show", "--help") if name.startswith(heavy)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("typer", "sessions list"),
        ("threadkeep.memory", "sessions show a"),
        ("threadkeep.agent.context_view", "context show --session a"),
        ("threadkeep.app", "worker"),
        ("threadkeep.web.service", "serve --port 0"),
    ],
)
def test_ctrl_c_during_an_import_ends_the_command(cli: CommandLine, module: str, command: str) -> None:
    """The import is not completed, and there is no traceback."""
    cli("migrate")
    code = (
        "import signal, sys\n"
        "from threadkeep.cli import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv = ['threadkeep', *{command.split()}]\n"
        f"assert main() == 1 and {module!r} not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS)  # noqa: PLW1510
    assert (done.returncode, done.stderr) == (0, "Stopped before the command was done.\n")


def test_the_shell_completes_commands_and_session_ids(any_cli: CommandLine) -> None:
    """Session ids come from the configured database, newest first.

    Without a database there are none, and no error.
    """
    any_cli.store("room-1", "hi")
    any_cli.store("room-2", "hi")
    any_cli.store("hall_1", "hi")

    def completed(line: str) -> list[str]:
        any_cli.set(_THREADKEEP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1))
        outcome = any_cli()
        assert (outcome.exit_code, outcome.err) == (0, "")
        return outcome.out.split()

    assert completed("threadkeep sess") == ["sessions"]
    assert completed("threadkeep sessions show ") == ["hall_1", "room-2", "room-1"]
    assert completed("threadkeep chat --session room") == ["room-2", "room-1"]
    assert completed("threadkeep sessions delete room-1 h") == ["hall_1"]
    assert completed("threadkeep --database nowhere.db sessions show ") == []
    any_cli.set(THREADKEEP_DATABASE_URL="nothing")
    assert completed("threadkeep sessions show ") == []
    assert not (any_cli.folder / "nowhere.db").exists()


def test_every_command_has_the_database_option() -> None:
    waiting: list[object] = [commands()]
    while waiting:
        command = waiting.pop()
        assert isinstance(command, TyperCommand | TyperGroup)
        assert "database" in [parameter.name for parameter in command.params]
        waiting += command.commands.values() if isinstance(command, TyperGroup) else []


def test_an_unexpected_error_shows_its_location_only(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise KeyError("what somebody said")

    monkeypatch.setattr("threadkeep.settings.load_settings", fail)
    outcome = cli("doctor")
    assert outcome.exit_code == 1
    assert "KeyError at " in outcome.err
    assert "test_entry.py" in outcome.err
    assert "said" not in outcome.err
    assert "Traceback" not in outcome.err


def test_a_missing_extra_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_import = builtins.__import__

    def without_typer(name: str, *more: object) -> ModuleType:
        if name.partition(".")[0] == "typer":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return real_import(name, *more)  # type: ignore[arg-type]

    for name in [name for name in sys.modules if name.startswith("threadkeep.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_typer)
    assert main(["doctor"]) == 1
    assert "pip install 'threadkeep[cli]'" in capsys.readouterr().err


def test_a_package_that_a_command_needs_is_named_with_its_extra(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mermaidx", None)
    outcome = cli("workflows", "graph", "chat", "--format", "svg")
    assert outcome.err == "This needs the package mermaidx; install it with: pip install 'threadkeep[draw]'\n"


@pytest.mark.process
def test_help_imports_neither_langchain_nor_a_driver() -> None:
    """`--help` must be fast."""
    code = (
        "import sys\n"
        "from threadkeep.cli import main\n"
        "assert main(['sessions', 'list', '--help']) == 0\n"
        "heavy = {'langchain_core', 'langgraph', 'sqlite3', 'psycopg', 'fastapi', 'prompt_toolkit', 'rich.console'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=HANG_SECONDS)


@pytest.mark.process
def test_libraries_print_nothing_beside_the_problem(cli: CommandLine) -> None:
    """Log lines of the connection pool would break the JSON output."""
    cli.set(THREADKEEP_DATABASE_URL="postgresql://somebody:secret@127.0.0.1:1/db", THREADKEEP_POSTGRES_POOL_TIMEOUT="1")
    outcome = cli.process("sessions", "list", "--json")
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.problem["type"] == "urn:threadkeep:store-unavailable"
    assert "secret" not in outcome.err


@pytest.mark.process
def test_a_closed_pipe_prints_no_error(cli: CommandLine, tmp_path: Path) -> None:
    """A command is piped into `head -1`, which closes the pipe."""
    cli.store("a", *["word " * 200] * 200)
    # The shell prints the exit code, because other code may reap the children of this process.
    command = [sys.executable, "-m", "threadkeep", "sessions", "export", "--all"]
    with start(["sh", "-c", '"$@"; echo "exit code $?" >&2', "sh", *command], {}) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == "exit code 1\n"


def test_a_user_without_a_home_folder_or_a_name_gets_the_cure(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a user id without a name."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_DATA_HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    outcome = cli("migrate")
    assert (outcome.exit_code, "set HOME and USER" in outcome.err) == (1, True)
    cli.set(HOME=str(cli.folder))
    assert cli("migrate").exit_code == 0
    cli.set(THREADKEEP_GRAPHITI_ENABLED="true", THREADKEEP_GRAPHITI_ENDPOINT="http://127.0.0.1:1")
    outcome = cli("knowledge", "trust", "shop")
    assert (outcome.exit_code, "set HOME and USER" in outcome.err) == (1, True)
    cli.set(USER="ops")
    assert cli("knowledge", "trust", "shop").exit_code == 0


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["doctor", "sessions list"])
def test_a_short_output_is_one_write(cli: CommandLine, arguments: str) -> None:
    """`head -1` closes the pipe after the first write, so a second one could fail. A datagram is one write."""
    cli.store("a", "Hello.")
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with reader, writer:
        command = [sys.executable, "-m", "threadkeep", *arguments.split()]
        subprocess.run(command, check=True, stdout=writer.fileno(), timeout=HANG_SECONDS)
        reader.setblocking(False)
        assert reader.recv(100_000).count(b"\n") > 1
        with pytest.raises(BlockingIOError):
            reader.recv(1)


@pytest.mark.process
def test_an_unbuffered_export_is_complete_or_an_error(cli: CommandLine) -> None:
    """A write to a full file may be partial. The command then fails and does not lose the rest."""
    cli.store("a", "word " * 40_000)
    # The limit also applies to the database, whose files are smaller.
    shell = ["sh", "-c", 'ulimit -f 200; exec "$0" -m threadkeep sessions export --all >export', sys.executable]
    with start(shell, {"PYTHONUNBUFFERED": "1"}) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert "The disk is full, or a file reached its maximum size" in err


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [("--help", ""), ("--version", ""), ("workflows graph chat", ""), ("sessions list", ""), ("sessions list", "1")],
)
def test_a_short_output_that_cannot_be_written_is_one_sentence(
    cli: CommandLine, arguments: str, unbuffered: str
) -> None:
    """Python would write the output again at exit, print "Exception ignored" and exit with 120."""
    cli.store("a", "Hello.")
    shell = ["sh", "-c", f'exec "$0" -m threadkeep {arguments} >/dev/full', sys.executable]
    with start(shell, {"PYTHONUNBUFFERED": unbuffered}) as process:
        _, err = process.communicate()
    assert (process.returncode, err.count("\n")) == (1, 1), err
    assert err.startswith("The disk is full, or a file reached its maximum size")


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["sessions export --all", "sessions list", "--version"])
def test_a_result_for_a_closed_stdout_is_an_error(cli: CommandLine, arguments: str) -> None:
    """A caller must not take a lost export for a complete one."""
    cli.store("a", "Hello.")
    shell = ["sh", "-c", f'exec "$0" -m threadkeep {arguments} >&-', sys.executable]
    with start(shell, {}) as process:
        _, err = process.communicate()
    assert (process.returncode, err.splitlines()[-1]) == (
        1,
        "A file could not be read or written, or stdout is closed. Check the path and the disk.",
    )


@pytest.mark.process
def test_closed_streams_and_narrow_encodings_are_supported(cli: CommandLine) -> None:
    """A closed stdin is like the null device; characters that stdout's encoding lacks are escaped."""
    cli.store("room", "你好")
    shell = ["sh", "-c", 'exec "$0" -m threadkeep sessions list <&-', sys.executable]
    closed = subprocess.run(shell, capture_output=True, check=False, timeout=HANG_SECONDS)
    assert (closed.returncode, closed.stderr) == (0, b"")
    with cli.start("sessions", "list", PYTHONIOENCODING="ascii") as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert r"\u4f60\u597d" in out


@pytest.mark.parametrize(
    "command",
    [
        "sessions list",
        "sessions show a",
        "sessions search a",
        "sessions export --all",
        "sessions delete a --yes",
        "sessions regenerate a",
        "context show --session a",
        "runs list",
        "runs trace a",
        "runs retry a",
        "facts list",
        "persons list",
        "keys list",
        "erase user a --yes",
        "channels outbox",
        "channels list",
        "channels status",
        "knowledge status",
        "knowledge trust shop",
    ],
)
def test_a_mistyped_database_is_not_created(cli: CommandLine, command: str) -> None:
    """A command that reads or changes existing data does not create a database file."""
    typo = cli.folder / "typo.db"
    refused = cli(*command.split(), "--database", f"sqlite:///{typo}")
    assert (refused.exit_code, refused.out) == (1, "")
    create = f"threadkeep migrate --database {typo}"
    assert refused.err == f"There is no file {typo}; correct --database, or create it with: {create}\n"
    assert not typo.exists()


@pytest.mark.parametrize(
    "command",
    [
        "sessions import",
        "import jsonl",
        "import chatgpt",
        "import langgraph",
        "facts import",
        "restore",
        "erase verify",
        "workflows validate",
        "workflows run chat --payload",
    ],
)
def test_a_missing_input_file_exits_with_1(cli: CommandLine, command: str) -> None:
    """A missing file is not a usage error: the command is correct, and the file may appear later."""
    missing = cli.folder / "missing"
    refused = cli(*command.split(), str(missing))
    assert refused.exit_code == 1
    assert "Traceback" not in refused.out + refused.err
    assert str(missing) in refused.out + refused.err
