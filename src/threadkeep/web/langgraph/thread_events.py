"""The event streams of threads. A stream has the events of the session's runs, one run after another."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast
from weakref import WeakValueDictionary

from fastapi import FastAPI

from threadkeep.app import App
from threadkeep.errors import SessionNotFound
from threadkeep.records.runs import Run
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import changed
from threadkeep.web.langgraph.run_events import ProtocolEvent, RunEvents, channel_of, last_seq, seq_base
from threadkeep.web.langgraph.schemas import ThreadStateBody
from threadkeep.web.langgraph.states import ACTIVE, find_thread, newest_runs, state_of, state_of_stateless

_MOST_ENDED = 64
"""The number of ended runs whose events stay in memory for late readers."""

_REPLAY_SECONDS = 30.0
_FIRST_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS = 2.0
_UNREAD = "Not all events of a run could be read; read the state of the thread, and try again."


def error_event(sentence: str) -> ProtocolEvent:
    """Return the event that ends a stream with an error."""
    return {"type": "error", "id": None, "error": "unknown_error", "message": sentence}


@dataclass(frozen=True)
class EventChoice:
    """The events that a client wants: in `channels`, with a `seq` above `since`. Without `at_root`, it wants none."""

    channels: frozenset[str]
    since: int | None
    at_root: bool

    def takes(self, event: ProtocolEvent, after: int) -> bool:
        """Return True if the reader wants an event: it is in a chosen channel, and its `seq` is above `after`."""
        return self.at_root and channel_of(event) in self.channels and event["seq"] > after


class ThreadEvents:
    """A registry of the runs whose events this process collects. It builds the event streams of threads from them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._runs: OrderedDict[str, RunEvents] = OrderedDict()
        self._started = WeakValueDictionary[str, asyncio.Event]()

    def follow_run(self, runs: RunService, run: Run) -> RunEvents:
        """Return the events of a run. The first call starts the task that collects them."""
        found = self._runs.get(run.run_id)
        if found is None or found.failed:
            found = self._runs[run.run_id] = RunEvents(runs, run, partial(self._state, runs))
            ended = [run_id for run_id, one in self._runs.items() if one.ended or one.failed]
            for run_id in ended[: max(len(ended) - _MOST_ENDED, 0)]:
                del self._runs[run_id]
        elif found.was_resumed(run):
            found.go_on(run)
        if (started := self._started.pop(run.session_id or "", None)) is not None:
            started.set()  # wakes the readers of the thread
        return found

    async def of_thread(
        self, thread_id: str, choice: EventChoice, *, user_id: str | None
    ) -> AsyncGenerator[ProtocolEvent]:
        """Yield the events of a thread's runs without end; if events cannot be read, yield an error and stop.

        After a run has ended or waits for a person, the next run follows. The events of a waiting run continue after a
        person has answered it.
        """
        pause, after, last, idle, old = _FIRST_POLL_SECONDS, choice.since or 0, -1, -1, 0
        paused: dict[str, int] = {}  # for each waiting run, the number of its events that need not be sent
        seen, found = list[object](), list[Run]()
        while True:
            started, service = self._started.setdefault(thread_id, asyncio.Event()), await self._app.runs.service()
            seen, found = await self._listed(service, thread_id, user_id, seen, found)
            run = self._first(found, choice, idle) if last < 0 else self._following(found, last, paused)
            if run is None:
                idle = max(map(seq_base, found), default=0)
                await changed(started, pause)
                pause = min(pause * 2, _LONGEST_POLL_SECONDS)
                continue
            read = self.follow_run(service, run)
            if last < 0:
                if not choice.since and idle < 0 and run.status not in ACTIVE:
                    last = seq_base(next((one for one in found if one.over), run))  # runs up to it are over
                # If later runs exist, skip the `values` events before this run's pause: they lack later messages.
                has_later = any(one.created_at > run.created_at for one in found)
                old = read.paused_at if has_later and not choice.since else 0
                left = [one for one in found if one.status == "waiting" and seq_base(one) < seq_base(run)]
                known = [(run_id, self._runs[run_id]) for one in left if (run_id := one.run_id) in self._runs]
                paused = {run_id: len(one.events) for run_id, one in known if not one.failed}
                read.number_after(after)
            position, last, pause = paused.pop(run.run_id, 0), max(last, seq_base(run)), _FIRST_POLL_SECONDS
            read.readers.add(choice.channels)
            try:
                async for event in read.events_from(position):
                    position += 1
                    if choice.takes(event, after) and (position > old or event["method"] != "values"):
                        yield event
            except BaseException:  # the reader has left before the last event
                read.readers.discard(choice.channels)
                raise
            if read.failed:
                yield error_event(_UNREAD)
                return
            if read.paused:
                paused[run.run_id] = position
            old = 0

    async def _listed(
        self, service: RunService, thread_id: str, user_id: str | None, seen: list[object], found: list[Run]
    ) -> tuple[list[object], list[Run]]:
        """Return the states of a thread's runs, and its newest runs, which are `found` if the states equal `seen`."""
        turns = await self._app.memory.runs.records.of_sessions([thread_id], user_id=user_id)
        states: list[object] = [(run.run_id, run.status, run.interrupt) for run in turns]
        if states != seen:
            found = await newest_runs(service, thread_id, user_id=user_id)
            found.sort(key=seq_base, reverse=True)  # a resumed run has a new arrival number
        return states, found

    def _first(self, newest_first: list[Run], choice: EventChoice, idle: int) -> Run | None:
        """Return the first run whose events a reader receives, or None if it must wait for a run.

        Without `since`, prefer a run that a command started and that no reader of the same channels has read: a client
        may open its stream after its command. Such a run may have ended in the last 30 seconds. The next choices are a
        run that began while the reader waited (its `seq` is above `idle`), an active run, and a waiting run. Other runs
        that have ended are not sent, because the client would take their end for the end of its next run.
        """
        if choice.since:
            return next((run for run in reversed(newest_first) if last_seq(run) >= choice.since), None)
        active = [run for run in reversed(newest_first) if run.status in ACTIVE]
        later = [run for run in reversed(newest_first) if 0 <= idle < seq_base(run)]
        unread = [run for run in newest_first if self._is_unread(run, choice)]
        waiting = [run for run in newest_first if run.status == "waiting"]
        return next(iter([*(run for run in active if run in unread), *unread, *later, *active, *waiting]), None)

    def _is_unread(self, run: Run, choice: EventChoice) -> bool:
        known = self._runs.get(run.run_id)
        if known is None or not known.commanded or choice.channels in known.readers:
            return False
        return not known.ended or time.monotonic() - known.ended_at < _REPLAY_SECONDS

    def _following(self, newest_first: list[Run], last: int, paused: Mapping[str, int]) -> Run | None:
        """Return the oldest run with a `seq` after `last`, or with more events than `paused` says, or None."""
        for run in reversed(newest_first):
            known, sent = self._runs.get(run.run_id), paused.get(run.run_id)
            if known is None or sent is None:
                has_more = seq_base(run) > last
            else:
                has_more = known.was_resumed(run) or not known.paused or len(known.events) > sent
            if has_more:
                return run
        return None

    async def _state(self, runs: RunService, run: Run) -> ThreadStateBody | None:
        if run.session_id is None:
            return state_of_stateless(run)
        with suppress(SessionNotFound):
            return await state_of(await find_thread(self._app, run.session_id, user_id=run.user_id, runs=runs))
        return None


def thread_events_of(service: FastAPI) -> ThreadEvents:
    """Return the `ThreadEvents` of a service, which builds the event streams of threads."""
    if not hasattr(service.state, "thread_events"):
        service.state.thread_events = ThreadEvents(service.state.app)
    return cast("ThreadEvents", service.state.thread_events)
