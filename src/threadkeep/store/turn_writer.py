"""Storing one turn in an open transaction, with a check of every id and of existing answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from threadkeep.errors import QuestionGone, WrongUser
from threadkeep.records import Message, Receipt, Turn
from threadkeep.store.codec import GraphTurns, marked_message_of, session_parameters
from threadkeep.store.driver import Connection, PreparedTurn
from threadkeep.store.statements import load_statements
from threadkeep.store.superseding import SupersedingWriter


class _Winner(NamedTuple):
    """An existing complete answer that a new one would duplicate."""

    id: str
    seq: int
    told: bool


@dataclass
class _Sorted:
    """The messages of a turn: new ones with their columns, and existing ones."""

    fresh: list[dict[str, object]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    there: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    winner: _Winner | None = None
    losers: list[int] = field(default_factory=list)
    question_superseded: bool = False


class TurnWriter:
    """A writer that stores turns one by one.

    A duplicate complete answer is not stored: the receipt names the first one. An answer that was delivered while the
    database was down (`Turn.told_at`) replaces one that was not delivered; otherwise it is stored as superseded. An
    answer whose question was superseded before is stored as superseded, too.
    """

    def __init__(self, graph_turns: GraphTurns | None = None) -> None:
        self._sql = load_statements("transcripts.sql", "graph_turns.sql")
        self._graph_turns = graph_turns
        self._superseding = SupersedingWriter()

    async def store(self, connection: Connection, prepared: PreparedTurn) -> Receipt:
        """Store a turn.

        Raises:
            WrongUser: the session is another user's.
            QuestionGone: the message that the turn answers is not in the session.
        """
        turn, found = prepared.turn, _Sorted()
        if turn.answers is not None:
            found.question_superseded = await self._check_question(connection, turn)
        if not await connection.fetch(self._sql["reserve"], session_parameters(turn, [], now=prepared.now)):
            raise WrongUser(turn.session_id)
        for message, columns in zip(prepared.messages, prepared.columns, strict=True):
            await self._sort(connection, prepared, message, columns, found)
        if found.fresh:
            return await self._insert(connection, prepared, found)
        places = [*found.there.values(), *([found.winner.seq] if found.winner else [])]
        return _with(prepared.receipt(min(places), max(places) - min(places) + 1), found)

    async def _check_question(self, connection: Connection, turn: Turn) -> bool:
        """Return whether the message that the turn answers is superseded."""
        # Lock the session first, so that a deletion either is complete or waits for this turn.
        await connection.execute(self._sql["lock_session"], {"session_id": turn.session_id})
        rows = await connection.fetch(self._sql["message_with_id"], self._key(turn, turn.answers))
        if not rows:
            raise QuestionGone(turn.session_id)
        return marked_message_of(rows[0]).superseded_at is not None

    async def _sort(
        self,
        connection: Connection,
        prepared: PreparedTurn,
        message: Message,
        columns: dict[str, object],
        found: _Sorted,
    ) -> None:
        """Classify a message as new, known, or a duplicate answer."""
        message_id = str(message.id)
        if rows := await connection.fetch(self._sql["seq_of"], self._key(prepared.turn, message_id)):
            [(seq, is_deleted), *_] = rows
            found.there[message_id] = seq
            if is_deleted:
                found.deleted.append(message_id)
            return
        if any(message_id == other.id for other in found.messages):
            found.there[message_id] = 0
            return
        superseded_at = prepared.now if found.question_superseded else None
        mark: dict[str, object] = {"superseded_at": superseded_at, "superseded_by": None}
        if (winner := await self._winner(connection, prepared.turn, columns)) is not None:
            if prepared.turn.told_at is None:
                found.winner = winner
                return
            if winner.told:
                found.winner = winner
                mark = {"superseded_at": prepared.now, "superseded_by": winner.id}
            else:
                found.losers.append(winner.seq)
                loser = self._key(prepared.turn, winner.id)
                await connection.execute(
                    self._sql["supersede"], {**loser, "now": prepared.now, "superseded_by": message_id}
                )
        found.messages.append(message)
        found.fresh.append({**columns, **mark})

    async def _winner(self, connection: Connection, turn: Turn, columns: dict[str, object]) -> _Winner | None:
        if columns["answers"] is None or columns["status"] != "complete":
            return None
        key = {name: columns[name] for name in ("answers", "author", "ordinal")}
        rows = await connection.fetch(self._sql["complete_answer"], {"session_id": turn.session_id, **key})
        return _Winner(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None

    async def _insert(self, connection: Connection, prepared: PreparedTurn, found: _Sorted) -> Receipt:
        turn, fresh = prepared.turn, found.fresh
        reserved = session_parameters(turn, found.messages, now=prepared.now)
        [(_, last_seq, _)] = await connection.fetch(self._sql["reserve"], reserved)
        first = last_seq - len(fresh) + 1
        rows = [{**row, "session_id": turn.session_id, "seq": seq} for seq, row in enumerate(fresh, start=first)]
        await connection.execute_many(self._sql["insert_marked"], rows)
        if superseded := found.losers + [seq for seq, row in enumerate(fresh, start=first) if row["superseded_at"]]:
            await self._superseding.refresh(connection, turn.session_id, superseded)
        if self._graph_turns and (noted := self._graph_turns.row(turn, found.messages, now=prepared.now)):
            await connection.execute(self._sql["add_graph_turn"], {**noted, "first_seq": first, "last_seq": last_seq})
        return _with(prepared.receipt(first, len(fresh)), found)

    @staticmethod
    def _key(turn: Turn, message_id: str | None) -> dict[str, object]:
        return {"session_id": turn.session_id, "id": message_id}


def _with(receipt: Receipt, found: _Sorted) -> Receipt:
    adopted = found.winner.id if found.winner else None
    return replace(receipt, duplicates=tuple(found.there), deleted=tuple(found.deleted), adopted=adopted)
