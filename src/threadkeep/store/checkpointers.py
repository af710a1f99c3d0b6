"""LangGraph's checkpointers with our errors: who carries a run out has to tell an outage from a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)


class TranslatingSaver(BaseCheckpointSaver[str]):
    """Stands before a checkpointer of LangGraph's and turns the errors of its driver into ours.

    It does so for what a graph calls while it runs, and for the removal of threads; the rest is as LangGraph has it.
    """

    translated: ClassVar[Callable[[], AbstractContextManager[None]]]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The newest checkpoint of a thread, or the one that is named."""
        with type(self).translated():
            return await super().aget_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint."""
        with type(self).translated():
            return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a step wrote."""
        with type(self).translated():
            await super().aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove the checkpoints of a thread."""
        with type(self).translated():
            await super().adelete_thread(thread_id)
