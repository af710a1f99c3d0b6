"""Waiting for runs: their events, their tokens and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from threadkeep.errors import RunNotFound
from threadkeep.history.memory import Memory
from threadkeep.records.runs import Run, RunEvent
from threadkeep.runs.session_answers import with_answer
from threadkeep.runs.streams import RunPiece, RunStream, changed
from threadkeep.runs.worker import Worker

type Followed = RunEvent | RunPiece | Run
"""An item of a followed run; the last item is the run itself, which is over or waits for a person."""

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_PAGE = 200


class RunFollowing:
    """A service that waits for runs. Runs of this process notify it; it polls the database for other runs.

    A caller that waits for a run also starts the run, if it may begin and no process has started it.
    """

    def __init__(self, memory: Memory, worker: Worker) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker

    async def end_of(self, run_id: str, user_id: str | None) -> Run:
        """Wait until a run is over or waits for a person, and return it.

        Raises:
            RunNotFound: there is no such run that the user may see, or it was deleted with its session.
        """
        stream = self._worker.streams.of(run_id)
        stream.waiting += 1
        pause = _FIRST_POLL_SECONDS
        try:
            while True:
                end = stream.next_end
                if self._worker.has(run_id):
                    # The run notifies this process of its end. The timeout is for a run that another process took over.
                    pause = _LONGEST_POLL_SECONDS
                else:
                    run = await self.run(run_id, user_id)
                    if has_stopped(run):
                        return run
                    await self._start_if_ready(run, stream)
                if await changed(end, pause) and end.run is not None:
                    return _seen(end.run, user_id)
                pause = min(pause * 2, _LONGEST_POLL_SECONDS)
        finally:
            stream.waiting -= 1

    async def follow(self, run_id: str, after: int, user_id: str | None) -> AsyncIterator[Followed]:
        """Yield a run's events with numbers above `after` and its answer's tokens until the run is over or waits.

        Raises:
            RunNotFound: there is no such run that the user may see, or it was deleted with its session.
        """
        stream = self._worker.streams.of(run_id)
        stream.wants_pieces = True
        stream.waiting += 1
        stream.followers += 1
        try:
            await self._worker.flush(run_id)
            async with aclosing(self._followed(stream, after, user_id)) as everything:
                async for item in everything:
                    yield item
        finally:
            stream.waiting -= 1
            stream.followers -= 1

    async def _followed(self, stream: RunStream, after: int, user_id: str | None) -> AsyncGenerator[Followed]:
        pause, run_id, now = _FIRST_POLL_SECONDS, stream.run_id, asyncio.get_running_loop().time
        # Do not stream the answer of a run that has stopped already.
        published = len(stream.pieces) if has_stopped(await self.run(run_id, user_id)) else 0
        look_at = now()
        while True:
            change = stream.next_change
            if fresh := stream.pieces[published:]:
                published += len(fresh)
                for piece in fresh:
                    yield piece
                if self._worker.has(run_id) and now() < look_at:
                    # Do not query the database for each token.
                    await changed(change, _FIRST_POLL_SECONDS)
                    continue
            look_at = now() + _FIRST_POLL_SECONDS
            run, before = await self.run(run_id, user_id), after
            while events := await self._runs.trace.events(run_id, after=after, limit=_PAGE):
                for event in events:
                    after = event.number
                    yield event
            if has_stopped(run) and published == len(stream.pieces):
                yield run
                return
            await self._start_if_ready(run, stream)
            pause = _FIRST_POLL_SECONDS if after > before else min(pause * 2, _LONGEST_POLL_SECONDS)
            await changed(change, pause)

    async def run(self, run_id: str, user_id: str | None) -> Run:
        """Return a run that a user may see. If its result was deleted or replaced, add the answer from its session.

        Raises:
            RunNotFound: there is no such run.
        """
        run = await self._runs.run(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return await with_answer(self._memory, _seen(run, user_id))

    async def _start_if_ready(self, run: Run, stream: RunStream) -> None:
        if run.status != "queued" or stream.started or run.parent_run_id is not None:
            return
        if await self._runs.order.is_next(run.run_id):
            await self._worker.start(run.run_id)


def _seen(run: Run, user_id: str | None) -> Run:
    if user_id is not None and run.user_id != user_id:
        raise RunNotFound(run.run_id)
    return run


def has_stopped(run: Run) -> bool:
    """Return whether a run is over or waits for a person."""
    return run.over or run.status == "waiting"
