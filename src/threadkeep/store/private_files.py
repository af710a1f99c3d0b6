"""Files and folders that only this user may read, because they contain people's messages. All I/O is blocking."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_data_path

from threadkeep.errors import InvalidInput

_LOG = logging.getLogger(__name__)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Restrict Threadkeep's data folder if it is on the path.

    Other existing parents are not changed, because `/tmp` or a home folder may be among them.
    """
    for parent in reversed((folder, *folder.parents)):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
            give_to_owner(parent, parent.parent)
    own = user_data_path("threadkeep")
    if own in (folder, *folder.parents):
        tighten(own)


def beside(database: Path) -> list[Path]:
    """Return the paths of the files that SQLite creates next to a database file, such as the WAL."""
    return [database.with_name(database.name + ending) for ending in ("-journal", "-wal", "-shm")]


def give_to_owner(made: Path | int, owned: Path) -> None:
    """If this process is root, give a new file or folder to the owner of the path `owned`, such as a service's user."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # root without this right, as in some containers
            owner = owned.stat()
            os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=isinstance(made, int))


def make_private_file(path: Path) -> None:
    """Create a file with mode 0600, unless it exists. If it is a database, SQLite creates its WAL with the same mode.

    An existing file is not opened, because closing it would release all locks that this process has on it; another
    process could then delete the WAL.
    """
    with contextlib.suppress(OSError):  # the file exists already, or opening it will report the error
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600)
        give_to_owner(descriptor, path.parent)
        os.close(descriptor)


def tighten_database(path: Path) -> None:
    """Remove the permissions of other users from a SQLite file and the files that SQLite created next to it.

    If a user named the path, first read it as a database, because any other file or folder must keep its permissions.
    """
    for file in (path, *beside(path)):
        tighten(file)


def is_read_only(path: Path) -> bool:
    """Return True if a file exists and this process cannot write it."""
    with contextlib.suppress(OSError):  # a path that cannot be looked up; SQLite will report the error
        return path.is_file() and not (_may_use(path, os.W_OK) and _may_use(path.parent, os.W_OK | os.X_OK))
    return False


def _may_use(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def nearest_existing(folder: Path) -> Path:
    """Return the folder if it exists, otherwise its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))


def lock_at_once(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file; return False, without waiting, if another process has locked it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked_part(part: Path) -> Iterator[int]:
    """Open an incomplete file, lock it during the block, and yield its descriptor; only the owner can read the file.

    The file may exist already, if a process that wrote it was killed.

    Raises:
        InvalidInput: another process writes the file.
    """
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        # Check that the path still names the open file: another process may have renamed it before it was locked.
        if not lock_at_once(descriptor) or not os.path.samestat(os.fstat(descriptor), part.stat()):
            raise InvalidInput(f"Another process writes {part}; wait until it ends, or name another file.")
        os.fchmod(descriptor, 0o600)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def completed(path: Path, part: Path) -> Iterator[int]:
    """Yield the descriptor of the empty file `part`. It replaces `path` after the block; on failure it is deleted."""
    with locked_part(part) as descriptor:
        try:
            os.truncate(descriptor, 0)
            yield descriptor
            os.fsync(descriptor)
            part.replace(path)
        finally:
            for file in (part, *beside(part)):
                file.unlink(missing_ok=True)


def in_use(path: Path) -> bool:
    """Return True if the process that owns a file is alive; a living owner keeps its file locked.

    The check takes only a shared lock, because two processes that check a file at once must not mistake each other for
    its owner.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not lock_at_once(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def tighten(path: Path) -> None:
    """Remove the permissions of other users from a file or folder that this user owns, and log this."""
    with contextlib.suppress(OSError):
        state = path.stat()
        if state.st_mode & _OTHERS and state.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(state.st_mode) & ~_OTHERS)
            _LOG.warning("Other users of this machine could read %s; from now on only its owner can use it.", path)
