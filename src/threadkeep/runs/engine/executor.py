"""One life of this process among those that carry runs out: from its launch until it ends, or is taken for dead."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Protocol
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from threadkeep.runs.engine.attempts import Attempt, number_of, run_of
from threadkeep.runs.engine.carrying import Ending
from threadkeep.runs.engine.dbos_database import Connections, engine_path, translated
from threadkeep.runs.engine.dbos_process import ACTIVE, DbosProcess, next_number
from threadkeep.runs.engine.engine import LETTING_GO_SECONDS, EngineOptions
from threadkeep.runs.engine.presence import Heartbeats, LockedFiles, Presence
from threadkeep.store.address import DatabaseAddress

_WATCH_SECONDS = 0.25
"""How often a process looks whether others have taken its runs."""

_WAIT_SECONDS = 0.05
_RETENTION_SECONDS = 60.0
_THREADS = 4


class Owner(Protocol):
    """Whose runs are carried out. All of it is called from other threads."""

    def carry(self, run_id: str) -> Future[Ending]:
        """Carry a run out."""
        ...

    def taken_away(self, run_id: str) -> None:
        """Hear that another process has a run."""
        ...

    def gave_up(self, run_id: str, attempts: int) -> None:
        """Hear of a run that is not tried any more; returns when it was heard."""
        ...

    def lost(self) -> None:
        """Hear that this process was taken for dead: its runs are others'."""
        ...

    def troubled(self, error: str) -> None:
        """Hear the name of an error that kept the engine from looking after the runs for a moment."""
        ...


class Executor:
    """Makes attempts at runs, and sees to those of processes that died. It has a name that is never used again."""

    def __init__(self, address: DatabaseAddress, options: EngineOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        name = uuid4().hex
        self._connections = Connections(address)
        self._presence = _presence(address, self._connections, name, options)
        self._process = DbosProcess(self._connections, options, name)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads: list[Thread] = []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="threadkeep-runs")
        self._closing = Event()
        self._ended = Event()
        self._lost = False
        self._unmade: dict[str, float] = {}

    def launch(self) -> None:
        """Be one of those who carry runs out.

        Raises:
            StoreUnavailable: the database does not answer.
            InvalidInput: this process carries out runs of another database already.
        """
        try:
            with translated():
                self._presence.enter()
                self._process.launch(self._make)
        except BaseException:
            self.stop()
            raise
        pulse = max(0.05, self._options.dead_seconds / 4)
        self._run(self._beat, pulse)
        self._run(self._watch, _WATCH_SECONDS)
        self._run(self._reap, min(1.0, pulse))
        if self._options.works:
            # At once too: a command that works for a moment is often the only one that ever does.
            every = min(_RETENTION_SECONDS, self._options.keep_finished_seconds)
            self._run(self._forget_finished, every, first_after=0.0)

    def holds(self) -> bool:
        """Whether nobody can have taken this process for dead."""
        return not self._lost and self._presence.is_fresh()

    async def start(self, run_id: str) -> None:
        """Carry a run out in this process; if it is being carried out, afterwards once more."""
        with translated():
            await asyncio.wrap_future(self._process.submit(self._start(run_id)))

    async def enqueue(self, run_id: str) -> None:
        """Have a run carried out by any process that works."""
        with translated():
            await asyncio.wrap_future(self._pool.submit(self._enqueue, run_id))

    def take_no_more(self) -> None:
        """Leave to others what is not begun."""
        self._closing.set()
        self._process.take_no_more()

    def stop(self) -> None:
        """End this life. What could not be stopped keeps its runs until the process ends."""
        self.take_no_more()
        self._ended.set()
        for thread in self._threads:
            thread.join(LETTING_GO_SECONDS)
        if self._outcomes_are_written():
            with contextlib.suppress(SQLAlchemyError):  # who is not there to leave is taken for dead soon
                self._presence.leave()
        self._connections.close()
        self._process.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _make(self, attempt: Attempt) -> None:
        """Make an attempt, in dbos's event loop. Cancelled it has no outcome, and is somebody else's business."""
        if (task := asyncio.current_task()) is not None:
            # dbos's own task: it is done when the outcome is recorded.
            self._tasks[attempt.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(attempt.id, None))
        try:
            await self._carry(attempt)
        except Exception as error:
            # An outcome would end the run here; without one it is found again, by this process or when it is gone.
            self._owner.troubled(type(error).__name__)
            raise asyncio.CancelledError from error

    async def _carry(self, attempt: Attempt) -> None:
        ending: Ending = "left"
        if await self._may_begin(attempt):
            ending = await asyncio.wrap_future(self._owner.carry(attempt.run_id))
        if ending == "lost":
            raise asyncio.CancelledError
        if ending == "left":
            await self._in_thread(self._process.put, attempt.next(failed=False))
        elif ending == "failed":
            await self._in_thread(self._try_again, attempt)

    async def _may_begin(self, attempt: Attempt) -> bool:
        """Wait until nobody else can be at the run; False when this process takes no more before that."""
        while not self._closing.is_set():
            if self.holds() and await self._is_first(attempt):
                return True
            await asyncio.sleep(_WAIT_SECONDS)
        return False

    async def _is_first(self, attempt: Attempt) -> bool:
        if attempt.number == 1:
            return True
        active = await self._in_thread(self._process.attempts, attempt.run_id, ACTIVE)
        return all(number_of(other) >= attempt.number for other in active)

    async def _start(self, run_id: str) -> None:
        attempt = Attempt(run_id)
        while not await self._process.start(attempt):
            attempt = Attempt(run_id, next_number(list(await self._in_thread(self._process.attempts, run_id))))

    def _enqueue(self, run_id: str) -> None:
        attempt = Attempt(run_id)
        while not self._process.put(attempt):
            attempt = Attempt(run_id, next_number(list(self._process.attempts(run_id))))

    def _try_again(self, attempt: Attempt, *, after_pause: bool = True) -> None:
        """See to a run whose attempt failed."""
        following = attempt.next(failed=True)
        if following.failures >= self._options.max_attempts:
            self._owner.gave_up(attempt.run_id, following.failures)
            return
        pause = self._options.pause_seconds * 2**attempt.failures if after_pause else 0.0
        self._process.put(following, after_seconds=pause)

    def _beat(self) -> None:
        if not self._lost and not self._presence.beat():
            self._lost = True
            self.take_no_more()
            self._owner.lost()

    def _watch(self) -> None:
        """See what of the runs that are carried out here others have taken."""
        if not (mine := list(self._tasks)):
            return
        self._process.check()
        for attempt_id in self._process.put_to_their_end(mine):
            self._owner.taken_away(run_of(attempt_id))

    def _reap(self) -> None:
        """Hand over what dead processes had, if this one works, and what this one has and knows nothing of."""
        self._process.check()
        found = self._process.open_attempts()
        dead = self._presence.dead({name for _, name in found}) if self._options.works else set()
        for attempt, name in found:
            if name in dead:
                self._hand_over(attempt, died=True)
        for name in dead:
            self._presence.forget(name)
        self._hand_over_unmade([attempt for attempt, name in found if name == self._process.name])

    def _hand_over(self, attempt: Attempt, *, died: bool) -> None:
        """Have another attempt made, which begins when this one has ended. Any number of processes may do so."""
        if died:
            self._try_again(attempt, after_pause=False)
        else:
            self._process.put(attempt.next(failed=False))
        self._process.end(attempt.id)

    def _hand_over_unmade(self, mine: Iterable[Attempt]) -> None:
        """See to attempts that are on record as this process's, and that it does not make: something was cut off."""
        now = time.monotonic()
        unmade = {attempt.id: attempt for attempt in mine if attempt.id not in self._tasks}
        self._unmade = {each: self._unmade.get(each, now) for each in unmade}
        for each, since in self._unmade.items():
            if now - since > self._options.dead_seconds:
                self._hand_over(unmade[each], died=False)

    def _forget_finished(self) -> None:
        self._process.check()
        before = datetime.now(UTC) - timedelta(seconds=self._options.keep_finished_seconds)
        self._process.remove_finished(before.isoformat())

    def _run(self, work: Callable[[], None], seconds: float, *, first_after: float | None = None) -> None:
        first = seconds if first_after is None else first_after
        thread = Thread(target=self._repeat, args=(work, seconds, first), name="threadkeep-runs", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _repeat(self, work: Callable[[], None], seconds: float, pause: float) -> None:
        while not self._ended.wait(pause):
            pause = seconds
            try:
                work()
            except Exception as error:  # noqa: BLE001 - what fails now is tried again, for as long as the process lives
                self._owner.troubled(type(error).__name__)

    def _outcomes_are_written(self) -> bool:
        """Wait for the last words of attempts that have ended; False when some go on."""
        if not self._process.is_running():
            return True
        return self._process.submit(_all_done(list(self._tasks.values()))).result()

    async def _in_thread[*A, T](self, work: Callable[[*A], T], *arguments: *A) -> T:
        """Run what waits for the database in a thread; without dbos's context, in which it would become a step."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


async def _all_done(tasks: Sequence[asyncio.Task[None]]) -> bool:
    if not tasks:
        return True
    _, pending = await asyncio.wait(tasks, timeout=LETTING_GO_SECONDS)
    return not pending


def _presence(address: DatabaseAddress, connections: Connections, name: str, options: EngineOptions) -> Presence:
    if address.path is not None:
        return LockedFiles(engine_path(address.path), name)
    return Heartbeats(connections, name, options.dead_seconds)
