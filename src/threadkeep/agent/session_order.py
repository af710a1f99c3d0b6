"""The order of turns of one session in one process: root runs go one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from threadkeep.agent.root_runs import RootRun
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import caller_loop

_LOOK_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 10.0
"""Seconds without an open model or tool call, or with a blocked event loop, after which a run counts as cut off."""


@dataclass
class _Place:
    """The root run whose turn it is in a session, None while the next one is being let in; and those that wait."""

    holder: RootRun | None
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class SessionOrder:
    """Lets one root run at a time into a session, in the order in which they come.

    LangGraph does not tell that a root run has ended. A run gives its place up after its answer; one that was cut off
    loses it when its streams are gone, or when it has made no model or tool call for ten seconds. So does a run on an
    event loop that stands still for ten seconds: the caller that waits may be what blocks it.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    async def enter(self, session_id: str, run: RootRun) -> None:
        """Wait until it is the turn of a root run; its members never wait."""
        run.loop = caller_loop()
        place = self._places.get(session_id)
        if place is None:
            self._places[session_id] = _Place(run)
            return
        if place.holder is run:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place.waiting.append(turn)
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=_LOOK_SECONDS)
                if not turn.done() and place.waiting[0] is turn and _is_cut_off(place.holder):
                    break
        except BaseException:
            self._give_up(session_id, place, turn)
            raise
        if turn in place.waiting:
            place.waiting.remove(turn)
        place.holder = run

    def leave(self, session_id: str, run: RootRun) -> None:
        """Give the place up, if the run has it."""
        place = self._places.get(session_id)
        if place is not None and place.holder is run:
            self._next(session_id, place)

    def _give_up(self, session_id: str, place: _Place, turn: asyncio.Future[None]) -> None:
        if turn in place.waiting:
            place.waiting.remove(turn)
        elif turn.done():
            # It was let in just when its caller was cancelled.
            self._next(session_id, place)

    def _next(self, session_id: str, place: _Place) -> None:
        while place.waiting:
            turn = place.waiting.popleft()
            if not turn.done():
                place.holder = None
                turn.set_result(None)
                return
        if self._places.get(session_id) is place:
            del self._places[session_id]


def _is_cut_off(run: RootRun | None) -> bool:
    if run is None:
        return False
    idle = run.open_calls == 0 and time.monotonic() - run.last_seen > _IDLE_SECONDS
    return idle or run.is_over or run.loop_is_blocked(_IDLE_SECONDS)


_orders: WeakKeyDictionary[Memory, SessionOrder] = WeakKeyDictionary()


def order_of(memory: Memory) -> SessionOrder:
    """Return the order of the sessions of a memory."""
    return _orders.setdefault(memory, SessionOrder())
