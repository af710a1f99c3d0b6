"""Learning: facts are proposed from what people said, after a turn and beside it.

`consider` returns at once; one task reads the sessions that wait. How far a session was read is in the database, so
that a failure, or a process that dies, only delays: the next turn of the session goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol

from threadkeep.context.quotation import quoted_message
from threadkeep.errors import InvalidInput
from threadkeep.knowledge.promotion import accepted_directives, looks_like_secret
from threadkeep.knowledge.proposals import LearnerKind, Proposals, Proposed, Reading
from threadkeep.knowledge.rows import owner_statements
from threadkeep.observe import FactsProposed, LearningFailed, Observer
from threadkeep.records import Message
from threadkeep.records.knowledge import Scope, ScopeKind
from threadkeep.store.codec import time_of
from threadkeep.store.driver import Driver

_MOST_SESSIONS = 1_000
_REACH = 40
_CONTEXT_MESSAGES = 4
_MOST_PROPOSALS = 20
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """The text that a learner reads: `lines` quote the messages as JSON, `learnable` are those to learn from, by seq.

    `scopes` are the owners that the run has, `known_keys` the keys of the facts that are valid now.
    """

    lines: Sequence[str]
    learnable: Mapping[int, Message]
    scopes: Mapping[ScopeKind, Scope]
    known_keys: Sequence[str]


class Learner(Protocol):
    """Finds facts in messages. It raises if it fails: then nothing is stored, and it is asked again after a later turn.

    Only messages of people are learnable. What was recalled for a model stands in no transcript, so it is never read.
    """

    @property
    def kind(self) -> LearnerKind:
        """The kind of learner: how far a session was read is kept for each."""
        ...

    @property
    def name(self) -> str:
        """The name that is stored with its proposals, such as that of a model."""
        ...

    async def learn(self, record: Record) -> Sequence[Proposed]:
        """Return the facts that the learnable messages say."""
        ...


@dataclass(frozen=True)
class LearningRequest:
    """A session to learn from: the owners of its facts, and the confidence that lets a proposal in (None: a person)."""

    session_id: str
    learner: Learner
    scopes: Mapping[ScopeKind, Scope]
    accept_from: float | None = None


class Learning:
    """The queue of sessions to learn from; see the module."""

    def __init__(self, driver: Driver, proposals: Proposals, *, observer: Observer) -> None:
        self._driver = driver
        self._proposals = proposals
        self._observer = observer
        self._sql = owner_statements(driver.backend, "learning.sql")
        self._waiting: OrderedDict[tuple[str, str], LearningRequest] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def consider(self, request: LearningRequest) -> None:
        """Queue a session whose newest turn is stored; return at once."""
        if self._closed:
            return
        self._waiting[request.session_id, request.learner.kind] = request
        if len(self._waiting) > _MOST_SESSIONS:
            # It is read after its next turn.
            self._waiting.popitem(last=False)
        self._idle.clear()
        if self._task is None or self._task.done():
            # A context of its own: otherwise the task would stream into the caller's run.
            self._task = asyncio.create_task(self._work(), context=Context(), name="threadkeep-learning")

    async def learn(self, request: LearningRequest) -> int:
        """Read what was said since the last time, and return how many facts are proposed now.

        Raises:
            StoreError: the database does not answer.
        """
        learner = request.learner
        messages, before_seq = await self._unread(request)
        learnable = {m.seq: m for m in messages if m.role == "user" and m.seq is not None and m.seq > before_seq}
        if not learnable:
            return 0
        lines = [quoted_message(message) for message in messages]
        record = Record(lines, learnable, request.scopes, await self._known_keys(request.scopes))
        found = [one for one in await learner.learn(record) if _is_sound(one, record)][:_MOST_PROPOSALS]
        upto_seq = max(message.seq or 0 for message in messages)
        reading = Reading(request.session_id, learner.kind, learner.name, before_seq, upto_seq)
        proposed = await self._proposals.add(reading, found) or 0
        accepted = await self._let_in(request)
        if proposed or accepted:
            self._observer.notify(FactsProposed(proposed=proposed, accepted=accepted, session_id=request.session_id))
        return proposed

    async def idle(self) -> None:
        """Wait until no session waits and none is being read."""
        await self._idle.wait()

    async def close(self) -> None:
        """Give the sessions that wait a moment, then stop; the rest is read after a later turn."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while self._waiting:
            _, request = self._waiting.popitem(last=False)
            try:
                await self.learn(request)
            except Exception as error:  # noqa: BLE001 - one session's trouble does not end the work on all others
                self._observer.notify(LearningFailed(error=type(error).__name__, session_id=request.session_id))
        self._idle.set()

    async def _unread(self, request: LearningRequest) -> tuple[list[Message], int]:
        """Return the messages that were not read yet, with a few before them, and how far the session was read."""
        asked = {"session_id": request.session_id, "kind": request.learner.kind}
        reach = {"reach": _REACH, "before": _CONTEXT_MESSAGES}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["unread_messages"], {**asked, **reach})
        messages = [
            Message(role=role, content=content, seq=seq, author=author, run_id=run_id, created_at=time_of(created_at))
            for seq, role, content, author, run_id, created_at, _ in rows
        ]
        return messages, int(rows[0][6]) if rows else 0

    async def _known_keys(self, scopes: Mapping[ScopeKind, Scope]) -> list[str]:
        statements = [(self._sql["known_keys"], {"scope": one.kind, "owner": one.owner}) for one in scopes.values()]
        async with self._driver.reading() as connection:
            rows = await connection.fetch_each(statements)
        return sorted({row[0] for each in rows for row in each})

    async def _let_in(self, request: LearningRequest) -> int:
        """Accept the proposals that are sure enough, also those of a process that died before it could."""
        if request.accept_from is None:
            return 0
        accepted = 0
        sure = await self._proposals.to_let_in(request.session_id, request.learner.kind, request.accept_from)
        for proposal_id in sure:
            # The message may have been taken back meanwhile.
            with contextlib.suppress(InvalidInput):
                await self._proposals.accept(proposal_id, by=f"confidence {request.accept_from:g}")
                accepted += 1
        return accepted


class DirectiveLearner:
    """Finds directives such as `preference (user): Keep diffs small.`; no model takes part."""

    kind: LearnerKind = "directives"
    name = "directives"

    async def learn(self, record: Record) -> Sequence[Proposed]:
        """Return the directives of the messages whose owner the run has."""
        found = []
        for seq, message in record.learnable.items():
            for one in accepted_directives(message.content)[0]:
                scope = record.scopes.get(one.scope)
                if scope is not None:
                    kind = None if one.kind in ("procedure", "task_update", "repo_state") else one.fact_kind
                    found.append(Proposed(scope, one.fact_key, one.text, seq, kind, 1.0, one.kind, message.run_id))
        return found


def _is_sound(one: Proposed, record: Record) -> bool:
    """Return whether a proposal names a learnable message and an owner of the run, and is no secret."""
    return (
        one.seq in record.learnable
        and one.scope in record.scopes.values()
        and not looks_like_secret(f"{one.key}: {one.value}")
    )
