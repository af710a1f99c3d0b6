"""Tests of events, and of sending them to several observers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import get_type_hints

import pytest

from threadkeep.observe import events
from threadkeep.observe.events import Event, PendingWrites, StoreRead
from threadkeep.observe.observer import FromChannel, Observer, Observers, work_for


class Recorder:
    """An observer that records events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def notify(self, event: Event, /) -> None:
        """Record the event."""
        self.events.append(event)


class Broken:
    """An observer that always fails."""

    def notify(self, event: Event, /) -> None:
        """Raise an error."""
        raise OSError("the disk with the secret words is full")


def kinds() -> list[type[Event]]:
    """Return all classes of events."""
    return [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def test_observers_are_notified_in_order() -> None:
    """An observer that is added later receives only later events."""
    first, later = Recorder(), Recorder()
    observers = Observers(first)
    observers.notify(PendingWrites(backend="sqlite", count=1))
    observers.add(later)
    observers.notify(PendingWrites(backend="sqlite", count=2))
    assert [event.count for event in first.events if isinstance(event, PendingWrites)] == [1, 2]
    assert later.events == first.events[1:]


def test_a_failing_observer_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    """The caller and the other observers continue. The log names the observer once, without the error message."""
    recorder = Recorder()
    observers = Observers(Broken(), recorder)
    event = PendingWrites(backend="sqlite", count=0)
    with caplog.at_level(logging.ERROR):
        observers.notify(event)
        observers.notify(event)
    assert recorder.events == [event, event]
    assert observers.failures == 2
    assert len(caplog.messages) == 1
    assert "Broken failed with OSError" in caplog.text
    assert "secret" not in caplog.text


def test_observers_may_be_empty() -> None:
    observer: Observer = Observers()
    observer.notify(PendingWrites(backend="other", count=0))


@pytest.mark.parametrize("kind", kinds())
def test_events_are_frozen_and_have_no_text_of_people(kind: type[Event]) -> None:
    assert vars(kind)["__dataclass_params__"].frozen
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if hints[field.name] in (str, str | None):
            named = ("session_id", "run_id", "budget_run_id", "error", "reason", "limit", "workflow", "bot")
            assert field.name in named


def test_events_get_the_channel_of_their_source() -> None:
    """An event with a channel, or without that field, is unchanged."""
    recorder = Recorder()
    told = FromChannel("http", recorder)
    read = StoreRead(backend="sqlite", milliseconds=1.0, session_id="room")
    telegram = StoreRead(backend="sqlite", milliseconds=1.0, channel="telegram")
    count = PendingWrites(backend="sqlite", count=1)
    for event in (read, telegram, count):
        told.notify(event)
    assert recorder.events == [dataclasses.replace(read, channel="http"), telegram, count]


async def test_a_task_can_set_the_channel_of_its_events() -> None:
    recorder = Recorder()
    told = FromChannel("http", recorder)
    read = StoreRead(backend="sqlite", milliseconds=1.0)
    telegram = dataclasses.replace(read, channel="telegram")

    async def work() -> None:
        work_for("other")
        told.notify(read)
        told.notify(telegram)

    await asyncio.create_task(work())
    told.notify(read)
    assert recorder.events == [read, telegram, dataclasses.replace(read, channel="http")]
