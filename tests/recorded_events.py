"""An observer for tests."""

from __future__ import annotations

from threadkeep.observe import Event


class RecordedEvents:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def notify(self, event: Event, /) -> None:
        """Keep one event."""
        self.all.append(event)

    def of[E: Event](self, kind: type[E]) -> list[E]:
        """The events of a kind so far, in order."""
        return [event for event in self.all if isinstance(event, kind)]
