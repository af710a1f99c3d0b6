"""The checkpointer that runs have: it knows who of them is at work, and lets their progress be stored beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from threadkeep.runs.progress.progress import PendingCheckpoint, PendingWrites, RunProgress, place_of
from threadkeep.runs.progress.threaded_saver import ThreadedSaver


class ProgressSaver(ThreadedSaver):
    """Stands before a checkpointer; threads of which it knows no progress are the checkpointer's alone.

    Whoever reads a thread gets what is there, stored or not; what is not is stored first.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(saver.serde)
        self.saver = saver
        self._progresses: dict[str, RunProgress] = {}

    @contextmanager
    def knowing(self, run_id: str, progress: RunProgress) -> Iterator[None]:
        """Inside the block the thread of a run is that of a life of it."""
        self._progresses[run_id] = progress
        try:
            yield
        finally:
            if self._progresses.get(run_id) is progress:
                del self._progresses[run_id]

    async def keep(self, run_id: str) -> None:
        """Store what there is of a run's progress by now.

        Raises:
            StoreUnavailable: the database does not take it; it is kept for the next try.
        """
        if (progress := self._progresses.get(run_id)) is not None:
            await progress.keep()

    @property
    def config_specs(self) -> list[Any]:
        """Those of the checkpointer."""
        return self.saver.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        """What the checkpointer counts with."""
        return self.saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> ProgressSaver:
        """The same runs, for a graph whose state has types of its own."""
        allowing = copy(self)
        allowing.saver = self.saver.with_allowlist(extra_allowlist)
        allowing.serde = allowing.saver.serde
        return allowing

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The newest checkpoint of a thread, or the one that is named; of a run that begins nobody has to ask."""
        progress = self._progresses.get(_thread_of(config))
        if progress is not None:
            if progress.is_new(place_of(config)):
                return None
            await progress.keep()
        return await self.saver.aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the newest first."""
        if config is not None:
            await self.keep(_thread_of(config))
        async for found in self.saver.alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """How channels came to be what they are."""
        await self.keep(_thread_of(config))
        return await self.saver.aget_delta_channel_history(config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint."""
        progress = self._progresses.get(_thread_of(config))
        if progress is None:
            return await self.saver.aput(config, checkpoint, metadata, new_versions)
        await progress.add(PendingCheckpoint(self.saver, config, checkpoint, metadata, new_versions))
        place = {"thread_id": _thread_of(config), "checkpoint_ns": place_of(config)}
        return {"configurable": {**place, "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote."""
        progress = self._progresses.get(_thread_of(config))
        if progress is None:
            await self.saver.aput_writes(config, writes, task_id, task_path)
        else:
            await progress.add(PendingWrites(self.saver, config, writes, task_id, task_path))


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
