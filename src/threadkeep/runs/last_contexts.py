"""Contexts of the last model call of each active run: messages, tokens, and messages dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from threadkeep.observe import ContextBuilt, Event, Observers
from threadkeep.records import Json


@dataclass(eq=False)
class LastContext:
    """The context of one run's last model call."""

    run_id: str
    session_id: str | None
    built: ContextBuilt | None = None

    def note(self, built: ContextBuilt) -> None:
        """Record a call.

        The event may name another run: the one that stored the question first. An event of the run's own is never
        replaced by such an event, which may also belong to an agent inside the run.
        """
        if self.built is None or self.built.run_id != self.run_id or built.run_id == self.run_id:
            self.built = built

    def to_dict(self) -> Mapping[str, Json]:
        """Return the context as JSON values; empty if no call was made."""
        if self.built is None:
            return {}
        return {"messages": self.built.messages, "tokens": self.built.tokens, "dropped": self.built.dropped}


class LastContexts:
    """An observer of the memory's events; call `close` when it is no longer needed."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._watched: dict[str, LastContext] = {}
        observers.add(self)

    def close(self) -> None:
        """Remove the observer."""
        self._observers.remove(self)

    def notify(self, event: Event, /) -> None:
        """Record the context of a run's model call; a session has one active run at a time."""
        if not isinstance(event, ContextBuilt):
            return
        named = self._watched.get(event.run_id or "")
        if named is not None:
            named.note(event)
            return
        for each in self._watched.values():
            if each.session_id is not None and each.session_id == event.session_id:
                each.note(event)

    @contextmanager
    def of(self, run_id: str, session_id: str | None) -> Iterator[LastContext]:
        """Collect the context of a run inside the block."""
        seen = self._watched[run_id] = LastContext(run_id, session_id)
        try:
            yield seen
        finally:
            if self._watched.get(run_id) is seen:
                del self._watched[run_id]
