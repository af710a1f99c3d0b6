"""One turn of a session inside a run: the question is stored first, the answer when the run ends, however it ends.

The middleware and the node helper both stand on `OpenTurn`. It keeps no state that another process would need: what the
model sees is read from the transcript before the question's place, so a run that was interrupted can go on elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.utils.uuid import uuid7
from langgraph.runtime import Runtime, get_runtime

from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import InvalidKey, StoreUnavailable
from threadkeep.history.memory import Memory
from threadkeep.history.session import Recollection, Session
from threadkeep.observe import ContextBuilt
from threadkeep.records import Json, Message, Status
from threadkeep.workflow.conversion import from_langchain, merge, plain, repair, text_of, to_langchain
from threadkeep.workflow.trimming import count_tokens, trim

type IdOf = Callable[[RunnableConfig], str | None]


@dataclass(frozen=True)
class TurnOptions:
    """How a turn reads and writes its session.

    `max_messages` limits what comes from earlier turns; `max_tokens` bounds everything that a model call is sent, the
    system message and this turn's tool calls included, by `counter` (the default estimate when None); 0 for either
    leaves earlier turns out. `session_id` and `user_id` find their values in a run's config; by default the session is
    `configurable["thread_id"]` and the user `configurable["user_id"]`. `keep_originals` stores the full LangChain
    message beside its text.
    """

    max_messages: int | None = 20
    max_tokens: int | None = 4000
    counter: TokenCounter | None = None
    session_id: IdOf | None = None
    user_id: IdOf | None = None
    keep_originals: bool = False


class OpenTurn:
    """A turn that has begun.

    `answered` is the answer that is stored already, when the question is a repeat of one that was answered.
    """

    def __init__(self, memory: Memory, session: Session, options: TurnOptions, question: Sequence[BaseMessage]) -> None:
        self.session = session
        self.question = tuple(question)
        self.run_id = str(uuid7())
        self.answered: AIMessage | None = None
        self._memory = memory
        self._options = options
        self._repeated = False
        self._recollection: Recollection | None = None

    @property
    def question_id(self) -> str | None:
        """The id of the newest message of the question, which is the turn's own id."""
        return self.question[-1].id if self.question else None

    async def begin(self, run_id: str | None = None, metadata: Mapping[str, Json] | None = None) -> None:
        """Store the question, with what the caller knows about it; find out whether it was asked before.

        Raises:
            InvalidMessage, WrongUser: the question can never be stored in this session.
        """
        self.run_id = run_id or self.run_id
        if not self.question:
            return
        question = [self._stored(message, "complete").with_fields(metadata=metadata or {}) for message in self.question]
        receipt = await self.session.record(question)
        if receipt is not None and self.question_id in receipt.duplicates:
            self._repeated = True
            self.answered = await self._stored_answer()

    async def go_on(self) -> None:
        """Take up a turn that began before, perhaps in another process."""
        self._repeated = True
        if (question := await self._find(self.question_id)) and question.run_id:
            self.run_id = question.run_id

    async def context(self, messages: Sequence[BaseMessage], system: SystemMessage | None = None) -> list[BaseMessage]:
        """What a model call is sent beside its system message: earlier turns, then the run's own messages.

        Raises:
            BudgetTooSmall: the system message alone is over the budget.
        """
        if self._recollection is None:
            self._recollection = await self.session.recall(
                self._options.max_messages,
                self._options.max_tokens,
                counter=self._options.counter,
                before_id=self.question_id,
            )
        earlier = [to_langchain(message) for message in self._recollection.messages]
        merged = plain(repair(merge(earlier, messages)))
        fitting = self._fitting(merged, system)
        self._memory.observers.notify(
            ContextBuilt(
                run_id=self.run_id,
                session_id=self.session.session_id,
                messages=len(fitting),
                tokens=count_tokens(fitting, counter=self._options.counter),
                dropped=self._recollection.dropped + len(merged) + (system is not None) - len(fitting),
            )
        )
        return fitting[1:] if system is not None else fitting

    async def close(self, answer: BaseMessage | str, status: Status = "complete") -> None:
        """Store what the assistant said; nothing for an empty answer, and never a second answer to one question."""
        message = AIMessage(content=answer, id=str(uuid7())) if isinstance(answer, str) else answer
        if not text_of(message).strip():
            return
        if self._repeated and await self._stored_answer() is not None:
            return
        await self._memory.finish(self._record, self._stored(message, status))

    async def is_stored(self, message: BaseMessage) -> bool:
        """Whether the session has a message already."""
        return await self._find(message.id) is not None

    async def _record(self, message: Message) -> None:
        await self.session.record([message])

    def _fitting(self, merged: list[BaseMessage], system: SystemMessage | None) -> list[BaseMessage]:
        everything = merged if system is None else [system, *merged]
        if self._options.max_tokens in (None, 0):
            return everything
        return trim(
            everything,
            self._options.max_tokens,
            counter=self._options.counter,
            max_messages=self._options.max_messages,
        )

    async def _stored_answer(self) -> AIMessage | None:
        """The answer that the question got before."""
        question = await self._find(self.question_id)
        if question is None:
            return None
        self.run_id = question.run_id or self.run_id
        with contextlib.suppress(StoreUnavailable):
            answer = await self.session.answer_to(question)
            if answer is not None and answer.status == "complete":
                return AIMessage(content=answer.content, id=answer.id)
        return None

    async def _find(self, message_id: str | None) -> Message | None:
        """A stored message; where the database does not answer, the turn goes on as if it were not there."""
        with contextlib.suppress(StoreUnavailable):
            return await self.session.find(message_id) if message_id else None
        return None

    def _stored(self, message: BaseMessage, status: Status) -> Message:
        stored = from_langchain(message, full=self._options.keep_originals)
        return stored.with_fields(run_id=self.run_id, status=status)


class PartialAnswer(AsyncCallbackHandler):
    """What a model has said so far, when it streams: kept if the run is cancelled in the middle."""

    def __init__(self) -> None:
        self.text = ""

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the text of one chunk."""
        if isinstance(chunk, ChatGenerationChunk):
            self.text += text_of(chunk.message)
        elif isinstance(token, str):
            self.text += token


def question_in(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The newest input: the human messages at the end."""
    start = len(messages)
    while start and isinstance(messages[start - 1], HumanMessage):
        start -= 1
    return list(messages[start:])


def question_before(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The input that a run in its loop is answering: the newest block of human messages, wherever it stands."""
    end = len(messages)
    while end and not isinstance(messages[end - 1], HumanMessage):
        end -= 1
    return question_in(messages[:end])


def session_for(memory: Memory, options: TurnOptions, config: RunnableConfig) -> Session:
    """The session that a run belongs to.

    Raises:
        InvalidKey: the run names no session, or one that is not a valid key.
    """
    configurable = config.get("configurable", {})
    session_id = options.session_id(config) if options.session_id else configurable.get("thread_id")
    if session_id is None or session_id == "":
        raise InvalidKey(
            'The run names no session: call the agent with {"configurable": {"thread_id": "telegram:123"}}, '
            "or give SessionMemory a session_id function.",
            reason="empty",
        )
    user_id = options.user_id(config) if options.user_id else configurable.get("user_id")
    return memory.session(str(session_id), user_id=None if user_id is None else str(user_id))


def metadata_of(config: RunnableConfig) -> Mapping[str, Json] | None:
    """What the caller wants to have kept with the question: `configurable["message_metadata"]`."""
    metadata = config.get("configurable", {}).get("message_metadata")
    return metadata if isinstance(metadata, Mapping) else None


def run_id_of(config: RunnableConfig) -> str | None:
    """The id that the caller gave the run, if any: in a graph's nodes only the runtime still has it."""
    if run_id := config.get("run_id"):
        return str(run_id)
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):  # not in a graph
        return None
    return runtime.execution_info.run_id if runtime and runtime.execution_info else None


def listening(config: RunnableConfig, handler: PartialAnswer) -> RunnableConfig:
    """The run's config with one more listener on its model calls."""
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=True)
        return {**config, "callbacks": manager}
    return {**config, "callbacks": [*(callbacks or []), handler]}
