"""What the last model call of each run at work here was given: messages, tokens, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from threadkeep.observe import ContextBuilt, Event, Observers
from threadkeep.records import Json


@dataclass(eq=False)
class LastContext:
    """What is known of one run's last model call."""

    run_id: str
    session_id: str | None
    built: ContextBuilt | None = None

    def note(self, built: ContextBuilt) -> None:
        """Take a call down.

        It may be told under another run's id, that of the run which stored the question first; one with the run's own
        is not given up for such a one, which may as well be an agent's beside it.
        """
        if self.built is None or self.built.run_id != self.run_id or built.run_id == self.run_id:
            self.built = built

    def to_dict(self) -> Mapping[str, Json]:
        """It as JSON values; empty where no call was made."""
        if self.built is None:
            return {}
        return {"messages": self.built.messages, "tokens": self.built.tokens, "dropped": self.built.dropped}


class LastContexts:
    """An observer of the memory's events; `close` when it is not needed any more."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._watched: dict[str, LastContext] = {}
        observers.add(self)

    def close(self) -> None:
        """Hear of nothing more."""
        self._observers.remove(self)

    def notify(self, event: Event, /) -> None:
        """Take down what a run's model call was given; of a session one run is at work at a time."""
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
        """What is noted of a run inside the block."""
        seen = self._watched[run_id] = LastContext(run_id, session_id)
        try:
            yield seen
        finally:
            if self._watched.get(run_id) is seen:
                del self._watched[run_id]
