"""A turn of a session inside a run: its question, and the answer of one speaker.

The middleware and the node helper both use `OpenTurn`. `OpenTurn` has no state that another process would need: the
context of a model call is built from stored messages, so another process can continue an interrupted run. Of several
complete answers of a speaker, the first that the database stores is valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat, takewhile
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.conversion import (
    EDITS,
    ENDS,
    STRUCTURED,
    TASK,
    from_langchain,
    id_of,
    is_stored_as,
    transcript_text,
)
from threadkeep.agent.extras import JoinedSource
from threadkeep.agent.invocation import HeldAnswer
from threadkeep.agent.questions import RECEIVED
from threadkeep.agent.turn_context import TurnContext
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import MessageNotFound, MessageSuperseded, QuestionGone, StoreUnavailable, TurnInMemoryOnly
from threadkeep.history.recollection import PAGE_ROWS
from threadkeep.history.session import in_time
from threadkeep.knowledge.learning import WORKSPACE
from threadkeep.observe import HistoryDiffers
from threadkeep.records import Json, Message, Receipt, Status
from threadkeep.store.driver import Joined, Statement

_READ_PAUSES: Final = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each attempt to read the answer that another process stored first."""

_NEAR_ROWS: Final = 50
"""The number of rows before and after a repeated question that are searched for its partial answers."""
_SHORT_TEXT: Final = 20
"""A text with fewer characters, such as "please continue", may be sent twice on purpose."""


def _continues(question: Message, row: Message) -> bool:
    """Return True if `row` is a partial answer, `question`, or its copy (long text of the same person, no file)."""
    is_long = len(question.content) >= _SHORT_TEXT and not question.content.endswith("]")
    is_copy = is_long and (row.role, row.author, row.content) == (question.role, question.author, question.content)
    return is_copy or row.id == question.id or row.status == "interrupted"


def as_answer(row: Message) -> AIMessage:
    """Return a stored answer as a message, with its structured response."""
    structured = row.metadata.get(STRUCTURED)
    beside = {STRUCTURED: structured} if isinstance(structured, str) else {}
    return AIMessage(row.content, id=row.id, additional_kwargs=beside)


class OpenTurn(TurnContext):
    """A turn that has begun.

    `answered` is the speaker's complete answer if it is already stored, because the question is a repeat or another
    process was faster. `earlier` has the complete answers of all speakers so far. `task` is the name of the call of a
    nested agent (`task_of`). `ends` is the name of the recorded graph, if this answer ends its turn (`ENDS`).
    """

    answered: AIMessage | None = None
    earlier: tuple[Message, ...] = ()
    task: str | None = None
    ends: str | None = None
    _repeated = False
    _forgotten = False
    _known_question_id: str | None = None

    async def begin(
        self,
        metadata: Mapping[str, Json] | None = None,
        *,
        received: Sequence[BaseMessage] = (),
        changed: Sequence[BaseMessage] = (),
    ) -> None:
        """Store the question with the caller's metadata. If the question is a repeat, read its answers.

        `received` is the question as the caller sent it, before other middleware changed it. `changed` are earlier
        human messages that the transcript does not have; they are stored before the question.

        Raises:
            InvalidMessage, WrongUser: the question can never be stored in this session.
            TurnInMemoryOnly: the question is a repeat, and neither the database nor the disk accepts its answer.
        """
        if not self.question:
            return
        question = await self._question_rows(metadata or {}, received)
        waiting = self._pending()
        if waiting:
            # Write pending messages first, because the database may already have another process's answer.
            await in_time(self.session, self.session.deliver())
            waiting = self._pending()
        self.earlier = tuple([m for m in waiting if m.answers == self.question_id and m.status == "complete"])
        self._known_question_id = self.question_id
        if waiting:
            self._repeated = True
            if question[:-1]:
                # The newest message of the question is stored or pending. Store the question's other messages too.
                await self._memory.finish(self._record, question[:-1])
        else:
            if EDITS in self.question[-1].response_metadata:
                await self._edit(question[-1])
            # A cancelled write may be repeated: ids make sure that changed messages are stored only once.
            ids = [id_of(message) or str(uuid7()) for message in changed]
            earlier = [self._stored(m, "complete", run_id=None, id=id_) for m, id_ in zip(changed, ids, strict=True)]
            await self._store_question(question, earlier)
        if self._repeated and not self.earlier:
            await self._read_stored()
        self._find_answer()
        if waiting and self.answered is not None and self._hold is None:
            await self._memory.pending.ensure_kept(self.session.session_id, str(self.answered.id))

    def _pending(self) -> list[Message]:
        """Return the pending writes (not in the database yet) of the question and of its answers."""
        return [m for m in self.session.waiting() if self.question_id in (m.id, m.answers)]

    async def _question_rows(self, metadata: Mapping[str, Json], received: Sequence[BaseMessage]) -> list[Message]:
        """Return the question's rows. If middleware changed a text, the row has the digest of the received text."""
        rows = [self._stored(message, "complete", metadata=metadata) for message in self.question]
        texts = dict(enumerate(map(transcript_text, received)))
        changed = [index for index, row in enumerate(rows) if texts.get(index, row.content) != row.content]
        if changed and (digest := await self._memory.text_digests.digest()) is not None:
            for index in changed:
                rows[index] = rows[index].with_fields(metadata={**metadata, RECEIVED: digest(texts[index])})
        return rows

    async def _edit(self, question: Message) -> None:
        """If the question is an edited version of a stored message, supersede that message and all later ones."""
        edited = self.question[-1].response_metadata.get(EDITS)
        if not isinstance(edited, str) or question.id is None or not question.content:
            return
        stored = await self._find(edited)
        if stored is not None and stored.role == "user":  # an answer cannot be edited by a person
            with contextlib.suppress(MessageNotFound, MessageSuperseded, StoreUnavailable):
                await self._memory.finish(self.session.edit, edited, question.content, new_id=question.id)

    async def _store_question(self, question: Sequence[Message], changed: Sequence[Message]) -> None:
        receipt = self._hold.stored(question) if self._hold is not None and not changed else None
        if receipt is None:
            receipt = await self._memory.finish(self._record_question, [*changed, *question])
        self._repeated = receipt is not None and self.question_id in receipt.duplicates
        if receipt is not None and not self._repeated:
            self.question_seq = receipt.last_seq
            self.questions = 1 if receipt.duplicates else len(question)
        self.question_as_stored = receipt is None or not receipt.duplicates
        self._forgotten = receipt is not None and self.question_id in receipt.deleted
        if changed and not self._repeated:
            first = None if receipt is None or receipt.duplicates else receipt.first_seq
            placed = [row.with_fields(seq=first and first + index) for index, row in enumerate(changed)]
            self.sent_rows += tuple(placed)
            self._memory.observers.notify(HistoryDiffers(session_id=self.session.session_id, messages=len(changed)))

    async def _record_question(self, messages: Sequence[Message]) -> Receipt | None:
        """Store the question and, if possible, read the history in the same transaction."""
        profile, limit = self._options.profile or "", min(self._options.message_limit or PAGE_ROWS, PAGE_ROWS)
        if self._transcribed and not self._options.no_history:
            reads = self._joined_reads() if self._options.sources else {}
            joined = Joined(after=[statement for _, statements in reads.values() for statement in statements])
            self._begun = await self.session.begin_joined(messages, joined, profile=profile, limit=limit)
            rows = iter(self._begun.rows if self._begun is not None else ())
            for source, (scopes, statements) in reads.items() if self._begun is not None else ():
                self._reads[source] = scopes, [row for found in islice(rows, len(statements)) for row in found]
        return await self._record(messages) if self._begun is None else self._begun.receipt

    def _joined_reads(self) -> dict[object, tuple[Any, Sequence[Statement]]]:
        reads: dict[object, tuple[Any, Sequence[Statement]]] = {}
        for source in self._options.sources:
            with ErrorBoundary():  # the search of a failing source reports the error
                if isinstance(source, JoinedSource) and (read := source.joined(self._memory, self.session)):
                    reads[source] = read
        return reads

    async def _record(
        self,
        messages: Sequence[Message],
        *,
        answers: str | None = None,
        told: bool = False,
        completes: str | None = None,
    ) -> Receipt | None:
        """Store messages; for `answers` and `completes`, see `Session.record`. Return None if the write is pending.

        Raises:
            TurnInMemoryOnly: the messages are only in memory, and a caller outside of a run waits for the answer
                (`told`).
        """
        try:
            return await self.session.record(messages, answers=answers, told=told, completes=completes)
        except TurnInMemoryOnly:
            if told and self._hold is None:
                raise
            return None

    def join(self, first: OpenTurn) -> None:
        """Join the turn of another agent of the run, which has stored the question."""
        self.run_id, self._run_is_known = first.run_id, first._run_is_known
        self.earlier, self._repeated = first.earlier, first._repeated
        self._known_question_id, self._forgotten = first._known_question_id, first._forgotten
        self.question_seq, self.questions = first.question_seq, first.questions
        self.sent_rows = first.sent_rows
        same = [transcript_text(message) for message in self.question] == [
            transcript_text(message) for message in first.question
        ]
        self.question_as_stored = same and first.question_as_stored
        self._find_answer()

    async def read_answers(self) -> None:
        """Read the answers that the run has given so far, including answers that are not in the database yet."""
        await self._read_stored()
        held = self._hold.answer if self._hold is not None else None
        given = [*self._pending(), *([held.message] if held is not None else [])]
        mine = [one for one in given if one.answers == (self.question_id or self.run_id) and one.status == "complete"]
        self.earlier = (*self.earlier, *mine)

    def speak_as(self, author: str | None, ordinal: int) -> None:
        """Set the author and the number of the answer. If an answer with both is already stored, set `answered`."""
        self.author, self.ordinal = author, ordinal
        self._find_answer()

    async def go_on(self) -> None:
        """Continue a turn that began before, perhaps in another process.

        Raises:
            WrongUser: the session belongs to another user.
        """
        await in_time(self.session, self.session.check_owner())
        self._repeated = True
        self.question_as_stored = False
        await self._read_stored()
        if self._known_question_id is None and await in_time(self.session, self.session.count()) == 0:
            # The question was deleted with its session. Set the question's id, so that the answer is not stored either.
            self._known_question_id = self.question_id

    async def close(self, answer: BaseMessage | str, status: Status = "complete") -> AIMessage | None:
        """Store the speaker's answer unless it is empty, even if the caller is cancelled while it is stored.

        If another process stored its answer first, return that answer. If another message of the session has the id of
        this answer, return this answer with a new id.

        Raises:
            TurnInMemoryOnly: neither the database nor the disk accepts the answer; a repeated question gets it later.
        """
        message = AIMessage(content=answer, id=str(uuid7())) if isinstance(answer, str) else answer
        return await self._memory.finish(self._close, message, status)

    async def _close(self, message: BaseMessage, status: Status) -> AIMessage | None:
        # Drop the answer if its question was deleted. Drop a partial answer if another process owns the run.
        given_up = self._forgotten or (status != "complete" and self._hold is not None and self._hold.lost)
        first_stored = None
        if self._options.answers and transcript_text(message).strip() and not given_up:
            first_stored = await self._answer(message, status)
        if self._hold is None or self._hold.answer is None:
            await self.settle()
        return first_stored

    async def _answer(self, message: BaseMessage, status: Status) -> AIMessage | None:
        if status != "complete":
            await self._read_stored()
            if self.answered is not None:
                self._adopted = True
                return self.answered
        partial_id = await self._partial_id()
        self._repeated = self._repeated or status != "complete"  # a later answer of this turn replaces a partial one
        if self.steps.waiting:
            self.steps.answered_by(message.id)
        answer = self._stored(
            message,
            status,
            author=self.author,
            answers=self.question_id or self.run_id,
            ordinal=None if self.ordinal == 1 else self.ordinal,
        )
        learning = self._options.learning
        workspace = learning.workspace_of(self.session) if learning is not None and self._transcribed else None
        wanted = ((TASK, self.task), (ENDS, self.ends), (WORKSPACE, workspace))
        if marks := {key: mark for key, mark in wanted if mark is not None}:
            answer = answer.with_fields(metadata={**answer.metadata, **marks})
        told = status == "complete" and (self._hold is None or self._hold.told)
        # If possible, leave the answer to the transaction that ends the run.
        waits = self._hold is not None and self._hold.takes(self.session) and not self.steps.waiting
        if self._hold is not None and waits and status == "complete" and partial_id is None:
            store, settle = partial(self._store_answer, answer, told=told), self.settle
            anchor, asked = self.anchor_statement, self._known_question_id
            self._hold.answer = HeldAnswer(self.session, answer, asked, told, anchor, store, settle)
            return None
        return await self._store_answer(answer, told=told, completes=partial_id)

    async def _partial_id(self) -> str | None:
        """If the question is a repeat, return the id of the speaker's partial answer that the new answer replaces.

        Chat clients may repeat a question under another id, so answers to an adjacent copy of the question count too.
        """
        seq, past = self.question_seq, self._recollection.messages
        again = self._repeated or (past and (past[-1].role == "user" or past[-1].status == "interrupted"))
        if seq is None or not again:
            return None
        found = await in_time(self.session, self.session.at(range(seq - _NEAR_ROWS, seq + _NEAR_ROWS + 1))) or []
        rows = [row for row in found if row.superseded_at is None]
        index = next((index for index, row in enumerate(rows) if row.seq == seq), None)
        if index is None:
            return None
        near = partial(takewhile, partial(_continues, rows[index]))
        asked = {row.id for row in chain(near(rows[index::-1]), near(rows[index + 1 :]))}
        for row in reversed(rows):
            is_mine = row.answers in asked and (row.author, row.ordinal or 1) == (self.author, self.ordinal)
            if is_mine and row.status == "interrupted":
                return row.id
        return None

    async def _store_answer(self, answer: Message, *, told: bool, completes: str | None = None) -> AIMessage | None:
        """Store the answer, if possible with the call's record and anchor. If another was stored first, return it."""
        question_id, joined = self._known_question_id, None
        try:
            if completes is None:
                joined = await self.session.record_joined([answer], self.joined, answers=question_id, told=told)
            if joined is not None:
                receipt: Receipt | None = joined[0]
                self._anchored = True
                self._open = None if self._joins_record else self._open
            else:
                receipt = await self._record([answer], answers=question_id, told=told, completes=completes)
        except QuestionGone:
            # Drop the answer, because its question was deleted in the meantime.
            self._forgotten = True
            self._open = self._new_begin = None
            self.steps.forget()
            return None
        if receipt is None or receipt.adopted is None:
            stored_id = answer.id if receipt is None else receipt.ids[-1]
            if self._hold is not None:
                self._hold.told_id = stored_id if told else self._hold.told_id
                self._hold.was_pending |= receipt is None
            return None if stored_id == answer.id else as_answer(answer.with_fields(id=stored_id))
        self._adopted = True
        if self._hold is not None:
            self._hold.replaced = True
        first = await self._first_answer(receipt.adopted, told=told)
        return None if first is None else as_answer(first)

    async def _first_answer(self, answer_id: str, *, told: bool) -> Message | None:
        """Return the answer that another process stored first, unless it was deleted.

        Raises:
            StoreUnavailable: the answer could not be read in time; in a run, the read is retried instead until it
                succeeds.
        """
        pauses = _READ_PAUSES if self._hold is None else chain(_READ_PAUSES, repeat(_READ_PAUSES[-1]))
        for pause in pauses:
            await asyncio.sleep(pause)
            with contextlib.suppress(TimeoutError, StoreUnavailable):
                async with self.session.timeout():
                    return await (self.session.tell(answer_id) if told else self.session.find(answer_id))
        raise StoreUnavailable(
            "Another process has answered this message, and its answer cannot be read now; send the message again "
            "with the same id."
        )

    async def is_stored(self, message: BaseMessage) -> bool:
        """Return True if the session has this message and it is not superseded; False also if the database fails."""
        stored = await self._find(id_of(message))
        return stored is not None and stored.superseded_at is None

    async def _read_stored(self) -> None:
        """Read the stored question and its complete answers, and set the attributes of this turn."""
        question = await self._find(self.question_id)
        if question is None:
            return
        self._known_question_id = question.id
        if not self._run_is_known:
            self.run_id = question.run_id or self.run_id
        self.question_seq = question.seq
        self.question_as_stored = len(self.question) == 1 and is_stored_as(question, self.question[0])
        self.earlier = tuple(await in_time(self.session, self.session.answers_to(question)) or ())
        self._find_answer()

    def _find_answer(self) -> None:
        # Early versions stored answers without the id of their question. Treat such an answer as number 1.
        found = [
            one
            for one in self.earlier
            if (one.answers is None and self.ordinal == 1)
            or (one.answers is not None and one.author == self.author and (one.ordinal or 1) == self.ordinal)
        ]
        self.answered = as_answer(found[-1]) if found else None

    async def _find(self, message_id: str | None) -> Message | None:
        return await in_time(self.session, self.session.find(message_id)) if message_id else None

    def _stored(self, message: BaseMessage, status: Status, **fields: object) -> Message:
        others = {"run_id": self.run_id, "status": status, **fields}
        return from_langchain(message, full=self._options.keep_originals, others=others)
