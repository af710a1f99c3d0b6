"""Helpers to run workflows as a service does, but without an engine: child runs execute in the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from tests.recorded_events import RecordedEvents
from threadkeep import Memory
from threadkeep.records import Json
from threadkeep.records.runs import RunTrigger
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.definition import Compiler, Workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.registry import InProcessChildren, Workflows
from threadkeep.workflows.resources import Resources, RunContext
from threadkeep.workflows.state import initial_state

type Said = tuple[str, str]


@dataclass
class Desk:
    """The dependencies of runs, and methods to execute them."""

    memory: Memory
    model: ScriptedModel
    events: RecordedEvents
    store: BaseStore = field(default_factory=InMemoryStore)
    saver: InMemorySaver = field(default_factory=InMemorySaver)
    workflows: Workflows = field(default_factory=Workflows)
    compiler: Compiler = field(init=False)

    def __post_init__(self) -> None:
        """Create the compiler."""
        self.compiler = Compiler(checkpointer=self.saver, store=self.store)

    def use(self, *workflows: str | Workflow) -> Desk:
        """Register workflows, given as YAML or as objects."""
        ready = [read_workflow(one) if isinstance(one, str) else one for one in workflows]
        self.workflows = Workflows(ready)
        return self

    @property
    def resources(self) -> Resources:
        """Return the resources of the runs."""
        given = Resources(memory=self.memory, model=lambda _: self.model, observer=self.events)
        return InProcessChildren(self.workflows, self.compiler, given).resources

    def context(
        self,
        name: str,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        trigger: RunTrigger = "http",
        resources: Resources | None = None,
    ) -> RunContext:
        """Return the context of a run."""
        return RunContext(
            run_id=run_id or str(uuid4()),
            workflow=name,
            resources=resources or self.resources,
            session_id=session_id,
            user_id=user_id,
            trigger=trigger,
        )

    async def run(
        self,
        name: str,
        text: str = "",
        *,
        context: RunContext | None = None,
        session_id: str | None = None,
        message_id: str | None = None,
        trigger: RunTrigger = "http",
        inputs: Mapping[str, Json] | None = None,
        results: Mapping[str, Json] | None = None,
        user_context: Mapping[str, Json] | None = None,
        configurable: Mapping[str, Json] | None = None,
    ) -> dict[str, Any]:
        """Run a workflow to its end, and return its state."""
        context = context or self.context(name, session_id=session_id, trigger=trigger)
        state = initial_state(text, message_id=message_id, inputs=inputs, results=results, user_context=user_context)
        found: dict[str, Any] = await self.compiler.compiled(self.workflows.get(name)).ainvoke(
            state, {"configurable": {**(configurable or {}), "thread_id": context.run_id}}, context=context
        )
        return found

    async def transcript(self, session_id: str) -> list[Said]:
        """Return the roles and texts of a session."""
        return [(one.role, one.content) for one in await self.memory.session(session_id).tail(100)]


def spoken(messages: Sequence[BaseMessage]) -> list[Said]:
    """Return the types and texts of messages."""
    return [(message.type, str(message.text)) for message in messages]
