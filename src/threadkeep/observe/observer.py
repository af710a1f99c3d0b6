"""Who is told: the Observer protocol, and a fan-out whose sinks cannot hurt the one who tells."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from threadkeep.observe.events import Channel, Event


class Observer(Protocol):
    """Is told what happened.

    `notify` returns at once: it does no I/O that may block, keeps its order, and may be called from any task or thread.
    """

    def notify(self, event: Event, /) -> None:
        """Take note of one event."""
        ...


class Observers:
    """An observer that passes each event to all sinks in order, and survives those that fail.

    Failures are counted, and each failing sink is named in the log once. Without sinks it is the observer that does
    nothing.
    """

    def __init__(self, *sinks: Observer) -> None:
        self._sinks = sinks
        self._failing: set[int] = set()
        self.failures = 0

    def add(self, sink: Observer) -> None:
        """Tell this sink too, from the next event on."""
        self._sinks = (*self._sinks, sink)

    def remove(self, sink: Observer) -> None:
        """Tell this sink nothing more."""
        self._sinks = tuple(each for each in self._sinks if each is not sink)

    def notify(self, event: Event, /) -> None:
        """Pass the event to every sink; never raises because of one."""
        for sink in self._sinks:
            try:
                sink.notify(event)
            except Exception as error:  # noqa: BLE001 - a chat must not fail because its metrics do
                self._report(sink, error)

    def _report(self, sink: Observer, error: Exception) -> None:
        self.failures += 1
        if id(sink) in self._failing:
            return
        # Once for each sink: one that fails at every event would fill the log.
        self._failing.add(id(sink))
        sentence = "The observer %s failed with %s; it is told of later events all the same."
        logging.getLogger("threadkeep.observe").error(sentence, type(sink).__name__, type(error).__name__)


_came_by: ContextVar[Channel | None] = ContextVar("threadkeep_came_by", default=None)


def work_for(channel: Channel) -> None:
    """Say by which channel the work came that the current task does: it may be another than its process serves."""
    _came_by.set(channel)


class FromChannel:
    """An observer that passes events on, with the channel by which they came where their session names none.

    That is the channel of the work which the task does (see `work_for`), or else the one that is given here.
    """

    def __init__(self, channel: Channel, observer: Observer) -> None:
        self._channel = channel
        self._observer = observer

    def notify(self, event: Event, /) -> None:
        """Pass the event on."""
        if getattr(event, "channel", None) == "other":
            changes = {"channel": _came_by.get() or self._channel}
            event = replace(event, **changes)
        self._observer.notify(event)
