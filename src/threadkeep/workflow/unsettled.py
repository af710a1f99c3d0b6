"""A turn of this process whose run has not ended, and what it has said that is not stored yet."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime

from threadkeep.records import Status
from threadkeep.workflow.turns import OpenTurn

ABANDONED_SECONDS = 60.0
"""How long an answer waits for its run to end before it is looked whether there still is one."""

_MOST_LOOKS = 10
"""How often a run that may be alive is waited for again."""


type _Writer = weakref.ref[Callable[[Any], None]]


@dataclass(eq=False)
class Unsettled:
    """A turn in this process, and what it has said that is not stored yet.

    Nothing in LangGraph tells that a run was cut off after its model had answered. But what writes its stream is one
    object in all nodes of a run and lives as long as the run: when that is gone, the run is over for certain. While it
    is there the run may be alive, or what is left of it waits to be cleared away (by the garbage collector, and by the
    event loop, whose cancelled timers hold contexts for some seconds).
    """

    turn: OpenTurn
    text: BaseMessage | str = ""
    status: Status = "interrupted"
    direct_calls: set[str] = field(default_factory=set)
    _begun: list[_Writer] = field(default_factory=list, repr=False)
    _runs: list[_Writer] = field(default_factory=list, repr=False)
    _all_runs_known: bool = field(default=True, repr=False)
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    _settling: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether every run of the turn that said something is over for certain."""
        return bool(self._runs) and self._all_runs_known and all(run() is None for run in self._runs)

    def begun_by(self, runtime: Runtime[Any]) -> None:
        """Take note of a run at its first node."""
        self._begun = [*(begun for begun in self._begun if begun() is not None), weakref.ref(runtime.stream_writer)]

    def hold(self, said: BaseMessage | str, status: Status, runtime: Runtime[Any]) -> None:
        """Keep what was said. Only an object that a second node of the run has too is known to live as long as it."""
        self.stop_waiting()
        self.text, self.status = said, status
        run_wide = any(begun() is runtime.stream_writer for begun in self._begun)
        self._all_runs_known = self._all_runs_known and run_wide
        self._runs = [*(run for run in self._runs if run() is not None), weakref.ref(runtime.stream_writer)]

    def wait(self, settle: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have what was said stored in a while, unless somebody stops the waiting."""
        self.stop_waiting()
        self._look_later(settle, _MOST_LOOKS)

    def stop_waiting(self) -> None:
        """Somebody takes care of what was said, or the run is at work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def let_go(self) -> None:
        """What was said before counts no more: the run goes on."""
        self.stop_waiting()
        self.text, self.status = "", "interrupted"
        self._runs.clear()

    def _look_later(self, settle: Callable[[], Coroutine[Any, Any, None]], looks: int) -> None:
        def look() -> None:
            if looks > 1 and not self.is_over:
                self._look_later(settle, looks - 1)
            else:
                self._timer = None
                self._settling = loop.create_task(settle())

        loop = asyncio.get_running_loop()
        # A context of its own: the timer would keep the run alive for which it waits.
        self._timer = loop.call_later(ABANDONED_SECONDS, look, context=Context())
