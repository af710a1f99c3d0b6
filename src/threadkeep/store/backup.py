"""Backups: consistent copies of databases in use, and their restoration. Every function does blocking I/O."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import which

from threadkeep.errors import InvalidInput, StoreUnavailable
from threadkeep.store.condition import lock_holders
from threadkeep.store.private_files import (
    beside,
    completed,
    give_to_owner,
    is_read_only,
    make_private_file,
    make_private_folder,
)
from threadkeep.store.sqlite_connection import connect, export_plain, read_only_uri, sqlite_errors

type Report = Callable[[int, int], object]
"""A callback that receives the number of copied pages and the total, after each part of a copy."""

# SQLITE_CORRUPT and SQLITE_NOTADB. A restore ignores these errors, because it may replace an unreadable file.
_DAMAGED = (11, 26)
_PAGES = 2048
_BUSY_SECONDS = 10.0
_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'threadkeep_migrations'"
_GUARD = 'cat > /dev/null; kill "$1" 2> /dev/null'
_TOOLS = "install PostgreSQL's client tools in the server's version"
_LOCKED = "Another process locks a table; end it (`threadkeep doctor` names it) or wait for its end, and try again."
_NOT_INTACT = "The file is not an intact copy of a Threadkeep database; name a file that `threadkeep backup` wrote."
_OTHER_KEY = (
    "The file is encrypted with another key, or is not an intact copy of a Threadkeep database; "
    "check THREADKEEP_DATABASE_KEY, and name a file that `threadkeep backup` wrote."
)
# A row of the table `threadkeep_migrations` in the output of pg_restore.
_MIGRATION = re.compile(r"^(\d+)\t\d{4}_\w+\.sql\t", re.MULTILINE)
_VERSION = "SELECT coalesce(max(version), 0) FROM threadkeep_migrations"


def copy_sqlite(
    source: Path, target: Path, report: Report = lambda done, total: None, *, key: str | None = None
) -> None:
    """Copy a SQLite database as it is at this moment, while other processes may read and write it.

    The copy is renamed to `target` when it is complete and on disk. `key` is the encryption key of the database, and of
    the copy.

    Raises:
        StoreUnavailable: the database cannot be read, or the copy cannot be written.
    """
    partial = target.with_name(target.name + ".partial")
    with (
        completed(target, partial),
        _translated(),
        closing(_opened(source, key)) as database,
        closing(connect(partial, key)) as copy,
    ):
        # Copy in one read transaction. Otherwise each write of another process would restart the copy.
        database.execute("BEGIN")
        database.execute("SELECT count(*) FROM sqlite_master").fetchall()
        database.backup(copy, pages=_PAGES, progress=lambda _, left, total: report(total - left, total))
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()


def backup_version(file: Path, key: str | None = None) -> int:
    """Return the schema version of a SQLite backup.

    Raises:
        InvalidInput: the file is not an intact copy of a Threadkeep database.
    """
    try:
        with closing(_opened(file, key, immutable=True)) as copy:
            [(known,)] = copy.execute(_TABLES).fetchall()
            [(sound,)] = copy.execute("PRAGMA quick_check(1)").fetchall()
            version = int(copy.execute(_VERSION).fetchall()[0][0]) if known else 0
    except sqlite_errors():
        known, sound, version = 0, "", 0
    if not known or sound != "ok":
        raise InvalidInput(_NOT_INTACT if is_plain(file) else _OTHER_KEY)
    return version


def is_plain(file: Path) -> bool:
    """Return True if a file is an unencrypted SQLite database."""
    with file.open("rb") as opened:
        return opened.read(16) == b"SQLite format 3\0"


def restore_sqlite(
    source: Path, target: Path, report: Report = lambda done, total: None, *, key: str | None = None
) -> None:
    """Replace the database `target` by the copy `source`. If the call is interrupted, the old database stays.

    No process may have the old database open. The old file may be damaged or missing. If `target` is a symbolic link,
    the linked file is replaced. If this process is root, the file keeps its owner. With a `key`, the new database is
    encrypted, even if the copy is not.

    Raises:
        StoreUnavailable: another process has the database open, or a file cannot be written.
    """
    if lock_holders(target):
        raise StoreUnavailable("Other processes have the database open; stop them (`threadkeep doctor` names them).")
    file = target.resolve()
    partial = file.with_name(file.name + ".restored")
    try:
        with _translated():
            make_private_folder(file.parent)
        if key is not None and is_plain(source):
            partial.unlink(missing_ok=True)
            make_private_file(partial)
            with _translated():
                export_plain(source, partial, key)
        else:
            copy_sqlite(source, partial, report, key=key)
        if target.exists():
            _empty_log(target, key)
        # Remove log files of a killed process or a damaged database, because SQLite would apply them to the copy.
        for log in beside(file):
            log.unlink(missing_ok=True)
        give_to_owner(partial, file if file.exists() else file.parent)
        partial.replace(file)
        # Delete the run engine's own file, which refers to rows of the old database. It is created again from the runs.
        _remove(target.with_name(f"{target.name}.runs"))
    finally:
        _remove(partial)


def _remove(database: Path) -> None:
    for file in (database, *beside(database)):
        file.unlink(missing_ok=True)


def dump_postgres(environment: Mapping[str, str], target: Path, *, lock_timeout_seconds: float) -> None:
    """Write a consistent copy of a PostgreSQL database with `pg_dump`; `environment` comes from `environment_of`.

    Raises:
        StoreUnavailable: there is no `pg_dump`, or it failed, for example because another process locks a table.
    """
    partial = target.with_name(target.name + ".partial")
    with completed(target, partial) as descriptor:
        command = ["pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={partial}"]
        command.append(f"--lock-wait-timeout={max(1, round(lock_timeout_seconds * 1000))}")
        # Pass the descriptor to pg_dump, so that the file stays locked even if this process is killed.
        _run(command, environment, descriptor)


def dump_version(file: Path) -> int:
    """Return the schema version of a PostgreSQL backup that `pg_dump` wrote.

    Raises:
        InvalidInput: the file is not an intact copy of a Threadkeep database.
        StoreUnavailable: there is no `pg_restore`, or it cannot read the copy, for example one of a newer `pg_dump`.
    """
    with file.open("rb") as opened:
        is_dump = opened.read(5) == b"PGDMP"
    command = ["pg_restore", "--data-only", "--table=threadkeep_migrations", "--file=-", str(file)]
    versions = [int(version) for version in _MIGRATION.findall(_run(command))] if is_dump else []
    if not versions:
        raise InvalidInput(_NOT_INTACT)
    return max(versions)


def restore_postgres(source: Path, environment: Mapping[str, str], *, replace: bool) -> None:
    """Load a copy that `pg_dump` wrote, in one transaction; with `replace`, first drop existing tables.

    Raises:
        StoreUnavailable: there is no `pg_restore`, or it failed; the database is unchanged.
    """
    options = ["--clean", "--if-exists"] if replace else []
    command = ["pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", *options]
    _run([*command, f"--dbname={environment.get('PGDATABASE', '')}", str(source)], environment)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None, *descriptors: int) -> str:
    """Run a PostgreSQL tool, and return its output. The password is passed in the environment, not as an argument."""
    if which(command[0]) is None:
        raise StoreUnavailable(f"There is no {command[0]} on this machine; {_TOOLS}.")
    values = {**os.environ, **(environment or {})}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(  # noqa: S603 - a command of this module, without a shell
            command, env=values, pass_fds=descriptors, stdout=pipe, stderr=pipe, text=True
        ) as tool,
        # The guard waits until its input ends. If this process is killed, the input ends, and the guard ends the tool.
        subprocess.Popen(["sh", "-c", _GUARD, "guard", str(tool.pid)], stdin=pipe) as guard,  # noqa: S603, S607
    ):
        output, errors = tool.communicate()
        guard.kill()
    if tool.returncode:
        # The first line of stderr names the problem; later lines may quote rows.
        reason = errors.strip().partition("\n")[0]
        cure = " Restore into an empty database." if "--clean" in command else ""
        cure = f" Its version is too old; {_TOOLS}." if "version" in reason else cure
        cure = f" {_LOCKED}" if "timeout" in reason else cure
        raise StoreUnavailable(f"{command[0]} failed ({reason}); nothing was changed.{cure}")
    return output


def _opened(path: Path, key: str | None, *, immutable: bool = False) -> sqlite3.Connection:
    if not immutable and is_read_only(path):
        uri = read_only_uri(path)
    else:
        uri = f"{path.absolute().as_uri()}?{'immutable=1' if immutable else 'mode=rw'}"
    return connect(uri, key, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)


def _empty_log(path: Path, key: str | None) -> None:
    """Move a database's WAL into its file, so that an interrupted restore loses nothing."""
    with _translated(), closing(_opened(path, None if is_plain(path) else key)) as database:
        try:
            # Wait only briefly: a process that has the file open keeps its lock until the process ends.
            database.execute("PRAGMA busy_timeout = 500").fetchall()
            database.execute("PRAGMA journal_mode = DELETE").fetchall()
        except sqlite_errors() as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite_errors(OSError) as error:
        raise StoreUnavailable(
            f"The database cannot be copied ({error}); check its file, its key, and the disk."
        ) from error
