"""Property tests of a session's runs: one runs at a time, in order of arrival, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import url_of
from tests.store.running import asked, in_room
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.errors import SessionBusy
from threadkeep.records.runs import RUN_ENDS, Begun, DoubleTexting, Run
from threadkeep.testing import SettableClock

_OWNERS = ("anna", "bert", "cleo")
_POLICIES: tuple[DoubleTexting, ...] = ("enqueue", "enqueue", "coalesce", "interrupt", "reject")
_ACTIONS = (
    *["add"] * 5,
    *["begin next", "finish"] * 4,
    *["begin", "begin at once", "cancel", "disown", "disown", "wait", "resume", "retry", "give back"],
)

type Step = tuple[str, int, int]

_numbers = itertools.count()
_steps = st.lists(
    st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 11), st.integers(0, 11)), min_size=30, max_size=50
)


@pytest.fixture(params=["sqlite-memory", "postgres"])
async def engine_memory(request: pytest.FixtureRequest, clock: SettableClock) -> AsyncIterator[Memory]:
    """Open a memory on each engine, and close it after the test."""
    url = url_of(request, str(request.param))
    async with open_memory(url, options=MemoryOptions(clock=clock, background=False)) as memory:
        yield memory


@dataclass
class History:
    """A session and its runs; the invariants are checked after each step."""

    memory: Memory
    clock: SettableClock
    number: int = field(default_factory=lambda: next(_numbers))
    asked_for: set[str] = field(default_factory=set)
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def session_id(self) -> str:
        """Return the session of this history."""
        return f"room:{self.number}"

    def pick(self, place: int) -> str:
        """Return the id of one of the runs, or an unknown id if there are none."""
        return sorted(self.runs)[place % len(self.runs)] if self.runs else "none"

    async def take(self, step: Step) -> None:
        """Execute one action, and check the invariants."""
        action, first, second = step
        owner, run_id, runs = _OWNERS[second % len(_OWNERS)], self.pick(first), self.memory.runs
        actions: dict[str, Callable[[], Awaitable[object]]] = {
            "add": lambda: self.add(first, _POLICIES[second % len(_POLICIES)]),
            "begin next": lambda: self.begin_next(owner),
            "begin": lambda: self.begin(run_id, owner),
            "begin at once": lambda: self.begin(run_id, *_OWNERS),
            "finish": lambda: runs.finish(run_id, owner, RUN_ENDS[(first // 3 + second) % len(RUN_ENDS)]),
            "cancel": lambda: runs.request_cancel(run_id),
            "disown": lambda: runs.disown(owner),
            "wait": lambda: runs.wait(run_id, owner, {"question": first}),
            "resume": lambda: runs.resume(run_id, second),
            "retry": lambda: runs.retry(run_id),
            "give back": lambda: runs.give_back(run_id, owner),
        }
        await actions[action]()
        await self.check(action)

    async def add(self, message: int, policy: DoubleTexting) -> None:
        """Add the run of a message, which may be a repeat."""
        new = asked(f"{self.session_id}:{next(_numbers):06}", session=self.session_id, message=f"m{message}")
        try:
            added = await self.memory.runs.order.add(new, policy=policy)
        except SessionBusy:
            assert any(run.status in ("queued", "running") for run in self.runs.values())
            return
        if added.outcome == "new":
            self.asked_for.add(added.run.run_id)
        assert f"m{message}" in [given.message_id for given in added.run.inputs]

    async def begin(self, run_id: str, *owners: str) -> None:
        """Begin the run as several owners at once: at most one of them gets it."""
        outcomes = await asyncio.gather(*(self.memory.runs.order.begin(run_id, owner) for owner in owners))
        assert sum(isinstance(outcome, Begun) for outcome in outcomes) <= 1

    async def begin_next(self, owner: str) -> None:
        """Begin each run that is listed as ready."""
        for run_id in await self._ready():
            assert isinstance(await self.memory.runs.order.begin(run_id, owner), Begun)

    async def _ready(self) -> list[str]:
        ready = await self.memory.runs.order.ready(limit=1000)
        return [run_id for run_id in ready if run_id in self.asked_for]

    async def check(self, action: str) -> None:
        """Check that no run is lost, at most one runs, and each began in order of arrival."""
        found, _ = await self.memory.runs.records.runs(in_room(session=self.session_id))
        after = {run.run_id: run for run in found}
        assert set(after) == self.asked_for
        running = [run for run in found if run.status == "running"]
        assert len(running) <= 1
        for run in running:
            before = self.runs.get(run.run_id)
            if before is None or (before.status, before.attempts) != (run.status, run.attempts):
                earlier = [one for one in found if (one.arrival or 0) < (run.arrival or 0)]
                assert all(one.status not in ("queued", "running") for one in earlier)
        for run_id, was in self.runs.items():
            assert after[run_id].status == was.status or was.status not in RUN_ENDS or action == "retry"
        assert len({run.arrival for run in found}) == len(found)
        self.runs = after

    async def execute_all(self) -> None:
        """Execute all remaining runs, one after the other."""
        for owner in _OWNERS:
            await self.memory.runs.disown(owner)
        order = self.memory.runs.order
        left = [run_id for run_id in await order.abandoned(limit=100) if run_id in self.asked_for]
        while left or (left := await self._ready()):
            await self.begin(left[0], "dora")
            assert await self.memory.runs.finish(left.pop(), "dora", "done")
            await self.check("finish")
        assert all(run.over or run.status == "waiting" for run in self.runs.values())


@pytest.mark.timeout(600)
@given(steps=_steps)
@pytest.mark.slow
async def test_runs_of_a_session_never_overlap(engine_memory: Memory, clock: SettableClock, steps: list[Step]) -> None:
    """Messages, cancels, interrupts and dead owners may occur in any order."""
    history = History(engine_memory, clock)
    for step in steps:
        await history.take(step)
    await history.execute_all()
