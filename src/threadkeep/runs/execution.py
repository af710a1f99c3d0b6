"""One run's graph, carried out from where its checkpoints end: tried again where that may help, within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NotRequired, TypedDict

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Interrupt, StreamMode

from threadkeep.graphs.children import result_of
from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.nodes.speaking import SpeakingNode
from threadkeep.graphs.resources import Resources
from threadkeep.graphs.state import answer_of
from threadkeep.observe import RunRetried
from threadkeep.records import Json
from threadkeep.records.runs import Run
from threadkeep.runs.failures import is_passing, kind_of, pause_before
from threadkeep.runs.kept_answers import said_without, with_unanswered
from threadkeep.runs.last_contexts import LastContexts
from threadkeep.runs.live import LiveRun, RunPiece
from threadkeep.runs.metering import Account, Meter
from threadkeep.runs.outages import Outages
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.progress.checkpoints import thread_of
from threadkeep.runs.progress.durability import durability_of
from threadkeep.runs.progress.saver import ProgressSaver
from threadkeep.runs.requests import begin_state, context_of, interrupts_of, metadata_of
from threadkeep.runs.service_options import RunServiceOptions
from threadkeep.runs.tracing import Notes, ToolTrace, jsonable
from threadkeep.runs.unrecorded import UnrecordedTurns
from threadkeep.workflow.conversion import opinion_of, text_of

_TOOLS = "tools"
"""How `create_agent` calls the node in which tools run: what their own models say is no part of the answer."""


@dataclass(frozen=True)
class RunMeans:
    """What all runs of a process share; without a `saver` they keep no checkpoints."""

    compiler: Compiler
    saver: ProgressSaver | None
    resources: Resources
    options: RunServiceOptions
    contexts: LastContexts
    unrecorded: UnrecordedTurns = field(default_factory=UnrecordedTurns)


class _Part(TypedDict):
    """A part of a graph's stream, of whatever kind."""

    type: str
    ns: tuple[str, ...]
    data: Any
    interrupts: NotRequired[tuple[Interrupt, ...]]


class Execution:
    """One life of a run in this process. `begins` says that it has none behind it: there are no checkpoints yet."""

    def __init__(
        self,
        run: Run,
        workflow: Workflow,
        means: RunMeans,
        *,
        notes: Notes,
        ledger: Account,
        live: LiveRun,
        begins: bool,
    ) -> None:
        self._run = run
        self._workflow = workflow
        self._means = means
        self._notes = notes
        self._ledger = ledger
        self._live = live
        self._begins = begins
        self._graph = means.compiler.compiled(workflow)
        self._unheard = _unheard(workflow)
        self._state: object = {}
        self._interrupts: dict[str, Interrupt] = {}
        self._outages = Outages(means.resources.memory.runs, means.saver.saver if means.saver else None, live)

    async def to_its_end(self) -> Outcome:
        """Carry the run out; what goes wrong is in the outcome, but for a cancellation."""
        try:
            async with asyncio.timeout(self._seconds_left()):
                with self._means.contexts.of(self._run.run_id, self._run.session_id) as seen:
                    outcome = await self._until_it_ends()
        except TimeoutError:
            # Those of models and tools are caught inside.
            return Outcome("failed", error="DeadlinePassed")
        if outcome.result is None or not (context := seen.to_dict()):
            return outcome
        return replace(outcome, result={**outcome.result, "context": context})

    async def _until_it_ends(self) -> Outcome:
        tries, again = max(self._run.attempts, 1), False
        while True:
            try:
                for one in self._run.inputs:
                    await self._means.unrecorded.over(self._run.session_id, one.message_id)
                self._run = await with_unanswered(self._means.resources.memory, self._run)
                if (said := await self._said_meanwhile()) is not None:
                    return Outcome("done", result=said)
                await self._through(await self._given(again=again))
                return await self._kept(self._outcome())
            except Exception as error:  # noqa: BLE001 - whatever a graph raises, the run ends by it
                if self._ledger.spent is not None or not is_passing(error):
                    return Outcome("failed", error=kind_of(self._ledger.spent or error))
                if not await self._outages.outlasted(error):
                    if tries >= self._workflow.options.max_tries:
                        # One that is tried once only has not failed again and again.
                        return Outcome("failed", error=kind_of(error), set_aside=tries > 1)
                    tries += 1
                self._tell_retry(kind_of(error), tries)
            await self._pause(tries)
            self._live.begin()
            self._begins, again = False, True

    async def _said_meanwhile(self) -> Mapping[str, Json] | None:
        """What people were answered without this run, while the database was away: they are not answered once more.

        A run that begins finds it by itself; one that goes on is past the place where it would.
        """
        if self._begins or not self._means.unrecorded.has_answered(self._run):
            return None
        return await said_without(self._means.resources.memory, self._run)

    async def _kept(self, outcome: Outcome) -> Outcome:
        """What came out; who waits for a person goes on from here later, and fails where that cannot be stored."""
        if outcome.status == "waiting" and self._means.saver is not None:
            await self._means.saver.keep(self._run.run_id)
        return outcome

    async def _pause(self, tries: int) -> None:
        options = self._means.options
        first, longest = options.pause_seconds, options.longest_pause_seconds
        await asyncio.sleep(pause_before(tries, first_seconds=first, longest_seconds=longest))

    def _tell_retry(self, error: str, attempt: int) -> None:
        run = self._run
        self._notes.note("retried", data={"error": error, "try": attempt})
        self._means.resources.observer.notify(
            RunRetried(
                workflow=run.workflow, error=error, attempt=attempt, run_id=run.run_id, session_id=run.session_id
            )
        )

    async def _through(self, given: object) -> None:
        """Let the graph run until it stops by itself, and take down what is told meanwhile."""
        self._interrupts = {}
        modes: list[StreamMode] = ["values", "tasks", "custom"]
        if self._live.wants_pieces:
            modes.append("messages")
        stream: Any = self._graph.astream(
            given,
            self._config(),
            context=context_of(self._run, self._means.resources),
            stream_mode=modes,
            subgraphs=self._live.wants_pieces,
            durability=None if self._means.saver is None else durability_of(self._workflow),
            version="v2",
        )
        async for part in stream:
            self._take(part)
        if self._ledger.spent is not None:
            # A node may have gone on without its model: the run has not what it was to give all the same.
            raise self._ledger.spent

    def _take(self, part: _Part) -> None:
        data = part["data"]
        if part["type"] == "messages":
            self._tell(*data)
        elif part["ns"]:
            return
        elif part["type"] == "values":
            self._state = data
            self._interrupts |= {one.id: one for one in part.get("interrupts", ())}
        elif part["type"] == "tasks":
            self._note_task(data)
        elif isinstance(data, Mapping) and data.get("kind") == "agent_messages":
            self._notes.note("agent_messages", str(data.get("node")), _without_empty(_map(jsonable(data.get("data")))))
        else:
            self._notes.note("custom", data={"value": jsonable(data)})

    def _note_task(self, task: Mapping[str, Any]) -> None:
        if "input" in task:
            self._notes.note("node_started", task["name"])
            return
        told: dict[str, Json] = {}
        if (error := task["error"]) is not None:
            told["error"] = kind_of(error) if isinstance(error, BaseException) else "Exception"
        if task["interrupts"]:
            told["waits"] = True
        self._notes.note("node_finished", task["name"], told)

    def _tell(self, message: object, metadata: Mapping[str, Any]) -> None:
        if not isinstance(message, AIMessageChunk) or metadata.get("langgraph_node") == _TOOLS:
            return
        node = str(metadata.get("langgraph_checkpoint_ns", "")).partition(":")[0]
        if node not in self._unheard and (text := text_of(message)):
            self._live.tell(RunPiece(self._run.run_id, node or None, message.id, text))

    def _outcome(self) -> Outcome:
        if self._interrupts:
            return Outcome("waiting", interrupt=self._asked())
        state = self._state if isinstance(self._state, Mapping) else vars(self._state)
        found, answer = result_of(self._workflow, self._run.run_id, state), answer_of(state)
        result: dict[str, Json] = {"output": jsonable(found.output), "text": found.summary}
        if answer is not None:
            confidence, escalated = opinion_of(answer)
            result |= {"message_id": answer.id, "confidence": confidence, "escalated": escalated}
            self._notes.note("message", data={"message_id": answer.id, "text": text_of(answer)})
        return Outcome("done", result={name: value for name, value in result.items() if value is not None})

    def _asked(self) -> Json:
        """What the run asks, and how often it has asked by now."""
        before = self._run.interrupt.get("number") if isinstance(self._run.interrupt, Mapping) else None
        asked: list[Json] = [{"id": one.id, "value": jsonable(one.value)} for one in self._interrupts.values()]
        return {"number": (before if isinstance(before, int) else 0) + 1, "interrupts": asked}

    async def _given(self, *, again: bool = False) -> object:
        """What the graph is called with: its input, an answer, or nothing where it goes on.

        An answer is given once: if its process died after that, the graph may know it already, and would take it for
        the answer to its next question. At the worst a person is asked again.
        """
        run, saver = self._run, self._means.saver
        if self._begins or saver is None:
            return begin_state(run)
        if await saver.aget_tuple(thread_of(run.run_id)) is None:
            return begin_state(run)
        if not run.resumed or run.attempts > 1 or again:
            return None
        ids = [str(one.get("id")) for one in interrupts_of(run)]
        return Command(resume=run.resume_value if len(ids) != 1 else {ids[0]: run.resume_value})

    def _config(self) -> RunnableConfig:
        run = self._run
        callbacks: list[BaseCallbackHandler] = [
            Meter(self._ledger, self._means.options.prices),
            ToolTrace(self._notes),
        ]
        return {
            "configurable": {
                **thread_of(run.run_id)["configurable"],
                "session_id": run.session_id,
                "user_id": run.user_id,
                "message_metadata": metadata_of(run),
            },
            "callbacks": callbacks,
            "recursion_limit": self._workflow.options.recursion_limit,
        }

    def _seconds_left(self) -> float | None:
        """How long the run may still take. A person's time, to answer or to have it tried again, is not the run's."""
        run = self._run
        if run.deadline_at is None:
            return None
        tried_anew = run.attempts <= 1 and run.started_at != run.heartbeat_at
        if run.resumed or tried_anew:
            return (run.deadline_at - run.created_at).total_seconds()
        now = self._means.resources.memory.clock()
        return max((run.deadline_at - now) / timedelta(seconds=1), 0.0)


def _unheard(workflow: Workflow) -> frozenset[str]:
    """The nodes whose models say nothing that is the run's answer."""
    nodes = workflow.nodes.items()
    return frozenset(name for name, node in nodes if not (isinstance(node, SpeakingNode) and node.answers))


def _map(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {"value": value}


def _without_empty(data: Mapping[str, Json]) -> dict[str, Json]:
    """LangChain's messages without the fields that say nothing, which it puts in again when it reads them."""
    messages = data.get("messages")
    if not isinstance(messages, list):
        return dict(data)
    return {**data, "messages": [_message(one) if isinstance(one, Mapping) else one for one in messages]}


def _message(message: Mapping[str, Json]) -> dict[str, Json]:
    fields = message.get("data")
    if not isinstance(fields, Mapping):
        return dict(message)
    empty: tuple[Json, ...] = (None, [], {})
    kept = {name: value for name, value in fields.items() if name == "content" or value not in empty}
    return {**message, "data": kept}
