"""Tests of privacy: no event, log line or error has the words of a person."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.databases import execute
from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, Retention, RetentionLimits, open_memory
from threadkeep.observe import Event
from threadkeep.observe.log import LogObserver
from threadkeep.store.driver import StoreOptions

_CANARY = "canary7f3a"


def says(place: str) -> Message:
    """Return a message with the canary in every field that a person can write."""
    words = f"{_CANARY}-{place}"
    return Message(role="user", content=words, metadata={words: [words]}, original={"text": words})


class Reports:
    """A collector of events, errors and log output as text."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._events = RecordedEvents()
        self._errors: list[str] = []

    def notify(self, event: Event, /) -> None:
        """Keep an event."""
        self._events.notify(event)

    async def attempt(self, work: Awaitable[object]) -> None:
        """Await something that must fail, and keep its traceback."""
        with pytest.raises(Exception) as failed:  # noqa: PT011 - the test checks the text of any error
            await work
        self._errors += traceback.format_exception(failed.value)

    @property
    def text(self) -> str:
        """Return all collected text."""
        assert self._events.all
        assert self._errors
        return "\n".join([*map(repr, self._events.all), *self._errors, self._caplog.text])


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Reports:
    """Return a collector, with every log at its lowest level."""
    caplog.set_level(logging.DEBUG)
    return Reports(caplog)


async def test_no_words_are_reported(database_url: str, memory_options: MemoryOptions, reports: Reports) -> None:
    async with open_memory(database_url, observers=[reports, LogObserver()], options=memory_options) as memory:
        await use_everything(memory, reports)
    assert _CANARY not in reports.text


async def use_everything(memory: Memory, reports: Reports) -> None:
    """Write, read, search and change, and make calls that are refused."""
    session = memory.session("telegram:1", user_id="u1")
    await session.append([replace(says("append"), id="m1"), says("append\x00")])
    await session.append([replace(says("duplicate"), id="m1"), says("new")])
    await session.record([says("record")])
    await session.window(max_tokens=5)
    await session.update(title=f"{_CANARY} title", tags=[_CANARY], metadata={_CANARY: _CANARY})
    await memory.search(f"{_CANARY} {_CANARY}'\"")
    assert [info async for info in memory.sessions(query=_CANARY)]
    await session.find(f"{_CANARY} id")
    stranger = memory.session("telegram:1", user_id="u2")
    await reports.attempt(stranger.append([says("stranger")]))
    refused: list[Callable[[], object]] = [
        lambda: replace(says("bad"), metadata={_CANARY: float("nan")}),
        lambda: replace(says("bad"), original={1: _CANARY}),  # type: ignore[dict-item]
        lambda: memory.session(f"{_CANARY}\nin two lines"),
        lambda: Message(role="user", content="x", id=f"{_CANARY}\n"),
        lambda: Message.from_json(f'{{"{_CANARY}": '),
        lambda: Message(role=_CANARY, content="x"),  # type: ignore[arg-type]
        lambda: Message(role="user", content="x", status=_CANARY),  # type: ignore[arg-type]
    ]
    for attempt in refused:
        await reports.attempt(asyncio.to_thread(attempt))
    await prune_everything(memory, reports)
    await session.delete()


async def prune_everything(memory: Memory, reports: Reports) -> None:
    """Archive and delete, and make calls that are refused."""
    await memory.search(_CANARY)
    for rules in (
        Retention(archive=RetentionLimits(max_messages=3)),
        Retention(delete=RetentionLimits(max_messages=2)),
    ):
        assert repr([removal async for removal in memory.retention.plan(rules)]).count(_CANARY) == 0
        await memory.retention.prune(rules)
    await reports.attempt(memory.retention.prune(session_ids=[f"{_CANARY}\nin two lines"]))
    await reports.attempt(asyncio.to_thread(lambda: Retention.from_dict({_CANARY: {}})))


async def test_no_words_are_reported_in_an_outage(
    tmp_path: Path, memory_options: MemoryOptions, reports: Reports
) -> None:
    outage = Outage(tmp_path / "threadkeep.db")
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    events = RecordedEvents()
    async with open_memory(outage.url, observers=[reports, events, LogObserver()], options=options) as memory:
        await memory.session("room", user_id="u1").append([says("before")])
        async with outage():
            await reports.attempt(memory.session("room", user_id="u1").append([says("append")]))
            await memory.session("room", user_id="u1").record([says("waits")])
            await memory.session("room", user_id="u2").record([says("stranger")])
            await memory.session("other").record([says("dropped")])
            assert _CANARY not in repr(memory.session("room", user_id="u1"))
            await memory.pending.drop(memory.pending.entries[-1].entry_id)
        await events.until(lambda: [entry.error for entry in memory.pending.entries] == ["WrongUser"])
    assert _CANARY not in reports.text


async def test_no_words_are_reported_when_tables_are_damaged(
    shared_url: str, memory_options: MemoryOptions, reports: Reports
) -> None:
    """The errors of the database engine, which quote rows, are not reported."""
    async with open_memory(shared_url, observers=[reports, LogObserver()], options=memory_options) as memory:
        await memory.session("room").append([says("before")])
        await asyncio.to_thread(damage, shared_url)
        session = memory.session("room")
        for work in (session.append([says("append")]), session.tail(5), session.window(), memory.search(_CANARY)):
            await reports.attempt(work)
    assert _CANARY not in reports.text


def damage(url: str) -> None:
    """Drop the table of messages."""
    execute(url, "DROP TABLE chat_messages CASCADE" if url.startswith("postgres") else "DROP TABLE chat_messages")
