"""Helpers for tests of checkpoints: a checkpointer that counts its calls, and a workflow with a tool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver

from tests.runs.desk import QUICK
from threadkeep.runs.requests import RunRequest

NEVER = 3600.0
LATE = replace(QUICK, progress_seconds=NEVER)
STEPS = """\
schema: 1
name: steps
nodes:
  greeting: {kind: template, text: Hello, next: answer}
  answer: {kind: agent, tools: ['tests.workflows.tools:waiting'], next: end}
"""
GO = RunRequest(workflow="steps", text="go", session_id="room", message_id="m1")


async def nothing_to_expect(_: str) -> None:
    """Do nothing: no run is stored."""


class CountingSaver(InMemorySaver):
    """A checkpointer that records its calls and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.failure: Exception | None = None

    async def aget_tuple(self, config: RunnableConfig) -> Any:
        """Record a read."""
        self._note("read")
        return await super().aget_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Record a write of a checkpoint."""
        self._note("checkpoint")
        return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Record a write of pending writes."""
        self._note("writes")
        await super().aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Record a deletion."""
        self._note("removal")
        await super().adelete_thread(thread_id)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> CountingSaver:
        """Return this saver and no copy: a test changes `failure` while graphs use it."""
        return self

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if self.failure is not None:
            raise self.failure


def calling(tool: str, **args: str) -> AIMessage:
    """Return a model answer that calls a tool."""
    return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": tool}])


def thread_named(name: str) -> RunnableConfig:
    """Return the configuration of a thread."""
    return {"configurable": {"thread_id": name}}
