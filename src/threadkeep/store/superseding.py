"""Marking messages as superseded and copying sessions to branches, in the tables and in a caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from threadkeep.errors import (
    InvalidInput,
    InvalidMessage,
    MessageNotFound,
    MessageSuperseded,
    SessionNotFound,
    WrongUser,
)
from threadkeep.records import Message, Turn
from threadkeep.store.codec import (
    LAST_MESSAGE_CHARACTERS,
    TITLE_CHARACTERS,
    Prepared,
    marked_message_of,
    message_of,
    session_parameters,
    shorten,
    time_text,
)
from threadkeep.store.driver import Connection, Row
from threadkeep.store.statements import load_statements
from threadkeep.store.transcripts import END, Branching, Superseded, Superseding


def ranges_of(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the smallest number of ranges that contain exactly these message numbers, which may be in any order."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(set(seqs))), lambda pair: pair[1] - pair[0])]
    return tuple([(run[0][1], run[-1][1]) for run in runs])


@dataclass(frozen=True)
class Span:
    """A range of `seq`, both ends included. `id` is the id of the message that the request names, if it names one.

    With a `run_id` ("" for no run), only the message `id`, its answers and the messages of that run are superseded.
    """

    first_seq: int
    last_seq: int
    id: str | None = None
    run_id: str | None = None


class SupersedingWriter:
    """A writer that marks messages as superseded, updates data derived from them, and copies sessions to branches."""

    def __init__(self) -> None:
        self._sql = load_statements("transcripts.sql", "superseding.sql")

    async def supersede(
        self, connection: Connection, superseding: Superseding, new: Prepared | None, *, now: str
    ) -> Superseded:
        """Supersede messages; store `new`, the new version, if given. Raises the errors of `Transcripts.supersede`."""
        parameters = {"session_id": superseding.session_id}
        held = await connection.fetch(self._sql["hold"], parameters)
        if held and superseding.user_id not in (None, held[0][0]):
            raise WrongUser(superseding.session_id)
        if superseding.message_id is None:
            span = await self._newest(connection, superseding) if held else None
        else:
            last_seq = min(int(held[0][2]), superseding.upto) if held else 0
            found = await self._named(connection, superseding, last_seq)
            if isinstance(found, Superseded):
                return found
            span = found
        if span is None:
            return Superseded()
        taken: Sequence[Row] = ()
        if superseding.newest:
            taken = await connection.fetch(self._sql["active_between"], {**parameters, **vars(span)})
        new_id = None if new is None else new.columns[0]["id"]
        seqs = await self.mark(connection, superseding.session_id, span, now=now, superseded_by=new_id)
        by = None if new is None else await self._insert(connection, superseding, new, now=now)
        if seqs:
            await self.refresh(connection, superseding.session_id, seqs)
        if not seqs and by is None:
            return Superseded()
        messages = tuple(message_of(row) for row in taken)
        return Superseded(len(seqs), min(seqs, default=0), max(seqs, default=0), messages, by)

    async def supersede_after(
        self, connection: Connection, session_id: str, seq: int, *, now: str
    ) -> tuple[int, int] | None:
        """Supersede all active messages after `seq`, and lock the session until the transaction ends.

        Return the session's previous `last_seq` and `revision`, or None if it does not exist.
        """
        held = await connection.fetch(self._sql["hold"], {"session_id": session_id})
        if seqs := await self.mark(connection, session_id, Span(seq + 1, END), now=now):
            await self.refresh(connection, session_id, seqs)
        return (int(held[0][2]), int(held[0][3])) if held else None

    async def mark(
        self, connection: Connection, session_id: str, span: Span, *, now: str, superseded_by: object = None
    ) -> list[int]:
        """Mark the active messages of a span as superseded; return their `seq` values."""
        mark = {**vars(span), "session_id": session_id, "now": now, "superseded_by": superseded_by}
        return [int(seq) for (seq,) in await connection.fetch(self._sql["supersede_between"], mark)]

    async def refresh(self, connection: Connection, session_id: str, seqs: Sequence[int]) -> None:
        """Update the session's title, counts, last messages and derived data, because messages were superseded."""
        between: dict[str, object] = {"session_id": session_id, "first_seq": min(seqs), "last_seq": max(seqs)}
        for first, last in ranges_of(seqs):
            await self.forget_derived(connection, session_id, first, last)
        newest_user = await connection.fetch(self._sql["newest_active_user"], between)
        known = {
            "session_id": session_id,
            "superseded": len(seqs),
            "title": await self._title(connection, between, frozenset(seqs)),
            "last_message": await self._shortened(
                connection, "newest_active_message", session_id, LAST_MESSAGE_CHARACTERS
            ),
            "last_user_seq": newest_user[0][0] if newest_user else 0,
        }
        await connection.execute(self._sql["refresh_session"], known)

    async def _title(self, connection: Connection, between: dict[str, object], seqs: frozenset[int]) -> str | None:
        """Return the session's title; derive a new one if it came from a message that was superseded."""
        title: str | None = (await connection.fetch(self._sql["hold"], between))[0][1]
        users = await connection.fetch(self._sql["superseded_users"], between)
        # The range may include messages that were superseded before. Ignore them.
        first = next((seq for (seq,) in users if seq in seqs), None)
        if title is None or first is None:
            return title
        parameters = {"session_id": between["session_id"], "at": first}
        [(content,)] = await connection.fetch(self._sql["content_at"], parameters)
        if title != shorten(content, TITLE_CHARACTERS):
            return title
        return await self._shortened(connection, "first_user", str(parameters["session_id"]), TITLE_CHARACTERS)

    async def forget_derived(self, connection: Connection, session_id: str, first_seq: int, last_seq: int) -> None:
        """Deactivate summaries that end in or after a `seq` range; delete affected anchors, tool calls and vectors."""
        between = {"session_id": session_id, "first_seq": first_seq, "last_seq": last_seq}
        withdrawn = [row[0] for row in await connection.fetch(self._sql["withdraw_summaries"], between)]
        while withdrawn:
            # Parts of a merged summary become active again if they end before the first superseded message.
            part = {"session_id": session_id, "id": withdrawn.pop()}
            for part_id, part_end in await connection.fetch(self._sql["parts_of_summary"], part):
                by = None if part_end < first_seq else part_id
                await connection.execute(self._sql["release_summary"], {**part, "id": part_id, "by": by})
                if by is not None:
                    withdrawn.append(part_id)
        await connection.execute(self._sql["forget_anchors"], between)
        await connection.execute(self._sql["forget_steps"], between)
        for (model,) in await connection.fetch(self._sql["vector_models"], between):
            await connection.execute(self._sql["forget_vectors"], {**between, "model": model})

    async def branch(self, connection: Connection, branching: Branching, *, now: str) -> None:
        """Create a session with copies of another session's messages. Raises the errors of `Transcripts.branch`."""
        held = await connection.fetch(self._sql["hold"], {"session_id": branching.session_id})
        if not held:
            raise SessionNotFound(branching.session_id)
        if branching.user_id not in (None, held[0][0]):
            raise WrongUser(branching.session_id)
        parent = {"session_id": branching.session_id, "at": held[0][2] if branching.at is None else branching.at}
        since = None if branching.at is None else await self._superseded_at(connection, parent)
        copy = {**parent, "branch_id": branching.branch_id, "since": since, "now": now}
        if not await connection.execute(self._sql["begin_branch"], copy):
            known = {"session_id": branching.branch_id, "user_id": held[0][0]}
            if not (rows := await connection.fetch(self._sql["session"], known)):
                raise WrongUser(branching.branch_id)
            check_branch(branching, rows[0][-3:-1])
            return
        await connection.execute(self._sql["copy_messages"], copy)
        await connection.execute(self._sql["copy_summaries"], copy)
        title, first = held[0][1], await connection.fetch(self._sql["first_user"], parent)
        if title is None or (first and title == shorten(first[0][0], TITLE_CHARACTERS)):
            title = await self._shortened(connection, "first_user", branching.branch_id, TITLE_CHARACTERS)
        last = await self._shortened(connection, "newest_active_message", branching.branch_id, LAST_MESSAGE_CHARACTERS)
        known = {"session_id": branching.branch_id, "title": title, "last_message": last}
        await connection.execute(self._sql["name_branch"], known)

    async def _superseded_at(self, connection: Connection, parameters: dict[str, object]) -> str | None:
        rows = await connection.fetch(self._sql["place_at"], parameters)
        if not rows:
            raise no_message_at(parameters["session_id"], parameters["at"])
        superseded_at: str | datetime | None = rows[0][1]
        return time_text(superseded_at) if isinstance(superseded_at, datetime) else superseded_at

    async def _newest(self, connection: Connection, superseding: Superseding) -> Span | None:
        wanted = {"session_id": superseding.session_id, "newest": superseding.newest}
        [(first_seq, last_seq)] = await connection.fetch(self._sql["newest_active"], wanted)
        return None if first_seq is None else Span(int(first_seq), int(last_seq))

    async def _named(self, connection: Connection, superseding: Superseding, last_seq: int) -> Span | Superseded:
        """Return the range that `message_id` and `scope` select. If the request was made before, return its result."""
        session_id, message_id = superseding.session_id, str(superseding.message_id)
        message = await self._message(connection, session_id, message_id)
        if message is None:
            raise MessageNotFound(session_id, message_id)
        version = None
        if superseding.by is not None and superseding.by.id is not None:
            version = await self._message(connection, session_id, superseding.by.id)
        if done := done_before(superseding, message, version):
            return done
        seq = message.seq or 0
        if superseding.scope == "after":
            return Span(seq + 1, last_seq)
        run_id = (message.run_id or "") if superseding.scope == "run" else None
        return Span(seq, seq if superseding.scope == "message" else last_seq, message.id, run_id)

    async def _insert(
        self, connection: Connection, superseding: Superseding, new: Prepared, *, now: str
    ) -> Message | None:
        turn = Turn(superseding.session_id, tuple(new.messages), superseding.user_id)
        reserved = session_parameters(turn, new.messages, now=now)
        [(_, last_seq, _)] = await connection.fetch(self._sql["reserve"], reserved)
        [columns] = new.columns
        row = {**columns, "session_id": superseding.session_id, "seq": last_seq}
        await connection.execute(self._sql["insert_message"], row)
        return await self._message(connection, superseding.session_id, str(columns["id"]))

    async def _message(self, connection: Connection, session_id: str, message_id: str) -> Message | None:
        key = {"session_id": session_id, "id": message_id}
        rows = await connection.fetch(self._sql["message_with_id"], key)
        return marked_message_of(rows[0]) if rows else None

    async def _shortened(self, connection: Connection, statement: str, session_id: str, characters: int) -> str | None:
        rows = await connection.fetch(self._sql[statement], {"session_id": session_id})
        return shorten(rows[0][0], characters) if rows else None


def done_before(superseding: Superseding, message: Message, version: Message | None) -> Superseded | None:
    """Return the earlier result if the same request was executed before, or None if the message is not superseded.

    `version` is the stored message that has the id of the new version.

    Raises:
        MessageSuperseded: the message was superseded before, and not by the given version.
        InvalidMessage: another message has the id of the new version.
    """
    if version is not None and message.superseded_by == version.id:
        return Superseded(by=version)
    if message.superseded_at is not None:
        raise MessageSuperseded(superseding.session_id, str(message.id), message.superseded_by)
    if version is not None:
        raise InvalidMessage("Another message has the id of the new version; use a new id, or None.")
    return None


def check_branch(branching: Branching, parent: Sequence[object]) -> None:
    """Check that an existing session is the requested branch; `parent`: the id and the `seq` from which it branched.

    Raises:
        InvalidInput: the session is not this branch.
    """
    if tuple(parent) != (branching.session_id, parent[1] if branching.at is None else branching.at):
        raise InvalidInput(f"There is a session {branching.branch_id!r} already; use another id for the branch.")


def no_message_at(session_id: object, seq: object) -> InvalidInput:
    """Return the error for a request to branch a session at a `seq` that has no message."""
    return InvalidInput(f"Session {session_id!r} has no message with seq {seq}; branch at an existing message.")
