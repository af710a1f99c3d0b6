"""The participation of one agent's call in a turn, and a registry of the calls that have not ended."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from langchain.agents.middleware import PIIDetectionError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime

from threadkeep.agent.answers import storable
from threadkeep.agent.callbacks import PartialAnswer, root_callbacks
from threadkeep.agent.conversion import ANSWERS, TASK, id_of, refused_message, text_of, transcript_text
from threadkeep.agent.invocation import CallKey, run_hold
from threadkeep.agent.questions import (
    RECEIVED,
    SentHistory,
    callers_question,
    compare_history,
    is_question,
    question_asked,
    question_before,
    questions_back,
    sent_by_caller,
    steps_begin,
    unanswered_question,
)
from threadkeep.agent.root_runs import RootRun
from threadkeep.agent.turn_options import CallSite, TurnOptions
from threadkeep.agent.turns import OpenTurn
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import ThreadkeepError
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session, in_time
from threadkeep.records import Json, Status

ABANDONED_SECONDS = 60.0
"""Seconds between two checks of whether a run has ended while its answer is held in memory."""

_MOST_CHECKS = 10
_MOST_CALLS = 1_000

type _Writer = weakref.ref[Callable[[Any], None]]


class OpenCalls:
    """The agent calls of one middleware in this process that have begun but not ended, by key.

    Before the memory closes, it stores their held answers (see `Participation.hold`) and partial texts. Beyond a
    thousand calls, the oldest call is dropped; if it is resumed, it continues from the transcript.
    """

    def __init__(self) -> None:
        self.calls: dict[CallKey, Participation] = {}

    def add(self, call: Participation) -> None:
        """Add a call that begins; replace a call with the same key."""
        self.calls.pop(call.key, None)
        self.calls[call.key] = call
        if len(self.calls) > _MOST_CALLS:
            del self.calls[next(iter(self.calls))]

    async def settle_all(self) -> None:
        """Store all answers held in memory, and the texts of unfinished model calls; finally raise the first error."""
        errors: list[Exception] = []
        for call in list(self.calls.values()):
            # A failure must not stop the storing of the other answers.
            with ErrorBoundary(errors.append):
                await call.settle()
        for first in errors:
            raise first

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Store the answers that a run's calls hold in memory, or drop them if the run continues in another process."""
        for call in list(self.calls.values()):
            if call.turn is not None and call.turn.run_id == run_id:
                if elsewhere:
                    call.leave()
                else:
                    await call.settle()


@dataclass(eq=False)
class Participation:
    """The call of one agent in a turn.

    - `run_id`, `metadata`: the run id and the metadata of the question, from the caller's config.
    - `site`: the workflow node to which the model calls belong.
    - `registry`: the calls of the same middleware that have not ended.
    - `silent`: True if the agent neither reads nor writes the session.
    - `resumed`: True if the agent began in an earlier call of the graph, before an interrupt or in another process.
    - `task`: the name of this call (`task_of`), if the agent is nested and may be resumed.
    - `text`, `status`: the held answer (`hold`), or the text of a message that calls tools.
    - `partial`: collects the text of a model call that has not ended.
    - `writer`: the stream writer of the run that began the call.
    - `redacted`: the kinds of data that the agent's `PIIMiddleware` detects.
    - `told_again`: the stored answer that was returned without calling the model.
    - `earlier_ids`: the ids of the messages that the state had when `told_again` was returned.

    LangGraph does not report that a run was cut off after its model had answered. But all nodes of a run share one
    stream writer, which lives as long as the run. If the writer is gone, the run has ended. If the writer exists, the
    run may be alive, or only the garbage collector or a cancelled timer still refers to the writer.
    """

    memory: Memory
    session: Session
    options: TurnOptions
    root: RootRun
    author: str | None
    key: CallKey
    run_id: str | None = None
    metadata: Mapping[str, Json] | None = None
    site: CallSite | None = None
    registry: OpenCalls = field(default_factory=OpenCalls, repr=False)
    silent: bool = False
    resumed: bool = False
    parent: Session | None = None
    task: str | None = None
    turn: OpenTurn | None = None
    text: BaseMessage | str = ""
    status: Status = "interrupted"
    partial: PartialAnswer | None = None
    writer: _Writer | None = None
    redacted: frozenset[str] = frozenset()
    direct_calls: set[str] = field(default_factory=set)
    model_failed: bool = False
    handed_over: bool = False
    told_again: BaseMessage | None = None
    earlier_ids: set[str | None] = field(default_factory=set)
    said_ids: set[str | None] = field(default_factory=set)
    _question: Sequence[BaseMessage] = ()
    _ordinal: int = 1
    _tried_before: bool = False
    _has_text_stored: bool = False
    _runs: list[_Writer] = field(default_factory=list, repr=False)
    _all_runs_known: bool = field(default=True, repr=False)
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    _settling: asyncio.Task[None] | None = field(default=None, repr=False)

    def enter(self, messages: Sequence[BaseMessage]) -> None:
        """Take part in the turn of the root run. If the turn has not begun, begin it with the question in `messages`.

        An agent becomes `silent` if its input is a text that the graph's code wrote. But if the turn began with such a
        text, the first agent that gets the caller's question begins a new turn.
        """
        root = self.root
        question: Sequence[BaseMessage] | None = root.question
        if not root.begun:
            question = question_asked(messages) if self.parent is None else question_before(messages)
        elif not root.has_part(messages):
            question = None if callers_question(root.question) else callers_question(messages) or None
        if question is None:
            self.silent = True
            return
        if question is not root.question:
            root.begin(question, sent_by_caller(messages))
        self._tried_before = root.begin_attempt()
        self._ordinal = root.claim(self.author, self.key)

    @property
    def question_id(self) -> str | None:
        """The id with which the question is stored; None if it is unknown."""
        return self.turn.question_id if self.turn is not None else self.root.question_id

    async def begin(self, messages: Sequence[BaseMessage]) -> OpenTurn:
        """Return the turn. The first call begins it, and stores the question as it is after the `before_model` hooks.

        Raises:
            InvalidMessage, WrongUser, TurnInMemoryOnly: see `OpenTurn.begin`. The session's next turn may then begin.
        """
        if self.turn is not None:
            return self.turn
        # Store the answers that ended runs of the session have left in memory. Discard such an answer if this call
        # repeats its question. Answers of runs that may be alive stay in memory.
        others = [one for one in self.registry.calls.values() if one is not self and not one.silent]
        for call in [one for one in others if one.session.session_id == self.session.session_id]:
            if call.question_id is not None and call.question_id == self.question_id:
                if call.status == "failed" or call.is_over:
                    call.leave()
            elif call.is_over:
                await call.settle()
        try:
            async with self.root.storing.setdefault(self.memory, asyncio.Lock()):
                turn = self.turn = self.turn or await self._begin(messages)
        finally:
            if self.turn is None:
                self.leave()
                self.root.release_session()
        return turn

    async def _begin(self, messages: Sequence[BaseMessage]) -> OpenTurn:
        root, call = self.root, root_callbacks.call
        # True if the run continues from a checkpoint, after an interrupt or in another process.
        run_continues = call is not None and call.is_continued
        if root.turn is not None:
            turn = await self._join(root.turn, messages)
        else:
            turn = await (self._go_on(messages) if self.resumed else self._ask(messages))
            root.turn = turn
            for answer in turn.earlier:
                root.add_answer(AIMessage(answer.content, id=answer.id), answer.author)
            # If the caller's last message is a stored answer of this agent, use that answer.
            last = root.sent[-1] if root.sent and not (self.resumed or run_continues) else None
            own = [one.id for one in turn.earlier if one.author == self.author]
            turn.answered = last if isinstance(last, AIMessage) and id_of(last) in own else None
        if turn.answered is None or root.turn is not turn:
            number = None
            if self.task and run_continues:
                number = self._number_of_resumed(turn, self.task, messages)
            if number is None:
                # A checkpoint may have answers of an earlier attempt. A new run counts only answers from its caller.
                seen = messages if self.resumed or run_continues else root.sent
                number = root.claim(self.author, self.key, seen)
            turn.speak_as(self.author, number)
        return turn

    def _number_of_resumed(self, turn: OpenTurn, name: str, messages: Sequence[BaseMessage]) -> int | None:
        """Return this agent's answer number in a resumed run (from 1); None if the stored answers do not show it.

        If LangGraph repeats a task, return the number of the task's stored answer. Otherwise, return the next number
        after the stored answers in `messages`. Another run that is resumed at the same time may get the same number.
        """
        root = self.root
        earlier = [one for one in turn.earlier if one.author == self.author]
        tasks = {one.ordinal or 1: str(one.metadata.get(TASK, "")) for one in earlier}
        if not tasks or not all(tasks.values()):  # early versions stored no tasks
            return None
        if own := [number for number, task in tasks.items() if task == name]:
            return root.reserve(self.author, self.key, own[0])
        ids = {id_of(message) for message in messages}
        after = max([one.ordinal or 1 for one in earlier if one.id in ids], default=0)
        node = name.partition("|")[0]
        taken = [number for number, task in tasks.items() if not after or task.partition("|")[0] == node]
        return root.claim_resumed(self.author, self.key, after, taken)

    async def _join(self, first: OpenTurn, messages: Sequence[BaseMessage]) -> OpenTurn:
        """Join the turn that another agent of the run began."""
        turn = self._open(self._question_in(messages))
        turn.join(first)
        if self._tried_before:
            # LangGraph repeats this node after a failed attempt. That attempt may have stored answers.
            await turn.read_answers()
        return turn

    def go_on(self, turn: OpenTurn) -> None:
        """Claim this answer's number again if a failure has released it. If another call has it, claim a new number."""
        ordinal = self.root.reclaim(self.author, self.key, turn.ordinal)
        if ordinal != turn.ordinal:
            turn.speak_as(self.author, ordinal)

    async def _ask(self, messages: Sequence[BaseMessage]) -> OpenTurn:
        """Store the question. Clients may send the whole chat, so skip its messages that are already stored."""
        if len(self.root.question) > 1:
            self.root.question = await self._without_later_turns(self.root.question)
        history = SentHistory(self.root.question)
        if run_hold.get() is None:
            history = await compare_history(self.memory, self.session, self.root.sent, self.root.question)
            self.root.question, self.root.sent = history.question, history.sent or self.root.sent
        received = self.root.question
        sent = self._question_in(messages)
        turn = self._open(sent if self.options.question_text == "sent" else received)
        turn.sent_rows = history.rows
        await turn.begin(self.metadata, received=received, changed=history.changed)
        if self.options.question_text == "received":
            turn.question_as_stored &= [*map(transcript_text, sent)] == [*map(transcript_text, received)]
        return turn

    async def _without_later_turns(self, question: tuple[BaseMessage, ...]) -> tuple[BaseMessage, ...]:
        """Return the question without messages at its end that belong to a later turn.

        In the state of a checkpoint, a repeated question without a reply is directly followed by the next question, or
        by a text that the graph's code wrote for another agent.
        """
        sent = [id(message) for message in self.root.sent]
        end = max([at for at, message in enumerate(question, start=1) if id(message) in sent], default=len(question))
        if end == len(question):
            return question
        ids = [id_of(one) or "" for one in question[end - 1 : end + 1]]
        found = await in_time(self.session, asyncio.gather(*map(self.session.find, ids)))
        # Put run ids into tuples: (None,) is a stored message without a run, and None a message that is not stored.
        asked, following = [row and (row.run_id,) for row in found or (None, None)]
        return question if asked == following else question[:end]

    async def refuse(self) -> None:
        """Store the question as `failed` and without its text, because other middleware may have rejected it.

        The stored row has a different id than the question, because the next attempt at the question may be accepted.
        """
        question = self.root.question[-1] if self.root.question else None
        if question is None or self.resumed or self.root.turn is not None or self.parent is not None:
            return
        if not await self._open([question]).is_stored(question):
            digest = await self.memory.text_digests.digest()
            received = {} if digest is None else {RECEIVED: digest(transcript_text(question))}
            refused = refused_message(question, self.run_id, {**(self.metadata or {}), **received})
            await self.memory.finish(self.session.record, [refused])

    def _question_in(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages of the question. If `messages` has one of them too, use the version in `messages`."""
        now = {id_of(message): message for message in messages}
        return [now.get(id_of(message), message) for message in self.root.question]

    def with_question(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """Return the messages. Insert the question if the state no longer has it.

        Middleware that shortens the state, such as `SummarizationMiddleware`, removes the question of a long run.
        """
        asked = {id_of(message) for message in self.root.question}
        present = {found for message in messages if (found := id_of(message)) in asked}
        if self.root.question_id in present:
            self._question = [message for message in messages if id_of(message) in asked]
        missing = [message for message in self._question if id_of(message) in asked - present]
        begin = steps_begin(messages, self.said_ids) if missing else 0
        return [*messages[:begin], *missing, *messages[begin:]]

    async def _go_on(self, messages: Sequence[BaseMessage]) -> OpenTurn:
        """Continue the turn of a resumed agent. The question is the newest block of human messages.

        A human message that a tool added, such as an image, is not a question: it follows the tool's result, and is not
        stored in the session.
        """
        question = question_before(messages)
        for index, block in questions_back(messages):
            of_tool = index > 0 and isinstance(messages[index - 1], ToolMessage)
            if not of_tool or await self._open(block).is_stored(block[-1]):
                question = block
                break
        if not question and any(isinstance(one, HumanMessage) and not is_question(one) for one in messages):
            question = self._question = await unanswered_question(self.session, self.run_id)
        after = next((index for index, message in enumerate(messages) if message is question[-1]), 0) if question else 0
        replies = [message for message in messages[after + 1 :] if isinstance(message, AIMessage)]
        if replies and (marked := replies[-1].response_metadata.get(ANSWERS)) is not None:
            question = [message for message in messages if message.id == marked] or question
        self.root.begin(question)
        turn = self._open(question)
        if replies:
            await turn.go_on()
        else:
            await turn.begin(self.metadata)
        return turn

    def _open(self, question: Sequence[BaseMessage]) -> OpenTurn:
        turn = OpenTurn(
            self.memory,
            self.session,
            self.options,
            question,
            self.site,
            author=self.author,
            ordinal=self._ordinal,
            run_id=self.run_id,
        )
        turn.task = self.task
        return turn

    def hand_over(self) -> None:
        """Discard the answer held in memory and release its number, because a tool hands over to another agent."""
        self.discard()
        self.handed_over = True
        self.root.release(self.author, self.key)

    @property
    def is_over(self) -> bool:
        """True if this call has certainly ended, because every run that began or continued it has ended."""
        return bool(self._runs) and self._all_runs_known and all(run() is None for run in self._runs)

    def hold(self, answer: BaseMessage | str, status: Status, runtime: Runtime[Any]) -> None:
        """Hold an answer in memory until the run ends or continues. A timer stores it after ten minutes at most.

        The run has ended when its stream writer is gone. This is certain only if the call began with that writer.
        """
        self.stop_waiting()
        self.text, self.status = answer, status
        writer = weakref.ref(runtime.stream_writer)
        # Two weak references are equal only if both refer to the same writer, and this writer still exists.
        self._all_runs_known = self._all_runs_known and writer == self.writer
        self._runs = [run for run in self._runs if run() is not None] + [writer]
        # A copy of the current context would keep the run's stream writer alive.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ABANDONED_SECONDS, self._check, _MOST_CHECKS, context=Context())

    def stop_waiting(self) -> None:
        """Stop the timer, because the answer is stored or the run continues."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def discard(self) -> None:
        """Discard the answer that is held in memory, because the run continues."""
        self.stop_waiting()
        self.text, self.status = "", "interrupted"
        self._runs.clear()

    def _check(self, checks: int) -> None:
        """Store the held answer if its run has ended or this is the last of `checks` checks; otherwise, check later."""
        loop = asyncio.get_running_loop()
        if checks > 1 and not self.is_over:
            self._timer = loop.call_later(ABANDONED_SECONDS, self._check, checks - 1, context=Context())
        else:
            self._timer = None
            self._settling = loop.create_task(self._settle_abandoned())

    async def _settle_abandoned(self) -> None:
        """Store the answer held in memory by a run that makes no further call, so that its question has an answer.

        While the run may still end normally, the held answer gets a new id: with the same id, the final answer would
        count as a duplicate.
        """
        said = self.text
        await self.end(text_of(said) if not self.is_over and isinstance(said, AIMessage) else said, self.status)

    def leave(self) -> None:
        """Remove the call from the registry, so that an answer that it holds in memory is not stored."""
        self.stop_waiting()
        if self.registry.calls.get(self.key) is self:
            del self.registry.calls[self.key]

    async def end(self, answer: BaseMessage | str, status: Status) -> AIMessage | None:
        """Store the answer of a call that has ended. If another answer was stored instead, return that answer.

        Once a text of the call is stored, only a complete answer can still be stored.
        """
        self.leave()
        if self.turn is None or (self._has_text_stored and status != "complete"):
            return None
        self._has_text_stored = self._has_text_stored or bool(answer)
        first_stored = await self.turn.close(answer, status)
        final = answer if first_stored is None else first_stored
        if status == "complete" and isinstance(final, BaseMessage):
            self.root.add_answer(final, self.author, self.key)
        return first_stored

    async def interrupt(self, answer: BaseMessage | str) -> None:
        """Store the text of a cancelled call, then let the session's next turn begin."""
        try:
            await self.end(answer, "interrupted")
        finally:
            self.root.release_session()

    async def settle(self) -> None:
        """Store the text that an unfinished model call has streamed so far, or else the answer held in memory."""
        begun = "" if self.partial is None else storable(self.partial.answer, self.redacted, is_complete=False)
        await self.end(begun or self.text, self.status)

    async def fail(self, error: BaseException) -> None:
        """Store the texts of the call after its run failed or was cancelled. Then let the next turn begin.

        If the run failed, a question that reached no model is stored without its text, because other middleware may
        have rejected it. If `PIIMiddleware` stopped the run, the held answer is not stored.
        """
        try:
            if self.registry.calls.get(self.key) is not self:
                return
            if self.turn is None and isinstance(error, Exception):
                self.leave()
                # Ignore an error of the memory, because the caller gets the error of the run.
                with contextlib.suppress(ThreadkeepError):
                    await self.refuse()
            elif isinstance(error, PIIDetectionError):
                await self.end("", "failed")
            else:
                await self.settle()
        finally:
            self.root.release_session()
