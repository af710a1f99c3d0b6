"""One turn of a session inside a run: the question is stored first, the answer when the run ends, however it ends.

The middleware and the node helper both stand on `OpenTurn`. It keeps no state that another process would need: what the
model sees is read from the transcript before the question's place, so a run that was interrupted can go on elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakKeyDictionary, WeakValueDictionary

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.errors import QuestionGone, StoreClosed, StoreError
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json, Message, Status
from threadkeep.workflow.call_measure import ModelUse
from threadkeep.workflow.conversion import from_langchain, id_of, text_of
from threadkeep.workflow.holding import run_hold
from threadkeep.workflow.model_call import Assembled
from threadkeep.workflow.turn_context import TurnContext
from threadkeep.workflow.turn_options import CallPlace, TurnOptions

_LONG_TURN = timedelta(seconds=10)
"""How long a turn lasts before somebody else may have taken its question for abandoned, and answered it."""


@dataclass(eq=False)
class _Closing:
    """What all turns of this process with the same question share, so that it gets one answer."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: bool = False


_closings: WeakKeyDictionary[Memory, WeakValueDictionary[tuple[str, str], _Closing]] = WeakKeyDictionary()


class OpenTurn:
    """A turn that has begun.

    `answered` is the answer that is stored already, when the question is a repeat of one that was answered.
    """

    def __init__(
        self,
        memory: Memory,
        session: Session,
        options: TurnOptions,
        question: Sequence[BaseMessage],
        place: CallPlace | None = None,
    ) -> None:
        self.session = session
        self.question = tuple(question)
        self.run_id = str(uuid7())
        self.answered: AIMessage | None = None
        self._memory = memory
        self._options = options
        self._repeated = False
        self._forgotten = False
        self._hold = run_hold.get()
        self._known_question_id: str | None = None
        self._began = memory.clock()
        self.contexts = TurnContext(memory, session, options, self.question, place)
        self._closing = _Closing()
        if self.question_id is not None:
            closings = _closings.setdefault(memory, WeakValueDictionary())
            self._closing = closings.setdefault((session.session_id, self.question_id), self._closing)

    @property
    def question_id(self) -> str | None:
        """The stored id of the newest message of the question, which is the turn's own id."""
        return id_of(self.question[-1]) if self.question else None

    async def begin(self, run_id: str | None = None, metadata: Mapping[str, Json] | None = None) -> None:
        """Store the question, with what the caller knows about it; find out whether it was asked before.

        Raises:
            InvalidMessage, WrongUser: the question can never be stored in this session.
        """
        self.run_id = run_id or self.run_id
        if not self.question:
            return
        question = [self._stored(message, "complete").with_fields(metadata=metadata or {}) for message in self.question]
        if self.question_id is not None and (waiting := self.session.waiting_answer(self.question_id)) is not None:
            # It was answered, and the database has not taken that yet.
            self._repeated, self._known_question_id = True, self.question_id
            self.answered = AIMessage(content=waiting.content, id=waiting.id)
            await self._record_before(question)
            return
        self._repeated = any(message.id == self.question_id for message in self.session.waiting())
        if self._repeated:
            await self._record_before(question)
        else:
            receipt = await self._memory.finish(self.session.record, question)
            self._repeated = receipt is not None and self.question_id in receipt.duplicates
            if receipt is not None and not self._repeated:
                self.contexts.question_seq = receipt.last_seq
                self.contexts.questions = 1 if receipt.duplicates else len(question)
            self.contexts.question_as_stored = receipt is None or not receipt.duplicates
            self._forgotten = receipt is not None and self.question_id in receipt.deleted
        self._known_question_id = self.question_id
        if self._repeated:
            self.answered = await self._stored_answer()

    async def _record_before(self, question: Sequence[Message]) -> None:
        """Store what a question begins with, whose newest message waits already: the others may be known to nobody."""
        if question[:-1]:
            await self._memory.finish(self.session.record, question[:-1])

    async def go_on(self) -> None:
        """Take up a turn that began before, perhaps in another process; it may be answered by now.

        Raises:
            WrongUser: the session is another user's.
        """
        await self._patiently(self.session.check_owner())
        self._repeated = True
        self.contexts.question_as_stored = False
        self.answered = await self._stored_answer()
        if self._known_question_id is None and await self._patiently(self.session.count()) == 0:
            # Nothing is left of the session: its question was stored, and deleted with it.
            self._known_question_id = self.question_id

    async def context(
        self, messages: Sequence[BaseMessage], system: SystemMessage | None = None, use: ModelUse | None = None
    ) -> Assembled:
        """What a model call is sent: the system message, earlier turns, then the run's own messages.

        Raises:
            BudgetTooSmall: the system message, the question and the newest step do not fit.
        """
        return await self.contexts.build(messages, system, use or ModelUse(), self.run_id)

    async def close(self, answer: BaseMessage | str, status: Status = "complete") -> None:
        """Store what the assistant said; nothing for an empty answer, and never a second answer to one question.

        A caller that is cancelled does not stop it.
        """
        message = AIMessage(content=answer, id=str(uuid7())) if isinstance(answer, str) else answer
        await self._memory.finish(self._close, message, status)

    async def is_stored(self, message: BaseMessage) -> bool:
        """Whether the session has a message already."""
        return await self._find(id_of(message)) is not None

    async def _close(self, message: BaseMessage, status: Status) -> None:
        # What was deleted comes back neither as a question nor as the answer to one that is not there; and where
        # another process has the run, half an answer of this one is nobody's.
        given_up = self._forgotten or (status != "complete" and self._hold is not None and self._hold.lost)
        if self._options.answers and text_of(message).strip() and not given_up:
            await self._answer(message, status)
        await self.contexts.settle()

    async def _answer(self, message: BaseMessage, status: Status) -> None:
        async with self._closing.lock:
            # A turn that was quick has its question for itself, and is spared the read.
            doubtful = self._repeated or self._memory.clock() - self._began >= _LONG_TURN
            if self._closing.done or (doubtful and await self._stored_answer() is not None):
                return
            try:
                await self.session.record([self._stored(message, status)], answers=self._known_question_id)
            except QuestionGone:
                # Somebody deleted the session meanwhile, and what was made for it goes nowhere.
                self._forgotten = True
                self.contexts.forget()
                return
            self._closing.done = status == "complete"

    async def _stored_answer(self) -> AIMessage | None:
        """The answer that the question got before."""
        question = await self._find(self.question_id)
        if question is None:
            return None
        self._known_question_id = question.id
        self.run_id = question.run_id or self.run_id
        self.contexts.question_seq = question.seq
        self.contexts.question_as_stored = [question.content] == [text_of(message) for message in self.question]
        answer = await self._patiently(self.session.answer_to(question))
        if answer is None or answer.status != "complete":
            return None
        return AIMessage(content=answer.content, id=answer.id)

    async def _find(self, message_id: str | None) -> Message | None:
        return await self._patiently(self.session.find(message_id)) if message_id else None

    async def _patiently[T](self, reading: Awaitable[T | None]) -> T | None:
        """What a read finds; where the database does not answer in time, the turn goes on as if it were nothing."""
        try:
            async with self.session.patience():
                return await reading
        except StoreClosed:
            raise
        except (StoreError, TimeoutError):
            return None

    def _stored(self, message: BaseMessage, status: Status) -> Message:
        stored = from_langchain(message, full=self._options.keep_originals)
        return stored.with_fields(run_id=self.run_id, status=status)
