"""The lifetime of this process as a worker: from launch until it stops or is declared dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Protocol

from threadkeep.runs.engine.carrying import Ending
from threadkeep.runs.engine.dbos_database import Connections, translated
from threadkeep.runs.engine.dbos_process import ACTIVE, Attempt, DbosProcess, next_number, number_of, run_of
from threadkeep.runs.engine.engine import LETTING_GO_SECONDS, EngineOptions
from threadkeep.runs.engine.membership import Membership
from threadkeep.store.address import DatabaseAddress

_WATCH_SECONDS = 0.25
"""Seconds between two checks whether other processes have taken runs of this one."""

_WAIT_SECONDS = 0.05
_RETENTION_SECONDS = 60.0
_THREADS = 4


class Owner(Protocol):
    """The owner of the runs. All methods are called from other threads."""

    def carry(self, run_id: str) -> Future[Ending]:
        """Execute a run."""
        ...

    def taken_away(self, run_id: str) -> None:
        """Handle that another process has taken a run."""
        ...

    def gave_up(self, run_id: str, attempts: int) -> None:
        """Handle a run that is not tried any more; return when it is handled."""
        ...

    def troubled(self, error: str) -> None:
        """Handle the name of an error that kept the engine from its work for a moment."""
        ...


class Executor:
    """An executor of attempts at enqueued runs; it also hands over the attempts of dead processes."""

    def __init__(self, address: DatabaseAddress, member: Membership, options: EngineOptions, owner: Owner) -> None:
        self._connections = Connections(address)
        self._member = member
        self._options = options
        self._owner = owner
        self._process = DbosProcess(self._connections, options, member.name)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads: list[Thread] = []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="threadkeep-runs")
        self._closing = Event()
        self._ended = Event()
        self._unmade: dict[str, float] = {}

    def launch(self) -> None:
        """Launch this process as a worker.

        Raises:
            StoreUnavailable: the database does not answer.
            InvalidInput: this process already executes runs of another database.
        """
        try:
            with translated():
                self._process.launch(self._make)
        except BaseException:
            self.stop()
            raise
        self._run(self._watch, _WATCH_SECONDS)
        if self._options.works:
            self._run(self._reap, min(1.0, max(0.05, self._options.dead_seconds / 4)))
            # Also at once: a short-lived command is often the only process that ever works.
            every = min(_RETENTION_SECONDS, self._options.keep_finished_seconds)
            self._run(self._forget_finished, every, first_after=0.0)

    async def enqueue(self, run_id: str, *, failures: int = 0) -> None:
        """Enqueue a run for any worker; a run that failed waits before its retry and is not enqueued twice."""
        with translated():
            await asyncio.wrap_future(self._pool.submit(self._enqueue, run_id, failures))

    def take_no_more(self) -> None:
        """Stop taking attempts that have not begun."""
        self._closing.set()
        self._process.take_no_more()

    def stop(self) -> bool:
        """Stop; return whether no attempt is active any more."""
        self.take_no_more()
        self._ended.set()
        for thread in self._threads:
            thread.join(LETTING_GO_SECONDS)
        is_idle = self._outcomes_are_written()
        # Close connections before dbos stops: it would wait for a database that is down.
        self._connections.close()
        self._process.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return is_idle

    async def _make(self, attempt: Attempt) -> None:
        """Make an attempt in dbos's event loop. If it is cancelled it has no outcome; another process handles it."""
        if (task := asyncio.current_task()) is not None:
            # The task of dbos itself: it is done when the outcome is recorded.
            self._tasks[attempt.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(attempt.id, None))
        try:
            await self._carry(attempt)
        except Exception as error:
            # An outcome would end the run here. Without one the attempt is found again, here or after this process is
            # gone.
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
        """Wait until no other process can execute the run; return False if this process stops before that."""
        while not self._closing.is_set():
            if self._member.is_fresh() and await self._is_first(attempt):
                return True
            await asyncio.sleep(_WAIT_SECONDS)
        return False

    async def _is_first(self, attempt: Attempt) -> bool:
        if attempt.number == 1:
            return True
        active = await self._in_thread(self._process.attempts, attempt.run_id, ACTIVE)
        return all(number_of(other) >= attempt.number for other in active)

    def _enqueue(self, run_id: str, failures: int) -> None:
        if failures and self._process.attempts(run_id, ACTIVE):
            return
        if failures >= self._options.max_attempts:
            self._owner.gave_up(run_id, failures)
            return
        attempt = Attempt(run_id, 1, failures)
        pause = self._options.pause_seconds * 2 ** (failures - 1) if failures else 0.0
        while not self._process.put(attempt, after_seconds=pause):
            attempt = Attempt(run_id, next_number(list(self._process.attempts(run_id))), failures)

    def _try_again(self, attempt: Attempt, *, after_pause: bool = True) -> None:
        """Schedule the retry of a run whose attempt failed, or give the run up."""
        following = attempt.next(failed=True)
        if following.failures >= self._options.max_attempts:
            self._owner.gave_up(attempt.run_id, following.failures)
            return
        pause = self._options.pause_seconds * 2**attempt.failures if after_pause else 0.0
        self._process.put(following, after_seconds=pause)

    def _watch(self) -> None:
        """Report the active runs that other processes have taken."""
        if not (mine := list(self._tasks)):
            return
        self._process.check()
        for attempt_id in self._process.put_to_their_end(mine):
            self._owner.taken_away(run_of(attempt_id))

    def _reap(self) -> None:
        """Hand over the attempts of dead processes, and attempts of this process that it does not make."""
        self._process.check()
        found = self._process.open_attempts()
        dead = self._member.dead_now({name for _, name in found})
        for attempt, name in found:
            if name in dead:
                self._hand_over(attempt, died=True)
        for name in dead:
            self._member.forget(name)
        self._hand_over_unmade([attempt for attempt, name in found if name == self._member.name])

    def _hand_over(self, attempt: Attempt, *, died: bool) -> None:
        """Record another attempt that begins when this one has ended. Any number of processes may do so."""
        if died:
            self._try_again(attempt, after_pause=False)
        else:
            self._process.put(attempt.next(failed=False))
        self._process.end(attempt.id)

    def _hand_over_unmade(self, mine: Iterable[Attempt]) -> None:
        """Hand over attempts that are recorded for this process but not made by it, because something was cut off."""
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
        """Wait until the outcomes of ended attempts are recorded; return False if some attempts continue."""
        if not self._process.is_running():
            return True
        return self._process.submit(_all_done(list(self._tasks.values()))).result()

    async def _in_thread[*A, T](self, work: Callable[[*A], T], *arguments: *A) -> T:
        """Run a blocking call in a thread, without dbos's context, in which it would become a step."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


async def _all_done(tasks: Sequence[asyncio.Task[None]]) -> bool:
    if not tasks:
        return True
    _, pending = await asyncio.wait(tasks, timeout=LETTING_GO_SECONDS)
    return not pending
