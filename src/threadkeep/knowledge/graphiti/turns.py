"""The conversion of stored turns to Graphiti's episodes: their messages, their names and their groups."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from threadkeep.errors import InvalidInput
from threadkeep.knowledge.rows import OWNER_SQL
from threadkeep.observe import EpisodesDelivered, Observer
from threadkeep.records import Message
from threadkeep.records.graphiti import GraphitiOptions, GroupStrategy, check_group_id
from threadkeep.records.knowledge import Scope
from threadkeep.store.codec import message_of, time_text
from threadkeep.store.driver import Connection, Driver
from threadkeep.store.statements import ClockedTables

MARK = "\n…[truncated]"
"""The suffix of a message that was cut."""

_MOST_GROUP_CHARACTERS = 80
_KEPT_GROUP_CHARACTERS = 63
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
# Characters that stop the server's worker permanently, or that its database rejects.
_REMOVED = re.compile("[\x00\ud800-\udfff]")
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


def group_key(scope: Scope) -> str:
    """Return the text from which the id of a scope's Graphiti group is derived, such as `user:ann`."""
    return f"{scope.kind}:{scope.owner}"


def group_id_of(scope: Scope, strategy: GroupStrategy = "hashed") -> str:
    """Return the id of a scope's Graphiti group. With the strategy `raw`, two owners can get the same id."""
    key = group_key(scope)
    if strategy == "raw":
        readable = _UNSAFE.sub("_", f"threadkeep_{key}")
        if len(readable) > _MOST_GROUP_CHARACTERS:
            readable = f"{readable[:_KEPT_GROUP_CHARACTERS]}_{_digest(key, 16)}"
        return check_group_id(readable)
    return check_group_id(f"threadkeep_{scope.kind}_{_digest(key, 32)}")


def turn_id(session_id: str, message_id: str, stored_at: datetime) -> str:
    """Return a stable id of a turn for the names of its messages in Graphiti. It does not show the session's id."""
    return _digest("\x00".join((session_id, message_id, stored_at.astimezone(UTC).isoformat())), 32)


def episode_name(turn: str, role: str, number: int = 1) -> str:
    """Return the name that a message has in Graphiti, where it is an episode of a group.

    `number` counts the messages of one role in a turn, starting at 1.
    """
    return f"threadkeep.turn.{turn}{'' if number == 1 else f'-{number}'}.{role}"


def fact_episode(fact_id: str) -> str:
    """Return the name of the episode in which a fact is sent to Graphiti."""
    return f"threadkeep.fact.{fact_id}.user"


def cut(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, with `MARK` at the end if there is room."""
    if len(text) <= limit:
        return text
    return text[:limit] if limit <= len(MARK) else text[: limit - len(MARK)] + MARK


def sendable(text: str, limit: int) -> str:
    """Remove characters that stop the Graphiti server's worker, and cut the text to `limit` characters."""
    return cut(_REMOVED.sub("", text), limit)


def clamped(moment: datetime, now: datetime) -> datetime:
    """Return a time between 2000 and `now`, because the server rejects earlier times and hides future ones."""
    return min(max(moment, _EARLIEST), now).astimezone(UTC)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]


_TURNS_AT_ONCE = 50
# The number of messages before a turn that are searched for its question.
_REACH = 50


@dataclass(frozen=True)
class _Turn:
    """A row of `chat_graph_turns`, with the user and the agent of its session."""

    number: int
    session_id: str
    first_seq: int
    last_seq: int
    workspace: str | None
    backfill: bool
    user_id: str | None
    agent: str | None


@dataclass(frozen=True)
class Outbound:
    """A message for Graphiti; `name` identifies it in its group, and `turn` is the id of its turn."""

    turn: str
    name: str
    role: str
    said_at: datetime
    size: int
    message_id: str | None = None
    session_id: str | None = None
    content: str | None = None
    workspace: str | None = None
    backfill: bool = False


class TurnQueue(ClockedTables, sql=(*OWNER_SQL, "graph_turns.sql")):
    """The queue of stored turns, which one process at a time splits into messages for Graphiti, in order."""

    def __init__(
        self, driver: Driver, options: GraphitiOptions, *, observer: Observer, clock: Callable[[], datetime]
    ) -> None:
        super().__init__(driver, clock=clock)
        self._observer = observer
        self._options = options

    async def make_deliveries(self) -> int:
        """Queue the messages of the oldest 50 turns for Graphiti, and return the number of these turns.

        If too many messages are queued, whole turns are given up: the oldest of a backfill first, then other turns.
        """
        now = self._clock()
        async with self._driver.reading() as connection:
            # Check without a lock first, because the queue is usually empty.
            if not await connection.fetch(self._sql["oldest_turns"], {"limit": 1}):
                return 0
        async with self._driver.writing() as connection:
            if self.backend == "postgres":
                await connection.fetch(self._sql["lock_turns"], {})
            rows = await connection.fetch(self._sql["oldest_turns"], {"limit": _TURNS_AT_ONCE})
            queued = 0
            for row in rows:
                turn = _Turn(*row)
                queued += await self._make(connection, turn)
                await connection.execute(self._sql["remove_turn"], {"number": turn.number})
            dead = await self._bound(connection, now)
        self.notify_queued(queued)
        if dead:
            self._observer.notify(EpisodesDelivered(result="dead", count=dead, reason="outbox_full"))
        return len(rows)

    def notify_queued(self, count: int) -> None:
        """Notify observers of messages that `add` has queued; call this after the transaction is committed."""
        if count:
            self._observer.notify(EpisodesDelivered(result="queued", count=count))

    async def add(self, connection: Connection, scopes: Sequence[Scope], messages: Sequence[Outbound]) -> int:
        """Queue messages for the Graphiti groups of some scopes, each once in a group. Return how many were new."""
        now = time_text(self._clock())
        added = 0
        for scope in scopes:
            group_id = await self.group_of(connection, scope)
            for message in messages:
                row = {
                    **vars(message),
                    "bytes": message.size,
                    "said_at": time_text(message.said_at),
                    "group_id": group_id,
                    "scope": scope.kind,
                    "now": now,
                }
                added += await connection.execute(self._sql["add_delivery"], row)
        return added

    async def revive(self, connection: Connection, scope: Scope, message: Outbound) -> int:
        """Queue a message again if its delivery to the scope's group was given up; return how many were queued."""
        row = {"group_id": await self.group_of(connection, scope), "name": message.name, "content": message.content}
        return await connection.execute(self._sql["revive"], row)

    async def group_of(self, connection: Connection, scope: Scope) -> str:
        """Return the id of a scope's group. If there is no group yet, register one.

        If two owners have the same raw id, the second one gets a hashed id, so that neither reads the other's messages.
        """
        key = {"group_key": group_key(scope)}
        known = await connection.fetch(self._sql["find_group"], key)
        for strategy in () if known else (self._options.group_id_strategy, "hashed"):
            row = {
                **key,
                "group_id": group_id_of(scope, strategy),
                "scope": scope.kind,
                "now": time_text(self._clock()),
            }
            if known := await connection.fetch(self._sql["add_group"], row):
                break
        else:
            known = known or await connection.fetch(self._sql["find_group"], key)
        return str(known[0][0])

    async def scopes_of(
        self, connection: Connection, session_id: str, user_id: str | None, workspace: str | None
    ) -> list[Scope]:
        """Return the scopes to send a session's messages to: the scopes in the options, if they have an owner."""
        person = user_id
        if user_id is not None:
            rows = await connection.fetch(self._sql["canonical_id"], {"person_id": user_id})
            person = rows[0][0] if rows else user_id
        owners = {"session": session_id, "workspace": workspace, "user": person}
        scopes = []
        for kind in self._options.scopes:
            # An older version may have stored an invalid owner, which must not block later turns.
            with contextlib.suppress(InvalidInput):
                scopes.append(Scope(kind, owners[kind] or ""))
        return scopes

    async def _make(self, connection: Connection, turn: _Turn) -> int:
        """Queue the messages of a turn, except messages between agents. Return how many were queued."""
        if turn.agent is not None:
            return 0
        between = {"session_id": turn.session_id, "first_seq": turn.first_seq - _REACH, "last_seq": turn.last_seq}
        rows = await connection.fetch(self._sql["turn_messages"], between)
        messages = [message_of(row) for row in rows]
        outbound: list[Outbound] = []
        for answer in messages:
            if (answer.seq or 0) >= turn.first_seq and answer.role == "assistant" and answer.status == "complete":
                outbound += await self._of_answer(connection, turn, answer, messages)
        scopes = await self.scopes_of(connection, turn.session_id, turn.user_id, turn.workspace)
        marked = [replace(one, workspace=turn.workspace, backfill=bool(turn.backfill)) for one in outbound]
        return await self.add(connection, scopes, marked)

    async def _of_answer(
        self, connection: Connection, turn: _Turn, answer: Message, messages: Sequence[Message]
    ) -> list[Outbound]:
        """Return an answer with its question and, if configured, the system messages between them."""
        number = 1
        if answer.answers is None:
            question = _before(answer, messages)
        else:
            question = await self._question(connection, turn, answer, messages)
            asked = {"session_id": turn.session_id, "question": answer.answers, "seq": answer.seq}
            [(number,)] = await connection.fetch(self._sql["answer_number"], asked)
        spoken = [*question, *(self._notes(question, answer, messages) if question else ()), answer]
        # Derive the turn's id from its newest question, or else from the answer, so that it is the same in all groups.
        key = question[-1] if question else answer
        name = turn_id(turn.session_id, str(key.id), key.created_at or self._clock())
        counts = {"user": 0, "system": 0, "assistant": int(number) - 1}
        outbound: list[Outbound] = []
        said_at = datetime.min.replace(tzinfo=UTC)
        for message in spoken:
            counts[message.role] += 1
            # Add microseconds, so that messages of the same time keep their order.
            later = timedelta(microseconds=(message.seq or 0) % 10_000)
            moment = message.sent_at or message.created_at
            said_at = max(moment + later if moment else self._clock(), said_at + timedelta(microseconds=1))
            outbound.append(
                Outbound(
                    turn=name,
                    name=episode_name(name, message.role, counts[message.role]),
                    role=message.role,
                    said_at=said_at,
                    size=min(len(message.content), self._options.max_message_chars),
                    message_id=message.id,
                    session_id=turn.session_id,
                )
            )
        return outbound

    async def _question(
        self, connection: Connection, turn: _Turn, answer: Message, messages: Sequence[Message]
    ) -> list[Message]:
        """Return the question of an answer, preceded by the earlier user messages of the same run, if there are any."""
        asked = next((one for one in messages if one.id == answer.answers), None)
        if asked is None:
            key = {"session_id": turn.session_id, "message_id": answer.answers}
            if not (found := await connection.fetch(self._sql["place_of"], key)):
                return []
            between = {"session_id": turn.session_id, "first_seq": found[0][0] - _REACH, "last_seq": found[0][0]}
            rows = await connection.fetch(self._sql["turn_messages"], between)
            messages = [message_of(row) for row in rows]
            asked = messages[-1]
        same_run = [
            one for one in messages if one.run_id and one.run_id == asked.run_id and (one.seq or 0) < (asked.seq or 0)
        ]
        return [one for one in (*same_run, asked) if _is_said(one)]

    def _notes(self, question: Sequence[Message], answer: Message, messages: Sequence[Message]) -> list[Message]:
        if not self._options.include_system:
            return []
        first, last = question[0].seq or 0, answer.seq or 0
        return [
            one for one in messages if one.role == "system" and first < (one.seq or 0) < last and one.content.strip()
        ]

    async def _bound(self, connection: Connection, now: datetime) -> int:
        """Give up whole turns until the queue is within its limits; return the number of messages given up."""
        dead = 0
        while True:
            [(count, size)] = await connection.fetch(self._sql["queue_size"], {})
            if count <= self._options.max_queue and size <= self._options.max_queue_bytes:
                return dead
            [(group_id, turn)] = await connection.fetch(self._sql["least_urgent"], {})
            given_up = {"group_id": group_id, "turn": turn, "reason": "outbox_full", "now": time_text(now)}
            dead += await connection.execute(self._sql["bury_turn"], given_up)


def source_of(scope: str, git: dict[str, object] | None) -> str:
    """Return JSON that describes the source of a message for Graphiti. It contains no file path."""
    values: dict[str, object] = {"source": "threadkeep", "scope": scope}
    return json.dumps(values if git is None else {**values, "git": git}, ensure_ascii=False)


def _before(answer: Message, messages: Sequence[Message]) -> list[Message]:
    """Return the user messages directly before an answer: its question, if the answer itself names none."""
    found: list[Message] = []
    for message in reversed([one for one in messages if (one.seq or 0) < (answer.seq or 0)]):
        if message.role == "assistant":
            break
        if _is_said(message):
            found.insert(0, message)
    return found


def _is_said(message: Message) -> bool:
    return message.role == "user" and message.status == "complete" and bool(message.content.strip())
