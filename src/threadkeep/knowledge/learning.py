"""Learning: fact proposals from people's messages, created in the background after a turn.

`enqueue` returns at once, and one task for each kind of learner reads the queued sessions. The database stores the
`seq` up to which each session was read: after a failure or a crash, the session's next turn continues from there. If
the model repeatedly fails on the same messages, but not on a harmless test message, these messages are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

from threadkeep.boundary import ErrorBoundary, WorkQueue
from threadkeep.context.quotation import quoted_message
from threadkeep.errors import InvalidInput, KnowledgeNotFound, is_transient
from threadkeep.knowledge.promotion import accepted_directives, looks_like_secret
from threadkeep.knowledge.proposals import LearnerKind, Proposals, Proposed, Reading
from threadkeep.knowledge.rows import OWNER_SQL, MessagesAt
from threadkeep.observe import FactsProposed, LearningFailed, LearningSkipped, Observer
from threadkeep.records import Message
from threadkeep.records.knowledge import NewFact, Scope, ScopeKind
from threadkeep.store.codec import time_of
from threadkeep.store.driver import Driver
from threadkeep.store.statements import Tables

_MOST_SESSIONS, _MOST_RUNS = 1_000, 200
_REACH = 40
"""The most new messages of one learner call. An unread session begins with its last 40 messages."""
_CONTEXT_MESSAGES = 4
_MOST_PROPOSED: dict[LearnerKind, int] = {"model": 20, "directives": 100 * _REACH}
"""The most proposals of one learner call; further ones are dropped."""
_MOST_REFUSALS = 3
_MOST_CHARACTERS = 10_000
"""The most characters of a message in a learner's record, so that a pasted log fits into the model's context."""
WORKSPACE: Final = "threadkeep:workspace"
"""The key in an answer's metadata for the workspace of its turn."""
_HARMLESS = Message(role="user", content="I like tea.", seq=1)
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """The input of a learner: messages quoted as JSON, and the new user messages (`learnable`) by `seq`.

    `scopes` contains the owners of the run, and `known_keys` the keys of their valid facts (at most 200 per owner).
    """

    lines: Sequence[str]
    learnable: Mapping[int, Message]
    scopes: Mapping[ScopeKind, Scope]
    known_keys: Sequence[str]


class Learner(Protocol):
    """A finder of facts in messages. If `learn` raises, nothing is stored; a later turn reads the messages again.

    Only people's messages are learnable. Text that was recalled for a model is in no transcript, so it is never read.
    """

    @property
    def kind(self) -> LearnerKind:
        """The kind of learner. Each kind reads a session independently of the other kinds."""

    @property
    def name(self) -> str:
        """The learner's name, which is stored with its proposals, such as the name of a model."""

    async def learn(self, record: Record) -> Sequence[Proposed]:
        """Return the facts that are stated in the record's learnable messages."""


@dataclass(frozen=True)
class LearningRequest:
    """A session to learn from. Proposals whose confidence is at least `accept_from` are accepted without a person.

    `run_id` is the run of the newest turn. The turns of a session can have different workspaces. A fact about a
    workspace is learned from turns whose answer names it in its metadata (`WORKSPACE`), and from turns that were
    enqueued in this process. If `run_id` is None, all messages belong to the workspace in `scopes`.
    """

    session_id: str
    learner: Learner
    scopes: Mapping[ScopeKind, Scope]
    accept_from: float | None = None
    run_id: str | None = None


class Learning(Tables, sql=(*OWNER_SQL, "learning.sql")):
    """The queue of sessions to learn facts from, and the background tasks that read them."""

    def __init__(
        self, driver: Driver, proposals: Proposals, *, observer: Observer, messages_at: MessagesAt | None = None
    ) -> None:
        """Create a queue; `messages_at` reads the texts of messages in a LangGraph store."""
        super().__init__(driver)
        self._messages_at = messages_at
        self._proposals = proposals
        self._observer = observer
        self._queues = {kind: WorkQueue(self._work, "threadkeep-learning", most_at_once=1) for kind in _MOST_PROPOSED}
        # The workspaces of the newest turns, by run id and not by `seq`: a recreated session has the same `seq`s again.
        self._workspaces: OrderedDict[tuple[str, str], dict[str, Scope | None]] = OrderedDict()
        self._refused: dict[tuple[str, str], list[Reading]] = {}

    def enqueue(self, request: LearningRequest) -> None:
        """Queue a session to learn facts from it, and return at once. Its newest turn must already be stored."""
        key = request.session_id, request.learner.kind
        asked = [] if request.run_id is None else [(request.run_id, request.scopes.get("workspace"))]
        self._workspaces[key] = dict([*self._workspaces.pop(key, {}).items(), *asked][-_MOST_RUNS:])
        if len(self._workspaces) > _MOST_SESSIONS:
            self._workspaces.popitem(last=False)
        self._queues[request.learner.kind].put(request.session_id, request)

    async def learn(self, request: LearningRequest) -> int:
        """Let the learner read a session's new messages, and return the number of new proposals."""
        proposed, is_more = await self._learn_some(request)
        while is_more:
            more, is_more = await self._learn_some(request)
            proposed += more
        return proposed

    async def _learn_some(self, request: LearningRequest) -> tuple[int, bool]:
        """Read the first unread messages; return the number of proposals, and whether to continue."""
        learner = request.learner
        messages, before_seq, began = await self._unread(request)
        is_more = len(messages) == _REACH + _CONTEXT_MESSAGES
        known_here = self._workspaces.get((request.session_id, learner.kind), {})
        workspaces = None if request.run_id is None else {**_marked(messages), **known_here}
        ended = [index for index, message in enumerate(messages) if workspaces and message.run_id in workspaces]
        users = [index for index, message in enumerate(messages) if message.role == "user"]
        if ended and not is_more:  # read a later question after its turn, when its workspace is known
            messages = messages[: next((index for index in users if index > ended[-1]), None)]
        learnable = {m.seq: m for m in messages if m.role == "user" and m.seq is not None and m.seq > before_seq}
        if not learnable and not is_more:
            return 0, False
        # If the learner failed before, pass only unread messages: an earlier message, as context, may be the cause.
        first_seq = before_seq if (request.session_id, learner.kind) in self._refused else -1
        lines = [quoted_message(m, m.content[:_MOST_CHARACTERS]) for m in messages if (m.seq or 0) > first_seq]
        known = [scope for message in messages if (scope := (workspaces or {}).get(message.run_id or ""))]
        scopes = {"workspace": known[-1], **request.scopes} if known else request.scopes
        owned = [(self._sql["known_keys"], {"scope": one.kind, "owner": one.owner}) for one in scopes.values()]
        async with self._driver.reading() as connection:
            keys = {row[0] for rows in await connection.fetch_each(owned) for row in rows}
        record = Record(lines, learnable, scopes, sorted(keys))
        upto_seq = max(message.seq or 0 for message in messages)
        reading = Reading(request.session_id, learner.kind, learner.name, before_seq, upto_seq, began)
        learned, reading = await self._ask(request, record, reading) if learnable else ((), reading)
        sound = await asyncio.to_thread(lambda: [one for one in learned if _is_sound(one, record)])
        if workspaces is not None:
            at = {seq: workspaces.get(message.run_id or "") for seq, message in learnable.items()}
            placed = [(one, at.get(one.seq) if one.scope.kind == "workspace" else one.scope) for one in sound]
            sound = [replace(one, scope=scope) for one, scope in placed if scope is not None]
        most = _MOST_PROPOSED[learner.kind]
        added = await self._proposals.add(reading, sound[:most])  # None if the messages were deleted or already read
        proposed, dropped = added or 0, 0 if added is None else len(sound[most:])
        accepted = 0 if added is None else await self._accept_confident(request)
        if proposed or accepted or dropped:
            self._observer.notify(
                FactsProposed(proposed=proposed, accepted=accepted, dropped=dropped, session_id=request.session_id)
            )
        return proposed, is_more or reading.upto_seq < upto_seq

    async def _ask(
        self, request: LearningRequest, record: Record, to_read: Reading
    ) -> tuple[Sequence[Proposed], Reading]:
        """Ask the learner; return the facts and the range of messages that was read.

        If the learner repeatedly fails on the messages, but not on a test message ("I like tea."), skip them.
        """
        key = request.session_id, to_read.kind
        with ErrorBoundary() as attempt:
            found = await request.learner.learn(record)
            self._refused.pop(key, None)
            return found, to_read
        if is_transient(attempt.caught):
            raise attempt.caught
        begin = to_read.before_seq, to_read.session_began
        refused = [one for one in self._refused.pop(key, ()) if (one.before_seq, one.session_began) == begin]
        self._refused[key] = [*refused, to_read] if len(refused) < _MOST_REFUSALS - 1 else []
        if len(self._refused) > _MOST_SESSIONS:
            del self._refused[next(iter(self._refused))]
        if len(refused) < _MOST_REFUSALS - 1:
            raise attempt.caught
        await request.learner.learn(replace(record, lines=[quoted_message(_HARMLESS)], learnable={1: _HARMLESS}))
        error, last_seq = type(attempt.caught).__name__, refused[0].upto_seq
        self._observer.notify(LearningSkipped(error=error, last_seq=last_seq, session_id=request.session_id))
        return (), replace(to_read, upto_seq=last_seq)

    async def idle(self) -> None:
        """Wait until the queue is empty."""
        await asyncio.gather(*(queue.idle() for queue in self._queues.values()))

    async def close(self) -> None:
        """Wait at most 5 seconds until the queue is empty, then stop. Unread sessions are read after a later turn."""
        await asyncio.gather(*(queue.close(_CLOSING_SECONDS) for queue in self._queues.values()))

    async def _work(self, request: LearningRequest) -> None:
        """Read one batch of a session's messages, and queue the session again if there are more; report an error."""
        with ErrorBoundary() as attempt:
            if (await self._learn_some(request))[1]:
                self._queues[request.learner.kind].waiting.setdefault(request.session_id, request)
        if attempt.error is not None:
            failed = LearningFailed(error=type(attempt.error).__name__, session_id=request.session_id)
            self._observer.notify(failed)

    async def _unread(self, request: LearningRequest) -> tuple[list[Message], int, object]:
        """Return the first unread messages with a few earlier ones, the last read `seq`, and when the session began.

        Return no messages if another user owns the session now.
        """
        asked = {"session_id": request.session_id, "kind": request.learner.kind}
        user = request.scopes["user"].owner if "user" in request.scopes else None
        page = {**asked, "before": _CONTEXT_MESSAGES, "limit": _REACH + _CONTEXT_MESSAGES, "user_id": user}
        rows = await self._driver.fetch(self._sql["unread_messages"], page)
        if not rows:
            async with self._driver.writing() as connection:
                if not await connection.execute(self._sql["begin_learning"], {**asked, "reach": _REACH}):
                    return [], 0, None
                rows = await connection.fetch(self._sql["unread_messages"], page)
        messages = [
            Message(
                role, content, seq=seq, author=author, run_id=run_id, created_at=time_of(at), metadata=json.loads(found)
            )
            for seq, role, content, author, run_id, at, found, *_ in rows
        ]
        if self._messages_at is not None:
            stored = await self._messages_at(request.session_id, [row[0] for row in rows])
            messages = [message for message in stored if message.superseded_at is None]
        return messages, *(rows[0][7:] if rows else (0, None))

    async def _accept_confident(self, request: LearningRequest) -> int:
        """Accept the session's proposals with at least the requested confidence, even if a dead process made them."""
        if request.accept_from is None:
            return 0
        accepted = 0
        sure = await self._proposals.acceptable(request.session_id, request.learner.kind, request.accept_from)
        for proposal_id in sure:
            # Skip a proposal whose message was taken back, or whose key was forgotten, in the meantime.
            with contextlib.suppress(InvalidInput, KnowledgeNotFound):
                await self._proposals.accept(proposal_id, by=f"confidence {request.accept_from:g}")
                accepted += 1
        return accepted


class DirectiveLearner:
    """A learner that finds directives, such as `preference (user): Keep diffs small`, without a model."""

    kind: LearnerKind = "directives"
    name = "directives"

    async def learn(self, record: Record) -> Sequence[Proposed]:
        """Return the directives in the learnable messages. Skip a directive for a scope that the run does not have."""
        found = []
        for seq, message in record.learnable.items():
            for one in accepted_directives(message.content)[0]:
                scope = record.scopes.get(one.scope)
                if scope is not None:
                    kind = None if one.kind in ("procedure", "task_update", "repo_state") else one.fact_kind
                    found.append(Proposed(scope, one.fact_key, one.text, seq, kind, 1.0, one.kind, message.run_id))
        return found


def _marked(messages: Sequence[Message]) -> dict[str, Scope | None]:
    """Return the workspaces in the metadata of the answers, by run id."""
    found: dict[str, Scope | None] = {}
    for message in messages:
        if message.role == "assistant" and message.run_id and WORKSPACE in message.metadata:
            with contextlib.suppress(InvalidInput):  # another version or a caller may have stored any value
                found[message.run_id] = Scope("workspace", cast("str", message.metadata[WORKSPACE]))
    return found


def _is_sound(one: Proposed, record: Record) -> bool:
    """Return True if a proposal can be stored and contains no secret."""
    with contextlib.suppress(InvalidInput):
        fact = NewFact(one.key, one.value, one.kind, one.confidence)
        return (
            isinstance(one.seq, int)
            and one.seq in record.learnable
            and one.scope in record.scopes.values()
            and not any(looks_like_secret(f"{key}: {fact.value}") for key in (one.key, fact.key))
        )
    return False
