"""The events of threads: the events of a session's runs in turn, for any number of readers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from fastapi import FastAPI

from threadkeep.app import App
from threadkeep.errors import SessionNotFound
from threadkeep.records.runs import Run
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import changed
from threadkeep.web.langgraph.run_events import ProtocolEvent, RunEvents, channel_of, last_seq, seq_base
from threadkeep.web.langgraph.schemas import ThreadStateBody
from threadkeep.web.langgraph.states import find_thread, newest_runs, state_of, state_of_stateless

_MOST_ENDED = 64
"""The number of ended runs whose events stay in memory for late readers."""

_REPLAY_SECONDS = 30.0
_FIRST_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS = 2.0
_FAILED: ProtocolEvent = {
    "type": "error",
    "id": None,
    "error": "unknown_error",
    "message": "Not all events of a run could be read; read the state of the thread, and try again.",
}


@dataclass(frozen=True)
class EventChoice:
    """A choice of the events of `channels` with a `seq` above `since`; of none if `at_root` is false."""

    channels: frozenset[str]
    since: int | None
    at_root: bool

    def takes(self, event: ProtocolEvent) -> bool:
        """Return whether an event is wanted."""
        return self.at_root and channel_of(event) in self.channels and event["seq"] > (self.since or 0)


class ThreadEvents:
    """The events of all threads that this process follows."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._runs: OrderedDict[str, RunEvents] = OrderedDict()
        self._started = asyncio.Event()

    def follow_run(self, runs: RunService, run: Run) -> RunEvents:
        """Return the events of a run. The first call starts the task that collects them."""
        found = self._runs.get(run.run_id)
        if found is None or found.failed:
            found = self._runs[run.run_id] = RunEvents(runs, run, partial(self._state, runs))
            self._forget_ended()
        elif found.was_resumed(run):
            found.go_on()
        started, self._started = self._started, asyncio.Event()
        started.set()
        return found

    async def of_thread(
        self, thread_id: str, choice: EventChoice, *, user_id: str | None
    ) -> AsyncGenerator[ProtocolEvent]:
        """Yield the events of a thread's runs without end; if events cannot be read, yield an error and stop.

        Without `since`, begin with the active run. A client may start a run with a command and open this stream when
        the run has already ended. So a run that a command started counts as active for 30 seconds after its end, until
        a reader of the same channels has received its end. Other ended runs are not sent, because the client would take
        their end for the end of its next run.
        """
        read: RunEvents | None = None
        position, pause = 0, _FIRST_POLL_SECONDS
        while True:
            started, service = self._started, await self._app.runs.service()
            found = await newest_runs(service, thread_id, user_id=user_id)
            following = self._next(service, found, read, choice)
            if following is not None:
                read, position, pause = following, 0, _FIRST_POLL_SECONDS
            if read is not None:
                async for event in read.events_from(position):
                    position += 1
                    if choice.takes(event):
                        yield event
                if read.failed:
                    yield _FAILED
                    return
            if read is not None and read.ended:
                read.delivered.add(choice.channels)
                if following is not None:
                    continue  # read the list again without a pause, because the next run may exist now
            await changed(started, pause)
            pause = min(pause * 2, _LONGEST_POLL_SECONDS)

    def _next(
        self, service: RunService, newest_first: list[Run], read: RunEvents | None, choice: EventChoice
    ) -> RunEvents | None:
        """Return the events of the next run if the current run has ended."""
        if read is not None and not read.ended:
            again = next((run for run in newest_first if run.run_id == read.run.run_id), None)
            if again is not None and read.was_resumed(again):
                self.follow_run(service, again)
            return None
        for run in reversed(newest_first):
            if read is not None:
                wanted = seq_base(run) > seq_base(read.run)
            elif choice.since:
                wanted = last_seq(run) >= choice.since
            else:
                wanted = not run.over or self._is_fresh(run, choice)
            if wanted:
                found = self.follow_run(service, run)
                if choice.since and seq_base(run) <= choice.since and not found.ended:
                    found.number_after(choice.since)
                return found
        return None

    def _is_fresh(self, run: Run, choice: EventChoice) -> bool:
        known = self._runs.get(run.run_id)
        if known is not None:
            recent = not known.ended or time.monotonic() - known.ended_at < _REPLAY_SECONDS
            return recent and known.commanded and choice.channels not in known.delivered
        return False

    def has(self, run_id: str) -> bool:
        """Return whether this process collects the events of a run."""
        found = self._runs.get(run_id)
        return found is not None and not found.failed

    async def _state(self, runs: RunService, run: Run) -> ThreadStateBody | None:
        if run.session_id is None:
            return state_of_stateless(run)
        with suppress(SessionNotFound):
            return await state_of(await find_thread(self._app, run.session_id, user_id=run.user_id, runs=runs))
        return None

    def _forget_ended(self) -> None:
        ended = [run_id for run_id, one in self._runs.items() if one.ended or one.failed]
        for run_id in ended[: max(len(ended) - _MOST_ENDED, 0)]:
            del self._runs[run_id]


def thread_events_of(service: FastAPI) -> ThreadEvents:
    """Return the events of all threads of a service."""
    if not hasattr(service.state, "thread_events"):
        service.state.thread_events = ThreadEvents(service.state.app)
    return cast("ThreadEvents", service.state.thread_events)
