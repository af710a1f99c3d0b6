"""A small graph that proposes an answer to an event (a person's message), and remembers the newest messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

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
from threadkeep.boundary import ErrorBoundary
from threadkeep.graph_store.items import Locks
from threadkeep.observe import MemoryUpdated, ModelFailed, Observer, Observers, PromptSent
from threadkeep.records import Json
from threadkeep.store.codec import clean_text, utc_now

type CandidateOutcome = Literal["SKIP", "OK", "ERROR"]


class Candidate(TypedDict):
    """A proposed answer. If an event is repeated, its answer keeps the same id."""

    id: str
    kind: Literal["text"]
    status: Literal["proposed"]
    source: str
    text: str
    created_at: str


class CandidateError(TypedDict):
    """The reason why there is no answer. `error` is only the exception's class, because its text may quote people."""

    source: str
    error: str
    message: str
    created_at: str


class CandidateState(TypedDict, total=False):
    """The state of a candidate graph. At the end, `event` contains the new candidate or error."""

    event: Mapping[str, Json]
    messages: list[BaseMessage]
    outcome: CandidateOutcome | None
    candidate: Candidate | None
    errors: list[CandidateError]
    combinedPrompt: str | None
    llmText: str | None


def bounded_state(reducer: BoundedMessages) -> type[CandidateState]:
    """Return a subclass of `CandidateState` in which LangGraph bounds the messages with `reducer`."""

    class BoundedState(CandidateState, total=False):
        """The state of a candidate graph whose messages are bounded by `reducer`."""

    # Set the annotation here: in the class body it is a string, which cannot refer to `reducer`.
    BoundedState.__annotations__["messages"] = Annotated[list[AnyMessage], reducer]
    return BoundedState


SOURCE = "llm-bot"
"""The value of `source` in candidates and errors."""

CREATED_AT = "createdAt"
"""The key in `additional_kwargs` for the time at which a message was added to the state."""

SYSTEM_PROMPT_ID = "system-prompt"
"""The id of the graph's own system message in the state."""

type PromptedModel = Runnable[LanguageModelInput, BaseMessage | str]

_NOTHING: CandidateState = {"outcome": None, "candidate": None, "errors": [], "combinedPrompt": None, "llmText": None}


@dataclass(frozen=True, kw_only=True)
class CandidateNodes:
    """The nodes of a candidate graph, with their options; see `candidate_graph` for each field."""

    model: PromptedModel
    system_prompt: str
    flat: bool | PromptTemplate
    timeout_seconds: float | None
    reducer: BoundedMessages
    observer: Observer
    clock: Callable[[], datetime]

    async def ingest_prompt(self, state: CandidateState, config: RunnableConfig) -> CandidateState:
        """Add the event's prompt to the state as one human message, unless the state already has the event's answer."""
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
        self._notify_update(messages, update, config)
        return {**_NOTHING, "messages": update, "combinedPrompt": prompt.text}

    async def call_model(self, state: CandidateState, config: RunnableConfig) -> CandidateState:
        """Call the model with the state's messages, and add the answer or error to the state."""
        sent = sorted(repair(state["messages"]).messages, key=lambda message: role_of(message) != "system")
        prompt = self._prompt(sent)
        self._notify_prompt(sent, prompt, config)
        # Catch every error of a provider, and report it as the outcome ERROR.
        with ErrorBoundary(raising=(GraphBubbleUp,)) as call:
            async with asyncio.timeout(self.timeout_seconds):
                reply = await self.model.ainvoke(prompt)
        if call.error is not None:
            return self._failed(state, type(call.error).__name__, config)
        answer = AIMessage(reply) if isinstance(reply, str) else reply
        text = clean_text(text_of(answer))
        if not text.strip():
            return {"llmText": text}
        kept = answer if text == text_of(answer) else with_text(answer, text)
        update = [kept.model_copy(update={"additional_kwargs": {**kept.additional_kwargs, **self._created()}})]
        self._notify_update(state["messages"], update, config)
        return {"messages": update, "llmText": text}

    async def build_candidate(self, state: CandidateState) -> CandidateState:
        """Propose the full text of the model's answer (`llmText`): the message in the state may be shortened."""
        text = state.get("llmText") or ""
        if not text.strip():
            return {"outcome": "OK"}
        asked = [str(message.id) for message in state["messages"] if role_of(message) == "user"]
        candidate: Candidate = state.get("candidate") or {
            "id": _candidate_id(asked[-1]),
            "kind": "text",
            "status": "proposed",
            "source": SOURCE,
            "text": text,
            "created_at": self.clock().isoformat(),
        }
        return {"outcome": "OK", "candidate": candidate, "event": _with(state["event"], "candidates", candidate)}

    def _remembered(self, messages: Sequence[BaseMessage], question: HumanMessage) -> list[BaseMessage]:
        """Return the messages with the question at the end. Remove earlier copies of the question and its answer."""
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
        """Return metadata with the time at which a message was added to the state."""
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

    def _notify_update(self, messages: list[BaseMessage], update: list[BaseMessage], config: RunnableConfig) -> None:
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

    def _notify_prompt(self, sent: list[BaseMessage], prompt: str | list[BaseMessage], config: RunnableConfig) -> None:
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
    """Return the state update that turns `messages` into `wanted`."""
    if wanted[: len(messages)] == messages:
        return wanted[len(messages) :]
    return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *wanted]


def _candidate_id(message_id: str) -> str:
    return f"{message_id}:candidate"


def _with(event: Mapping[str, Json], field: str, entry: Candidate | CandidateError) -> Mapping[str, Json]:
    """Return the event with an entry appended to the list `field`."""
    before = event.get(field)
    return {**event, field: [*(before if isinstance(before, list) else []), cast("Json", entry)]}


_LOCKS: WeakKeyDictionary[BaseCheckpointSaver[Any], Locks[tuple[int, str]]] = WeakKeyDictionary()


class CandidateGraph(CompiledStateGraph[CandidateState, None, CandidateState, CandidateState]):
    """A compiled candidate graph.

    If the graph has its own checkpointer, the runs of a LangGraph thread are executed one after the other in an event
    loop. Concurrent runs would begin with the same checkpoint, and only one would be remembered.
    """

    async def astream(
        self,
        input: Any,  # noqa: A002 - LangGraph's name
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph after earlier runs of its thread have ended, and yield its stream."""
        running = cast("AsyncGenerator[Any]", super().astream(input, config, **options))
        # Close the stream even if the reader stops early, so that the run ends before the lock is released.
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
        # A lock works in only one event loop, so the loop is part of the key.
        key = (id(asyncio.get_running_loop()), str(thread_id))
        async with _LOCKS.setdefault(saver, WeakValueDictionary()).setdefault(key, asyncio.Lock()):
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
    """Return a compiled graph that turns an event into a prompt, calls a model, and proposes its answer.

    ::

        result = await candidate_graph(model).ainvoke({"event": {"message": {"id": "42", "text": "Hi"}}})
        result["outcome"], result["candidate"]

    Without a checkpointer, the memory belongs to one run. With a checkpointer, the events of a LangGraph thread share
    the memory. To add nodes or to compile the graph differently, use its `builder`.

    Args:
        model: a chat model, or a runnable that gets messages (a string if `flat`) and returns a message or a string.
        system_prompt: the first message of every call.
        max_messages: the maximum number of remembered messages, including the system prompt; at least 1.
        max_chars: the maximum number of characters of the texts of the remembered messages; 0 means no limit.
        flat: True to send all messages as one string, each as `(role) content`; or a template that formats this string.
        timeout_seconds: the maximum seconds of a model call; None means no limit.
        observers: receivers of an event for each memory update, model call and failure; events contain no texts.
        clock: returns the time of candidates and errors.
        checkpointer: stores the memory of a thread between runs; with True, the outer graph's checkpointer stores it.
        store: a LangGraph store for added nodes.
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
    builder.add_conditional_edges(
        "call_model",
        lambda state: END if state.get("outcome") == "ERROR" else "build_candidate",
        ["build_candidate", END],
    )
    builder.add_edge("build_candidate", END)
    compiled = builder.compile(checkpointer=checkpointer, store=store, name="candidate_graph")
    return CandidateGraph(**vars(compiled))


def _after_prompt(state: CandidateState) -> str:
    if state.get("outcome") == "SKIP":
        return END
    # A repeated event whose text is already in the state needs no model call.
    return "call_model" if state.get("llmText") is None else "build_candidate"
