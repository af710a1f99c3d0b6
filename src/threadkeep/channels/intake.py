"""Intake of channel messages: each is processed once and answered by a run in the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from weakref import WeakValueDictionary

from threadkeep.agent.conversion import from_langchain
from threadkeep.boundary import ErrorBoundary, Tasks
from threadkeep.channels.bots import Bot, Command, command_in, end_questions, notify_trouble, question_for
from threadkeep.channels.contract import (
    AnswerFailed,
    ChatMigrated,
    Ignored,
    IncomingMessage,
    MessageRecalled,
    Sender,
    Update,
    restored_message,
    stored_message,
)
from threadkeep.channels.delivery import note_failure
from threadkeep.channels.telegram import in_chat
from threadkeep.channels.wecom_aibot import STREAM_TIME, AnswerStreams, WeComAIBotChannel
from threadkeep.errors import (
    InvalidInput,
    KnowledgeNotFound,
    RecordTooNew,
    RecordUnreadable,
    RunNotFound,
    SessionBusy,
    SessionDamaged,
    StoreError,
    ThreadkeepError,
    WorkflowNotFound,
    WrongUser,
)
from threadkeep.history.session import Session
from threadkeep.memory import Memory
from threadkeep.observe import UpdateOutcome, UpdateReason, UpdateReceived
from threadkeep.observe.events import ChannelWork
from threadkeep.records import TAKEN_BACK, Message
from threadkeep.records.runs import DELETE, RESET, Run, deletion_key
from threadkeep.runs.chat import RunsOnDemand
from threadkeep.runs.requests import RunRequest, Submitted, message_of_input
from threadkeep.runs.service import Mode
from threadkeep.store.outbox import FORGOTTEN
from threadkeep.workflows.state import map_of

_SHOW_WORKING_SECONDS = 4.0
_ALBUM_TIME = timedelta(days=1)
"""The time for which a platform may send or repeat the pictures of an album."""
_ALBUM_PAUSE = timedelta(seconds=2)
"""The delay of a picture's answer, because a caption of the same album may arrive after the picture."""

_DAMAGES = (SessionDamaged, RecordUnreadable)

type Started = tuple[IncomingMessage, str]
"""A message and the id of the run that answers it."""
type StartedRuns = list[Started] | None


class Intake:
    """A service that takes updates from callbacks and polling, and starts runs for their messages.

    To take a message means to store it, first in the outbox, then as a run. `wake` is called when an answer is ready.
    """

    def __init__(
        self, memory: Memory, runs: RunsOnDemand, bots: Mapping[str, Bot], *, wake: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._bots = bots
        self._runs = runs
        self._wake = wake
        self._outbox = memory.channels.outbox
        self.streams = AnswerStreams(memory)
        self._background = Tasks()
        self._taken_again: set[int] = set()
        # One lock per session, so that its messages become runs in the order of their arrival.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take_page(self, bot: Bot, updates: Iterable[Update]) -> None:
        """Take all updates that one request fetched, then execute their runs: one run can answer several messages.

        Raises:
            StoreUnavailable: some updates were not taken.
        """
        started: list[Started] = []
        try:
            for update in updates:
                await self.take_fetched(bot, update, started)
        finally:
            for each in started:
                self.in_background(self._until_ready(bot, each))

    async def take_fetched(self, bot: Bot, update: Update, started: StartedRuns = None) -> None:
        """Take one update that this process fetched, as `take` does.

        A message for a run of a newer version waits in the outbox for a process of that version. Later updates go on.
        """
        try:
            await self.take(bot, update, started)
        except RecordTooNew as error:
            message = await self._in_first_chat(bot, update) if isinstance(update, IncomingMessage) else None
            if not message or not await self._outbox.waits(bot.name, message.session_id, message.message_id):
                raise
            self._notify_trouble(error, bot)

    async def take(self, bot: Bot, update: Update, started: StartedRuns = None, *, again: bool = False) -> None:
        """Take one update: store it, and start a run for its message. Taking it again changes nothing.

        If `started` is a list, the run is appended to it and not executed. An update that can never be taken is
        reported and skipped, so that it does not block later ones. With `again`, the rate limit is not checked.

        Raises:
            StoreUnavailable: the update was not taken.
        """
        try:
            await self._take(bot, update, started, again)
        except ThreadkeepError as error:
            if isinstance(error, StoreError) and (isinstance(error, RecordTooNew) or not isinstance(error, _DAMAGES)):
                raise
            self._notify_trouble(error, bot)

    async def take_orphaned(self, older_than: timedelta) -> int:
        """Take messages that dead processes left in the outbox, because not every platform sends them again.

        Return the highest number of their outbox entries, or 0.

        Commands are skipped, because a late command would reset or erase messages that arrived in the meantime. But a
        deletion that was already requested is still confirmed.

        Raises:
            StoreUnavailable: some messages were not taken.
        """
        found = await self._outbox.orphaned(older_than=older_than)
        self._taken_again.intersection_update(left.number for left in found)
        for left in found:
            bot = self._bots.get(left.channel)
            if bot is None or not left.message or left.number in self._taken_again:
                continue
            try:
                message = restored_message(left.message, left.address)
                command = command_in(message, bot.texts)
                if command is None or (command.action == "forget" and await self._is_requested(message)):
                    await self.take(bot, message, again=True)
            except (ValueError, TypeError, LookupError, RecordTooNew) as error:
                self._notify_trouble(error, bot)  # another version of Threadkeep stored the row; leave the row to it
            self._taken_again.add(left.number)
        return max((left.number for left in found), default=0)

    async def close(self) -> None:
        """Stop waiting for runs. Any process that polls the outbox (the table of answers) finds their answers later."""
        await self._background.cancel()

    async def _take(self, bot: Bot, update: Update, started: StartedRuns, again: bool) -> None:
        match update:
            case IncomingMessage():
                await self._take_message(bot, await self._in_first_chat(bot, update), started, again)
                return
            case Ignored(reason, message):
                if reason == "no_text" and message is not None and message.wants_answer and bot.allows(message):
                    message = await self._in_first_chat(bot, message)
                    if not await self._has_caption(bot, message) and await self._is_within_rate(bot, message):
                        await self._say(bot, message, bot.texts.media)
                        if await self._has_caption(bot, message):  # the caption arrived in the meantime
                            await self._drop_of_album(bot, message)
                self.notify(bot, "ignored", reason)
                return
            case ChatMigrated(old, new):
                await self._memory.channels.state.keep_first(bot.channel.scope, f"chat:{new}", old)
            case MessageRecalled():
                await self._note_recall(update)
            case AnswerFailed():
                await note_failure(self._memory, bot, update)
        self.notify(bot, "taken")

    async def _in_first_chat(self, bot: Bot, message: IncomingMessage) -> IncomingMessage:
        """Return the message with the first id of its chat. The session's key keeps it if Telegram changes the id."""
        chat = message.reply_to.get("chat_id")
        # Only a group that becomes a supergroup (-100…) changes its id.
        if bot.channel.kind != "telegram" or not str(chat).startswith("-100"):
            return message
        first = await self._memory.channels.state.value(bot.channel.scope, f"chat:{chat}")
        return message if first is None else in_chat(message, first)

    async def _take_message(self, bot: Bot, message: IncomingMessage, started: StartedRuns, again: bool) -> None:
        if not bot.allows(message):
            self.notify(bot, "ignored", "not_for_us")
            return
        if not message.wants_answer:
            await self._store(message)
            self.notify(bot, "taken", session_id=message.session_id)
            return
        if len(message.text) > bot.max_characters:
            await self._say(bot, message, bot.texts.too_long)
            self.notify(bot, "ignored", "too_long", message.session_id)
            return
        if not again and not await self._is_within_rate(bot, message):
            self.notify(bot, "ignored", "too_many", message.session_id)
            return
        if message.album:
            expires_at = self._memory.clock() + _ALBUM_TIME
            await self._memory.channels.state.keep_first(
                bot.channel.scope, f"album:{message.album}", "caption", expires_at=expires_at
            )
            await self._drop_of_album(bot, message)
        command = command_in(message, bot.texts)
        if message.sender is not None and (command is None or command.action != "forget"):
            self.in_background(self._identify(message.sender))
        async with self._locks.setdefault(message.session_id, asyncio.Lock()):
            if command is not None:
                is_new = await self._execute(bot, message, command)
            elif run := await question_for(self._memory, await self._runs.service(), bot, message):
                is_new = await self._reply(bot, message, run, started)
            else:
                is_new = await self._answer(bot, message, started)
        self.notify(bot, "taken" if is_new else "repeated", session_id=message.session_id)

    async def _has_caption(self, bot: Bot, message: IncomingMessage) -> bool:
        """Return True if another picture of the message's album had a caption; then only the caption is answered."""
        state = self._memory.channels.state
        return bool(message.album) and await state.value(bot.channel.scope, f"album:{message.album}") is not None

    async def _drop_of_album(self, bot: Bot, message: IncomingMessage) -> None:
        """Drop the unsent answer to an album's pictures, because a caption has arrived."""
        message_id = f"{bot.channel.scope}:album:{message.album}"
        answer = await self._outbox.find(bot.name, message.session_id, message_id)
        if answer is not None:
            await self._outbox.drop(answer.number)

    async def _is_within_rate(self, bot: Bot, message: IncomingMessage) -> bool:
        """Count a message, and return True if it is within the limit."""
        sender = message.sender.id if message.sender else message.session_id
        rate = bot.rates.count(sender, message.message_id)
        if rate == "first_beyond":
            await self._say(bot, message, bot.texts.too_many)
        return rate == "within"

    async def _identify(self, sender: Sender) -> None:
        """Store the sender's id and name as a person. If this fails, the sender's next message tries it again."""
        with contextlib.suppress(StoreError, InvalidInput):
            await self._memory.persons.resolve(sender.id, name=sender.name or None)

    async def _answer(self, bot: Bot, message: IncomingMessage, started: StartedRuns) -> bool:
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
        return await self._start(bot, message, request, started=started)

    async def _reply(self, bot: Bot, message: IncomingMessage, run: Run, started: StartedRuns) -> bool:
        """Continue a waiting run with a message that answers it. Return False if the message was already processed."""
        added = await self._expect_answer(bot, message, None)
        if not added and not await self._outbox.waits(bot.name, message.session_id, message.message_id):
            return False
        await self._store(message)
        runs = await self._runs.service()
        try:
            await runs.resume(run.run_id, message.text, user_id=message.user_id, message_id=message.message_id)
        except RecordTooNew:
            raise  # a process of the newer version can read it
        except (InvalidInput, RunNotFound, RecordUnreadable):
            # The question was answered already, or the run is damaged, so start a run instead.
            return await self._answer(bot, message, started) or added
        self.in_background(self._until_ready(bot, (message, run.run_id)))
        return added

    async def _execute(self, bot: Bot, message: IncomingMessage, command: Command) -> bool:
        match command.action:
            case "say":
                return await self._say(bot, message, command.text)
            case "reset":
                known = await self._outbox.find(bot.name, message.session_id, message.message_id)
                if known is None or known.status == "waiting":
                    await end_questions(await self._runs.service(), message)
                request = RunRequest(
                    workflow=RESET,
                    session_id=message.session_id,
                    user_id=message.user_id,
                    message_id=message.message_id,
                    trigger="webhook",
                )
                return await self._start(bot, message, request, content=command.text)
            case "forget":
                return await self._forget(bot, message, command.text)

    async def _start(
        self,
        bot: Bot,
        message: IncomingMessage,
        request: RunRequest,
        *,
        content: str | None = None,
        started: StartedRuns = None,
    ) -> bool:
        """Add an outbox entry for the answer, and start the run. Return False if the message was already processed."""
        key = message.session_id, message.message_id
        added = await self._expect_answer(bot, message, content)
        # A process may have died after it added the entry. If the entry still waits for a run, start the run.
        if not added and not await self._outbox.waits(bot.name, *key):
            return False
        try:
            submitted = await self._submit(bot, request, mode="wait" if started is None else "later")
        except RecordTooNew:
            raise  # a process of the newer version can read it
        except (SessionBusy, WrongUser, WorkflowNotFound, InvalidInput, *_DAMAGES) as error:
            if isinstance(error, RecordUnreadable) and await self._outbox.run_of(*key):
                raise  # the message was repeated, and its run supplies the answer
            busy = isinstance(error, SessionBusy)
            if not busy:
                # Report these errors, because an operator must act: for example, the workflow is missing.
                self._notify_trouble(error, bot)
            text = bot.texts.busy if busy else bot.texts.failed
            await self._outbox.answer(bot.name, *key, text)
            self._wake()
            return added
        if started is None:
            self.in_background(self._until_ready(bot, (message, submitted.run_id)))
        else:
            started.append((message, submitted.run_id))
        return added

    async def _submit(self, bot: Bot, request: RunRequest, mode: Mode) -> Submitted:
        runs = await self._runs.service()
        try:
            return await runs.submit(request, mode=mode)
        except WrongUser:
            # An earlier version may have stored this private chat's session without an owner. Give it to the person.
            owner, session_id = request.user_id, request.session_id
            if owner is None or session_id is None or not await self._outbox.own(bot.name, session_id, owner):
                raise
            return await runs.submit(request, mode=mode)

    async def _say(self, bot: Bot, message: IncomingMessage, text: str) -> bool:
        """Queue a text of the bot itself, such as a welcome, to be sent. Return False if it was queued before."""
        if not text:
            return True
        added = await self._expect_answer(bot, message, text, waits=False)
        if "callback_query_id" in message.reply_to:
            self.in_background(bot.client.show_working(message.reply_to))  # acknowledges the pressed button
        self._wake()
        return added

    async def _expect_answer(
        self, bot: Bot, message: IncomingMessage, content: str | None, *, waits: bool = True
    ) -> bool:
        """Add an outbox entry for an answer: `content`, or a run's text. Return False if the entry exists already."""
        # If an AI bot has no long connection, WeCom itself fetches the answer for `STREAM_TIME`. Send it only later.
        channel = bot.channel
        is_fetched = isinstance(channel, WeComAIBotChannel) and not channel.options.connection
        after = STREAM_TIME if is_fetched else _ALBUM_PAUSE if message.album and not message.text else timedelta()
        return await self._outbox.add(
            bot.name,
            message.session_id,
            message.message_id,
            address=message.reply_to,
            content=content,
            waits=waits,
            after=after,
            user_id=message.user_id,
            about=message.sender.id if message.sender is not None else None,
            message=stored_message(message) if waits else None,
        )

    async def _store(self, message: IncomingMessage) -> None:
        """Store a message in the transcript without starting a run."""
        stored = Message(
            role=message.role,
            content=message.text,
            id=message.message_id,
            sent_at=message.sent_at,
            metadata=message.metadata,
        )
        await self._memory.session(message.session_id, user_id=message.user_id).append([stored])

    async def _note_recall(self, recalled: MessageRecalled) -> None:
        """Note in the transcript that the sender took back a message. Do not answer it if its run has not begun."""
        session = self._memory.session(recalled.session_id, user_id=recalled.user_id)
        run_id = await self._outbox.run_of(recalled.session_id, recalled.message_id)
        if run_id is None and await session.find(recalled.message_id) is None:
            return  # the message was never stored; it was a picture, for example
        run = None if run_id is None else await self._memory.runs.run(run_id, damaged=True)
        if run is not None:
            await self._take_back(session, run, recalled.message_id)
        note = Message(
            role="system",
            content="The person took a message back.",
            id=f"recall:{recalled.message_id}",
            metadata={TAKEN_BACK: recalled.message_id},
        )
        await session.append([note])

    async def _take_back(self, session: Session, run: Run, message_id: str) -> None:
        """Remove a message from a run that has not begun, or cancel the run if it has no other messages."""
        if not run.unbegun or not (taken := [one for one in run.inputs if one.message_id == message_id]):
            return
        if len(run.inputs) == 1:
            await (await self._runs.service()).cancel(run.run_id)
            return
        given = from_langchain(message_of_input(taken[0], message_id))
        # Store the message before it is removed from the run, because the process may die in between. With the status
        # `failed`, models do not receive it.
        await session.append([replace(given, status="failed", metadata=map_of(taken[0].values, "metadata"))])
        await self._memory.runs.order.take_back(run.run_id, message_id)

    async def _until_ready(self, bot: Bot, started: Started) -> None:
        """Show in the chat that the bot is working, until the run ends; then mark its answer as ready to be sent."""
        message, run_id = started
        runs = await self._runs.service()
        showing = asyncio.create_task(_show_working(bot, message))
        try:
            if isinstance(bot.channel, WeComAIBotChannel):
                await self.streams.record(bot, message, runs.follow(run_id))
            else:
                with contextlib.suppress(RunNotFound):  # the run was deleted with its session
                    await runs.result(run_id)
        finally:
            showing.cancel()
        await self._outbox.make_ready(message.session_id)
        self._wake()

    async def _forget(self, bot: Bot, message: IncomingMessage, text: str) -> bool:
        """Request the deletion of a person's conversations in this chat. Return False if it was already requested.

        Each conversation is deleted after its earlier turns end, together with messages that arrive in the meantime.
        Then the deletion is confirmed.
        """
        session_id = message.session_id
        # The outbox entry needs a key of its own that names no person. An entry under the session's id would be deleted
        # with the session. An entry under `deletion_key` would mistake the record of the deletion for its run.
        key = (bot.name, f"{FORGOTTEN}{deletion_key(session_id)}", message.message_id)
        stored = stored_message(message)
        added = await self._outbox.add(
            *key, address=message.reply_to, remember=False, about=message.user_id, message=stored
        )
        if not (added or await self._outbox.waits(*key)):
            return False
        runs = await self._runs.service()
        sessions = [info.session_id async for info in self._memory.sessions(user_id=message.user_id)]
        # Request the deletion of the message's own session last: `_is_requested` checks only this request.
        own = {name for name in (*sessions, session_id) if f"{name}:".startswith(f"{session_id}:")}
        if not await self._is_requested(message):
            for name in sorted(own, reverse=True):
                await runs.submit(RunRequest(workflow=DELETE, session_id=name, message_id=message.message_id))
        deletions = [await self._outbox.run_of(name, message.message_id) for name in own]

        async def confirm() -> None:
            deleted = True
            for run_id in filter(None, deletions):
                with contextlib.suppress(RunNotFound):  # the run was deleted with its session
                    deleted &= (await runs.result(run_id)).status == "done"
            if deleted:
                await self._forget_person(message.user_id or "")
            await self._outbox.answer(*key, text if deleted else bot.texts.not_forgotten)
            self._wake()

        self.in_background(confirm())
        return added

    async def _is_requested(self, message: IncomingMessage) -> bool:
        """Return True if this message (a /forget) has already requested the deletion of its session."""
        session_id = message.session_id
        keys = (session_id, deletion_key(session_id))  # a deletion deletes its run and leaves a record
        return any([await self._outbox.run_of(key, message.message_id) for key in keys])

    async def _forget_person(self, user_id: str) -> None:
        """Delete the names and facts of a person who has no other ids, and no conversations left."""
        async for _ in self._memory.sessions(user_id=user_id):
            return
        with contextlib.suppress(KnowledgeNotFound):
            if (await self._memory.persons.get(user_id)).aliases == (user_id,):
                await self._memory.persons.forget(user_id)

    def in_background(self, work: Awaitable[object]) -> None:
        """Await `work` in a task, which `close` cancels. Report a failure to the observers."""

        async def guarded() -> None:
            with ErrorBoundary(self._notify_trouble):
                await work

        task = self._background.start(guarded(), "threadkeep-channel")
        if isinstance(work, Coroutine):
            # A task that is cancelled before its first step never awaits the work, so close it.
            task.add_done_callback(lambda _: work.close())

    def notify(
        self, bot: Bot, outcome: UpdateOutcome, reason: UpdateReason | None = None, session_id: str | None = None
    ) -> None:
        """Notify observers of the outcome of an update: for example, that it was taken or ignored."""
        kind, name = bot.channel.kind, bot.name
        event = UpdateReceived(channel=kind, bot=name, outcome=outcome, reason=reason, session_id=session_id)
        self._memory.observers.notify(event)

    def _notify_trouble(self, error: Exception, bot: Bot | None = None) -> None:
        work: ChannelWork = "following" if bot is None else "taking"
        notify_trouble(self._memory, work, error, None if bot is None else bot.channel)


async def _show_working(bot: Bot, message: IncomingMessage) -> None:
    while True:
        await bot.client.show_working(message.reply_to)
        await asyncio.sleep(_SHOW_WORKING_SECONDS)
