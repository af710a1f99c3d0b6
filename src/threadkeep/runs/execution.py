"""Execution of one run's graph from its last checkpoint, with retries within its limits."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.serde.types import RESUME
from langgraph.types import Command, Interrupt, StreamMode

from threadkeep.agent.conversion import assessment_of, text_of
from threadkeep.agent.invocation import RunHold, built_contexts
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import StoreError, StoreUnavailable, is_transient
from threadkeep.history.memory import Memory
from threadkeep.observe import BudgetCrossed, ContextBuilt, RunRetried
from threadkeep.records import Json
from threadkeep.records.runs import REPLY, Run, interrupts_of
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import ProgressSaver, thread_of
from threadkeep.runs.requests import begin_state, context_of, metadata_of
from threadkeep.runs.run_workflows import RunPlan
from threadkeep.runs.session_answers import stored_answer_of, with_unanswered
from threadkeep.runs.streams import InFlightMessages, RunPiece, RunStream, retry_until_available
from threadkeep.runs.tracing import Ledger, ToolTrace, jsonable
from threadkeep.store.runs import Outcome
from threadkeep.workflows.built_in import ChatNode
from threadkeep.workflows.definition import Compiler, Workflow
from threadkeep.workflows.nodes.base import Step
from threadkeep.workflows.nodes.conversations import ConversationKind
from threadkeep.workflows.registry import result_of
from threadkeep.workflows.resources import Resources
from threadkeep.workflows.state import answer_of, map_of
from threadkeep.workflows.turn_ends import LateQuestion

_MOST_LATE = 3
_FIRST = "first"
"""A key in a run's `interrupt`. Its value maps the first question of each task to the task's namespace and id."""

_TOOLS = "tools"
"""The name of the tool node in agents of `create_agent`. Tokens of models inside tools are not part of the answer."""


@dataclass(frozen=True)
class Dependencies:
    """The objects that all runs of a process share. If `saver` is None, the runs have no checkpoints."""

    compiler: Compiler
    saver: ProgressSaver | None
    resources: Resources
    options: RunServiceOptions
    in_flight: InFlightMessages = field(default_factory=InFlightMessages)
    _plans: WeakKeyDictionary[Workflow, RunPlan] = field(default_factory=WeakKeyDictionary)

    def plan(self, workflow: Workflow) -> RunPlan:
        """Return facts about a workflow that all its runs need. They are computed at the first call, and cached."""
        known = self._plans.get(workflow)
        if known is None:
            known = self._plans[workflow] = RunPlan.of(workflow, self.resources)
        return known


@dataclass(eq=False, repr=False, kw_only=True)
class RunExecution:
    """An execution of a run in this process.

    `begins` is true for the first execution, which has no checkpoints yet. `hold` is the state that the run shares with
    its agents; a run that is not recorded in the database has none.
    """

    run: Run
    dependencies: Dependencies
    tracer: Ledger
    stream: RunStream
    begins: bool = True
    hold: RunHold | None = None
    # `run` without the messages that other runs have answered.
    _run: Run = field(init=False)
    _workflow: Workflow = field(init=False)
    _plan: RunPlan = field(init=False)
    _memory: Memory = field(init=False)
    _streaming: dict[str, list[str]] = field(default_factory=dict, init=False)
    _state: object = field(default_factory=dict, init=False)
    _interrupts: dict[str, Interrupt] = field(default_factory=dict, init=False)
    _late: int = field(default=0, init=False)

    async def run_to_end(self, workflow: Workflow) -> Outcome:
        """Execute the run and return its outcome. A failure is an outcome, too; only a cancellation is raised."""
        self._run, self._workflow, self._plan = self.run, workflow, self.dependencies.plan(workflow)
        self._memory = self.dependencies.resources.memory
        contexts: list[ContextBuilt] = []
        token, deadline = built_contexts.set(contexts), self.run.deadline_at
        try:
            async with asyncio.timeout(None if deadline is None else self._seconds_until(deadline)):
                outcome = await self._execute_with_retries()
        except TimeoutError:
            # `_execute_with_retries` catches the timeouts of models and tools, so this is the deadline of the run.
            return Outcome("failed", error="DeadlinePassed")
        finally:
            built_contexts.reset(token)
        # Ignore the contexts of nested agents that have their own sessions.
        run_id, session_id = self._run.run_id, self._run.session_id
        own = [one for one in contexts if one.run_id == run_id or one.session_id == session_id]
        if outcome.result is None or not own:
            return outcome
        context: Json = {"messages": own[-1].messages, "tokens": own[-1].tokens, "dropped": own[-1].dropped}
        return replace(outcome, result={**outcome.result, "context": context})

    async def _execute_with_retries(self) -> Outcome:
        tries, again = max(self._run.attempts, 1), False
        while True:
            # Catch all errors, because a graph may raise any.
            with ErrorBoundary() as attempt:
                return await self._execute_once(again=again)
            error = attempt.caught
            if self.tracer.spent is not None or not is_transient(error):
                # Record only the class name of the error, because the message may quote people.
                return Outcome("failed", error=type(self.tracer.spent or error).__name__)
            if not await self._wait_for_recovery(error):
                if tries >= self._workflow.options.max_tries:
                    # A single failure, for example of a run with only one try, is no reason to set the run aside.
                    return Outcome("failed", error=type(error).__name__, set_aside=tries > 1)
                tries += 1
            run, kind, options = self._run, type(error).__name__, self.dependencies.options
            self.tracer.note("retried", data={"error": kind, "try": tries})
            self.dependencies.resources.observer.notify(
                RunRetried(
                    workflow=run.workflow, error=kind, attempt=tries, run_id=run.run_id, session_id=run.session_id
                )
            )
            first, longest = options.pause_seconds, options.longest_pause_seconds
            await asyncio.sleep(pause_before(tries, first_seconds=first, longest_seconds=longest))
            self.stream.renew(begun=True)
            again = True

    async def _execute_once(self, *, again: bool) -> Outcome:
        """Execute the run once, or return the stored answer if the chat has answered its messages during an outage."""
        memory, in_flight, saver = self._memory, self.dependencies.in_flight, self.dependencies.saver
        await in_flight.wait_for(self._run)
        if len(self._run.inputs) > 1:
            self._run = await with_unanswered(memory, self._run)
        # Look here for the answer of an unrecorded run, because a resumed graph skips the step that would find it.
        if in_flight.has_answered(self._run) and (result := await stored_answer_of(memory, self._run)) is not None:
            return Outcome("done", result=result)
        if self.hold is not None and self._plan.chat is not None:
            await self._reply(*self._plan.chat)
        else:
            await self._run_graph(await self._graph_input(again=again))
        if self.tracer.limited:
            await self._report_crossing()
        outcome = self._outcome()
        if outcome.status == "waiting" and saver is not None:
            # Store the checkpoints before other processes see that the run waits.
            await saver.keep(self._run.run_id)
        return outcome

    async def _wait_for_recovery(self, error: Exception) -> bool:
        """Wait for the database, if it records the run; return True if an outage may have caused `error`."""
        saver = self.dependencies.saver
        if saver is None:
            return False

        async def query() -> None:
            # Query both the run and its checkpoints, because they use separate connection pools.
            await self._memory.runs.run(self._run.run_id, damaged=True)
            await saver.saver.aget_tuple(thread_of(self._run.run_id))

        try:
            await query()
        except StoreUnavailable as away:
            # Publish this outcome although the run continues, so that the chat answers with a run that is not stored.
            self.stream.set_outcome(Outcome("failed", error=type(away).__name__))
            await retry_until_available(query)
            return True
        # A connection pool may recover later than the database, so up to three such failures do not count as tries.
        late = isinstance(error, StoreUnavailable) and self._late < _MOST_LATE
        self._late += late
        return late

    async def _report_crossing(self) -> None:
        """Report a budget that the last model call exceeded. Other checks of budgets are made only before a call."""
        crossed = None
        with contextlib.suppress(StoreError):  # the run has its answer anyway
            crossed = await self.tracer.crossed()
        if crossed is None:
            return
        run, numbers = self._run, {"used": crossed.used, "allowed": crossed.allowed}
        self.tracer.note("budget_crossed", data={"run_id": crossed.run_id, "limit": crossed.limit, **numbers})
        self.dependencies.resources.observer.notify(
            BudgetCrossed(
                workflow=run.workflow,
                limit=crossed.limit,
                used=crossed.used,
                allowed=crossed.allowed,
                run_id=run.run_id,
                budget_run_id=crossed.run_id,
                session_id=run.session_id,
            )
        )

    async def _run_graph(self, graph_input: object) -> None:
        """Run the graph until it ends or waits for a person; publish its tokens, and record its events and state."""
        self._interrupts = {}
        modes: list[StreamMode] = ["values", "tasks", "custom"]
        if self.stream.wants_pieces:
            modes.append("messages")
        stream: Any = self.dependencies.compiler.compiled(self._workflow).astream(
            graph_input,
            self._config([ToolTrace(self.tracer), *self._question_handlers()]),
            context=context_of(self._run, self.dependencies.resources),
            stream_mode=modes,
            subgraphs=self.stream.wants_pieces,
            durability=None if self.dependencies.saver is None else self._workflow.durability,
            version="v2",
        )
        async for part in stream:
            self._record_part(part)
        if self.tracer.spent is not None:
            # Raise the budget's error again, because a node may have caught it and returned an incomplete result.
            raise self.tracer.spent

    async def _reply(self, name: str, chat: ChatNode, options: Mapping[ConversationKind, TurnOptions]) -> None:
        """Run the built-in chat without a graph, but record the same events as a graph."""
        step, state = Step(name, context_of(self._run, self.dependencies.resources), None), begin_state(self._run)
        self.tracer.note("node_started", name)
        # Pass no callbacks, because the chat has no tools and stores its question itself.
        token = var_child_runnable_config.set(self._config([]))
        try:
            with ErrorBoundary() as call:
                reply = await chat.reply(step, state, metadata_of(self._run), partial(self._ask_model, name), options)
        finally:
            var_child_runnable_config.reset(token)
        if call.error is not None:
            self.tracer.note("node_finished", name, {"error": type(call.error).__name__})
            raise call.error
        self.tracer.note("agent_messages", name, {"messages": [_without_empty(jsonable(reply))]})
        self.tracer.note("node_finished", name)
        self._state = {"messages": [reply]}

    async def _ask_model(self, node: str, model: BaseChatModel, messages: list[BaseMessage]) -> AIMessage:
        """Call a model, publish its tokens if a caller wants them, and return its message."""
        if not self.stream.wants_pieces:
            return await model.ainvoke(messages)
        chunks: list[AIMessageChunk] = []
        named: str | None = None
        async for chunk in model.astream(messages):
            chunks.append(chunk)
            # Keep the provider's id, which may be in the first chunk only. LangChain's own ids begin with "lc_".
            named = named or (None if str(chunk.id).startswith("lc_") else chunk.id)
            self._publish_piece(node, named or chunk.id, chunk)
        whole = message_chunk_to_message(add_ai_message_chunks(*chunks))
        assert isinstance(whole, AIMessage)  # noqa: S101 - it is made of such chunks
        return whole

    def _record_part(self, part: Mapping[str, Any]) -> None:
        """Process a part of the graph's stream: publish a token, keep the state, or add an event to the trace."""
        data = part["data"]
        if part["type"] == "messages":
            self._publish(*data)
        elif part["ns"]:
            return
        elif part["type"] == "values":
            self._state = data
            self._interrupts |= {one.id: one for one in part.get("interrupts", ())}
        elif part["type"] == "tasks":
            self._note_task(data)
        elif isinstance(data, Mapping) and data.get("kind") == "agent_messages":
            self.tracer.note("agent_messages", str(data.get("node")), _agent_messages(jsonable(data.get("data"))))
        else:
            self.tracer.note("custom", data={"value": jsonable(data)})

    def _note_task(self, task: Mapping[str, Any]) -> None:
        if "input" in task:
            self.tracer.note("node_started", task["name"])
            return
        noted: dict[str, Json] = {}
        if (error := task["error"]) is not None:
            noted["error"] = type(error).__name__ if isinstance(error, BaseException) else "Exception"
        if task["interrupts"]:
            noted["waits"] = True
        self.tracer.note("node_finished", task["name"], noted)

    def _publish(self, message: object, metadata: Mapping[str, Any]) -> None:
        if not isinstance(message, AIMessageChunk) or metadata.get("langgraph_node") == _TOOLS:
            return
        namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
        node = namespace.partition(":")[0]
        if node not in self._plan.silent:
            self._publish_piece(node or None, self._id_in(namespace, message), message)

    def _id_in(self, namespace: str, chunk: AIMessageChunk) -> str | None:
        """Return the id of the message that a chunk belongs to, if it is known.

        LangChain may add an empty last chunk with another id. It belongs to the message that this node is streaming.
        """
        streaming = self._streaming.setdefault(namespace, [])
        message_id, is_last = chunk.id, chunk.chunk_position == "last"
        is_added = is_last and not text_of(chunk) and not chunk.tool_call_chunks
        if message_id is not None and message_id not in streaming and not is_added:
            streaming.append(message_id)
        if not is_last:
            return message_id
        if message_id not in streaming and len(streaming) == 1:
            message_id = streaming[0]
        if message_id in streaming:
            streaming.remove(message_id)
        return message_id

    def _publish_piece(self, node: str | None, message_id: str | None, chunk: AIMessageChunk) -> None:
        # A model that does not stream sends one message without a `chunk_position`. It counts as the last chunk.
        text, is_last = text_of(chunk), getattr(chunk, "chunk_position", "last") == "last"
        if text or is_last:
            self.stream.publish(RunPiece(self._run.run_id, node, message_id, text, is_last))

    def _outcome(self) -> Outcome:
        if self._interrupts:
            return Outcome("waiting", interrupt=self._asked())
        state = self._state if isinstance(self._state, Mapping) else vars(self._state)
        found, answer = result_of(self._workflow, self._run.run_id, state), answer_of(state)
        result: dict[str, Json] = {"output": jsonable(found.output), "text": found.summary}
        if answer is not None:
            confidence, escalated = assessment_of(answer)
            result |= {"message_id": answer.id, "confidence": confidence, "escalated": escalated}
            self.tracer.note("message", data={"message_id": answer.id, "text": text_of(answer)})
        return Outcome("done", result={name: value for name, value in result.items() if value is not None})

    def _asked(self) -> Json:
        """Return the new `Run.interrupt`: the open questions, how often the run has asked, and the last reply's id."""
        earlier = self._run.interrupt if isinstance(self._run.interrupt, Mapping) else {}
        before, reply = earlier.get("number"), earlier.get(REPLY)
        asked: list[Json] = [{"id": one.id, "value": jsonable(one.value)} for one in self._interrupts.values()]
        last = earlier.get("interrupts")
        # Do not count a question that the run asks again after a retry, or because one of its children was cancelled.
        asks_again = last == [] or (last == asked and not self._run.resumed)
        number = (before if isinstance(before, int) else 0) + (not asks_again)
        given: dict[str, Json] = {"number": number, "interrupts": asked, **({} if reply is None else {REPLY: reply})}
        saver = self.dependencies.saver
        if saver is not None:
            first = saver.active[self._run.run_id].first
            given[_FIRST] = {one: [*found] for one in self._interrupts if (found := first.get(one)) is not None}
        return given

    async def _graph_input(self, *, again: bool) -> object:
        """Return the graph's input: the initial state, a person's new answer, or None to continue.

        Leave out an answer to a task's first question if the graph has stored it already, for example before a crash.
        """
        run, saver = self._run, self.dependencies.saver
        if (self.begins and not again) or saver is None:
            return begin_state(run)
        if await saver.aget_tuple(thread_of(run.run_id)) is None:
            return begin_state(run)
        ids = [str(one.get("id")) for one in interrupts_of(run)]
        answers = run.resume_value if len(ids) != 1 else {ids[0]: run.resume_value}
        # Without question ids there is no answer to pass: the run goes on because one of its children was cancelled.
        if not run.resumed or not ids or not isinstance(answers, Mapping):
            return None
        # Only first questions are checked, because LangGraph itself ignores a repeated answer to a later question.
        used = await self._used(saver, map_of(run.interrupt, _FIRST) if isinstance(run.interrupt, dict) else {})
        answers = {one: answer for one, answer in answers.items() if one not in used}
        return Command(resume=answers) if answers else None

    async def _used(self, saver: ProgressSaver, first: Mapping[str, Any]) -> set[str]:
        """Return the ids of the questions whose answers are stored; `first` maps first questions to their tasks.

        If such an answer were passed again, LangGraph would take it for the answer to the task's next question.
        """
        answered = set[str]()
        for namespace in {namespace for namespace, _ in first.values()}:
            found = await saver.aget_tuple(thread_of(self._run.run_id, namespace))
            writes = (found.pending_writes if found is not None else None) or ()
            answered.update(task for task, kind, _ in writes if kind == RESUME)
        return {one for one, (_, task) in first.items() if task in answered}

    def _config(self, callbacks: Sequence[BaseCallbackHandler]) -> RunnableConfig:
        run = self._run
        return {
            "configurable": {
                "thread_id": run.run_id,
                "session_id": run.session_id,
                "user_id": run.user_id,
                "message_metadata": metadata_of(run),
            },
            "callbacks": [self.tracer, *callbacks],
            "recursion_limit": self._workflow.options.recursion_limit,
        }

    def _question_handlers(self) -> list[BaseCallbackHandler]:
        """Return a callback that stores the question after middleware has changed it, or none if no middleware can."""
        run, resources = self._run, self.dependencies.resources
        recorder = self._workflow.recorder
        if recorder is None or not recorder.waits or run.session_id is None:
            return []
        step, asked = Step("", context_of(run, resources), None), begin_state(run).get("messages") or ()
        keep = partial(recorder.store, step, metadata=metadata_of(run), received=asked)
        return [LateQuestion(resources.memory.loop, asked, keep)]

    def _seconds_until(self, deadline: datetime) -> float:
        """Return the seconds until the run's deadline. A reply, retry or release lets the full time begin again."""
        run = self._run
        tried_anew = run.attempts <= 1 and run.started_at != run.heartbeat_at
        total = deadline - run.created_at
        # Return at most the full time, because the clock of the process that stored the run may have been ahead.
        left = total if run.resumed or tried_anew else min(deadline - self._memory.clock(), total)
        return max(left.total_seconds(), 0.0)


def pause_before(try_number: int, *, first_seconds: float, longest_seconds: float) -> float:
    """Return the seconds to pause before attempt `try_number`, with exponential growth and jitter."""
    full = min(first_seconds * 2.0 ** (try_number - 2), longest_seconds)
    return full * random.uniform(0.5, 1.0)


def _agent_messages(payload: Json) -> dict[str, Json]:
    """Return the payload of an `agent_messages` event as a map. Empty fields of its messages are left out."""
    data: dict[str, Json] = dict(payload) if isinstance(payload, Mapping) else {"value": payload}
    if isinstance(messages := data.get("messages"), list):
        data["messages"] = list(map(_without_empty, messages))
    return data


def _without_empty(message: Json) -> Json:
    """Return a LangChain message as JSON without its empty fields, which LangChain restores."""
    fields = message.get("data") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(fields, Mapping):
        return message
    empty: tuple[Json, ...] = (None, [], {})
    full = {name: value for name, value in fields.items() if name == "content" or value not in empty}
    return {**message, "data": full}
