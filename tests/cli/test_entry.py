"""The command line as a whole: its start, its exit codes, its errors."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.core import TyperCommand, TyperGroup

from tests.cli.running import CommandLine, start
from tests.limits import HANG_SECONDS
from threadkeep.cli import main
from threadkeep.cli.commands import commands
from threadkeep.version import __version__


def test_the_version_is_shown(cli: CommandLine) -> None:
    """Name and number, on stdout."""
    assert cli("--version").out == f"threadkeep {__version__}\n"


def test_every_verb_is_in_the_help(cli: CommandLine) -> None:
    """A newcomer sees what there is."""
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
    """Programs can use each of them."""
    outcome = cli(*command.split(), "--help")
    assert outcome.exit_code == 0
    assert "--json" in outcome.out


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
def test_wrong_use_is_told_and_exits_with_2(cli: CommandLine, arguments: list[str]) -> None:
    """On stderr, in words or as a JSON object."""
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
def test_an_option_without_a_character_is_refused(cli: CommandLine, arguments: list[str]) -> None:
    """The variable of a script may be unset: the command must not answer as if nothing were stored."""
    cli.store("room", "hi", user_id="u1")
    outcome = cli(*arguments)
    option = [word for word in arguments if word.startswith("--")][-1].rstrip("=")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err == f"{option} needs at least one character; give it a value, or omit it.\n"


def test_a_failure_is_one_sentence_and_exits_with_1(cli: CommandLine) -> None:
    """With its cure, on one line; as a JSON object for programs."""
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
def test_settings_that_cannot_be_used_name_their_variable(cli: CommandLine, url: str, sentence: str) -> None:
    """The same sentence as everywhere."""
    cli.set(THREADKEEP_DATABASE_URL=url)
    outcome = cli("sessions", "list")
    assert outcome.exit_code == 1
    assert "THREADKEEP_DATABASE_URL" in outcome.err
    assert sentence in outcome.err


def test_every_command_takes_a_database(cli: CommandLine, tmp_path: Path, empty_postgres_url: str) -> None:
    """By its URL or the path of a file, before the verb or after it, and for this command alone."""
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
    """A list of sessions is there before a memory would be imported; a version before anything else is."""
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


def test_the_shell_completes_commands_and_session_ids(any_cli: CommandLine) -> None:
    """Of the database that is named, the newest first; where there is none it completes nothing, and says nothing."""
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


def test_no_command_is_without_the_option() -> None:
    """Nor one that is added later."""
    waiting: list[object] = [commands()]
    while waiting:
        command = waiting.pop()
        assert isinstance(command, TyperCommand | TyperGroup)
        assert "database" in [parameter.name for parameter in command.params]
        waiting += command.commands.values() if isinstance(command, TyperGroup) else []


def test_an_error_that_nobody_foresaw_shows_its_place_and_not_its_words(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, and nothing of what it quotes."""

    def fail(**_: object) -> None:
        raise KeyError("what somebody said")

    monkeypatch.setattr("threadkeep.settings.load_settings", fail)
    outcome = cli("doctor")
    assert outcome.exit_code == 1
    assert "KeyError at " in outcome.err
    assert "test_entry.py" in outcome.err
    assert "said" not in outcome.err
    assert "Traceback" not in outcome.err


def test_without_the_extra_one_sentence_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library alone installs no command line."""
    real_import = builtins.__import__

    def without_typer(name: str, *more: object) -> ModuleType:
        if name.partition(".")[0] == "typer":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return real_import(name, *more)  # type: ignore[arg-type]

    for name in [name for name in sys.modules if name.startswith("threadkeep.cli.") and not name.endswith(".entry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_typer)
    assert main(["doctor"]) == 1
    assert "pip install 'threadkeep[cli]'" in capsys.readouterr().err


@pytest.mark.process
def test_help_imports_neither_langchain_nor_a_driver() -> None:
    """So that it is there at once."""
    code = (
        "import sys\n"
        "from threadkeep.cli import main\n"
        "assert main(['sessions', 'list', '--help']) == 0\n"
        "heavy = {'langchain_core', 'langgraph', 'sqlite3', 'psycopg', 'fastapi', 'prompt_toolkit', 'rich.console'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=HANG_SECONDS)


@pytest.mark.process
def test_libraries_say_nothing_beside_the_problem(cli: CommandLine) -> None:
    """What the connection pool logs of a server that is down is not for people, and would break JSON."""
    cli.set(THREADKEEP_DATABASE_URL="postgresql://somebody:secret@127.0.0.1:1/db", THREADKEEP_POSTGRES_POOL_TIMEOUT="1")
    outcome = cli.process("sessions", "list", "--json")
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.problem["type"] == "urn:threadkeep:store-unavailable"
    assert "secret" not in outcome.err


@pytest.mark.process
def test_a_listener_that_goes_away_is_no_error(cli: CommandLine, tmp_path: Path) -> None:
    """`threadkeep sessions export --all | head -1` says nothing on stderr."""
    cli.store("a", *["word " * 200] * 200)
    # The shell says the exit code: another part of this process may collect the status of its children.
    command = [sys.executable, "-m", "threadkeep", "sessions", "export", "--all"]
    with start(["sh", "-c", '"$@"; echo "exit code $?" >&2', "sh", *command], {}) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == "exit code 1\n"


@pytest.mark.process
def test_an_unbuffered_export_is_complete_or_an_error(cli: CommandLine) -> None:
    """A write that reaches the limit of a file is partial; without a buffer, the rest was lost and the exit code 0."""
    cli.store("a", "word " * 40_000)
    # The limit applies to the database too, whose files for reading are smaller.
    shell = ["sh", "-c", 'ulimit -f 200; exec "$0" -m threadkeep sessions export --all >export', sys.executable]
    with start(shell, {"PYTHONUNBUFFERED": "1"}) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert "The disk is full, or a file reached its maximum size" in err


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["--help", "--version", "sessions list"])
def test_a_short_output_that_cannot_be_written_is_one_sentence(cli: CommandLine, arguments: str) -> None:
    """Python wrote the rest once more at the end: a stray "Exception ignored", and the exit code 120."""
    cli.store("a", "Hello.")
    with start(["sh", "-c", f'exec "$0" -m threadkeep {arguments} >/dev/full', sys.executable], {}) as process:
        _, err = process.communicate()
    assert (process.returncode, err.count("\n")) == (1, 1), err
    assert err.startswith("The disk is full, or a file reached its maximum size")


@pytest.mark.process
def test_closed_streams_and_narrow_encodings_are_no_bugs(cli: CommandLine) -> None:
    """Closed streams are like the null device; characters that stdout's encoding lacks are escaped."""
    cli.store("room", "你好")
    shell = ["sh", "-c", 'exec "$0" -m threadkeep sessions list <&- >&-', sys.executable]
    closed = subprocess.run(shell, stderr=subprocess.PIPE, check=False, timeout=HANG_SECONDS)
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
    ],
)
def test_a_mistyped_database_is_not_created(cli: CommandLine, command: str) -> None:
    """A command that only reads, or changes what exists, has nothing to do with a new file."""
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
    """The call is correct; the file may appear later."""
    missing = cli.folder / "missing"
    refused = cli(*command.split(), str(missing))
    assert (refused.exit_code, refused.out.count("Traceback")) == (1, 0)
    assert str(missing) in refused.out + refused.err
