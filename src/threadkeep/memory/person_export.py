"""The export of a person as lines of JSON: the data that an erasure would delete, except `LEFT_OUT`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pydantic_core import to_jsonable_python

from threadkeep.errors import InvalidInput, KnowledgeNotFound, RecordUnreadable, SessionNotFound
from threadkeep.history.archive_lines import message_line, session_line, summary_line
from threadkeep.history.erase import Eraser, belongs
from threadkeep.history.memory import Memory
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.persons import Persons
from threadkeep.knowledge.procedures import Procedures
from threadkeep.knowledge.proposals import Proposals
from threadkeep.knowledge.views import FactView, ProcedureView, ProposalView
from threadkeep.records.knowledge import FactQuery, ProcedureQuery, ProposalQuery, Scope
from threadkeep.records.runs import RunQuery
from threadkeep.records.sessions import check_argument
from threadkeep.store.erasing import Erasable
from threadkeep.store.manifests import StoredManifest

type _Key = tuple[str | int, ...]
type _Unit = tuple[_Key, list[str]]
"""Lines that are exported together, and their key. An interrupted export can be continued after any key."""

FORMAT: Final = 1
LEFT_OUT: Final = (
    "the search index, vectors, anchors and token counts, which are made from the messages",
    "checkpoints of runs and messages on their way to channels or Graphiti, whose texts are in the messages",
    "bookkeeping such as the last read message, the active session and the ids of answered messages",
    "the last tool calls of agents that keep their conversations in a graph store",
    "facts that a Graphiti server derived from the messages and stores itself",
    "backups, and logs of model providers",
)
_PAGE: Final = 200
_LAST: Final = "\U0010ffff"
"""A key that sorts after all keys of its section."""


@dataclass(frozen=True)
class Person:
    """The person of an export: all their ids, and the sessions that they own."""

    wanted: Erasable
    sessions: tuple[str, ...]


class PersonExport:
    """The lines of a person's export, each a JSON object with a `type`.

    The data have a fixed order, so an interrupted export can be continued after any line of type `position`. The last
    line has the type `end`.
    """

    def __init__(
        self,
        memory: Memory,
        eraser: Eraser,
        *,
        knowledge: Knowledge,
        procedures: Procedures,
        persons: Persons,
        proposals: Proposals,
    ) -> None:
        self._memory = memory
        self._eraser = eraser
        self._knowledge = knowledge
        self._procedures = procedures
        self._persons = persons
        self._proposals = proposals
        self._sections: Mapping[str, Callable[[Person, _Key], AsyncIterator[_Unit]]] = {
            "person": self._person,
            "sessions": self._sessions,
            "shared": self._shared,
            "conversations": self._conversations,
            "shared_conversations": self._shared_conversations,
            "calls": self._calls,
            "runs": self._runs,
            "facts": self._facts,
            "procedures": self._procedures_of,
            "proposals": self._proposals_of,
            "steps": self._steps,
            "pending": self._pending,
            "values": self._values,
            "items": self._items,
            "keys": self._keys,
        }

    async def lines(self, user_id: str, after: str | None = None) -> AsyncIterator[str]:
        """Yield the lines of a person's export, from the start or after a position.

        Raises:
            InvalidInput: the user id or the position is not valid, or the position belongs to another person's export.
            StoreUnavailable: the database does not answer; continue after the last position.
        """
        check_argument("after", after, str)
        wanted = await self._eraser.wanted(None, user_id)
        digest = hashlib.sha256(json.dumps(sorted(wanted.ids)).encode()).hexdigest()[:16]
        begun, key = self._position(after, digest)
        person = Person(wanted, tuple(sorted(await self._eraser.rows.sessions(wanted))))
        names = list(self._sections)
        for name in names[names.index(begun) :]:
            async for position, lines in self._sections[name](person, key):
                if position <= key:
                    continue
                for line in lines:
                    yield line
                if lines:
                    written = json.dumps([name, digest, *position]).encode()
                    yield _line("position", {"after": base64.urlsafe_b64encode(written).decode().rstrip("=")})
            key = ()
        yield _line("end", {"ended_at": self._memory.clock()})

    def _position(self, after: str | None, person_digest: str) -> tuple[str, _Key]:
        if after is None:
            return next(iter(self._sections)), ()
        try:
            name, owner, *key = json.loads(base64.urlsafe_b64decode(after.encode() + b"=="))
        except (ValueError, TypeError, RecursionError):
            name, owner, key = "", "", []
        if name not in self._sections or not all(type(part) in (str, int) for part in key):
            raise InvalidInput("This is not a position; pass the `after` of the last position line unchanged.")
        if owner != person_digest:
            raise InvalidInput(
                "This position belongs to the export of another person, or the person's ids have changed since; start "
                "the export again without a position."
            )
        return name, tuple(key)

    async def _person(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        values = {"format": FORMAT, "begun_at": self._memory.clock(), "ids": person.wanted.ids, "left_out": LEFT_OUT}
        try:
            known = to_jsonable_python(await self._persons.get(person.wanted.ids[0]))
        except KnowledgeNotFound:
            known = {}
        yield (1,), [_line("person", {**known, **values})]

    async def _sessions(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for session_id in person.sessions:
            if not after or session_id >= str(after[0]):
                async for unit in self._session(self._memory, session_id):
                    yield unit

    async def _session(self, memory: Memory, session_id: str) -> AsyncIterator[_Unit]:
        """Yield the lines of a session: its metadata, all messages, active or not, and the summaries."""
        session = memory.session(session_id)
        try:
            found = [await session.info()]
        except SessionNotFound:
            found = []
        except RecordUnreadable:  # lists return a damaged session with a mark
            found = [each async for each in memory.sessions(query=session_id) if each.session_id == session_id]
        if not found:  # it was deleted meanwhile
            return
        [info] = found
        yield (session_id, 0), [session_line(info)]
        first = info.deleted_seq + 1
        while first <= info.last_seq:
            last = min(first + _PAGE - 1, info.last_seq)
            page = await session.page(before=last + 1, limit=last - first + 1, view="history")
            yield (session_id, last), [message_line(session_id, message) for message in page.messages]
            first = last + 1
        if memory is self._memory:
            summaries = await memory.summaries.for_export(session_id, view="history")
            yield (session_id, info.last_seq + 1), [summary_line(summary) for summary in summaries]

    async def _shared(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the person's messages in sessions that other users own."""
        for session_id, seqs in sorted((await self._eraser.rows.shared(person.wanted)).items()):
            for seq in sorted(seqs):
                if (session_id, seq) > after:
                    page = await self._memory.session(session_id).page(before=seq + 1, limit=1, view="history")
                    lines = [message_line(session_id, message) for message in page.messages]
                    yield (session_id, seq), [_retyped("shared_message", line) for line in lines]

    async def _shared_conversations(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the person's messages in other users' conversations in a LangGraph store."""
        found = await self._eraser.shared_conversations(person.wanted)
        for position, (_, session_id, messages) in enumerate(sorted(found, key=lambda each: each[1])):
            lines = [message_line(session_id, message) for message in messages]
            yield (position,), [_retyped("shared_message", line) for line in lines]

    async def _conversations(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the person's conversations that agents have stored in LangGraph stores."""
        found = await self._eraser.conversations(person.wanted, person.sessions)
        for position, (memory, key) in enumerate(sorted(found, key=lambda pair: pair[1])):
            async for unit, lines in self._session(memory, key):
                yield (position, *unit), lines

    async def _calls(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for session_id in person.sessions:
            number, before = 0, None
            while page := await self._memory.manifests.of_session(session_id, limit=_PAGE, before=before):
                number, before = number + 1, page[-1].cursor
                yield (session_id, number), [_line("model_call", _call(one)) for one in page]

    async def _runs(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for run_id in sorted(await self._run_ids(person)):
            if (run_id,) <= after or (run := await self._memory.runs.run(run_id, damaged=True)) is None:
                continue
            lines, number = [_line("run", asdict(run))], 0
            try:
                while events := await self._memory.runs.trace.events(run_id, after=number, limit=_PAGE):
                    number = events[-1].number
                    lines += [_line("run_event", {"run_id": run_id, **asdict(event)}) for event in events]
            except RecordUnreadable as error:
                lines.append(_line("run_event", {"run_id": run_id, "error": type(error).__name__}))
            yield (run_id,), lines

    async def _run_ids(self, person: Person) -> set[str]:
        """Return the ids of the person's runs and of the runs in their sessions, with all descendants."""
        queries = [RunQuery(user_id=id_, limit=_PAGE) for id_ in person.wanted.ids]
        queries += [RunQuery(session_id=session_id, limit=_PAGE) for session_id in person.sessions]
        found: set[str] = set()
        while queries:
            query = queries.pop()
            runs, cursor = await self._memory.runs.records.runs(query)
            if cursor is not None:
                queries.append(replace(query, cursor=cursor))
            new = {run.run_id for run in runs} - found
            found |= new
            queries += [RunQuery(parent_run_id=run_id, limit=_PAGE) for run_id in new]
        return found

    async def _facts(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for scope in _scopes(person):
            async for number, found in _pages(self._knowledge.facts_page, FactQuery(scope, past=True, limit=_PAGE)):
                lines = [_line("fact", FactView.of(fact).model_dump(mode="json")) for fact in found]
                yield (scope.kind, scope.owner, number), lines
        for fact_id in await self._eraser.rows.facts(person.wanted):
            with contextlib.suppress(KnowledgeNotFound):  # it was forgotten meanwhile
                fact = await self._knowledge.fact(fact_id)
                yield (_LAST, fact_id), [_line("fact", FactView.of(fact).model_dump(mode="json"))]

    async def _procedures_of(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for scope in _scopes(person):
            async for number, found in _pages(self._procedures.page, ProcedureQuery(scope, limit=_PAGE)):
                lines = [_line("procedure", ProcedureView.of(one).model_dump(mode="json")) for one in found]
                yield (scope.kind, scope.owner, number), lines

    async def _proposals_of(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        for session_id in person.sessions:
            query = ProposalQuery(session_id=session_id, limit=_PAGE)
            async for number, found in _pages(self._proposals.page, query):
                lines = [_line("proposal", ProposalView.of(one).model_dump(mode="json")) for one in found]
                yield (session_id, number), lines
        query = ProposalQuery(scope=Scope("user", person.wanted.ids[0]), limit=_PAGE)
        async for number, found in _pages(self._proposals.page, query):
            others = [one for one in found if one.evidence.session_id not in person.sessions]
            lines = [_line("proposal", ProposalView.of(one).model_dump(mode="json")) for one in others]
            yield (_LAST, number), lines

    async def _steps(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the stored tool calls of the person's sessions, with their results."""
        for session_id in person.sessions:
            found = await self._eraser.rows.steps(session_id)
            yield (session_id,), [_line("step", {"session_id": session_id, **step}) for step in found]

    async def _pending(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the messages of turns that are not stored in a database yet."""
        for entry in await self._eraser.waiting():
            if belongs(entry.turn, person.wanted, person.sessions):
                lines = [message_line(entry.turn.session_id, message) for message in entry.turn.messages]
                yield (entry.entry_id,), [_retyped("pending_message", line) for line in lines]

    async def _values(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield values that are stored outside of sessions: attachments, app state and names."""
        for scope, name, value in await self._eraser.rows.values(person.wanted.ids):
            yield (scope, name), [_line("value", {"scope": scope, "name": name, "value": value})]

    async def _items(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the items of the LangGraph store in namespaces that name the person and no other user."""
        for store, namespace, key in sorted(await self._eraser.items(person.wanted), key=lambda item: item[1:]):
            if (item := await store.aget(namespace, key)) is not None:
                values = {"namespace": namespace, "key": key, "value": item.value, "updated_at": item.updated_at}
                yield ("\0".join(namespace), key), [_line("item", values)]

    async def _keys(self, person: Person, after: _Key) -> AsyncIterator[_Unit]:
        """Yield the person's API keys of the HTTP service, without their digests."""
        for key in await self._eraser.rows.keys(person.wanted.ids):
            yield (str(key["key_id"]),), [_line("api_key", key)]


async def _pages[Q: (FactQuery, ProcedureQuery, ProposalQuery), T](
    read: Callable[[Q], Awaitable[tuple[Sequence[T], Any]]], query: Q
) -> AsyncIterator[tuple[int, Sequence[T]]]:
    """Yield the number of each page of a query, beginning with 1, and the page."""
    number, cursor = 0, None
    while number == 0 or cursor is not None:
        found, cursor = await read(replace(query, cursor=cursor))
        number += 1
        yield number, found


def _scopes(person: Person) -> Sequence[Scope]:
    """Return the owners of facts about the person (the person and their sessions), in the order of the export."""
    owners = [("session", session_id) for session_id in person.sessions]
    owners.append(("user", person.wanted.ids[0]))  # all ids of a person have the same facts
    return [Scope(kind, owner) for kind, owner in owners]  # type: ignore[arg-type]


def _call(stored: StoredManifest) -> Mapping[str, object]:
    return {"session_id": stored.session_id, "run_id": stored.run_id, "call": stored.call, **stored.manifest}


def _retyped(kind: str, line: str) -> str:
    return _line(kind, {name: value for name, value in json.loads(line).items() if name != "type"})


def _line(kind: str, values: Mapping[str, object]) -> str:
    return json.dumps({"type": kind, **values}, ensure_ascii=False, default=_json) + "\n"


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)
