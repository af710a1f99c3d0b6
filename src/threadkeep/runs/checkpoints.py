"""The checkpointer of runs, which stores the progress of active runs in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.memory.on_loop import running_loop
from threadkeep.runs.progress import PendingCheckpoint, PendingWrites, RunProgress, namespace_of


class ThreadedSaver(BaseCheckpointSaver[Any]):
    """A checkpointer with synchronous methods that run the async ones in its event loop and wait for them."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(serde=serde)
        self._loop = asyncio.get_running_loop()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, by default the newest of its thread."""
        return self._waited_for(self.aget_tuple(config))

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first."""

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


class ProgressSaver(ThreadedSaver):
    """A wrapper of a checkpointer that delays the checkpoints of active runs, but no others.

    Before a thread is read, its pending progress is stored, so a reader always gets the newest state. `active` contains
    the progress of each active run by its id.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(saver.serde)
        self.saver = saver
        self.active: dict[str, RunProgress] = {}

    async def keep(self, run_id: str) -> None:
        """Store all pending progress of a run.

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
        """Return a saver for the same runs that allows additional types in the state of a graph."""
        allowing = copy(self)
        allowing.saver = self.saver.with_allowlist(extra_allowlist)
        allowing.serde = allowing.saver.serde
        return allowing

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the named or else the newest checkpoint of a thread. For a new run, return None without a query."""
        progress = self.active.get(_thread_of(config))
        if progress is not None:
            if progress.is_new(namespace_of(config)):
                return None
            await progress.keep()
        return await self.saver.aget_tuple(config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first."""
        if config is not None:
            await self.keep(_thread_of(config))
        async for found in self.saver.alist(config, **options):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of delta channels."""
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


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
