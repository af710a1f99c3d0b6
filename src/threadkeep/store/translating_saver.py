"""LangGraph checkpointers that raise Threadkeep's errors, so that callers can tell an outage from a bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory


class TranslatingSaver(BaseCheckpointSaver[str]):
    """A base class for LangGraph checkpointers that translates the errors of database drivers.

    Errors are translated in the methods that a graph calls while it runs, and in the deletion of threads.
    """

    translated: ClassVar[Callable[[], AbstractContextManager[object]]]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the newest one of its thread."""
        with type(self).translated():
            return await super().aget_tuple(config)

    async def aget_delta_channel_history(self, **asked: Any) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes from which LangGraph rebuilds channels that a checkpoint does not store in full."""
        with type(self).translated():
            return await super().aget_delta_channel_history(**asked)

    async def aput(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        """Save a checkpoint."""
        with type(self).translated():
            return await super().aput(*args, **kwargs)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task in a graph step."""
        with type(self).translated():
            await super().aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a LangGraph thread."""
        with type(self).translated():
            await super().adelete_thread(thread_id)
