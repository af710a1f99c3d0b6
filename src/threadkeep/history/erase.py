"""The erasure of a person or a session from every store of a memory, with a receipt."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Any, Literal

from threadkeep.errors import InvalidInput, SessionDamaged, StoreUnavailable
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import Memory
from threadkeep.history.pending_files import discard_waiting, unreadable_turns, waiting_files
from threadkeep.history.session import Session
from threadkeep.records import Message, Turn
from threadkeep.records.erasure import ErasedKind, ErasedStore, EraseReceipt
from threadkeep.records.sessions import check_argument
from threadkeep.store.erasing import Erasable, TableErasing
from threadkeep.store.spool import PendingTurn

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, SearchItem

type Verification = Literal["gone", "there", "unsigned"]

_PAGE = 500
_PENDING, _CONVERSATIONS, _ITEMS = "pending turns", "conversations of agents", "graph store items"
_SHARED = "messages in conversations of others"
_ROUNDS = 3
_SCOPE = "erase"
_ALWAYS = (
    "backups",
    "logs of model providers",
    "logs of the service, which have ids and no texts",
    "pending turns on other machines, until they are written: threadkeep pending list",
    "inputs of `threadkeep chat` on each machine: the file chat_history in the state folder of its user",
    "caches in other processes, which never show these data and drop them with their next call in the session",
)
_DEAD_ROWS = "dead rows of PostgreSQL until VACUUM, and its WAL"
_LOG = "the WAL of PostgreSQL until it is recycled"


class Eraser:
    """A service that erases persons and sessions. Repeating an interrupted erasure continues it."""

    def __init__(self, memory: Memory, rows: TableErasing) -> None:
        self._memory = memory
        self.rows = rows

    async def wanted(self, session_id: str | None, user_id: str | None) -> Erasable:
        """Return the person to erase, with all ids that were merged into one person, or the session to erase.

        Raises:
            InvalidInput: not exactly one of the arguments is given, or the user id is not valid.
        """
        if (session_id is None) == (user_id is None):
            raise InvalidInput("Name a session or a user to erase: either session_id or user_id.")
        if user_id is None:
            check_argument("session_id", session_id, str, required=True)
            return Erasable(session_id=session_id)
        self._memory.session("erase", user_id=user_id)  # rejects an invalid user id
        return Erasable(ids=await self.rows.same_person(user_id))

    async def groups(self, wanted: Erasable) -> int:
        """Return the number of groups (parts of Graphiti's graph) that the person or the session has."""
        return (await self.rows.counts(wanted))["chat_graph_groups"]

    async def continued(self, wanted: Erasable, *, dry_run: bool) -> Erasable:
        """Return `wanted` with all ids that an interrupted erasure recorded, and with the scope of its records."""
        subject = _subject(wanted, await self._digest(dry_run=dry_run))
        ids = tuple(dict.fromkeys([*wanted.ids, *(await self._interrupted(subject)).get("ids", [])]))
        return replace(wanted, ids=ids, noted=f"{_SCOPE}:{subject}")

    async def begin(self, wanted: Erasable) -> None:
        """Record that an erasure has begun, with the ids, the sessions and the counts of the data to erase."""
        state, found = self._memory.channels.state, await self._find(wanted)
        subject = _subject(wanted, await self._digest())
        await state.keep_first(_SCOPE, subject, json.dumps({"ids": wanted.ids, "found": found}))
        named = [] if wanted.session_id is None else [wanted.session_id]
        await self.rows.note_sessions(wanted, [*named, *await self.rows.sessions(wanted)])

    async def erase(
        self, wanted: Erasable, *, dry_run: bool, vacuum: bool, groups: ErasedStore, remains: Sequence[str]
    ) -> EraseReceipt:
        """Erase a person or a session, and return the receipt. Call `begin` first.

        Args:
            wanted: the result of `continued`.
            dry_run: count only, and erase nothing.
            vacuum: rewrite the SQLite file or the PostgreSQL tables after the erasure.
            groups: the counts of the Graphiti groups, which are already deleted.
            remains: descriptions of data that could not be deleted in Graphiti.
        """
        digest = await self._digest(dry_run=dry_run)
        subject = _subject(wanted, digest)
        begun_at = self._memory.clock()
        found = await self._find(wanted)
        shared = {*await self.rows.shared(wanted), *(name for _, name, _ in await self.shared_conversations(wanted))}
        not_reached = [*remains, *await self._elsewhere(wanted), *_ALWAYS]
        # After an interruption, put the counts of the first attempt into the receipt.
        interrupted = await self._interrupted(subject)
        before = {name: max(count, interrupted.get("found", {}).get(name, 0)) for name, count in found.items()}
        after = found
        if dry_run and interrupted:
            not_reached.insert(0, "data that an incomplete erase left: erase again")
        if not dry_run:
            state = self._memory.channels.state
            after = await self._erase_all(wanted)
            done = not any(after.values()) and not remains
            counts = json.dumps({"found": before})
            if done:
                # Delete the recorded ids before `overwrite`, which then overwrites them. Keep the counts for a retry.
                await self.rows.forget_notes(wanted)
                await state.keep(_SCOPE, subject, counts)
            if not await self.rows.overwrite(vacuum=vacuum):
                not_reached.append("the WAL file of SQLite, which a reader keeps: stop other processes, and repeat")
            if (rest := await self._memory.overwrite_graph_store(vacuum=vacuum)) is not None:
                not_reached.append(rest)
            if done:
                await state.forget(_SCOPE, subject, counts)
        if self.rows.backend == "postgres":
            not_reached.append(_LOG if vacuum and not dry_run else _DEAD_ROWS)
        not_reached += await self._unreadable(wanted)
        if waiting := await self.rows.retractions():
            not_reached.append(f"{waiting} episodes of facts in Graphiti, until it confirms that they are deleted")
        if shared_names := await self._named(wanted, others=True):
            not_reached.append(f"{len(shared_names)} namespaces of the graph store that name other users too")
        stores = [*(ErasedStore(name, before[name], after[name]) for name in before), groups]
        receipt = EraseReceipt(
            kind=_kind(wanted),
            subject=subject,
            ids=tuple(sorted(digest(f"user:{id_}") for id_ in wanted.ids)),
            begun_at=begun_at,
            ended_at=self._memory.clock(),
            dry_run=dry_run,
            sessions=before["chat_sessions"],
            shared_sessions=len(shared),
            shared_messages=before["shared messages"] + before[_SHARED],
            stores=tuple(store for store in stores if store.before or store.after),
            not_reached=tuple(not_reached),
        )
        return replace(receipt, signature=digest(receipt.signed_text()))

    async def _elsewhere(self, wanted: Erasable) -> list[str]:
        """Describe remaining data about the person or session, such as branches, which must be erased separately."""
        found: list[str] = []
        if episodes := await self.rows.episodes_elsewhere(wanted):
            found.append(f"{episodes} episodes in Graphiti's groups of workspaces and of sessions of others")
        if wanted.session_id is not None and (branches := await self.rows.branches(wanted.session_id)):
            found.append(f"{branches} branches of the session, which have copies of its messages: erase each")
        if wanted.session_id is not None and (children := await self.rows.child_sessions(wanted.session_id)):
            found.append(f"{children} sessions of child runs (child:…), which have texts of its messages: erase each")
        return found

    async def verify(self, receipt: EraseReceipt) -> Verification:
        """Check a receipt's signature, and that the erasure has ended and left no data of the person or session."""
        check_argument("receipt", receipt, EraseReceipt, required=True)
        digest = await self._digest()
        signature = digest(replace(receipt, signature="").signed_text())
        if not hmac.compare_digest(signature.encode(), str(receipt.signature).encode("utf-8", "replace")):
            return "unsigned"
        erased = {receipt.subject, *receipt.ids}
        remains = any(digest(f"{receipt.kind}:{name}") in erased for name in await self._names(receipt.kind))
        if receipt.kind == "user" and await self._memory.has_graph_store():
            store = await self._memory.graph_store()
            labels = {label async for namespace in _namespaces(store) for label in namespace}
            known = tuple(label for label in labels if digest(f"user:{label}") in erased)
            # A LangGraph store may list namespaces that are empty, so look for items in them too.
            remains = remains or bool(await self.items(Erasable(ids=known)))
        return "there" if remains or await self._interrupted(receipt.subject) else "gone"

    async def _names(self, kind: ErasedKind) -> set[str]:
        """Return the ids of all persons, or of all sessions, that have data in this memory."""
        names = set(await self.rows.known(sessions=kind == "session"))
        for entry in await self.waiting():
            names |= {entry.turn.session_id} if kind == "session" else _people(entry.turn.user_id, entry.turn.messages)
        own = [self._memory] if self._memory.in_graph_store else []
        for memory in [*own, *await self._others()]:
            async for info in memory.sessions():
                if kind == "session":
                    names.add(info.session_id)
                else:
                    names |= _people(info.user_id, await _sent_to(memory.session(info.session_id)))
        return names

    async def _erase_all(self, wanted: Erasable) -> dict[str, int]:
        """Erase the data in a few rounds at most, until none is found; return the counts of remaining data."""
        after: dict[str, int] = {}
        for _ in range(_ROUNDS):
            sessions = await self.rows.sessions(wanted)
            await self.rows.note_sessions(wanted, sessions)
            within = partial(belongs, wanted=wanted, sessions=sessions)
            await self._memory.pending.discard(within)
            if (folder := self._memory.pending.options.folder) is not None:
                await asyncio.to_thread(discard_waiting, folder, within)
            await self.rows.delete_facts_of_runs(wanted)
            for session_id in sessions:
                await self._memory.session(session_id).delete()
            for session_id, seqs in (await self.rows.shared(wanted)).items():
                for some in batched(seqs, _PAGE):
                    await self.rows.empty(session_id, some)
                self._memory.older_turns.forget(session_id)
                self._memory.session_cache.forget(session_id)
            await self._empty_conversations(wanted)
            await self.rows.delete_person(wanted.ids)
            await self.rows.forget_evidence(sessions)
            for other, key in await self.conversations(wanted, sessions):
                await other.session(key).delete()
            for store, namespace, key in await self.items(wanted):
                await store.adelete(namespace, key)
            await self.rows.delete_checkpoints(wanted)
            after = await self._find(wanted)
            if not any(after.values()):
                break
        return after

    async def _find(self, wanted: Erasable) -> dict[str, int]:
        """Count the database rows, unwritten turns and LangGraph store items to erase, by store."""
        sessions = await self.rows.sessions(wanted)
        counts = await self.rows.counts(wanted)
        counts[_PENDING] = sum(belongs(entry.turn, wanted, sessions) for entry in await self.waiting())
        counts[_SHARED] = sum(len(messages) for _, _, messages in await self.shared_conversations(wanted))
        counts[_CONVERSATIONS] = len(await self.conversations(wanted, sessions))
        counts[_ITEMS] = len(await self.items(wanted))
        return counts

    async def waiting(self) -> list[PendingTurn]:
        """Return the turns that wait to be written in all processes with the same folder, sorted by entry id."""
        entries = {entry.entry_id: entry for entry in self._memory.pending.entries}
        if (folder := self._memory.pending.options.folder) is not None:
            files = await asyncio.to_thread(waiting_files, folder)
            entries |= {entry.entry_id: entry for file in files for entry in file.entries}
        return [entries[entry_id] for entry_id in sorted(entries)]

    async def _unreadable(self, wanted: Erasable) -> list[str]:
        """Describe stored data that cannot be read and may belong to the person or the session."""
        found: list[str] = []
        folder = self._memory.pending.options.folder
        if folder is not None and (lines := await asyncio.to_thread(unreadable_turns, folder)):
            found.append(f"{len(lines)} unreadable lines of pending files: threadkeep pending list")
        if wanted.ids and (items := [one for each in (self._memory, *await self._others()) for one in each.damaged()]):
            found.append(f"{len(items)} damaged conversations in the graph store: threadkeep doctor")
        return found

    async def conversations(self, wanted: Erasable, sessions: Sequence[str]) -> list[tuple[Memory, str]]:
        """Return the LangGraph store conversations that are the person's or have one of the session ids as the key."""
        found: list[tuple[Memory, str]] = []
        for other in await self._others():
            keys = [info.session_id for id_ in wanted.ids async for info in other.sessions(user_id=id_)]
            named = [*sessions, *([] if wanted.session_id is None else [wanted.session_id])]
            keys += [key for key in named if await other.session(key).count(view="history")]
            found += [(other, key) for key in dict.fromkeys(keys)]
        return found

    async def shared_conversations(self, wanted: Erasable) -> list[tuple[Memory, str, list[Message]]]:
        """Return the person's messages in conversations of other users; this reads every conversation."""
        found: list[tuple[Memory, str, list[Message]]] = []
        own = [self._memory] if self._memory.in_graph_store else []
        for memory in [*own, *await self._others()] if wanted.ids else []:
            async for info in memory.sessions():
                messages = [] if info.user_id in wanted.ids else await _sent_to(memory.session(info.session_id))
                if sent := [one for one in messages if not _senders(one).isdisjoint(wanted.ids)]:
                    found.append((memory, info.session_id, sent))
        return found

    async def _others(self) -> list[Memory]:
        return [memory for layout, memory in await AllSessions(self._memory).locations() if layout is not None]

    async def _empty_conversations(self, wanted: Erasable) -> None:
        for memory, session_id, messages in await self.shared_conversations(wanted):
            await self._memory.runs.records.forget_runs(sorted({one.run_id for one in messages if one.run_id}))
            seqs = [message.seq or 0 for message in messages]
            for some in batched(seqs, _PAGE):
                if memory is self._memory:
                    await self.rows.empty(session_id, some)
                await memory.empty_messages(session_id, some)

    async def items(self, wanted: Erasable) -> list[tuple[BaseStore, tuple[str, ...], str]]:
        """Return the LangGraph store items that belong to this person alone, except conversations."""
        found: dict[tuple[tuple[str, ...], str], None] = {}
        for namespace in await self._named(wanted, others=False):
            items = await _all_items(await self._memory.graph_store(), namespace)
            found |= {(item.namespace, item.key): None for item in items if item.namespace == namespace}
        return [(await self._memory.graph_store(), namespace, key) for namespace, key in found]

    async def _named(self, wanted: Erasable, *, others: bool) -> list[tuple[str, ...]]:
        """Return the namespaces with the person's id; `others` says whether they also contain another user's id.

        A namespace with another user is not erased: the person's id may be a common word such as `memories`.
        """
        if not wanted.ids or not await self._memory.has_graph_store():
            return []
        layouts = [GraphLayout(), *(layout for _, layout, _ in await self._memory.namespaces())]
        mine = {*wanted.ids}
        naming = [
            namespace
            async for namespace in _namespaces(await self._memory.graph_store())
            if not mine.isdisjoint(namespace) and not any(layout.has(namespace) for layout in layouts)
        ]
        # Read all users' ids only here, because this reads whole tables.
        known = {*await self.rows.known(sessions=False)} - mine if naming else set()
        return [namespace for namespace in naming if (not known.isdisjoint(namespace)) == others]

    async def _interrupted(self, subject: str) -> dict[str, Any]:
        """Return the `ids` and the counts (`found`) of an incomplete erasure, if there is one."""
        return dict(json.loads(await self._memory.channels.state.value(_SCOPE, subject) or "{}"))

    async def _digest(self, *, dry_run: bool = False) -> Callable[[str], str]:
        if (digest := await self._memory.text_digests.digest()) is not None:
            return digest
        if dry_run:
            # Without a key, no erasure has begun, and nobody verifies the receipt of a dry run: use a random digest.
            return lambda text: secrets.token_hex(16)
        raise StoreUnavailable(
            "No receipt can be signed: the database is down, locked, full or read-only; see `threadkeep doctor`."
        )


def _kind(wanted: Erasable) -> ErasedKind:
    return "user" if wanted.ids else "session"


def _subject(wanted: Erasable, digest: Callable[[str], str]) -> str:
    """Return the digest that replaces the id of the person or the session in receipts."""
    return digest(f"{_kind(wanted)}:{wanted.ids[0] if wanted.ids else wanted.session_id}")


async def _namespaces(store: BaseStore) -> AsyncIterator[tuple[str, ...]]:
    offset = 0
    while names := await store.alist_namespaces(limit=_PAGE, offset=offset):
        offset += len(names)
        for name in names:
            yield name


async def _all_items(store: BaseStore, namespace: tuple[str, ...]) -> list[SearchItem]:
    found: list[SearchItem] = []
    offset = 0
    while page := await store.asearch(namespace, limit=_PAGE, offset=offset):
        offset += len(page)
        found += page
    return found


async def _sent_to(session: Session) -> list[Message]:
    """Return the user messages of a session, newest page first; stop at the first unreadable item."""
    found: list[Message] = []
    before: int | None = None
    with contextlib.suppress(SessionDamaged):
        while (page := await session.page(before=before, limit=_PAGE, view="history")).messages:
            found += [one for one in page.messages if one.role == "user"]
            if (before := page.next_before) is None:
                break
    return found


def belongs(turn: Turn, wanted: Erasable, sessions: Sequence[str]) -> bool:
    """Return True if an unwritten turn belongs to the person or the sessions, or has a message of the person."""
    if turn.session_id in sessions or turn.session_id == wanted.session_id or turn.user_id in wanted.ids:
        return True
    return any(not _senders(message).isdisjoint(wanted.ids) for message in turn.messages)


def _people(user_id: str | None, messages: Sequence[Message]) -> set[str]:
    """Return the ids of a session's owner and of the senders of its messages."""
    return {name for name in (user_id, *(name for one in messages for name in _senders(one))) if name is not None}


def _senders(message: Message) -> set[str]:
    sender = message.metadata.get("sender_id")
    named = (message.author, str(sender) if type(sender) in (str, int) else None)
    return {name for name in named if name is not None}
