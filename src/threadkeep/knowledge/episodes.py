"""Episodes: a person's questions, their answers and the outcomes of their runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.errors import InvalidInput, SessionDamaged
from threadkeep.knowledge.rows import MAX_PAGE, MessagesAt
from threadkeep.records.knowledge import Episode, Scope
from threadkeep.records.runs import RUN_ENDS
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.codec import time_of
from threadkeep.store.compressed_json import json_of
from threadkeep.store.driver import Driver, Row
from threadkeep.store.statements import ClockedTables

_MOST_SESSIONS = 50
_REACH = 40
_OPEN_SESSIONS = 5
_MESSAGES_EACH = 8


class _EpisodeMessage(NamedTuple):
    """A message with data of its run and, if agents answered it, with their stored steps."""

    session_id: str
    seq: int
    role: str
    content: str
    status: str
    metadata: str
    run_id: str | None
    created_at: datetime
    workflow: str | None
    run_status: str | None
    error: str | None
    steps: Sequence[bytes]


class Episodes(ClockedTables, sql=("episodes.sql",)):
    """A reader of the episodes (questions with their answers and outcomes) of a session or a person."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime], messages_at: MessagesAt | None = None) -> None:
        """Create a reader; `messages_at` reads the texts of messages in a LangGraph store."""
        super().__init__(driver, clock=clock)
        self._messages_at = messages_at

    async def latest(self, scope: Scope, *, limit: int = 5) -> list[Episode]:
        """Return the newest episodes of a scope, newest first, from the last messages of up to 50 sessions.

        Args:
            scope: a session or a person.
            limit: the maximum number of episodes, up to 1,000.
        Raises:
            InvalidInput: the scope is a workspace, or the limit is out of range.
            StoreUnavailable: the database does not answer.
        """
        check_argument("scope", scope, Scope, required=True)
        check_argument("limit", limit, int, required=True)
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"The limit of episodes must be a number from 1 to {MAX_PAGE}.")
        found = await self._read(
            scope, sessions=min(limit + _OPEN_SESSIONS, _MOST_SESSIONS), reach=max(_MESSAGES_EACH * limit, _REACH)
        )
        return found[:limit]

    async def recall(self, query: str, scopes: Sequence[Scope], *, limit: int = 5) -> list[Episode]:
        """Return up to `limit` episodes that are relevant to a query, best first.

        It searches the last 40 messages of each of a scope's newest 50 sessions. Workspaces have no episodes.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        check_argument("query", query, str, required=True)
        check_argument("limit", limit, int, required=True)
        check_each("scopes", scopes, Scope)
        known: dict[str, Episode] = {}
        for scope in scopes:
            if scope.kind != "workspace":
                found = await self._read(scope, sessions=_MOST_SESSIONS, reach=_REACH)
                known |= {f"{one.session_id}:{one.seq}": one for one in found}
        index = RecallIndex()
        for name, one in sorted(known.items(), key=lambda item: item[1].at):
            text = "\n".join(filter(None, (one.asked, one.answered)))
            index.add(IndexedTurn(name, text, time=one.at, session=one.session_id))
        ranked = index.rank(query, now=self._clock(), limit=limit)
        return [known[entry.id] for entry in ranked if entry.why]

    async def _read(self, scope: Scope, *, sessions: int, reach: int) -> list[Episode]:
        if scope.kind == "workspace":
            raise InvalidInput("A workspace has no episodes; name a session or a user.")
        asked = {"scope": scope.kind, "owner": scope.owner, "sessions": sessions, "reach": reach}
        rows = await self._driver.fetch(self._sql["newest_messages"], asked)
        messages = list(_messages(rows))
        if self._messages_at is not None:
            messages = await _with_texts(messages, self._messages_at)
        return sorted(_episodes(messages), key=lambda one: (one.at, one.seq), reverse=True)


def _episodes(messages: Iterable[_EpisodeMessage]) -> Iterator[Episode]:
    """Yield each question, which may be several messages, with its last answer."""
    questions: list[_EpisodeMessage] = []
    answer: _EpisodeMessage | None = None
    for message in messages:
        another = bool(questions) and message.session_id != questions[-1].session_id
        if (
            questions
            and (another or message.role == "user")
            and (answer is not None or another or _is_over(questions[-1]))
        ):
            yield from _episode(questions, answer)
            questions, answer = [], None
        if message.role == "user":
            questions.append(message)
        elif questions:
            answer = message
    if questions:
        yield from _episode(questions, answer)


def _episode(questions: Sequence[_EpisodeMessage], answer: _EpisodeMessage | None) -> Iterator[Episode]:
    first, last = questions[0], answer or questions[-1]
    if answer is None and not _is_over(last):
        return
    feedback = (json.loads(one.metadata).get("feedback") for one in (last, *questions))
    steps = (step for one in questions for body in one.steps for step in json_of(body))
    calls = (call for step in steps for call in step.get("data", {}).get("tool_calls") or ())
    yield Episode(
        session_id=first.session_id,
        seq=first.seq,
        asked="\n".join(one.content for one in questions),
        answered=None if answer is None else answer.content,
        ended=last.run_status if last.run_status in RUN_ENDS else last.status,
        tools=tuple(dict.fromkeys(str(call["name"]) for call in calls if isinstance(call.get("name"), str))),
        workflow=last.workflow,
        error=last.error,
        run_id=last.run_id,
        feedback=next((value for value in feedback if value is not None), None),
        at=first.created_at,
    )


def _is_over(message: _EpisodeMessage) -> bool:
    return message.run_status in RUN_ENDS


def _messages(rows: Iterable[Row]) -> Iterator[_EpisodeMessage]:
    """Yield each message once, with its steps; the rows repeat a message for each of its steps."""
    for _, group in groupby(rows, key=lambda row: row[:2]):
        same = list(group)
        said, steps = _EpisodeMessage(*same[0]), [row[-1] for row in same if row[-1] is not None]
        yield said._replace(created_at=time_of(said.created_at), steps=steps)


async def _with_texts(messages: Iterable[_EpisodeMessage], messages_at: MessagesAt) -> list[_EpisodeMessage]:
    """Add the texts of messages that are in a LangGraph store; omit superseded messages and unreadable sessions."""
    found: list[_EpisodeMessage] = []
    for session_id, group in groupby(messages, key=lambda message: message.session_id):
        rows = list(group)
        with contextlib.suppress(SessionDamaged):
            stored = {one.seq: one for one in await messages_at(session_id, [row.seq for row in rows])}
            found += [
                row._replace(content=one.content, metadata=json.dumps(one.metadata))
                for row in rows
                if (one := stored.get(row.seq)) is not None and one.superseded_at is None
            ]
    return found
