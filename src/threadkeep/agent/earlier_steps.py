"""Stores the tool calls and results of turns (steps), and selects the steps that later model calls receive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, messages_from_dict
from langchain_core.utils.uuid import uuid7
from langgraph.types import Command

from threadkeep.agent.call_measure import CallMeasure
from threadkeep.agent.conversion import as_data, transcript_text
from threadkeep.agent.counting import count_message
from threadkeep.agent.provider_messages import UNREAD_RESULT, repair
from threadkeep.agent.shortening import trim
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session, in_time
from threadkeep.records import Message, dump_json
from threadkeep.store.contexts import Steps

KEPT_TOKENS: Final = 16_000
"""The maximum number of tokens that are stored for the tool calls and results of one turn."""

_MOST_TURNS: Final = 20
"""The maximum number of turns whose tool calls and results are stored while they fit into their share of the budget.

Old ones stay, so that successive model calls begin with the same messages. Above this number or the share, all are
deleted except those of the newest `tool_memory` turns.
"""


@dataclass(frozen=True)
class EarlierSteps:
    """The tool calls and results of earlier turns that a model call receives.

    `messages` maps the `seq` of a question to the tool calls and results that follow it. `tokens_before` maps the id of
    each cut message to its number of tokens before the cut.
    """

    messages: Mapping[int, Sequence[BaseMessage]] = field(default_factory=dict)
    tokens_before: Mapping[str | None, int] = field(default_factory=dict)
    tokens: int = 0


@dataclass(eq=False)
class TurnSteps:
    """A collector that stores the tool calls and results of an agent's turn, and reads those of its earlier turns.

    `turns` is the number of earlier turns whose tool calls a model call receives. `waiting` has the collected tool
    calls and results that are not stored yet.
    """

    memory: Memory
    session: Session
    options: TurnOptions
    turns: int
    waiting: list[BaseMessage] = field(default_factory=list)
    _others: int | None = None
    _author: str = ""
    _ordinal: int = 1
    _left: int = 0
    _shown_turns: int = 0
    _counter: TokenCounter = estimate

    def gather(self, since_question: Sequence[BaseMessage], author: str | None, ordinal: int) -> None:
        """Collect this agent's tool calls and their results in the messages after the question.

        If the messages already have an answer at the first call, another agent gave it: skip messages up to the answer.
        """
        if not self.turns:
            return
        self._author, self._ordinal = author or "", ordinal
        if self._others is None:
            said = [at for at, one in enumerate(since_question, 1) if isinstance(one, AIMessage) and not one.tool_calls]
            self._others = max(said, default=0)
        self.waiting = []
        called: set[str] = set()
        for message in since_question[self._others :]:
            if isinstance(message, AIMessage) and message.tool_calls and message.name in (None, author):
                called |= {str(call["id"]) for call in message.tool_calls}
                self.waiting.append(message)
            elif isinstance(message, ToolMessage) and message.tool_call_id in called:
                self.waiting.append(message)

    def add(self, messages: Sequence[BaseMessage], result: ToolMessage | Command[Any]) -> None:
        """Collect a finished tool call now, in case the run is cut off. `messages` are the messages of the state.

        `UNREAD_RESULT` is added instead of the result's text, because other middleware may still redact the text.
        """
        asked = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
        if not self.turns or asked is None or asked.name not in (None, self._author):
            return
        if asked.id not in [message.id for message in self.waiting]:
            self.waiting.append(asked)
        update = result.update if isinstance(result, Command) and isinstance(result.update, Mapping) else {}
        results = [result] if isinstance(result, ToolMessage) else update.get("messages", ())
        self.waiting += [
            one.model_copy(update={"content": UNREAD_RESULT}) for one in results if isinstance(one, ToolMessage)
        ]

    def answered_by(self, message_id: str | None) -> None:
        """Remove the id and the unfinished calls of the collected message `message_id`, which is stored as the answer.

        The message calls both the tool of its structured response and other tools.
        """
        ended = {message.tool_call_id for message in self.waiting if isinstance(message, ToolMessage)}
        for at, message in enumerate(self.waiting):
            if isinstance(message, AIMessage) and message.id == message_id:
                calls = [call for call in message.tool_calls if call["id"] in ended]
                self.waiting[at] = message.model_copy(update={"id": None, "tool_calls": calls})

    def forget(self) -> None:
        """Discard the collected tool calls and results."""
        self.waiting = []

    async def keep(self, question_id: str, question_seq: int) -> None:
        """Store the collected tool calls and results, and forget them. Raise `StoreError` on failure."""
        own, self.waiting = self.waiting, []
        fitting = _cut([_reduced(message) for message in repair(own).messages], KEPT_TOKENS, estimate)
        if not fitting:
            return
        body = dump_json([as_data(message) for message in fitting])
        # Keep the tool calls of more turns only if the new ones and the earlier ones together fit their token limit.
        has_room = self.options.plan.window != "sliding" and self._shown_turns < _MOST_TURNS
        has_room = has_room and sum(count_message(message, self._counter) for message in _loaded(body)) <= self._left
        await self.memory.contexts.keep_steps(
            self.session.session_id,
            Steps(question_seq, body),
            question_id=question_id,
            author=self._author,
            ordinal=self._ordinal,
            turns=_MOST_TURNS if has_room else self.turns,
        )

    async def earlier(
        self, messages: Sequence[Message], before: Sequence[BaseMessage], measure: CallMeasure
    ) -> EarlierSteps:
        """Return the tool calls and results of earlier turns that fit their token limit; none if the database fails.

        Args:
            messages: the messages of earlier turns in the call.
            before: messages of earlier turns in the run's state. If they include tool results, no steps are returned.
            measure: the token counter and the budget of the call.
        """
        sliding = self.options.plan.window == "sliding"
        since = first_of_turns(messages, self.turns if sliding else len(messages))
        if not self.turns or since is None or any(isinstance(one, ToolMessage) for one in before):
            return EarlierSteps()
        reading = self.memory.contexts.steps(self.session.session_id, self._author, since=since)
        if (rows := await in_time(self.session, reading)) is None:
            return EarlierSteps()
        room = self.options.plan.most("earlier_steps", min(measure.budget, measure.shared or measure.budget))
        shown = shown_steps(rows, messages, room, measure.counter)
        self._left, self._counter = room - shown.tokens, measure.counter
        self._shown_turns = len(shown.messages)
        return shown


def shown_steps(rows: Sequence[Steps], earlier: Sequence[Message], room: int, counter: TokenCounter) -> EarlierSteps:
    """Return the tool calls and results of earlier turns that fit into `room` tokens. Prefer newer turns."""
    left = room
    messages: dict[int, list[BaseMessage]] = {}
    tokens_before: dict[str | None, int] = {}
    asked = {message.seq for message in earlier}
    for row in reversed(rows):
        if row.seq not in asked:
            continue
        whole = {message.id: message for message in _loaded(row.body)}
        kept = _cut([*whole.values()], left, counter)
        for message in kept:
            tokens = count_message(message, counter)
            left -= tokens
            if (before := count_message(whole[message.id], counter)) > tokens:
                tokens_before[message.id] = before
        messages[row.seq] = [*kept, *messages.get(row.seq, [])]
    return EarlierSteps(messages, tokens_before, room - left)


def first_of_turns(earlier: Sequence[Message], turns: int) -> int | None:
    """Return the `seq` of the first question of the newest `turns` turns."""
    asked: list[int | None] = []
    following: Message | None = None
    for message in reversed(earlier):
        following_run = following.run_id if following is not None and following.role == "user" else None
        if message.role == "user" and (following_run is None or message.run_id != following_run):
            asked.append(message.seq)
        following = message
    return asked[:turns][-1] if asked and turns else None


def _reduced(message: BaseMessage) -> BaseMessage:
    """Return a copy of a tool call or result for storing: with an id, and with only its text and tool calls."""
    message_id = message.id or str(uuid7())
    if isinstance(message.content, str):
        return message if message.id else message.model_copy(update={"id": message_id})
    text = transcript_text(message)
    if isinstance(message, ToolMessage):
        call_id = message.tool_call_id
        return ToolMessage(text, id=message_id, name=message.name, tool_call_id=call_id, status=message.status)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return AIMessage(text, id=message_id, name=message.name, tool_calls=calls)


def _cut(messages: Sequence[BaseMessage], room: int, counter: TokenCounter) -> list[BaseMessage]:
    """Return the tool calls and results that fit into `room` tokens."""
    try:
        # `trim` keeps the messages after a question, so put an empty question before them.
        return [] if room <= 0 else trim([HumanMessage(""), *messages], room, counter=counter)[1:]
    except BudgetTooSmall:
        return []


def _loaded(body: str) -> list[BaseMessage]:
    """Return the messages that `TurnSteps.keep` stored, if this version of LangChain can read them."""
    try:
        return messages_from_dict(json.loads(body))
    except (ValueError, TypeError, KeyError):
        return []
