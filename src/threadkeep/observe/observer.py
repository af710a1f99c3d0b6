"""The protocol of observers, and an observer that passes events to several observers."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from threadkeep.observe.events import Channel, Event


class Observer(Protocol):
    """A receiver of events.

    `notify` must return at once, without blocking I/O, and keep the order of events. Any task or OS thread may call it.
    """

    def notify(self, event: Event, /) -> None:
        """Receive one event."""


class Observers:
    """An observer that passes each event to other observers (sinks), in order.

    A sink may raise errors: they are counted, and the first error of each sink is logged.
    """

    def __init__(self, *sinks: Observer) -> None:
        self._sinks = sinks
        self._failing: set[int] = set()
        self.failures = 0

    def add(self, sink: Observer) -> None:
        """Add a sink; it receives the events that are emitted from now on."""
        self._sinks = (*self._sinks, sink)

    def remove(self, sink: Observer) -> None:
        """Remove a sink; it receives no more events."""
        self._sinks = tuple(each for each in self._sinks if each is not sink)

    def notify(self, event: Event, /) -> None:
        """Pass the event to every sink; never raise because of a sink."""
        for sink in self._sinks:
            try:
                sink.notify(event)
            except Exception as error:  # noqa: BLE001 - a chat must not fail because its metrics do
                self._report(sink, error)

    def _report(self, sink: Observer, error: Exception) -> None:
        self.failures += 1
        if id(sink) in self._failing:
            return
        # Log once for each sink: a sink that fails at every event would fill the log.
        self._failing.add(id(sink))
        sentence = "The observer %s failed with %s; it still receives later events."
        logging.getLogger("threadkeep.observe").error(sentence, type(sink).__name__, type(error).__name__)


_task_channel: ContextVar[Channel | None] = ContextVar("threadkeep_task_channel", default=None)


def work_for(channel: Channel) -> None:
    """Set the channel, such as `http`, for the events that the current task emits."""
    _task_channel.set(channel)


class FromChannel:
    """An observer that passes events on to `observer`. It sets `channel` in events whose channel is `other`.

    A channel that `work_for` has set for the current task takes precedence over `channel`.
    """

    def __init__(self, channel: Channel, observer: Observer) -> None:
        self._channel = channel
        self._observer = observer

    def notify(self, event: Event, /) -> None:
        """Set the channel if it is `other`, and pass the event on."""
        if getattr(event, "channel", None) == "other":
            changes = {"channel": _task_channel.get() or self._channel}
            event = replace(event, **changes)
        self._observer.notify(event)
