"""Processes that write to one session, and note acknowledged turns in a file that survives a kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.processes.history_check import Acknowledged, History, Part
from threadkeep import Memory, MemoryOptions, Message, Receipt, Session, StoreUnavailable, open_memory
from threadkeep.history.pending import PendingOptions
from threadkeep.store.driver import StoreOptions

PARTS = 3


@dataclass(frozen=True)
class Job:
    """The session and the number of turns of a writer, and the folder of its notes."""

    url: str
    folder: Path
    writer: str
    turns: int
    session_id: str = "room"

    @property
    def notes(self) -> Path:
        """The file in which the writer notes acknowledged turns."""
        return self.folder / f"{self.writer}.acknowledged"


def write(job: Job) -> int:
    """Write the turns after the last acknowledged one; return the number of failed tries."""
    return asyncio.run(_write(job))


async def _write(job: Job) -> int:
    failed = 0
    notes = os.open(job.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with opened(job.url, job.folder) as memory:
        session = memory.session(job.session_id)
        for number in range(last_acknowledged(job) + 1, job.turns + 1):
            parts = [Part(job.writer, number, part) for part in range(PARTS)]
            messages = [Message(role="user", content=f"{part.id} {'x' * 100}", id=part.id) for part in parts]
            while (receipt := await _tried(session, messages)) is None:
                failed += 1
            os.write(notes, f"{number} {receipt.first_seq} {receipt.last_seq}\n".encode())
    os.close(notes)
    return failed


async def _tried(session: Session, messages: list[Message]) -> Receipt | None:
    try:
        return await session.append(messages)
    except StoreUnavailable:
        return None


def watch(job: Job, stop: Event) -> int:
    """Read the newest messages repeatedly; return the number of reads.

    Raises:
        AssertionError: a read is older than an earlier one, or has another message at a position.
    """
    return asyncio.run(_watch(job, stop))


async def _watch(job: Job, stop: Event) -> int:
    seen: dict[int, str | None] = {}
    newest = reads = 0
    async with opened(job.url, job.folder) as memory:
        session = memory.session(job.session_id)
        while not stop.is_set():
            try:
                messages = await session.tail(100)
            except StoreUnavailable:
                continue
            reads += 1
            seqs = [message.seq or 0 for message in messages]
            assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else newest == 0, "a read has a gap"
            assert (seqs[-1] if seqs else 0) >= newest, "a read went back"
            newest = seqs[-1] if seqs else 0
            for seq, message in zip(seqs, messages, strict=True):
                assert seen.setdefault(seq, message.id) == message.id, "a place has another message than before"
    return reads


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Memory]:
    """Open a memory, and retry until its database is available."""
    options = MemoryOptions(
        background=False,
        store=StoreOptions(pool_max_size=2, pool_timeout_seconds=2.0),
        pending=PendingOptions(folder=folder / "pending"),
    )
    while True:
        try:
            async with open_memory(url, options=options) as memory:
                yield memory
                return
        except StoreUnavailable:
            continue


def acknowledged(job: Job) -> list[Acknowledged]:
    """Return the acknowledged turns of a writer; a truncated last line does not count."""
    if not job.notes.exists():
        return []
    lines = job.notes.read_text().split("\n")[:-1]
    return [Acknowledged(job.writer, *map(int, line.split())) for line in lines]


def last_acknowledged(job: Job) -> int:
    """Return the number of the newest turn that a writer noted."""
    return max((turn.number for turn in acknowledged(job)), default=0)


def history_of(jobs: list[Job]) -> History:
    """Return all messages of the session of some writers, and all turns that they noted."""
    stored = asyncio.run(_stored(jobs[0]))
    return History(stored, [turn for job in jobs for turn in acknowledged(job)], PARTS)


async def _stored(job: Job) -> list[tuple[int, Part]]:
    found: list[tuple[int, Part]] = []
    async with opened(job.url, job.folder) as memory:
        before: int | None = None
        while True:
            page = await memory.session(job.session_id).page(before=before, limit=1000)
            found[:0] = [(message.seq or 0, Part.of(str(message.id))) for message in page.messages]
            before = page.next_before
            if before is None:
                return found
