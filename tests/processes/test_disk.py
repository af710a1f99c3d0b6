"""Tests of full disks and read-only files: errors are clear, and no acknowledged message is lost."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import Child
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.app import open_app
from threadkeep.errors import TurnInMemoryOnly
from threadkeep.history.pending import PendingOptions
from threadkeep.settings import load_settings

pytestmark = pytest.mark.process

_NOBODY = 65534
_TEXT = "x" * 30_000


def turn_of(words: str) -> list[Message]:
    """Return a turn of one large message."""
    return [Message(role="user", content=f"{words} {_TEXT}", id=words)]


def options(folder: Path) -> MemoryOptions:
    """Return the options of a memory whose pending turns are in the folder of its database."""
    pending = PendingOptions(folder=folder / "pending", first_pause_seconds=0.01, longest_pause_seconds=0.05)
    return MemoryOptions(background=False, pending=pending)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Create a folder that every user of the machine can read."""
    folder = Path(tempfile.mkdtemp(prefix="threadkeep-disk-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_disk(open_folder: Path) -> Iterator[Path]:
    """Mount a disk of two megabytes."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "threadkeep-test", str(open_folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk; the test with a limit on the size of files runs everywhere")
    try:
        yield open_folder
    finally:
        subprocess.run(["umount", str(open_folder)], check=True)


async def fill(memory: Memory, name: str) -> list[str]:
    """Append until the disk is full, check that the error names the cure, and return the ids of the stored messages."""
    taken: list[str] = []
    refused = ""
    while not refused and len(taken) < 2000:
        try:
            await memory.session("room").append(turn_of(f"{name}{len(taken)}"))
            taken.append(f"{name}{len(taken)}")
        except StoreUnavailable as error:
            refused = str(error)
    assert re.search("disk .*full; free some space|check the disk and the free space", refused)
    return taken


async def ids(memory: Memory) -> list[str]:
    """Return the ids of the stored messages."""
    page = await memory.session("room").page(limit=5000)
    assert [message.seq for message in page.messages] == list(range(1, len(page.messages) + 1))
    return [str(message.id) for message in page.messages]


async def test_a_full_disk_loses_no_acknowledged_message(small_disk: Path) -> None:
    events = RecordedEvents()
    ballast = small_disk / "ballast"
    await asyncio.to_thread(ballast.write_bytes, b"x" * 700_000)
    url = f"sqlite:///{small_disk}/threadkeep.db"
    async with open_memory(url, observers=[events], options=options(small_disk)) as memory:
        taken = await fill(memory, "first")
        assert await ids(memory) == taken
        taken += await fill(memory, "second")
        with pytest.raises(TurnInMemoryOnly):
            await memory.session("room").record(turn_of("waits"))
        assert await ids(memory) == taken
        await asyncio.to_thread(ballast.unlink)
        await events.until(lambda: not memory.pending.entries)
        await memory.session("room").append(turn_of("after"))
        assert await ids(memory) == [*taken, "waits", "after"]
    async with open_memory(url, options=options(small_disk)) as memory:
        assert await ids(memory) == [*taken, "waits", "after"]


def test_a_limit_on_file_sizes_loses_no_acknowledged_message(open_folder: Path) -> None:
    """Appends work again when the limit is raised. The test runs in a process of its own."""
    child: Child[None] = Child(reach_the_quota, open_folder)
    child.result()


def reach_the_quota(folder: Path) -> None:
    """Reach the limit, and append again after it is raised."""

    async def reach() -> None:
        url = f"sqlite:///{folder}/threadkeep.db"
        async with open_memory(url, options=options(folder)) as memory:
            await memory.session("room").append(turn_of("first"))
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
            taken = ["first", *await fill(memory, "more")]
            assert await ids(memory) == taken
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            await memory.session("room").append(turn_of("after"))
            assert await ids(memory) == [*taken, "after"]

    asyncio.run(reach())


@pytest.mark.parametrize("may_write_folder", [True, False])
def test_a_read_only_database_can_be_read(open_folder: Path, may_write_folder: bool) -> None:
    """Reads work, an append fails with the cure, and the file does not change.

    The folder may be read-only too, so that SQLite cannot create its shared-memory file.
    """
    path = open_folder / "data" / "threadkeep.db"
    path.parent.mkdir()
    asyncio.run(prepare(path))
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o777 if may_write_folder else 0o555)
    child: Child[None] = Child(read_only, path)
    child.result()
    assert path.read_bytes() == before
    path.parent.chmod(0o755)


def test_no_worker_starts_on_a_read_only_file(open_folder: Path) -> None:
    """A worker, like the service, could store no turn, so its start is an error with the cure."""
    path = open_folder / "data" / "threadkeep.db"
    path.parent.mkdir()
    asyncio.run(prepare(path))
    path.chmod(0o444)
    path.parent.chmod(0o777)
    child: Child[str] = Child(start_worker, path)
    assert child.result() == (
        f"{path} or its folder is read-only for this user; make both writable, or set THREADKEEP_DATABASE_URL."
    )


def start_worker(path: Path) -> str:
    """Open an app that executes runs, in the process of another user; return the error."""
    settings = load_settings(database_url=f"sqlite:///{path}", pending_dir=path.parent.parent / "pending")

    async def begin() -> str:
        async with open_app(settings):
            drop_root_rights()  # after the imports: another user may not read this Python's modules
        with pytest.raises(StoreUnavailable) as refused:
            async with open_app(settings):
                pass
        return str(refused.value)

    return asyncio.run(begin())


async def prepare(path: Path) -> None:
    """Create a database with two messages, migrated and indexed."""
    async with open_memory(f"sqlite:///{path}", options=options(path.parent.parent)) as memory:
        await memory.session("room").append(
            [Message(role="user", content="find me"), Message(role="user", content="2")]
        )
        await memory.search("find")


def drop_root_rights() -> None:
    """Drop the rights of root, which ignores file permissions."""
    if os.geteuid() == 0:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)


def read_only(path: Path) -> None:
    """Read and try to write, in the process of another user."""
    drop_root_rights()

    async def read() -> None:
        async with open_memory(f"sqlite:///{path}", options=options(path.parent.parent)) as memory:
            session = memory.session("room")
            assert [message.content for message in await session.tail(5)] == ["find me", "2"]
            assert len((await session.window()).messages) == 2
            assert len(await memory.search("find")) == 1
            with pytest.raises(StoreUnavailable, match="read-only for this user; change its permissions"):
                await session.append(turn_of("refused"))
            with pytest.raises(StoreUnavailable, match="read-only for this user"):
                await session.reset()
            assert await session.count() == 2

    asyncio.run(read())
