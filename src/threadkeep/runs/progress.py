"""Progress of active runs: checkpoints that are stored while the run continues, or dropped if no longer needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.types import Durability

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import StoreUnavailable
from threadkeep.observe import Observer, RunTrouble, RunWorkRecovered
from threadkeep.runs.retries import Debounced
from threadkeep.store.runs.rows import RunRecords
from threadkeep.workflows.definition import Workflow


@lru_cache(maxsize=256)
def durability_of(workflow: Workflow) -> Durability:
    """Return LangGraph's durability mode for a workflow.

    - `exit`: for at most one model call. After a crash the workflow starts again, which costs at most that call, so
      nothing is stored until it fails or waits.
    - `async`: for several model calls, or tools that may run again. LangGraph saves a step during the next one.
    - `sync`: for tools that must not run twice, or foreign code. LangGraph saves each step before the next one begins,
      so that all progress can be stored when such a tool is called.
    """
    again = [node.again for node in workflow.nodes.values()]
    if keeps_each_step(workflow) or "marked tools" in again:
        return "sync"
    return "exit" if again.count("a model call") <= 1 and "model calls" not in again else "async"


@lru_cache(maxsize=256)
def keeps_each_step(workflow: Workflow) -> bool:
    """Return whether each step is stored before the next one, because foreign code must not be executed twice."""
    return len(_known(workflow)) < len(workflow.builder.nodes)


@lru_cache(maxsize=256)
def beside_of(workflow: Workflow) -> Callable[[str], bool]:
    """Return a function that returns whether the progress of a namespace may be stored during the next step.

    In a workflow with foreign code, this is true only inside Threadkeep's own nodes. Before a tool that must not
    run twice, `threadkeep.runs.tool_idempotency` stores all progress.
    """
    if not keeps_each_step(workflow):
        return lambda _: True
    known = _known(workflow)
    return lambda namespace: namespace.partition(":")[0] in known


def _known(workflow: Workflow) -> frozenset[str]:
    """Return the nodes for which the effect of a second execution is known."""
    return frozenset(name for name, node in workflow.nodes.items() if node.again != "unknown")


def thread_of(run_id: str) -> RunnableConfig:
    """Return the config of a run's checkpoints: the thread id is the run id."""
    return {"configurable": {"thread_id": run_id}}


class RunCheckpoints:
    """The checkpoints of finished runs, and their removal. Any number of processes may remove them at once."""

    def __init__(self, records: RunRecords, saver: BaseCheckpointSaver[str]) -> None:
        self._records = records
        self._saver = saver

    async def expect(self, run_id: str) -> None:
        """Record that a run has checkpoints, so that they are removed when it is over."""
        await self._records.checkpoints_expected(run_id)

    async def remove(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs that are over.

        In rare cases a process that has lost a run writes a few checkpoints afterwards; these stay.
        """
        for run_id in run_ids:
            await self._saver.adelete_thread(run_id)
        if run_ids:
            await self._records.checkpoints_removed(run_ids)

    async def remove_before(self, moment: datetime, *, limit: int) -> int:
        """Remove checkpoints of runs that are done, deleted, or ended before `moment`; return the number of runs."""
        run_ids = await self._records.with_checkpoints(moment, limit=limit)
        await self.remove(run_ids)
        return len(run_ids)


_AGAIN_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.005
"""Seconds until a task's writes are stored; usually the checkpoint of the step arrives earlier and replaces them."""


@dataclass(frozen=True, eq=False)
class PendingCheckpoint:
    """A checkpoint that is not stored yet."""

    saver: BaseCheckpointSaver[Any]
    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions

    async def store(self) -> None:
        """Store the checkpoint."""
        await self.saver.aput(self.config, self.checkpoint, self.metadata, self.new_versions)

    @property
    def is_whole(self) -> bool:
        """True if it can replace earlier checkpoints. With delta channels the state spans several checkpoints."""
        return not self.metadata.get("counters_since_delta_snapshot")

    @property
    def is_of_step(self) -> bool:
        """True if it follows a step; false for the checkpoint of the input."""
        return self.metadata.get("source") != "input"

    def instead_of(self, before: PendingCheckpoint) -> PendingCheckpoint:
        """Return this checkpoint merged with an earlier one that it replaces."""
        return replace(self, config=before.config, new_versions={**before.new_versions, **self.new_versions})


@dataclass(frozen=True, eq=False)
class PendingWrites:
    """Writes of a task after a checkpoint that are not stored yet."""

    saver: BaseCheckpointSaver[Any]
    config: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str

    async def store(self) -> None:
        """Store the writes."""
        await self.saver.aput_writes(self.config, self.writes, self.task_id, self.task_path)


type Pending = PendingCheckpoint | PendingWrites


class ProgressWriter:
    """A writer of progress that reports once when storing fails and once when it works again.

    Without the report a failure would stay unnoticed until a run needs its checkpoints.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._fails = False

    async def store(self, part: Pending) -> None:
        """Store a part of a run's progress.

        Raises:
            StoreUnavailable: the database did not store it.
        """
        try:
            await part.store()
        except StoreUnavailable as error:
            if not self._fails:
                self._fails = True
                self._observer.notify(RunTrouble(error=type(error).__name__, work="keeping_progress"))
            raise
        if self._fails:
            self._fails = False
            self._observer.notify(RunWorkRecovered(work="keeping_progress"))


class RunProgress:
    """The checkpoints of one execution of a run, of its graph and its subgraphs, by namespace.

    If `beside` is true for a namespace, its checkpoints are stored after `seconds`, while the run continues, unless
    newer ones replace them or the run ends before. If `beside` is false, as it is initially, the checkpoint of each
    step is stored at once, and writes of tasks soon after. If `starts_again` is true, a crashed run starts from the
    beginning, and nothing is stored until the run fails or waits. A `fresh` run has no checkpoints of an earlier
    execution.

    While the database is unavailable, storing is retried. Any other failure is raised by the next `add`.
    """

    def __init__(
        self, keeping: ProgressWriter, expect: Callable[[], Awaitable[None]], *, fresh: bool, seconds: float
    ) -> None:
        """Create the progress; `expect` records that the run has checkpoints, before the first one is stored."""
        self.beside: Callable[[str], bool] = lambda _: False
        self.starts_again = False
        self._keeping = keeping
        self._expect = expect
        self._expected = False
        self._offline = fresh
        self._fresh = fresh
        self._seconds = seconds
        self._pending: dict[Pending, None] = {}
        self._namespaces: set[str] = set()
        self._storing = Debounced(self._keep_beside)
        self._failed: Exception | None = None

    async def add(self, new: Pending) -> None:
        """Add a checkpoint or writes; store them at once or soon."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        namespace = namespace_of(new.config)
        self._namespaces.add(namespace)
        if isinstance(new, PendingCheckpoint) and new.is_whole:
            for older in self._pending_of(namespace):
                del self._pending[older]
                if isinstance(older, PendingCheckpoint):
                    new = new.instead_of(older)
        self._pending[new] = None
        if self.starts_again:
            return
        if self.beside(namespace):
            self._storing.within(self._seconds)
        elif isinstance(new, PendingCheckpoint) and new.is_of_step:
            await self._keep(namespace)
        else:
            self._storing.within(_SOON_SECONDS)

    def is_new(self, namespace: str) -> bool:
        """Return whether a namespace has no checkpoints, here or in the database."""
        return self._fresh and namespace not in self._namespaces

    async def keep(self) -> None:
        """Store all pending progress.

        Raises:
            StoreUnavailable: the database does not respond; the progress stays pending.
        """
        self._storing.disarm()
        await self._keep()

    async def forget(self) -> None:
        """Discard pending progress; wait for progress that is being stored."""
        async with self._storing.working:
            self._pending.clear()

    async def leave(self) -> bool:
        """Discard pending progress because the run is over or lost; return True if no progress was ever stored."""
        self._pending.clear()
        await self._storing.close()
        return self._offline

    async def _keep(self, namespace: str | None = None) -> None:
        async with self._storing.working:
            for one in self._pending_of(namespace):
                if one not in self._pending:
                    continue  # a newer checkpoint has replaced it meanwhile
                if not self._expected:
                    await self._expect()
                    self._expected = True
                self._offline = False
                await self._keeping.store(one)
                self._pending.pop(one, None)

    def _pending_of(self, namespace: str | None) -> list[Pending]:
        return [one for one in self._pending if namespace is None or namespace_of(one.config) == namespace]

    async def _keep_beside(self) -> None:
        with ErrorBoundary() as attempt:
            await self.keep()
        if isinstance(attempt.error, StoreUnavailable):
            # The run continues. Progress that is still pending when the run ends is stored then, with retries.
            if self._pending:
                self._storing.within(_AGAIN_SECONDS)
        elif attempt.error is not None:
            # A state that cannot be stored is an error of the graph, so the next step raises it.
            self._failed = attempt.error


def namespace_of(config: RunnableConfig) -> str:
    """Return the namespace of the graph that a checkpoint belongs to; empty for the top graph."""
    return str(config["configurable"].get("checkpoint_ns", ""))
