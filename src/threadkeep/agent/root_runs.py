"""Root runs (calls of a graph from outside of a graph), their turns, and their order in each session."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.agent.callbacks import Asked, root_callbacks
from threadkeep.agent.conversion import id_of, text_of
from threadkeep.agent.questions import question_before
from threadkeep.agent.turns import OpenTurn
from threadkeep.boundary import OnFailure
from threadkeep.history.memory import Identity, Memory
from threadkeep.history.session import Session
from threadkeep.memory.on_loop import blocked_loop, caller_loop
from threadkeep.observe import Observers, TurnWaits
from threadkeep.records import dump_json

type RootRuns = OrderedDict[tuple[int, str], "RootRun"]

_LOOK_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 10.0
"""Seconds after which an idle run, or a run with a blocked event loop, counts as cut off."""

_REPORT_SECONDS: Final = 30.0
_MOST_ROOT_RUNS: Final = 1_000
_root_runs: WeakKeyDictionary[Identity, RootRuns] = WeakKeyDictionary()

tool_of_sessions: ContextVar[tuple[tuple[Identity, str], ...]] = ContextVar("threadkeep_tool_of_sessions", default=())
"""The memories and sessions of the agents that called the current tool, outermost first."""


@contextmanager
def calling_tool(memory: Memory, session: Session) -> Iterator[None]:
    """Mark the `with` block as a tool call of an agent. Agents that run in it neither read nor write this session."""
    token = tool_of_sessions.set((*tool_of_sessions.get(), (memory.identity, session.session_id)))
    try:
        yield
    finally:
        tool_of_sessions.reset(token)


@dataclass(eq=False)
class RootRun:
    """The turn of one root run in one session.

    LangGraph gives all nodes and nested graphs of one call the same `Runtime.control` object. An agent takes part in
    the turn (it reads and writes the session) if its input has the question; see `has_part`. The LangGraph thread id,
    which nested agents inherit, and the checkpoint namespace do not show this.

    - `question`: the messages that began the turn.
    - `sent`: all messages that the caller sent with the question.
    - `turn`: the `OpenTurn` of the agent that stored the question.
    - `recorded`: True if the next turn waits until the graph ends; False if only until an agent's answer is stored.
    - `answers`: the complete answers of all speakers, in order; the `name` of an answer is its author.

    The answers of each author have numbers from 1. A call claims its number before it answers. If an answer with this
    author and number is already stored, the stored answer is used.
    """

    control: object
    session_id: str
    order: SessionOrder
    begun: bool = False
    question: tuple[BaseMessage, ...] = ()
    sent: tuple[BaseMessage, ...] = ()
    turn: OpenTurn | None = None
    answers: list[AIMessage] = field(default_factory=list)
    outside_notified: bool = False
    recorded: bool = False
    storing: WeakKeyDictionary[Memory, asyncio.Lock] = field(default_factory=WeakKeyDictionary)
    open_calls: int = 0
    last_seen: float = field(default_factory=time.monotonic)
    writers: list[weakref.ref[Callable[[Any], None]]] = field(default_factory=list)
    loops: set[asyncio.AbstractEventLoop] = field(default_factory=set)
    _pings: dict[asyncio.AbstractEventLoop, float] = field(default_factory=dict)
    _claims: dict[str | None, dict[Hashable, int]] = field(default_factory=dict)
    _resumed: set[Hashable] = field(default_factory=set)
    _attempts: dict[str, UUID] = field(default_factory=dict)
    _repeated_nodes: set[str] = field(default_factory=set)

    @property
    def question_id(self) -> str | None:
        """The id with which the question is stored: if it has several messages, the id of the newest."""
        return id_of(self.question[-1]) if self.question else None

    @property
    def is_over(self) -> bool:
        """True if the run has ended for sure: its stream writers no longer exist."""
        return bool(self.writers) and all(writer() is None for writer in self.writers)

    @property
    def is_cut_off(self) -> bool:
        """True if the run is idle, has ended or blocks an event loop, so that later runs should not wait for it."""
        idle = self.open_calls == 0 and time.monotonic() - self.last_seen > _IDLE_SECONDS
        return idle or self.is_over or any(map(self._is_blocked, self.loops))

    def _is_blocked(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True if an event loop is closed, or has run no callback for ten seconds."""
        asked = self._pings.setdefault(loop, now := time.monotonic())
        if asked == now:
            try:
                loop.call_soon_threadsafe(self._pings.pop, loop, None)
            except RuntimeError:  # it is closed
                return True
        return now - asked > _IDLE_SECONDS

    def release_session(self) -> None:
        """Let the session's next turn begin, unless this run is `recorded`. Any OS thread may call this."""
        if not self.recorded:
            self.order.hand_on(self)

    def call_ends(self) -> None:
        """Reduce the number of open model and tool calls of the run, because one has ended."""
        self.open_calls -= 1
        self.last_seen = time.monotonic()

    def begin(self, question: Sequence[BaseMessage], sent: Sequence[BaseMessage] = ()) -> None:
        """Begin a turn with a question. Discard the answers of an earlier turn of this run."""
        self.begun = True
        self.question, self.sent = tuple(question), tuple(sent)
        self.turn, self.answers, self._claims = None, [], {}

    def use_first_attempt(self, first: Asked) -> None:
        """Use the question as a failed attempt stored it, because the new attempt may have given it another id."""
        if asked := first.get(self.session_id):
            question, sent = asked
            if [*map(text_of, question)] == [*map(text_of, self.question[-len(question) :])]:
                self.question, self.sent = question, sent
            asked.clear()

    def has_part(self, messages: Sequence[BaseMessage]) -> bool:
        """Return True if an agent with these messages joins the turn: they have its question, or neither has one."""
        if not self.question:
            return not question_before(messages)
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
        """Remove copies of the question. If the question itself is missing, keep a copy and give it the question's id.

        A message with the same text before an answer of an earlier turn is an earlier question, not a copy.
        """
        by_text = {text_of(message): id_of(message) for message in self.question}
        ids = {id_of(message) for message in self.question}
        if not [one for one in messages if id_of(one) not in ids and _is_human(one, by_text)]:
            return list(messages)
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
        """Return the number of leading messages of earlier turns. `by_text` has the texts of this turn's question."""
        ids = {id_of(message) for message in self.question}
        asked = [index for index, message in enumerate(messages) if id_of(message) in ids] or [
            index for index, message in enumerate(messages) if _is_human(message, by_text)
        ][-1:]
        own = {text_of(answer) for answer in self.answers}
        before = messages[: asked[0]] if asked else ()
        answers = (isinstance(message, AIMessage) and text_of(message) not in own for message in before)
        return max((index for index, is_other in enumerate(answers, start=1) if is_other), default=0)

    def with_answers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages, with the turn's earlier answers after the question."""
        if not self.answers:
            return list(messages)
        ids = {id_of(message) for message in messages}
        texts = {text_of(message) for message in messages if isinstance(message, AIMessage)}
        missing = [one for one in self.answers if id_of(one) not in ids and text_of(one) not in texts]
        asked = [index for index, message in enumerate(messages) if id_of(message) == self.question_id]
        if not missing or not asked:
            return list(messages)
        end = asked[-1] + 1
        return [*messages[:end], *missing, *messages[end:]]

    def begin_attempt(self) -> bool:
        """Release the answer numbers of nodes that LangGraph repeats. Return True if this code runs in such a node."""
        attempts = {namespace: attempt.run_id for namespace, attempt in root_callbacks.attempts.get().items()}
        if not attempts:
            return False
        over = tuple(name for name, run_id in attempts.items() if self._attempts.get(name, run_id) != run_id)
        self._attempts.update(attempts)
        self._repeated_nodes.update(over)
        for claims in self._claims.values() if over else ():
            for call in list(claims):
                namespace = f"{call[1]}|" if isinstance(call, tuple) else ""
                if namespace.startswith(tuple(f"{node}|" for node in over)):
                    del claims[call]
        return not self._repeated_nodes.isdisjoint(attempts)

    def claim(self, author: str | None, call: Hashable, seen: Sequence[BaseMessage] = ()) -> int:
        """Claim a number for the answer of `call`, and return it. The answers of each author are numbered from 1.

        In a branch of `Send`, the lowest number is the branch's index plus 1. A resumed branch gets its number again.
        The number is above those of the author's answers in `seen`: if a root run is resumed in another process, the
        state has the author's answers from the first process.
        """
        claims = self._claims.setdefault(author, {})
        if call not in claims:
            first = 1 + (root_callbacks.branch.get() or 0)
            claims[call] = min({*range(first, first + len(claims) + 1)} - {*claims.values()})
        if seen and self.answers:
            ids = {id_of(message) for message in seen}
            before = len([one for one in self.answers if one.name == author and id_of(one) in ids])
            claims[call] = max(claims[call], before + 1)
        return claims[call]

    def release(self, author: str | None, call: Hashable) -> None:
        """Release the number of a call's answer, because the call handed over to another agent or may be repeated."""
        self._claims.get(author, {}).pop(call, None)

    def reclaim(self, author: str | None, call: Hashable, number: int) -> int:
        """Claim `number` again for a call that continues. If another call has the number, claim a new one."""
        claims = self._claims.setdefault(author, {})
        if call not in claims and number not in claims.values():
            claims[call] = number
        return self.claim(author, call)

    def claim_resumed(self, author: str | None, call: Hashable, after: int, taken: Collection[int]) -> int:
        """Claim the first answer number above `after` that is neither in `taken` nor claimed by a resumed call."""
        claims = self._claims.setdefault(author, {})
        # Ignore the numbers of calls that are not resumed yet, because these numbers can still change.
        known = {*taken, *(claims[one] for one in self._resumed & claims.keys() - {call})}
        first = 1 + after + (root_callbacks.branch.get() or 0)
        return self.reserve(author, call, min({*range(first, first + len(known) + 1)} - known))

    def reserve(self, author: str | None, call: Hashable, number: int) -> int:
        """Claim `number` for the answer of a call in a resumed run, and return the number."""
        self._claims.setdefault(author, {})[call] = number
        self._resumed.add(call)
        return number

    def add_answer(self, message: BaseMessage, author: str | None, call: Hashable = None) -> None:
        """Add a complete answer of the turn, unless the turn already has it.

        If middleware jumps back to the model, `call` answers again and needs a new number. So move the number of this
        answer to another key.
        """
        if id_of(message) not in [one.id for one in self.answers]:
            self.answers.append(AIMessage(text_of(message), id=id_of(message), name=author))
        claims = self._claims.get(author, {})
        if isinstance(call, tuple) and call in claims:
            number = claims.pop(call)
            claims[*call, number] = number
            if call in self._resumed:
                self._resumed.add((*call, number))


def _is_human(message: BaseMessage, texts: Container[str]) -> bool:
    return isinstance(message, HumanMessage) and text_of(message) in texts


def own_session(memory: Memory, session: Session, author: str | None) -> Session:
    """Return the session of an agent's own conversation, which is separate from the conversation of `session`."""
    digest = sha256(dump_json([session.session_id, author]).encode("utf-8", "surrogatepass")).hexdigest()
    own = memory.session(f"own:{digest[:32]}", user_id=session.user_id, workspace=session.workspace)
    own.parent = (session.session_id, author or "")
    return own


def root_run(memory: Memory, control: object, session_id: str, *, shared: bool = True) -> RootRun:
    """Return the turn of a root run in a session. It is created at the first call and cached until the run ends.

    At most a thousand turns are cached, because the end of some runs (such as streams without a reader) is not
    reported. Outside of graphs, or if `shared` is False (for a node without a transcript), each call gets a new turn.
    """
    order = _orders.get(memory.identity) or _orders.setdefault(memory.identity, SessionOrder())
    if control is None or not shared:
        return RootRun(control, session_id, order)
    runs = _root_runs.setdefault(memory.identity, OrderedDict())
    key = (id(control), session_id)
    found = runs.get(key)
    if found is None or found.control is not control:
        # `found` keeps the control object alive, so that its id stays unique.
        found = runs[key] = RootRun(control, session_id, order)
        if (call := root_callbacks.call) is not None:
            call.at_end.append(partial(forget, memory, found))
        if len(runs) > _MOST_ROOT_RUNS:
            runs.popitem(last=False)
    return found


def forget(memory: Memory, root: RootRun, *_: object) -> None:
    """Remove the turn of a root run from the cache, because the run has ended."""
    runs, key = _root_runs.setdefault(memory.identity, OrderedDict()), (id(root.control), root.session_id)
    if runs.get(key) is root:
        del runs[key]


def begun_turn(memory: Memory, control: object, session_id: str) -> RootRun | None:
    """Return the turn that a root run has begun in a session; None if it has begun none."""
    runs = _root_runs.get(memory.identity)
    found = None if runs is None else runs.get((id(control), session_id))
    return found if found is not None and found.control is control and found.begun else None


type _Turn = Future[None]


class SessionOrder:
    """The order of root runs in the sessions of one database, for all memories and event loops of the process.

    Only one root run at a time holds a session; other runs wait in the order of their arrival. LangGraph does not
    report the end of every root run, so a run releases its session after its answer. A run also loses the session if
    its stream writers are gone, if it has made no model or tool call for ten seconds, or if its event loop has been
    blocked for ten seconds. A caller that blocks an event loop does not wait for runs that need this loop.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: dict[str, RootRun] = {}
        self._waiting: dict[str, dict[_Turn, RootRun]] = {}

    async def acquire(self, run: RootRun, observers: Observers) -> None:
        """Wait for the earlier runs of the session, then let this run have the session.

        A caller that blocks the event loop of an earlier run does not wait. The wait never ends if a tool starts a run
        of the same session in a separate OS thread.
        """
        session_id = run.session_id
        run.loops |= {asyncio.get_running_loop(), *filter(None, [caller_loop.get()])}
        with self._lock:
            holder = self._holders.setdefault(session_id, run)
            queue = self._waiting.setdefault(session_id, {})
            if holder is run:
                return
            blocked = blocked_loop.get()
            if blocked is not None and any(blocked in other.loops for other in (holder, *queue.values())):
                return
            turn: _Turn = Future()
            queue[turn] = run
        granted = asyncio.wrap_future(turn)

        def leave() -> None:
            with self._lock:
                queue.pop(turn, None)
                # The run may have got the session at the moment when its caller was cancelled.
                self.hand_on(run)

        report_at = time.monotonic() + _REPORT_SECONDS
        with OnFailure(leave):
            while not turn.done():
                await asyncio.wait([granted], timeout=_LOOK_SECONDS)
                with self._lock:
                    if (earlier := self._holders.get(session_id)) is not None and earlier.is_cut_off:
                        self.hand_on(earlier)
                if time.monotonic() >= report_at:
                    report_at = math.inf
                    observers.notify(TurnWaits(session_id=session_id, seconds=_REPORT_SECONDS))
        with self._lock:
            queue.pop(turn, None)

    def hand_on(self, run: RootRun) -> None:
        """Let the next waiting root run have the session, if this run holds it. Any OS thread may call this."""
        session_id = run.session_id
        with self._lock:
            if self._holders.get(session_id) is not run:
                return
            waiting = [(turn, one) for turn, one in self._waiting.get(session_id, {}).items() if not turn.done()]
            if not waiting:
                del self._holders[session_id]
                self._waiting.pop(session_id, None)
                return
            following = self._holders[session_id] = waiting[0][1]
            following.last_seen = time.monotonic()
            for turn in [turn for turn, one in waiting if one is following]:  # also its parallel branches
                turn.set_result(None)


_orders: WeakKeyDictionary[Identity, SessionOrder] = WeakKeyDictionary()
"""Maps each database to the order of the root runs in its sessions."""
