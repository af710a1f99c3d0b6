"""The outbox of channels. An answer is recorded before its run begins; one process at a time sends each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from threadkeep.records import Json
from threadkeep.records.messages import OPEN_STATUSES, OutboxStatus
from threadkeep.store.codec import WRONG_CLOCK_SECONDS, clean_text, json_text, time_of, time_text
from threadkeep.store.compressed_json import json_of
from threadkeep.store.driver import Connection, Row
from threadkeep.store.statements import ClockedTables

type Address = Mapping[str, Json]

FORGOTTEN = "forgotten:"
"""The prefix of the key of an answer that confirms a deletion; such an answer belongs to no session."""
_USER = "user_id"
"""The field of an address that has the person's id; the column `person_id` is computed from this field."""
_MESSAGE = "message"
_OF_A_REPLY = ("message_id", "callback_query_id")
_LAST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message to send: the answer of a run to the message `message_id`, or a text `content` that is in no transcript.

    `parts_sent` is the number of parts that have arrived. `uncertain` is true if the next part may have arrived too.
    `partial` is the text so far of an answer that is still being written. When the answer is complete, `partial` is
    empty, or `fetched` if the platform has fetched the first of several parts.
    """

    number: int
    channel: str
    session_id: str
    message_id: str
    status: OutboxStatus
    content: str | None = field(repr=False)
    address: Address = field(repr=False)
    parts_sent: int
    tries: int
    uncertain: bool
    error: str | None
    next_try_at: datetime
    created_at: datetime
    run_id: str | None = None
    partial: str = field(default="", repr=False)


@dataclass(frozen=True)
class ChannelState:
    """Counts of a channel's undelivered answers, and the times of the oldest answer and the last received message."""

    counts: Mapping[str, int]
    oldest_open: datetime | None
    last_heard: datetime | None


@dataclass(frozen=True)
class Recipient:
    """The destination of a session's answers: channel and address of the last received message, and any owner."""

    channel: str
    address: Address = field(repr=False)
    user_id: str | None = None


@dataclass(frozen=True)
class OrphanedMessage:
    """A received message for which no run was created: its outbox number, address, and data to process it again.

    An earlier version may have stored no data; `message` is then empty.
    """

    number: int
    channel: str
    address: Address = field(repr=False)
    message: str = field(repr=False)


class Outbox(ClockedTables, sql=("outbox.sql",)):
    """The tables `chat_outbox` and `chat_channel_sessions`.

    Guarantees:

    - The answer to a message is added once, however often its platform delivers the message.
    - An answer becomes `ready` when its run is over; different processes may add it, execute the run, and send it.
    - One owner at a time sends a message, and the messages of a session are sent in the order in which they were added.
    - An owner that has lost its claim cannot change a message, because each write checks the owner.
    - Messages are deleted with their session.
    """

    async def add(
        self,
        channel: str,
        session_id: str,
        message_id: str,
        *,
        address: Address,
        content: str | None = None,
        waits: bool = True,
        after: timedelta = timedelta(),
        remember: bool = True,
        user_id: str | None = None,
        about: str | None = None,
        message: str | None = None,
    ) -> bool:
        """Add the answer to a message; return False if this message already has one.

        Args:
            content: the text of the answer; None if the run supplies it.
            waits: True if the answer becomes ready when its run is over; False if it is ready at once.
            after: the delay before the answer may be sent; until then, the platform may fetch it.
            remember: True to store `address` and `user_id` as the recipient of the session, which need not exist.
            about: the id of the person who gets the answer, even in a group; erasing this person erases the answer.
            message: the data needed to process the message again; dropped when the answer is ready.
        """
        now = self._now()
        person = {**address, _USER: user_id} if user_id is not None else address
        others = {_USER: about, _MESSAGE: message}
        named = {**address, **{name: value for name, value in others.items() if value is not None}}
        heard = {"session_id": session_id, "channel": channel, "address": json_text(person), "now": now}
        status: OutboxStatus = "waiting" if waits else "ready"
        answer = {"message_id": message_id, "status": status, "content": content and clean_text(content)}
        row = {**heard, **answer, "first_try_at": time_text(self._clock() + after), "address": json_text(named)}
        async with self._driver.writing() as connection:
            if not await connection.fetch(self._sql["add"], row):
                return False
            if remember:
                await connection.execute(self._sql["hear"], heard)
        return True

    async def send(self, session_id: str, message_id: str, content: str) -> bool:
        """Add a text that answers no message; return False if it exists already or the session has no known address.

        The text is not sent as a reply to the person's last message.
        """
        recipient = await self.recipient(session_id)
        if recipient is None:
            return False
        address = {name: value for name, value in recipient.address.items() if name not in _OF_A_REPLY}
        key = recipient.channel, session_id, message_id
        return await self.add(*key, address=address, content=content, waits=False, remember=False)

    async def own(self, channel: str, session_id: str, user_id: str) -> bool:
        """Make a user the owner of a session that has no owner and only a bot's messages; return False for any other.

        This repairs sessions in which an earlier version stored a bot's first message without an owner.
        """
        return await self._execute("own", {"channel": channel, "session_id": session_id, "user_id": user_id}) > 0

    async def recipient(self, session_id: str) -> Recipient | None:
        """Return the recipient of a session, if a channel has received a message in it."""
        rows = await self._driver.fetch(self._sql["recipient"], {"session_id": session_id})
        if not rows:
            return None
        address = dict(_address(rows[0][1]))
        user_id = address.pop(_USER, None)
        return Recipient(rows[0][0], address, user_id if isinstance(user_id, str) else None)

    async def answer(self, channel: str, session_id: str, message_id: str, content: str) -> bool:
        """Set a text as the answer to a message; return False if no answer to the message waits for a run."""
        key = {"channel": channel, "session_id": session_id, "message_id": message_id}
        async with self._driver.writing() as connection:
            parameters = {**key, "content": clean_text(content), "now": self._now()}
            return await self._drop_copies(connection, await connection.fetch(self._sql["answer"], parameters)) > 0

    async def waits(self, channel: str, session_id: str, message_id: str) -> bool:
        """Return True if the answer to a message waits for its run."""
        key = {"channel": channel, "session_id": session_id, "message_id": message_id}
        return bool(await self._driver.fetch(self._sql["waits"], key))

    async def find(self, channel: str, session_id: str, message_id: str) -> Outgoing | None:
        """Return the outbox entry of the answer to a message, or None if there is none."""
        return await self._find(channel, session_id=session_id, message_id=message_id)

    async def entry(self, channel: str, number: int) -> Outgoing | None:
        """Return the outbox entry with this number, or None if the channel has no such entry."""
        return await self._find(channel, number=number)

    async def note_partial(self, number: int, text: str) -> bool:
        """Store the current text of an answer in progress; return False if the answer does not wait for a run."""
        return await self._execute("note_partial", {"number": number, "partial": clean_text(text)}) > 0

    async def note_fetched(self, number: int, *, is_all: bool) -> bool:
        """Record that the platform fetched the whole answer or, if `is_all` is false, its first part.

        Return False if the answer was not ready, or was already sent.
        """
        statement = "end_fetched" if is_all else "note_fetched"
        return await self._execute(statement, {"number": number, "now": self._now()}) > 0

    async def run_of(self, session_id: str, message_id: str) -> str | None:
        """Return the id of the run that a message began or joined, or None if there is none."""
        key = {"session_id": session_id, "message_id": message_id}
        rows = await self._driver.fetch(self._sql["run_of"], key)
        return str(rows[0][0]) if rows else None

    async def make_ready(self, session_id: str | None = None) -> int:
        """Mark answers as ready if their run ended or waits for a person; return their number."""
        parameters = {"session_id": session_id, "now": self._now()}
        async with self._driver.writing() as connection:
            return await self._drop_copies(connection, await connection.fetch(self._sql["make_ready"], parameters))

    async def orphaned(self, *, older_than: timedelta) -> list[OrphanedMessage]:
        """Return received messages that still have no run after `older_than`, because a process died."""
        rows = await self._driver.fetch(self._sql["left"], {"before": time_text(self._clock() - older_than)})
        found = [(number, channel, _address(address)) for number, channel, address in rows]
        return [OrphanedMessage(*each, str(each[2].get(_MESSAGE, ""))) for each in found]

    async def end_without_run(self, *, older_than: timedelta, upto: int = _LAST) -> int:
        """End answers that have waited for a run longer than `older_than`, up to number `upto`; return their count."""
        now = self._clock()
        parameters = {"now": time_text(now), "before": time_text(now - older_than), "upto": upto}
        return await self._execute("end_without_run", parameters)

    async def due(self, channel: str, *, limit: int) -> list[int]:
        """Return the numbers of a channel's messages that may be sent now, longest-waiting first."""
        beyond = self._later(WRONG_CLOCK_SECONDS)
        parameters = {"channel": channel, "now": self._now(), "beyond": beyond, "limit": limit}
        rows = await self._driver.fetch(self._sql["due"], parameters)
        return [number for (number,) in rows]

    async def claim(self, number: int, owner: str, *, seconds: float) -> Outgoing | None:
        """Claim a message for `owner`, who may send it within `seconds`. Return None if it cannot be claimed now."""
        times = {"now": self._now(), "until": self._later(seconds), "beyond": self._later(WRONG_CLOCK_SECONDS)}
        parameters = {"number": number, "owner": owner, **times}
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["claim"], parameters)
            if not rows:
                return None
            message = _outgoing(rows[0])
            key = {"session_id": message.session_id, "message_id": message.message_id}
            runs = await connection.fetch(self._sql["run_of"], key)
        return replace(message, run_id=runs[0][0]) if runs else message

    async def note_part(self, message: Outgoing, owner: str, parts: int, *, seconds: float) -> bool:
        """Record how many parts of `message` have arrived, and extend the claim; return False if the claim was lost."""
        parameters = {"number": message.number, "owner": owner, "parts": parts, "until": self._later(seconds)}
        return await self._execute("note_part", parameters) > 0

    async def move(self, number: int, owner: str, address: Address) -> bool:
        """Change the address to which the unsent parts of a message go; return False if the claim was lost."""
        return await self._change("move", number, owner, address=json_text(address))

    async def postpone(self, number: int, owner: str, until: datetime, error: str, *, uncertain: bool = False) -> bool:
        """Release a message for a retry at `until`, at most 25 minutes from now; return False if the claim was lost."""
        # Stay five minutes below the limit. Otherwise, a process whose clock is behind would treat this time as wrong.
        at = min(time_text(until), self._later(WRONG_CLOCK_SECONDS - 300))
        values = {"at": at, "error": error, "uncertain": uncertain}
        return await self._change("postpone", number, owner, **values)

    async def end(self, number: int, owner: str, status: Literal["delivered", "nothing"]) -> bool:
        """Mark a message as delivered, or as having nothing to send; return False if the claim was lost."""
        return await self._change("end", number, owner, status=status, now=self._now())

    async def fail(self, number: int, owner: str, error: str) -> bool:
        """Mark a message as failed, for a person to handle; return False if the claim was lost.

        `error` is the name of a kind of error; it must not quote any message.
        """
        return await self._change("fail", number, owner, error=error, now=self._now())

    async def sent(self, channel: str, session_id: str, *, limit: int = 50) -> list[Outgoing]:
        """Return up to `limit` ready or delivered messages that were at least partly sent or tried, newest first."""
        parameters = {"channel": channel, "session_id": session_id, "limit": limit}
        return [_outgoing(row) for row in await self._driver.fetch(self._sql["sent"], parameters)]

    async def fail_sent(self, number: int, error: str, *, parts: int, address: Address) -> bool:
        """Mark an answer as failed although the platform had accepted it.

        A retry sends the parts after the first `parts` to `address`. If the text came from no run, a retry sends
        nothing, because the text was deleted on delivery. Return False if the answer is neither ready nor delivered.
        """
        values = {"number": number, "error": error, "parts": parts, "address": json_text(address), "now": self._now()}
        return await self._execute("fail_sent", values) > 0

    async def retry(self, number: int) -> bool:
        """Retry a failed message; return False if there is no such message or it has not failed."""
        return await self._execute("retry", {"number": number, "now": self._now()}) > 0

    async def drop(self, number: int) -> bool:
        """Drop a waiting, ready or failed message without sending it; return False for any other message."""
        return await self._execute("drop", {"number": number, "now": self._now()}) > 0

    async def entries(self, *, status: OutboxStatus | None = None, after: int = 0, limit: int = 100) -> list[Outgoing]:
        """Return up to `limit` outbox messages with numbers above `after`, in the order of their numbers."""
        parameters = {"status": status, "after": after, "limit": limit}
        return [_outgoing(row) for row in await self._driver.fetch(self._sql["entries"], parameters)]

    async def counts(self, *, open_only: bool = False) -> dict[tuple[str, OutboxStatus], int]:
        """Return the number of messages for each channel and status; with `open_only`, do not count ended messages."""
        rows = await self._driver.fetch(self._sql["open_counts" if open_only else "counts"], {})
        return {(channel, status): count for channel, status, count in rows}

    async def states(self, names: Iterable[str] = ()) -> dict[str, ChannelState]:
        """Return the state of each channel that has ever received or sent a message, and of the channels `names`."""
        counts = await self.counts(open_only=True)
        rows = await self._driver.fetch(self._sql["times"], {})
        times = {channel: (time_of(oldest), time_of(heard)) for channel, oldest, heard in rows}
        found: dict[str, ChannelState] = {}
        for name in sorted({*names, *times, *(name for name, _ in counts)}):
            numbers: dict[str, int] = {status: counts.get((name, status), 0) for status in OPEN_STATUSES}
            found[name] = ChannelState(numbers, *times.get(name, (None, None)))
        return found

    async def remove_ended(self, *, older_than: timedelta) -> int:
        """Delete messages that ended more than `older_than` ago; failed ones stay until a person handles them."""
        before = {"before": time_text(self._clock() - older_than)}
        async with self._driver.writing() as connection:
            removed = await connection.fetch(self._sql["remove_ended"], before)
            if any(session_id.startswith(FORGOTTEN) for (session_id,) in removed):
                await connection.execute(self._sql["forget_deletions"], before)
        return len(removed)

    async def _find(
        self, channel: str, *, number: int | None = None, session_id: str | None = None, message_id: str | None = None
    ) -> Outgoing | None:
        key = {"channel": channel, "number": number, "session_id": session_id, "message_id": message_id}
        rows = await self._driver.fetch(self._sql["find"], key)
        if not rows:
            return None
        *row, partial = rows[0]
        found = _outgoing(tuple(row))
        run_id = await self.run_of(found.session_id, found.message_id)
        return replace(found, run_id=run_id, partial=partial or "")

    async def _drop_copies(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Delete the copy of a person's message from each of these rows (number, address). Return the row count."""
        for number, text in rows:
            address = _address(text)
            if _MESSAGE in address:
                kept = {name: value for name, value in address.items() if name != _MESSAGE}
                await connection.execute(self._sql["let_go"], {"number": number, "address": json_text(kept)})
        return len(rows)

    async def _change(self, statement: str, number: int, owner: str, **values: object) -> bool:
        return await self._execute(statement, {"number": number, "owner": owner, **values}) > 0

    def _now(self) -> str:
        return time_text(self._clock())

    def _later(self, seconds: float) -> str:
        return time_text(self._clock() + timedelta(seconds=seconds))


def _address(text: str | None) -> Address:
    value = None if text is None else json_of(text)
    return value if isinstance(value, Mapping) else {}


# Statements return columns in the order of these fields; some statements omit the columns of the last fields.
_FIELDS = tuple(column.name for column in fields(Outgoing))


def _outgoing(row: Row) -> Outgoing:
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=False))
    for name in ("next_try_at", "created_at"):
        values[name] = time_of(values[name])
    return Outgoing(**{**values, "address": _address(values["address"]), "uncertain": bool(values["uncertain"])})
