"""Progress of active runs: checkpoints that are stored while the run continues, or dropped once they are not needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import StoreUnavailable
from threadkeep.memory.on_loop import running_loop
from threadkeep.observe import Observer, RunTrouble, RunWorkRecovered
from threadkeep.runs.tracing import Debounced
from threadkeep.store.runs.rows import RunRecords


def thread_of(run_id: str, namespace: str = "") -> RunnableConfig:
    """Return the config of a run's checkpoints: the thread id is the run id."""
    return {"configurable": {"thread_id": run_id, "checkpoint_ns": namespace}}


async def remove_checkpoints(saver: BaseCheckpointSaver[Any], records: RunRecords, run_ids: Sequence[str]) -> None:
    """Remove the checkpoints of runs that are over. Several processes may do this at the same time.

    In rare cases a process that no longer owns a run writes a few checkpoints after their removal; these stay.
    """
    for run_id in run_ids:
        await saver.adelete_thread(run_id)
    if run_ids:
        await records.checkpoints_removed(run_ids)


async def remove_old_checkpoints(
    saver: BaseCheckpointSaver[Any], records: RunRecords, before: datetime, *, limit: int
) -> int:
    """Remove checkpoints of up to `limit` runs that `RunRecords.with_checkpoints` finds; return the number of runs."""
    run_ids = await records.with_checkpoints(before, limit=limit)
    await remove_checkpoints(saver, records, run_ids)
    return len(run_ids)


_AGAIN_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.005
"""Seconds until the writes of a task are stored. Usually the step's checkpoint replaces them before that."""


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
        """True if the checkpoint can replace earlier ones: it contains the whole state, not only deltas of channels."""
        return not self.metadata.get("counters_since_delta_snapshot")


@dataclass(frozen=True, eq=False)
class PendingWrites:
    """Writes that a task made after a checkpoint, and that are not stored yet."""

    saver: BaseCheckpointSaver[Any]
    config: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str

    async def store(self) -> None:
        """Store the writes."""
        await self.saver.aput_writes(self.config, self.writes, self.task_id, self.task_path)


type Pending = PendingCheckpoint | PendingWrites


class RunProgress(Debounced):
    """The checkpoints that one execution of a run makes, for its graph and for each subgraph (a namespace).

    - By default, the checkpoint of each step is stored at once, and the writes of a task shortly after.
    - If `in_background(namespace)` is true, a checkpoint is stored after the saver's `seconds`, while the run goes on.
      It is not stored if a newer one replaces it or the run succeeds before that.
    - If `starts_again` is true, `add` stores nothing, because a crashed run starts from the beginning. `keep` still
      stores everything, for example when the run fails or waits.
    - If `fresh` is true, no earlier execution of the run has made checkpoints.
    - `first` maps the id of each question to None or, if it is the first question of its task, to a pair: the
      namespace and the id of the task.

    Storing in the background is retried while the database is unavailable; any other error is raised by the next `add`.
    """

    def __init__(
        self,
        saver: ProgressSaver,
        run_id: str,
        *,
        fresh: bool,
        in_background: Callable[[str], bool],
        starts_again: bool = False,
    ) -> None:
        super().__init__()
        self.first: dict[str, tuple[str, str] | None] = {}
        self._saver = saver
        self._run_id = run_id
        self._expected = False
        self._nothing_stored = fresh
        self._fresh = fresh
        self._in_background = in_background
        self._starts_again = starts_again
        self._pending: dict[Pending, None] = {}
        self._namespaces: set[str] = set()
        self._failed: Exception | None = None

    async def add(self, new: Pending) -> None:
        """Add a checkpoint or writes. The docstring of the class says when they are stored."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        namespace = namespace_of(new.config)
        self._namespaces.add(namespace)
        if isinstance(new, PendingWrites):
            written = dict(new.writes)
            for one in written.get(INTERRUPT, ()):
                # LangGraph writes a subgraph's question first for the subgraph, then for each graph that contains it.
                self.first.setdefault(one.id, None if RESUME in written else (namespace, new.task_id))
        if isinstance(new, PendingCheckpoint) and new.is_whole:
            for older in self._pending_of(namespace):
                del self._pending[older]
                if isinstance(older, PendingCheckpoint):
                    versions = {**older.new_versions, **new.new_versions}
                    new = replace(new, config=older.config, new_versions=versions)
        self._pending[new] = None
        if self._starts_again:
            return
        if self._in_background(namespace):
            self.within(self._saver.seconds)
        elif isinstance(new, PendingCheckpoint) and new.metadata.get("source") != "input":
            await self._keep(namespace)
        else:
            self.within(_SOON_SECONDS)

    def is_new(self, namespace: str) -> bool:
        """Return True if a namespace has neither pending nor stored checkpoints."""
        return self._fresh and namespace not in self._namespaces

    async def keep(self) -> None:
        """Store all pending checkpoints and writes.

        Raises:
            StoreUnavailable: the database does not respond; the progress stays pending.
        """
        self.disarm()
        await self._keep()

    async def forget(self) -> None:
        """Wait for checkpoints that are being stored, then discard the pending ones."""
        async with self.working:
            self._pending.clear()

    async def leave(self) -> bool:
        """Discard the pending checkpoints of a run that is over or lost; return True if no checkpoint is stored."""
        self._pending.clear()
        await self.close()
        return self._nothing_stored

    async def _keep(self, namespace: str | None = None) -> None:
        async with self.working:
            for one in self._pending_of(namespace):
                if one not in self._pending:
                    continue  # a newer checkpoint has replaced this one in the meantime
                if not self._expected:
                    await self._saver.expect(self._run_id)
                    self._expected = True
                self._nothing_stored = False
                await self._saver.store(one)
                self._pending.pop(one, None)

    def _pending_of(self, namespace: str | None) -> list[Pending]:
        return [one for one in self._pending if namespace is None or namespace_of(one.config) == namespace]

    async def _store(self) -> None:
        with ErrorBoundary() as attempt:
            await self.keep()
        if isinstance(attempt.error, StoreUnavailable):
            # Let the run continue, and try again later.
            if self._pending:
                self.within(_AGAIN_SECONDS)
        elif attempt.error is not None:
            # A state that cannot be stored is an error of the graph, so the run's next step raises it.
            self._failed = attempt.error


def namespace_of(config: RunnableConfig) -> str:
    """Return the namespace of the graph that a checkpoint belongs to; empty for the top graph."""
    return str(config["configurable"].get("checkpoint_ns", ""))


class ProgressSaver(BaseCheckpointSaver[Any]):
    """A wrapper of a checkpointer that may delay the checkpoints of active runs; other checkpoints are stored at once.

    Pending checkpoints of a LangGraph thread are stored before the thread is read. `active` maps the id of each run
    whose graph this process executes to its `RunProgress`. The saver reports when writes begin to fail and when they
    work again; otherwise, a failure would stay unnoticed until a run needs its checkpoints.

    The synchronous methods run the asynchronous ones in the saver's event loop; called in that loop, they raise
    `InvalidStateError`.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        observer: Observer,
        expect: Callable[[str], Awaitable[None]],
        *,
        seconds: float,
    ) -> None:
        """Wrap `saver`. `expect` records that a run may have checkpoints, before the first one is stored."""
        super().__init__(serde=saver.serde)
        self._loop = asyncio.get_running_loop()
        self._observer = observer
        self._fails = False
        self.saver = saver
        self.expect = expect
        self.seconds = seconds
        self.active: dict[str, RunProgress] = {}

    async def store(self, part: Pending) -> None:
        """Store a checkpoint, or the writes of a task.

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

    async def keep(self, run_id: str) -> None:
        """Store all pending checkpoints and writes of a run.

        Raises:
            StoreUnavailable: the database does not respond; the progress stays pending.
        """
        if (progress := self.active.get(run_id)) is not None:
            await progress.keep()

    @property
    def config_specs(self) -> list[Any]:
        """The config specs of the checkpointer."""
        return self.saver.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel, as computed by the wrapped checkpointer."""
        return self.saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> ProgressSaver:
        """Return a saver that accepts additional types in states. Both savers have the same `active` runs."""
        allowing = copy(self)
        allowing.saver = self.saver.with_allowlist(extra_allowlist)
        allowing.serde = allowing.saver.serde
        return allowing

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, by default the newest. For a new run, return None at once."""
        progress = self.active.get(_thread_of(config))
        if progress is not None:
            if progress.is_new(namespace_of(config)):
                return None
            await progress.keep()
        return await self.saver.aget_tuple(config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """Yield the matching checkpoints, newest first."""
        if config is not None:
            await self.keep(_thread_of(config))
        async for found in self.saver.alist(config, **options):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of the delta channels, including checkpoints that were pending."""
        await self.keep(_thread_of(config))
        return await self.saver.aget_delta_channel_history(config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint."""
        progress = self.active.get(_thread_of(config))
        if progress is None:
            return await self.saver.aput(config, checkpoint, metadata, new_versions)
        await progress.add(PendingCheckpoint(self.saver, config, checkpoint, metadata, new_versions))
        namespace = {"thread_id": _thread_of(config), "checkpoint_ns": namespace_of(config)}
        return {"configurable": {**namespace, "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task."""
        progress = self.active.get(_thread_of(config))
        if progress is None:
            await self.saver.aput_writes(config, writes, task_id, task_path)
        else:
            await progress.add(PendingWrites(self.saver, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread, including pending ones."""
        if (progress := self.active.get(thread_id)) is not None:
            await progress.forget()
        await self.saver.adelete_thread(thread_id)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, by default the newest of its thread."""
        return self._waited_for(self.aget_tuple(config))

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield the matching checkpoints, newest first."""

        async def found() -> tuple[CheckpointTuple, ...]:
            return tuple([one async for one in self.alist(config, **options)])

        yield from self._waited_for(found())

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        """Save a checkpoint."""
        return self._waited_for(self.aput(*args, **kwargs))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task."""
        self._waited_for(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread."""
        self._waited_for(self.adelete_thread(thread_id))

    def get_delta_channel_history(self, **asked: Any) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of delta channels."""
        return self._waited_for(self.aget_delta_channel_history(**asked))

    def _waited_for[T](self, work: Coroutine[Any, Any, T]) -> T:
        if running_loop() is self._loop:
            work.close()
            raise asyncio.InvalidStateError(
                "`invoke` in async code would wait for its own event loop; use `await graph.ainvoke()` there."
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
