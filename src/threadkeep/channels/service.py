"""Intake of channel messages: each is taken once, and answered by a run in the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakValueDictionary

from threadkeep.channels.bot import Bot
from threadkeep.channels.commands import Command, command_in
from threadkeep.channels.contract import (
    Callback,
    CallbackResponse,
    ChatEntered,
    ChatMigrated,
    DeskNotified,
    Ignored,
    IncomingMessage,
    MessageRecalled,
    Sender,
    StreamRefresh,
    Update,
)
from threadkeep.channels.streaming import STREAM_TIME, AnswerStreams
from threadkeep.channels.telegram import in_chat
from threadkeep.channels.wecom_aibot import WeComAIBotChannel
from threadkeep.errors import (
    CallbackRefused,
    ChannelNotFound,
    InvalidInput,
    RunNotFound,
    SessionBusy,
    StoreError,
    WrongUser,
)
from threadkeep.memory import Memory
from threadkeep.observe import ChannelTrouble, UpdateOutcome, UpdateReason, UpdateReceived
from threadkeep.records import Message
from threadkeep.records.runs import DELETE, RESET
from threadkeep.runs.on_demand import RunsOnDemand
from threadkeep.runs.requests import RunRequest, Submitted

TAKE_SECONDS = 4.0
"""Seconds that a callback may take. WeCom waits five seconds, then repeats it."""

_SHOW_WORKING_SECONDS = 4.0


@dataclass(frozen=True)
class _Begun:
    """A run that answers a message."""

    message: IncomingMessage
    submitted: Submitted


class ChannelService:
    """The bots of this process.

    A message is acknowledged only after it is stored in the outbox and then as a run. The platform repeats
    unacknowledged messages, so none is lost. `wake` is called when an answer is ready to send.
    """

    def __init__(
        self, memory: Memory, runs: RunsOnDemand, bots: Mapping[str, Bot], *, wake: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._runs = runs
        self._bots = bots
        self._wake = wake
        self._outbox = memory.channels.outbox
        self._streams = AnswerStreams(memory)
        self._desks: dict[str, Callable[[DeskNotified], Awaitable[None]]] = {}
        self._following: set[asyncio.Task[None]] = set()
        # One lock per session: its messages become runs in the order of their arrival in this process.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def fetch_with(self, bot: Bot, notice: Callable[[DeskNotified], Awaitable[None]]) -> None:
        """Have notices of a bot's desks stored by `notice`."""
        self._desks[bot.name] = notice

    async def receive(self, name: str, callback: Callback) -> CallbackResponse:
        """Process a callback.

        Raises:
            ChannelNotFound: there is no bot of that name.
            CallbackRefused: the callback is not from the platform.
            StoreUnavailable, TimeoutError: it was not taken; the platform sends it again.
        """
        bot = self._bots.get(name)
        if bot is None:
            raise ChannelNotFound(name)
        try:
            received = bot.channel.receive(callback)
        except CallbackRefused as refusal:
            self._tell(bot, "refused", refusal.reason)
            raise
        taking = asyncio.create_task(self._take_all(bot, received.updates))
        done, _ = await asyncio.wait([taking], timeout=TAKE_SECONDS)
        if not done:
            # The task continues; when the platform repeats the callback, taken messages are recognised.
            self._follow(taking)
            raise TimeoutError
        await taking
        if isinstance(bot.channel, WeComAIBotChannel):
            for update in received.updates:
                if response := await self._streams.response(bot, bot.channel, update):
                    return response
        return received.response

    async def take_page(self, bot: Bot, updates: Iterable[Update]) -> None:
        """Take updates that belong together; their runs begin after all of them are stored, so that they may join.

        Raises:
            StoreUnavailable: some were not taken.
        """
        begun: list[_Begun] = []
        try:
            for update in updates:
                await self.take(bot, update, begun)
        finally:
            for each in begun:
                self._follow(self._until_ready(bot, each))

    async def take(self, bot: Bot, update: Update, begun: list[_Begun] | None = None) -> None:
        """Take one update; repeating it changes nothing. With a list `begun` its run is added and not yet started.

        Raises:
            StoreUnavailable: it was not taken.
        """
        match update:
            case IncomingMessage():
                await self._take_message(bot, await self._in_first_chat(bot, update), begun)
            case Ignored(reason, message):
                if reason == "no_text" and message is not None and message.wants_answer and bot.allows(message):
                    await self._say(bot, await self._in_first_chat(bot, message), bot.texts.media)
                self._tell(bot, "ignored", reason)
            case ChatMigrated(old, new):
                await self._memory.channels.state.keep_first(bot.channel.scope, _chat_name(new), old)
                self._tell(bot, "taken")
            case DeskNotified() if bot.name in self._desks:
                await self._desks[bot.name](update)
                self._tell(bot, "taken")
            case StreamRefresh() | ChatEntered():
                self._tell(bot, "taken")
            case MessageRecalled():
                await self._note_recall(update)
                self._tell(bot, "taken", session_id=update.session_id)
            case _:
                self._tell(bot, "ignored", "kind")

    async def _take_all(self, bot: Bot, updates: Iterable[Update]) -> None:
        for update in updates:
            await self.take(bot, update)

    async def close(self) -> None:
        """Stop following runs; later polls of any process find answers that become ready."""
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)

    async def _in_first_chat(self, bot: Bot, message: IncomingMessage) -> IncomingMessage:
        """Return the message with the first id of its chat, if the chat has changed its id."""
        chat = message.reply_to.get("chat_id")
        # Only a group becomes a supergroup, and the ids of supergroups begin with -100.
        if bot.channel.kind != "telegram" or not str(chat).startswith("-100"):
            return message
        first = await self._memory.channels.state.value(bot.channel.scope, _chat_name(str(chat)))
        return message if first is None else in_chat(message, first)

    async def _take_message(self, bot: Bot, message: IncomingMessage, begun: list[_Begun] | None) -> None:
        session_id = message.session_id or ""
        if not bot.allows(message):
            self._tell(bot, "ignored", "not_for_us")
            return
        if not message.wants_answer:
            await self._store(message, session_id)
            self._tell(bot, "taken", session_id=session_id)
            return
        if len(message.text) > bot.max_characters:
            await self._say(bot, message, bot.texts.too_long)
            self._tell(bot, "ignored", "too_long", session_id)
            return
        rate = bot.rates.count(message.sender.id if message.sender else session_id, message.message_id)
        if rate != "within":
            if rate == "first_beyond":
                await self._say(bot, message, bot.texts.too_many)
            self._tell(bot, "ignored", "too_many", session_id)
            return
        if message.sender is not None:
            self._follow(self._meet(message.sender))
        async with self._in_turn(session_id):
            command = command_in(message, bot)
            if command is None:
                taken = await self._answer(bot, message, begun)
            else:
                taken = await self._obey(bot, message, command)
        self._tell(bot, "taken" if taken else "repeated", session_id=session_id)

    async def _meet(self, sender: Sender) -> None:
        """Let the sender become known as a person, beside the answer; the next message tries again if that fails."""
        with contextlib.suppress(StoreError, InvalidInput):
            await self._memory.persons.resolve(sender.id, name=sender.name or None)

    async def _answer(self, bot: Bot, message: IncomingMessage, begun: list[_Begun] | None) -> bool:
        request = RunRequest(
            workflow=bot.workflow,
            text=message.text,
            session_id=message.session_id,
            user_id=message.user_id,
            message_id=message.message_id,
            inputs={"quoted_text": message.quoted_text} if message.quoted_text else {},
            results=message.results,
            metadata=message.metadata,
            sent_at=message.sent_at,
            trigger="webhook",
            stream=isinstance(bot.channel, WeComAIBotChannel),
            double_texting=bot.double_texting,
        )
        return await self._begin(bot, message, request, begun=begun)

    async def _obey(self, bot: Bot, message: IncomingMessage, command: Command) -> bool:
        if command.action == "say":
            return await self._say(bot, message, command.text)
        if command.action == "reset":
            request = RunRequest(
                workflow=RESET,
                session_id=message.session_id,
                user_id=message.user_id,
                message_id=message.message_id,
                trigger="webhook",
            )
            return await self._begin(bot, message, request, content=command.text)
        self._follow(self._forget(bot, message, command.text))
        return True

    async def _begin(
        self,
        bot: Bot,
        message: IncomingMessage,
        request: RunRequest,
        *,
        content: str | None = None,
        begun: list[_Begun] | None = None,
    ) -> bool:
        """Record that an answer is owed and start its run; return False if that was already done."""
        session_id = message.session_id or ""
        added = await self._outbox.add(
            bot.name,
            session_id,
            message.message_id,
            address=message.reply_to,
            content=content,
            after=_fetch_time(bot),
        )
        # A process may have died between the two steps; an answered message starts no second run.
        if not added and not await self._outbox.waits(bot.name, session_id, message.message_id):
            return False
        runs = await self._runs.service()
        try:
            submitted = await runs.submit(request, mode="wait" if begun is None else "later")
        except SessionBusy:
            await self._outbox.answer(bot.name, session_id, message.message_id, bot.texts.busy)
            self._wake()
            return added
        except WrongUser:
            # The session was created in another way, for another person.
            await self._outbox.answer(bot.name, session_id, message.message_id, bot.texts.failed)
            self._wake()
            return added
        run = _Begun(message, submitted)
        if begun is None:
            self._follow(self._until_ready(bot, run))
        else:
            begun.append(run)
        return added

    async def _say(self, bot: Bot, message: IncomingMessage, text: str) -> bool:
        """Send a text that is not the answer of a run; return False if that was already done."""
        if not text:
            return True
        added = await self._outbox.add(
            bot.name,
            message.session_id or "",
            message.message_id,
            address=message.reply_to,
            content=text,
            waits=False,
            after=_fetch_time(bot),
        )
        self._wake()
        return added

    async def _store(self, message: IncomingMessage, session_id: str) -> None:
        """Store a message of another participant on the bot's side."""
        said = Message(
            role=message.role,
            content=message.text,
            id=message.message_id,
            sent_at=message.sent_at,
            metadata=message.metadata,
        )
        await self._memory.session(session_id, user_id=message.user_id).append([said])

    async def _note_recall(self, recalled: MessageRecalled) -> None:
        """Note in the transcript that a message was taken back, and do not answer it if its run has not begun."""
        run_id = await self._outbox.run_of(recalled.session_id, recalled.message_id)
        run = None if run_id is None else await self._memory.runs.run(run_id)
        if run is not None and run.status == "queued" and len(run.inputs) == 1:
            await (await self._runs.service()).cancel(run.run_id)
        note = Message(
            role="system",
            content="The person took a message back.",
            id=f"recall:{recalled.message_id}",
            metadata={"recalled": recalled.message_id},
        )
        await self._memory.session(recalled.session_id).append([note])

    async def _until_ready(self, bot: Bot, begun: _Begun) -> None:
        """Show that the bot is working until the run ends, then have its answer sent."""
        message, submitted = begun.message, begun.submitted
        runs = await self._runs.service()
        showing = asyncio.create_task(_show_working(bot, message))
        try:
            if isinstance(bot.channel, WeComAIBotChannel):
                await self._streams.record(bot, message, runs.follow(submitted.run_id))
            else:
                with contextlib.suppress(RunNotFound):  # it went with its session
                    await runs.result(submitted.run_id)
        finally:
            showing.cancel()
        await self._outbox.make_ready(message.session_id)
        self._wake()

    async def _forget(self, bot: Bot, message: IncomingMessage, text: str) -> None:
        """Delete a person's conversations with this bot after its earlier turns have ended."""
        runs = await self._runs.service()
        mine = f"{message.session_id}:"
        async for info in self._memory.sessions(user_id=message.user_id):
            if f"{info.session_id}:".startswith(mine):
                submitted = await runs.submit(RunRequest(workflow=DELETE, session_id=info.session_id))
                with contextlib.suppress(RunNotFound):  # it went with its session
                    await runs.result(submitted.run_id)
        await self._say(bot, message, text)

    def _follow(self, work: Awaitable[None]) -> None:
        task = asyncio.create_task(self._guarded(work), name="threadkeep-channel")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the answer is found by those who look for what is ready
            self._memory.observers.notify(ChannelTrouble(channel="other", work="following", error=type(error).__name__))

    @contextlib.asynccontextmanager
    async def _in_turn(self, session_id: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            yield

    def _tell(
        self, bot: Bot, outcome: UpdateOutcome, reason: UpdateReason | None = None, session_id: str | None = None
    ) -> None:
        event = UpdateReceived(channel=bot.channel.kind, outcome=outcome, reason=reason, session_id=session_id)
        self._memory.observers.notify(event)


async def _show_working(bot: Bot, message: IncomingMessage) -> None:
    while True:
        await bot.client.show_working(message.reply_to)
        await asyncio.sleep(_SHOW_WORKING_SECONDS)


def _fetch_time(bot: Bot) -> timedelta:
    """Return the time within which the platform fetches an answer itself."""
    return STREAM_TIME if isinstance(bot.channel, WeComAIBotChannel) else timedelta()


def _chat_name(chat_id: str) -> str:
    return f"chat:{chat_id}"
