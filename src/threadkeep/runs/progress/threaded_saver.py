"""A checkpointer's verbs for graphs that nodes and tools call without `await`, in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
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


class ThreadedSaver(BaseCheckpointSaver[Any]):
    """Has its async verbs done in the event loop that it was made in, and waits for them in the thread that asks."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(serde=serde)
        self._loop = asyncio.get_running_loop()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The newest checkpoint of a thread, or the one that is named."""
        return self._waited_for(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first."""

        async def found() -> tuple[CheckpointTuple, ...]:
            return tuple([one async for one in self.alist(config, filter=filter, before=before, limit=limit)])

        yield from self._waited_for(found())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint."""
        return self._waited_for(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote."""
        self._waited_for(self.aput_writes(config, writes, task_id, task_path))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """How channels came to be what they are."""
        return self._waited_for(self.aget_delta_channel_history(config=config, channels=channels))

    def _waited_for[T](self, work: Coroutine[Any, Any, T]) -> T:
        if _running_loop() is self._loop:
            work.close()
            raise asyncio.InvalidStateError(
                "A graph that async code calls with `invoke` would wait for itself; use `await graph.ainvoke()` there."
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
