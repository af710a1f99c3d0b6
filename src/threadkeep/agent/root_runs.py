"""Root runs (calls of a graph from outside), the turn that their agents take part in, and their order in a session."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.agent.conversion import id_of, text_of
from threadkeep.agent.turn_options import CallPlace
from threadkeep.agent.turns import OpenTurn
from threadkeep.history.memory import Identity, Memory
from threadkeep.history.session import Session
from threadkeep.memory.on_loop import caller_loop
from threadkeep.records import dump_json

type RootRuns = OrderedDict[tuple[int, str], "RootRun"]

_MOST_ROOT_RUNS = 1_000
_root_runs: WeakKeyDictionary[Identity, RootRuns] = WeakKeyDictionary()

tool_of_session: ContextVar[tuple[Identity, str] | None] = ContextVar("threadkeep_tool_of_session", default=None)
"""The memory and the session of the agent whose tool runs in this task."""


@dataclass(eq=False)
class RootRun:
    """The turn of one root run in one session.

    `question` are the messages that began the turn, `sent` all that the caller sent with them. `turn` is the turn of
    the agent that stored them. `answers` are the complete answers of all speakers, in order; the `name` of each is its
    author.
    """

    control: object
    begun: bool = False
    question: tuple[BaseMessage, ...] = ()
    sent: tuple[BaseMessage, ...] = ()
    turn: OpenTurn | None = None
    answers: list[AIMessage] = field(default_factory=list)
    stranger_told: bool = False
    storing: WeakKeyDictionary[Memory, asyncio.Lock] = field(default_factory=WeakKeyDictionary)
    open_calls: int = 0
    last_seen: float = field(default_factory=time.monotonic)
    writers: list[weakref.ref[Callable[[Any], None]]] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    _asked_at: float | None = None
    _claims: dict[str | None, dict[Hashable, int]] = field(default_factory=dict)

    @property
    def question_id(self) -> str | None:
        """The stored id of the newest message of the question."""
        return id_of(self.question[-1]) if self.question else None

    @property
    def is_over(self) -> bool:
        """Return whether the run is over for certain: the writers of its streams are gone."""
        return bool(self.writers) and all(writer() is None for writer in self.writers)

    def loop_is_blocked(self, seconds: float) -> bool:
        """Return whether the event loop of the run's caller has not run for so long since this was first called."""
        if self.loop is None:
            return False
        if self._asked_at is not None:
            return time.monotonic() - self._asked_at > seconds
        self._asked_at = time.monotonic()
        try:
            self.loop.call_soon_threadsafe(self._note_loop)
        except RuntimeError:  # it is closed
            return True
        return False

    def _note_loop(self) -> None:
        self._asked_at = None

    def call_begins(self) -> None:
        """Note that a model or tool call of the run is open."""
        self.open_calls += 1

    def call_ends(self) -> None:
        """Note that a model or tool call of the run is over."""
        self.open_calls -= 1
        self.last_seen = time.monotonic()

    def begin(self, question: Sequence[BaseMessage], sent: Sequence[BaseMessage] = ()) -> None:
        """Begin the turn with a question; without messages an agent speaks by itself."""
        self.begun = True
        self.question, self.sent = tuple(question), tuple(sent)

    def has_part(self, messages: Sequence[BaseMessage]) -> bool:
        """Return whether an agent with this input takes part in the turn: it has the question, or a copy of all."""
        if not self.question:
            return True
        ids = {id_of(message) for message in self.question}
        if any(id_of(message) in ids for message in messages):
            return True
        leading = next((message for message in messages if not isinstance(message, SystemMessage)), None)
        texts = {text_of(message) for message in self.question}
        if isinstance(leading, HumanMessage) and text_of(leading) in texts:
            return True
        sent = [text_of(message) for message in self.sent]
        return len(sent) > 1 and [text_of(message) for message in messages[: len(sent)]] == sent

    def with_question(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages with the stored id on a copy of the question, each question once.

        A message with the question's text is a copy only if no answer of an earlier turn stands between them.
        """
        by_text = {text_of(message): id_of(message) for message in self.question}
        ids = {id_of(message) for message in self.question}
        present = {id_of(message) for message in messages} & ids
        earlier = self._earlier_turns(messages, by_text)
        found: list[BaseMessage] = list(messages[:earlier])
        for message in messages[earlier:]:
            stored = by_text.get(text_of(message)) if isinstance(message, HumanMessage) else None
            if stored is None or id_of(message) in ids:
                found.append(message)
            elif stored not in present:
                present.add(stored)
                found.append(message.model_copy(update={"id": stored}))
        return found

    def _earlier_turns(self, messages: Sequence[BaseMessage], by_text: Container[str]) -> int:
        """Return how many leading messages belong to turns before that of the question."""
        ids = {id_of(message) for message in self.question}
        asked = [place for place, message in enumerate(messages) if id_of(message) in ids] or [
            place for place, message in enumerate(messages) if _is_human(message, by_text)
        ][-1:]
        own = {text_of(answer) for answer in self.answers}
        before = messages[: asked[0]] if asked else ()
        answers = (isinstance(message, AIMessage) and text_of(message) not in own for message in before)
        return max((place for place, is_other in enumerate(answers, start=1) if is_other), default=0)

    def with_answers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages with the turn's earlier answers that they lack, right after the question."""
        ids = {id_of(message) for message in messages}
        texts = {text_of(message) for message in messages if isinstance(message, AIMessage)}
        missing = [one for one in self.answers if id_of(one) not in ids and text_of(one) not in texts]
        asked = [place for place, message in enumerate(messages) if id_of(message) == self.question_id]
        if not missing or not asked:
            return list(messages)
        end = asked[-1] + 1
        return [*messages[:end], *missing, *messages[end:]]

    def claim(self, author: str | None, call: Hashable) -> int:
        """Return the number of an author's answer in this process, from 1; the same again for the same call."""
        claims = self._claims.setdefault(author, {})
        if call not in claims:
            taken = set(claims.values())
            claims[call] = next(number for number in count(1) if number not in taken)
        return claims[call]

    def release(self, author: str | None, call: Hashable) -> None:
        """Give a number back: the agent handed over without an answer, or failed and may be called again."""
        self._claims.get(author, {}).pop(call, None)

    def reclaim(self, author: str | None, call: Hashable, number: int) -> int:
        """Return the number of a call that goes on after it gave its number back: the same, unless another has it."""
        claims = self._claims.setdefault(author, {})
        if call not in claims and number not in claims.values():
            claims[call] = number
        return self.claim(author, call)

    def claim_after_seen(self, author: str | None, call: Hashable, messages: Sequence[BaseMessage]) -> int:
        """Return the number of an author's answer, counting stored ones that the input of the agent has.

        A root run that is resumed in another process has its earlier answers in the input of its agents.
        """
        ids = {id_of(message) for message in messages}
        seen = sum(1 for one in self.answers if one.name == author and id_of(one) in ids)
        claims = self._claims.setdefault(author, {})
        claims[call] = max(self.claim(author, call), seen + 1)
        return claims[call]

    def note_stored(self, turn: OpenTurn) -> None:
        """Note the turn that stored the question, and the answers that were there already."""
        self.turn = turn
        for message in turn.earlier:
            self.add_answer(AIMessage(message.content, id=message.id), message.author)

    def add_answer(self, message: BaseMessage, author: str | None) -> None:
        """Note a complete answer of the turn."""
        if all(id_of(message) != one.id for one in self.answers):
            self.answers.append(AIMessage(text_of(message), id=id_of(message), name=author))


def _is_human(message: BaseMessage, texts: Container[str]) -> bool:
    return isinstance(message, HumanMessage) and text_of(message) in texts


def own_session(memory: Memory, session: Session, author: str | None) -> Session:
    """Return the conversation that an agent keeps for itself below a session; the same for the same agent."""
    digest = sha256(dump_json([session.session_id, author]).encode("utf-8", "surrogatepass")).hexdigest()
    return memory.session(f"own:{digest[:32]}", user_id=session.user_id, workspace=session.workspace)


def root_run(memory: Memory, control: object, session_id: str, place: CallPlace | None = None) -> RootRun:
    """Return the turn of a root run in a session, made at the first call; the newest thousand are remembered.

    A node of a workflow that has no transcript is asked something of its own each time: it gets a turn for itself.
    """
    if place is not None and not place.transcript:
        return RootRun(control)
    runs = _root_runs.setdefault(memory.identity, OrderedDict())
    key = (id(control), session_id)
    found = runs.get(key)
    if found is None or found.control is not control:
        # The control object is kept beside its identity: while it lives, nothing else has that.
        found = runs[key] = RootRun(control)
        if len(runs) > _MOST_ROOT_RUNS:
            runs.popitem(last=False)
    return found


_LOOK_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 10.0
"""Seconds without an open model or tool call, or with a blocked event loop, after which a run counts as cut off."""


@dataclass
class _Place:
    """The root run whose turn it is in a session, None while the next one is being let in; and those that wait."""

    holder: RootRun | None
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class SessionOrder:
    """Lets one root run at a time into a session, in the order in which they come.

    LangGraph does not tell that a root run has ended. A run gives its place up after its answer; one that was cut off
    loses it when its streams are gone, or when it has made no model or tool call for ten seconds. So does a run on an
    event loop that stands still for ten seconds: the caller that waits may be what blocks it.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    async def enter(self, session_id: str, run: RootRun) -> None:
        """Wait until it is the turn of a root run; its members never wait."""
        run.loop = caller_loop()
        place = self._places.get(session_id)
        if place is None:
            self._places[session_id] = _Place(run)
            return
        if place.holder is run:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place.waiting.append(turn)
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=_LOOK_SECONDS)
                if not turn.done() and place.waiting[0] is turn and _is_cut_off(place.holder):
                    break
        except BaseException:
            self._give_up(session_id, place, turn)
            raise
        if turn in place.waiting:
            place.waiting.remove(turn)
        place.holder = run

    def leave(self, session_id: str, run: RootRun) -> None:
        """Give the place up, if the run has it."""
        place = self._places.get(session_id)
        if place is not None and place.holder is run:
            self._next(session_id, place)

    def _give_up(self, session_id: str, place: _Place, turn: asyncio.Future[None]) -> None:
        if turn in place.waiting:
            place.waiting.remove(turn)
        elif turn.done():
            # It was let in just when its caller was cancelled.
            self._next(session_id, place)

    def _next(self, session_id: str, place: _Place) -> None:
        while place.waiting:
            turn = place.waiting.popleft()
            if not turn.done():
                place.holder = None
                turn.set_result(None)
                return
        if self._places.get(session_id) is place:
            del self._places[session_id]


def _is_cut_off(run: RootRun | None) -> bool:
    if run is None:
        return False
    idle = run.open_calls == 0 and time.monotonic() - run.last_seen > _IDLE_SECONDS
    return idle or run.is_over or run.loop_is_blocked(_IDLE_SECONDS)


_orders: WeakKeyDictionary[Memory, SessionOrder] = WeakKeyDictionary()


def order_of(memory: Memory) -> SessionOrder:
    """Return the order of the sessions of a memory."""
    return _orders.setdefault(memory, SessionOrder())
