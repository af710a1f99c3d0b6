"""A small graph with in-run memory that proposes an answer to an event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, cast
from weakref import WeakKeyDictionary

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langchain_core.utils.uuid import uuid7
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from threadkeep.agent.conversion import role_of, text_of
from threadkeep.agent.counting import count_tokens
from threadkeep.agent.invocation import run_id_of
from threadkeep.agent.prompts import PromptTemplate, flatten_messages, prompt_of
from threadkeep.agent.provider_messages import repair
from threadkeep.agent.reducers import BoundedMessages, bounded_messages
from threadkeep.agent.shortening import with_text
from threadkeep.graph_store.items import Locks
from threadkeep.history.memory_options import utc_now
from threadkeep.observe import MemoryUpdated, ModelFailed, Observer, Observers, PromptSent
from threadkeep.records import Json
from threadkeep.store.codec import clean_text

type CandidateOutcome = Literal["SKIP", "OK", "ERROR"]


class Candidate(TypedDict):
    """A proposed answer; the same event gives it the same id each time."""

    id: str
    kind: Literal["text"]
    status: Literal["proposed"]
    source: str
    text: str
    created_at: str


class CandidateError(TypedDict):
    """Why there is no answer; `error` is the name of the error's class, since its sentence may quote people."""

    source: str
    error: str
    message: str
    created_at: str


class CandidateState(TypedDict, total=False):
    """The state: the event comes in, and goes out with its `candidates` and `errors` when there are new ones."""

    event: Mapping[str, Json]
    messages: list[BaseMessage]
    outcome: CandidateOutcome | None
    candidate: Candidate | None
    errors: list[CandidateError]
    combinedPrompt: str | None
    llmText: str | None


def bounded_state(reducer: BoundedMessages) -> type[CandidateState]:
    """The state with a reducer of its own for the messages; nodes are annotated with `CandidateState`."""

    class BoundedState(CandidateState, total=False):
        """The state of a candidate graph."""

    # Not written in the class: annotations are kept as text, and there a reducer of this function has no name.
    BoundedState.__annotations__["messages"] = Annotated[list[AnyMessage], reducer]
    return BoundedState


SOURCE = "llm-bot"
"""Who proposes candidates and reports errors."""

CREATED_AT = "createdAt"
"""Under which name a message's `additional_kwargs` have the time at which it entered the memory."""

SYSTEM_PROMPT_ID = "system-prompt"
"""The id of the graph's own system message in the state."""

type PromptedModel = Runnable[LanguageModelInput, BaseMessage | str]

_NOTHING: CandidateState = {"outcome": None, "candidate": None, "errors": [], "combinedPrompt": None, "llmText": None}


@dataclass(frozen=True, kw_only=True)
class CandidateNodes:
    """The nodes, and what they share; see `candidate_graph` for the meaning of each field."""

    model: PromptedModel
    system_prompt: str
    flat: bool | PromptTemplate
    timeout_seconds: float | None
    reducer: BoundedMessages
    observer: Observer
    clock: Callable[[], datetime]

    async def ingest_prompt(self, state: CandidateState, config: RunnableConfig) -> CandidateState:
        """Remember the event's prompt as one human message; the same event again keeps the answer that it got."""
        prompt = prompt_of(state.get("event") or {})
        if prompt is None:
            return {**_NOTHING, "outcome": "SKIP"}
        message_id = prompt.message_id or str(uuid7())
        known = state.get("candidate")
        if known and known["id"] == _candidate_id(message_id) and state.get("combinedPrompt") == prompt.text:
            return {"outcome": None, "errors": []}
        messages = state.get("messages") or []
        question = HumanMessage(prompt.text, id=message_id, additional_kwargs=self._created(messages, message_id))
        update = _update(messages, self._remembered(messages, question))
        self._tell_update(messages, update, config)
        return {**_NOTHING, "messages": update, "combinedPrompt": prompt.text}

    async def call_model(self, state: CandidateState, config: RunnableConfig) -> CandidateState:
        """Send the model what is remembered, system messages first, and remember what it says."""
        sent = sorted(repair(state["messages"]).messages, key=lambda message: role_of(message) != "system")
        prompt = self._prompt(sent)
        self._tell_prompt(sent, prompt, config)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                reply = await self.model.ainvoke(prompt)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a provider raises is the outcome ERROR, and is told
            return self._failed(state, type(error).__name__, config)
        answer = AIMessage(reply) if isinstance(reply, str) else reply
        text = clean_text(text_of(answer))
        if not text.strip():
            return {"llmText": text}
        kept = answer if text == text_of(answer) else with_text(answer, text)
        update = [kept.model_copy(update={"additional_kwargs": {**kept.additional_kwargs, **self._created()}})]
        self._tell_update(state["messages"], update, config)
        return {"messages": update, "llmText": text}

    async def build_candidate(self, state: CandidateState) -> CandidateState:
        """Propose what the model said, whole, though the memory may have cut it; nothing if it said nothing."""
        text = state.get("llmText") or ""
        if not text.strip():
            return {"outcome": "OK"}
        candidate = state.get("candidate") or self._candidate(state["messages"], text)
        return {"outcome": "OK", "candidate": candidate, "event": _with(state["event"], "candidates", candidate)}

    def _candidate(self, messages: Sequence[BaseMessage], text: str) -> Candidate:
        asked = next(str(message.id) for message in reversed(messages) if role_of(message) == "user")
        return {
            "id": _candidate_id(asked),
            "kind": "text",
            "status": "proposed",
            "source": SOURCE,
            "text": text,
            "created_at": self.clock().isoformat(),
        }

    def _remembered(self, messages: Sequence[BaseMessage], question: HumanMessage) -> list[BaseMessage]:
        """Return the memory's messages with the question last; an earlier copy of it and its answer are left out."""
        before: list[BaseMessage] = []
        again = False
        for message in messages:
            again = message.id == question.id or (again and isinstance(message, AIMessage))
            if not again and message.id != SYSTEM_PROMPT_ID:
                before.append(message)
        if not self.system_prompt.strip():
            return [*before, question]
        created = self._created(messages, SYSTEM_PROMPT_ID)
        return [SystemMessage(self.system_prompt, id=SYSTEM_PROMPT_ID, additional_kwargs=created), *before, question]

    def _created(self, messages: Sequence[BaseMessage] = (), message_id: str = "") -> dict[str, str]:
        """Return the time of a message that enters the memory: that of the first time if it was there before."""
        times = (one.additional_kwargs.get(CREATED_AT) for one in messages if one.id == message_id)
        return {CREATED_AT: next((str(time) for time in times if time), None) or self.clock().isoformat()}

    def _prompt(self, messages: Sequence[BaseMessage]) -> str | list[BaseMessage]:
        if isinstance(self.flat, PromptTemplate):
            return self.flat.render(messages)
        return flatten_messages(messages) if self.flat else list(messages)

    def _failed(self, state: CandidateState, kind: str, config: RunnableConfig) -> CandidateState:
        self.observer.notify(ModelFailed(error=kind, run_id=run_id_of(config)))
        error: CandidateError = {
            "source": SOURCE,
            "error": kind,
            "message": f"The model did not answer ({kind}). Send the event again, or check the model.",
            "created_at": self.clock().isoformat(),
        }
        return {"outcome": "ERROR", "errors": [error], "event": _with(state["event"], "errors", error)}

    def _tell_update(self, messages: list[BaseMessage], update: list[BaseMessage], config: RunnableConfig) -> None:
        if not update:
            return
        report = self.reducer.trim_report(messages, update)
        self.observer.notify(
            MemoryUpdated(
                before_count=report.before,
                after_count=report.after,
                trimmed_by_chars=report.trimmed_by_chars,
                trimmed_by_count=report.trimmed_by_count,
                run_id=run_id_of(config),
            )
        )

    def _tell_prompt(self, sent: list[BaseMessage], prompt: str | list[BaseMessage], config: RunnableConfig) -> None:
        texts = [prompt] if isinstance(prompt, str) else map(text_of, sent)
        self.observer.notify(
            PromptSent(
                messages=len(sent),
                characters=sum(map(len, texts)),
                tokens=count_tokens(prompt),
                flat=isinstance(prompt, str),
                run_id=run_id_of(config),
            )
        )


def _update(messages: list[BaseMessage], wanted: list[BaseMessage]) -> list[BaseMessage]:
    """The update that makes these messages those: what is new, or all of them anew where that is not enough."""
    if wanted[: len(messages)] == messages:
        return wanted[len(messages) :]
    return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *wanted]


def _candidate_id(message_id: str) -> str:
    return f"{message_id}:candidate"


def _with(event: Mapping[str, Json], field: str, entry: Candidate | CandidateError) -> Mapping[str, Json]:
    """The event with one more entry in one of its lists."""
    before = event.get(field)
    return {**event, field: [*(before if isinstance(before, list) else []), cast("Json", entry)]}


_LOCKS: WeakKeyDictionary[BaseCheckpointSaver[Any], Locks[tuple[int, str]]] = WeakKeyDictionary()


class CandidateGraph(CompiledStateGraph[CandidateState, None, CandidateState, CandidateState]):
    """A compiled candidate graph.

    With a checkpointer, the runs of one thread come one after the other in this process: LangGraph lets each of several
    runs at once begin with the same checkpoint, and keeps the memory of one of them.
    """

    async def astream(
        self,
        input: Any,  # noqa: A002 - LangGraph's name
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph when it is its thread's turn, and yield what LangGraph yields."""
        running = cast("AsyncGenerator[Any]", super().astream(input, config, **options))
        # The turn ends when the run does, also when its reader goes away in the middle.
        async with self._turn(config), aclosing(running) as parts:
            async for part in parts:
                yield part

    @asynccontextmanager
    async def _turn(self, config: RunnableConfig | None) -> AsyncIterator[None]:
        saver = self.checkpointer
        thread_id = merge_configs(self.config, config).get("configurable", {}).get("thread_id")
        if not isinstance(saver, BaseCheckpointSaver) or thread_id is None:
            yield
            return
        # A lock belongs to one event loop.
        key = (id(asyncio.get_running_loop()), str(thread_id))
        async with _LOCKS.setdefault(saver, Locks[tuple[int, str]]()).of(key):
            yield


def candidate_graph(
    model: PromptedModel,
    *,
    system_prompt: str = "",
    max_messages: int = 8,
    max_chars: int = 8000,
    flat: bool | PromptTemplate = False,
    timeout_seconds: float | None = None,
    observers: Sequence[Observer] = (),
    clock: Callable[[], datetime] = utc_now,
    checkpointer: Checkpointer = None,
    store: BaseStore | None = None,
) -> CandidateGraph:
    """A compiled graph that makes a prompt of an event, calls a model, and proposes its answer.

    ::

        result = await candidate_graph(model).ainvoke({"event": {"message": {"id": "42", "text": "Hi"}}})
        result["outcome"], result["candidate"]

    Without a checkpointer the memory is that of one run; with one, the events of a thread have their turns. To add
    nodes or to compile it otherwise, take its `builder`.

    Args:
        model: a chat model, or anything else that takes messages (or a text, if `flat`) and gives a message or a text.
        system_prompt: stands first in every call.
        max_messages: how many messages are remembered, the system prompt counted; less than 1 is 1.
        max_chars: how many characters they may have together; 0 is unlimited.
        flat: whether the model is sent one text, `(role) content` joined by blank lines; a template makes another text.
        timeout_seconds: how long the model may take; None is without end.
        observers: told of each update of the memory, each call and each failure; never of what was said.
        clock: gives the time of candidates and errors.
        checkpointer: keeps the memory from run to run of a thread; True: the one of the graph that this is a node of.
        store: a LangGraph store for nodes that are added.
    """
    reducer = bounded_messages(max_messages, max_chars)
    nodes = CandidateNodes(
        model=model,
        system_prompt=system_prompt,
        flat=flat,
        timeout_seconds=timeout_seconds,
        reducer=reducer,
        observer=Observers(*observers),
        clock=clock,
    )
    builder = StateGraph(bounded_state(reducer))
    builder.add_node("ingest_prompt", nodes.ingest_prompt)
    builder.add_node("call_model", nodes.call_model)
    builder.add_node("build_candidate", nodes.build_candidate)
    builder.add_edge(START, "ingest_prompt")
    builder.add_conditional_edges("ingest_prompt", _after_prompt, ["call_model", "build_candidate", END])
    builder.add_conditional_edges("call_model", _after_call, ["build_candidate", END])
    builder.add_edge("build_candidate", END)
    compiled = builder.compile(checkpointer=checkpointer, store=store, name="candidate_graph")
    return CandidateGraph(**vars(compiled))


def _after_prompt(state: CandidateState) -> str:
    if state.get("outcome") == "SKIP":
        return END
    # The text is there already when the same event came again.
    return "call_model" if state.get("llmText") is None else "build_candidate"


def _after_call(state: CandidateState) -> str:
    return END if state.get("outcome") == "ERROR" else "build_candidate"
