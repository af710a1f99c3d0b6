"""Events and the fan-out to observers."""

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
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def notify(self, event: Event, /) -> None:
        """Remember the event."""
        self.events.append(event)


class Broken:
    """An observer that always fails."""

    def notify(self, event: Event, /) -> None:
        """Fail."""
        raise OSError("the disk with the secret words is full")


def kinds() -> list[type[Event]]:
    """Every class of event."""
    return [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def test_every_sink_is_told_in_order() -> None:
    """A sink that is added later hears later events only."""
    first, later = Recorder(), Recorder()
    observers = Observers(first)
    observers.notify(PendingWrites(backend="sqlite", count=1))
    observers.add(later)
    observers.notify(PendingWrites(backend="sqlite", count=2))
    assert [event.count for event in first.events if isinstance(event, PendingWrites)] == [1, 2]
    assert later.events == first.events[1:]


def test_a_failing_sink_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The caller goes on, the other sinks are told, and the log names the sink once without the error's sentence."""
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


def test_no_sinks_is_an_observer_too() -> None:
    """A fan-out without sinks takes every event."""
    observer: Observer = Observers()
    observer.notify(PendingWrites(backend="other", count=0))


@pytest.mark.parametrize("kind", kinds())
def test_events_are_frozen_and_hold_no_text_of_people(kind: type[Event]) -> None:
    """An event has counts, times, closed names, ids of sessions and runs, names of workflows and bots; nothing else."""
    assert vars(kind)["__dataclass_params__"].frozen
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if hints[field.name] in (str, str | None):
            named = ("session_id", "run_id", "budget_run_id", "error", "reason", "limit", "workflow", "bot")
            assert field.name in named


def test_events_without_a_channel_get_that_by_which_they_came() -> None:
    """A channel that is known stays, and so do events that have none."""
    recorder = Recorder()
    told = FromChannel("http", recorder)
    read = StoreRead(backend="sqlite", milliseconds=1.0, session_id="room")
    telegram = StoreRead(backend="sqlite", milliseconds=1.0, channel="telegram")
    count = PendingWrites(backend="sqlite", count=1)
    for event in (read, telegram, count):
        told.notify(event)
    assert recorder.events == [dataclasses.replace(read, channel="http"), telegram, count]


async def test_work_for_another_channel_is_told_as_that() -> None:
    """In the task that does it, and in no other; a channel that is known stays."""
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
