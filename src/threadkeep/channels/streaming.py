"""Answers of WeCom AI bots, which the platform fetches while they grow; any process may be asked for them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from threadkeep.channels.answer_texts import answer_text
from threadkeep.channels.bot import Bot
from threadkeep.channels.contract import CallbackResponse, ChatEntered, Ignored, IncomingMessage, StreamRefresh, Update
from threadkeep.channels.wecom_aibot import WeComAIBotChannel
from threadkeep.errors import RunNotFound, StoreError
from threadkeep.history.memory import Memory
from threadkeep.observe import AnswerSent
from threadkeep.runs.following import Followed
from threadkeep.runs.live import RunPiece
from threadkeep.store.outbox import Outgoing

STREAM_TIME = timedelta(seconds=330)
"""WeCom fetches an answer for six minutes; after this time it is sent to the address of its message."""

_WRITE_SECONDS = 0.5
_NOTHING = "…"


class AnswerStreams:
    """The growing answers of the AI bots of this database.

    The id of a stream is the number of its answer in the outbox. The process that follows the run writes the text so
    far into the outbox; each refresh reads the whole text from there.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._outbox = memory.channels.outbox

    async def response(self, bot: Bot, channel: WeComAIBotChannel, update: Update) -> CallbackResponse | None:
        """Return the response to an update that was taken; None if it gets none."""
        match update:
            case ChatEntered() if bot.texts.welcome:
                timestamp, nonce = self._seal()
                return channel.welcome_response(bot.texts.welcome, timestamp=timestamp, nonce=nonce)
            case StreamRefresh(stream_id):
                number = int(stream_id) if stream_id.isascii() and stream_id.isdecimal() else 0
                # An unknown stream ends, or WeCom would ask for it for minutes.
                found = await self._outbox.entry(bot.name, number)
                return await self._stream(bot, channel, found) if found else self._sealed(channel, stream_id, _NOTHING)
            case IncomingMessage() as message:
                found = await self._outbox.find(bot.name, message.session_id or "", message.message_id)
                return await self._stream(bot, channel, found) if found else None
            case Ignored(_, IncomingMessage() as message):
                found = await self._outbox.find(bot.name, message.session_id or "", message.message_id)
                return await self._stream(bot, channel, found) if found else None
        return None

    async def record(self, bot: Bot, message: IncomingMessage, told: AsyncIterator[Followed]) -> None:
        """Write the text of a run's answer into the outbox as it grows, until the run ends."""
        outgoing = await self._outbox.find(bot.name, message.session_id or "", message.message_id)
        if outgoing is None:
            return
        pieces: list[RunPiece] = []
        writing = asyncio.create_task(self._keep_writing(outgoing.number, pieces))
        try:
            async for each in told:
                if isinstance(each, RunPiece):
                    pieces.append(each)  # noqa: PERF401 - the writer reads while it grows
        except RunNotFound:
            return  # it went with its session
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    async def _keep_writing(self, number: int, pieces: Sequence[RunPiece]) -> None:
        """Write the text of the newest message into the outbox whenever it has grown."""
        written = 0
        while True:
            if len(pieces) > written:
                written = len(pieces)
                newest = pieces[-1].message_id
                text = "".join(piece.text for piece in pieces if piece.message_id == newest)
                with contextlib.suppress(StoreError):  # the whole text is there when the run ends
                    await self._outbox.note_partial(number, text)
            await asyncio.sleep(_WRITE_SECONDS)

    async def _stream(self, bot: Bot, channel: WeComAIBotChannel, outgoing: Outgoing) -> CallbackResponse:
        """Return the whole text so far, and record an answer that is fetched to its end."""
        stream_id = str(outgoing.number)
        if outgoing.status == "waiting":
            await self._outbox.make_ready(outgoing.session_id)
            outgoing = await self._outbox.entry(bot.name, outgoing.number) or outgoing
        is_late = self._memory.clock() - outgoing.created_at >= STREAM_TIME
        if outgoing.status == "waiting":
            if not is_late:
                return self._sealed(channel, stream_id, _cut(channel, outgoing.partial), finished=False)
            return self._sealed(channel, stream_id, bot.texts.later)
        parts = channel.split(await answer_text(self._memory, bot, outgoing))
        first = parts[0] if parts else _NOTHING
        if outgoing.status == "ready":
            if await self._outbox.note_fetched(outgoing.number, is_all=len(parts) < 2):
                self._tell(bot, outgoing, len(parts[:1]))
                return self._sealed(channel, stream_id, first)
            outgoing = await self._outbox.entry(bot.name, outgoing.number) or outgoing
        # An answer that is sent to the address of the message is not shown twice.
        # One of several parts cannot be: its address takes one message, so the first part was fetched.
        is_sent = outgoing.parts_sent == 0 if len(parts) > 1 else outgoing.status == "ready" or outgoing.parts_sent > 0
        return self._sealed(channel, stream_id, bot.texts.later if is_sent else first)

    def _sealed(
        self, channel: WeComAIBotChannel, stream_id: str, text: str, *, finished: bool = True
    ) -> CallbackResponse:
        timestamp, nonce = self._seal()
        return channel.stream_response(stream_id, text, finished=finished, timestamp=timestamp, nonce=nonce)

    def _seal(self) -> tuple[str, str]:
        return str(int(self._memory.clock().timestamp())), secrets.token_hex(8)

    def _tell(self, bot: Bot, outgoing: Outgoing, parts: int) -> None:
        waited = self._memory.clock() - outgoing.created_at
        event = AnswerSent(
            channel=bot.channel.kind,
            outcome="delivered",
            parts=parts,
            milliseconds=waited.total_seconds() * 1000,
            session_id=outgoing.session_id,
        )
        self._memory.observers.notify(event)


def _cut(channel: WeComAIBotChannel, text: str) -> str:
    """Return the part of a growing text that fits into one message."""
    parts = channel.split(text)
    return parts[0] if parts else ""
