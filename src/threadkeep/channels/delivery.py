"""Delivery of answers to chat platforms: each is claimed by one process, split, sent, and retried."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.channels.bots import Bot, notify_trouble, question_text
from threadkeep.channels.contract import Address, AnswerFailed, Later, Moved, Outcome, Part, Refused, Sent
from threadkeep.errors import InvalidInput, RecordTooNew, RecordUnreadable, StoreError
from threadkeep.history.memory import Memory
from threadkeep.observe import AnswerSent, DeliveryOutcome
from threadkeep.records.runs import RunResult
from threadkeep.runs.session_answers import with_answer
from threadkeep.runs.streams import retry_until_available
from threadkeep.store.codec import WRONG_CLOCK_SECONDS
from threadkeep.store.outbox import Outgoing
from threadkeep.workflows.built_in import CHAT


@dataclass(frozen=True)
class DeliveryOptions:
    """Options for delivery. Times are in seconds.

    A process sends at most `concurrency` answers of a bot at the same time. It claims a message for `claim_seconds`; if
    sending a part takes longer, the part is sent again. A message that is undelivered after `give_up_seconds` of
    attempts is marked as failed. Finished messages are remembered for `keep_seconds`, so that a repeated update gets no
    second answer. A message without a run after `take_again_seconds` is processed again, because the process that
    received it may have died. If this fails too, the message expires after `unasked_seconds`.
    """

    concurrency: int = 16
    poll_seconds: float = 2.0
    claim_seconds: float = 90.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 300.0
    give_up_seconds: float = 86_400.0
    take_again_seconds: float = 15.0
    unasked_seconds: float = 3_600.0
    keep_seconds: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        """Reject invalid times with an `InvalidInput` that names the option."""
        for name, value in asdict(self).items():
            if not value > 0:
                raise InvalidInput(f"{name} must be a number above 0; correct it.")
        if self.claim_seconds > WRONG_CLOCK_SECONDS:
            raise InvalidInput(f"claim_seconds must be at most {WRONG_CLOCK_SECONDS:.0f}; lower it.")


class Delivery:
    """The sender of ready answers for the bots of this process. A bot sends one message of a session at a time."""

    def __init__(self, memory: Memory, bots: Mapping[str, Bot], options: DeliveryOptions) -> None:
        self._memory = memory
        self._bots = bots
        self._options = options
        self._outbox = memory.channels.outbox
        self._owner = str(uuid7())
        self._woken = asyncio.Event()
        self._sending: dict[tuple[str, int], asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Make `keep_delivering` check for ready answers at once."""
        self._woken.set()

    async def keep_delivering(self, take_orphaned: Callable[[timedelta], Awaitable[int]]) -> None:
        """Deliver answers until cancelled. Every `poll_seconds`, also process messages left by dead processes.

        `take_orphaned` processes these messages, and returns the highest number of their entries. Its argument is the
        minimum age of a message.
        """
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + self._options.poll_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(poll_at):
                    await self._woken.wait()
            self._woken.clear()
            if polls := loop.time() >= poll_at:
                poll_at = loop.time() + self._options.poll_seconds
            with ErrorBoundary(partial(notify_trouble, self._memory, "delivery")):
                await self.deliver_due(of_all=polls)
                if polls:
                    newest = await take_orphaned(timedelta(seconds=self._options.take_again_seconds))
                    # End old messages only after `take_orphaned` has tried them: after a long downtime, all are old.
                    # If clocks differ, messages that arrive now may look old, too.
                    older_than = timedelta(seconds=self._options.unasked_seconds)
                    await self._outbox.end_without_run(older_than=older_than, upto=newest)

    async def finish(self, *, seconds: float) -> None:
        """Send ready answers for at most `seconds`. Unsent answers stay in the outbox and are sent later."""
        with contextlib.suppress(StoreError):
            await self.deliver_due()
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=seconds)
        for task in self._sending.values():
            task.cancel()

    async def deliver_due(self, *, of_all: bool = True) -> None:
        """Start sending due answers. If `of_all`, first look for newly ready answers, and delete old outbox entries."""
        if of_all:
            await self._outbox.make_ready()
            await self._outbox.remove_ended(older_than=timedelta(seconds=self._options.keep_seconds))
        for name, bot in self._bots.items():
            if not bot.client.can_send:
                continue
            free = self._options.concurrency - sum(sender == name for sender, _ in self._sending)
            for number in await self._outbox.due(name, limit=max(free, 0)):
                if (name, number) not in self._sending:
                    task = asyncio.create_task(self._deliver(bot, number), name="threadkeep-delivery")
                    self._sending[name, number] = task
                    task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = {key: each for key, each in self._sending.items() if each is not task}
        # The session's next message may be sent now, and the bot may start another task.
        self.wake()

    async def _deliver(self, bot: Bot, number: int) -> None:
        # After a failure, this process's claim on the message expires, and the message is sent again.
        with ErrorBoundary(partial(notify_trouble, self._memory, "delivery", channel=bot.channel)):
            claimed_at = asyncio.get_running_loop().time()
            message = await self._outbox.claim(number, self._owner, seconds=self._options.claim_seconds)
            if message is not None:
                await self._send(bot, message, claimed_at)

    async def _send(self, bot: Bot, message: Outgoing, claimed_at: float) -> None:
        text = await answer_text(self._memory, bot, message)
        parts = bot.channel.split(text)
        if not parts:
            await self._outbox.end(message.number, self._owner, "nothing")
            notify_sent(self._memory, bot, message, "nothing")
            return
        index, claim_seconds = message.parts_sent, self._options.claim_seconds
        while index < len(parts):
            key, is_last = _key(message, index), index == len(parts) - 1
            again = message.uncertain and index == message.parts_sent
            first = message.parts_sent if message.tries == 1 else 0
            part = Part(parts[index], key, number=index, first=first, last=is_last, again=again)
            outcome = await self._send_part(bot, message.address, part, claimed_at)
            claimed_at = asyncio.get_running_loop().time()
            match outcome:
                case Sent(is_all):
                    index = len(parts) if is_all else index + 1
                    # While the database is unavailable, keep trying to record the sent part, or it would be sent again.
                    note = partial(self._outbox.note_part, message, self._owner, index, seconds=claim_seconds)
                    if not await retry_until_available(note):
                        return  # the message was dropped, or another process claimed it
                case Moved(address):
                    await self._outbox.move(message.number, self._owner, address)
                    await self._postpone(bot, message, Later("Moved"))
                    return
                case Later() as later:
                    await self._postpone(bot, message, later)
                    return
                case Refused(error):
                    await self._outbox.fail(message.number, self._owner, error)
                    notify_sent(self._memory, bot, message, "failed", error=error)
                    return
        await self._outbox.end(message.number, self._owner, "delivered")
        notify_sent(self._memory, bot, message, "delivered", parts=index)

    async def _send_part(self, bot: Bot, address: Address, part: Part, claimed_at: float) -> Outcome:
        """Send a part. Stop shortly before this process's claim expires: another process may then send the part."""
        ends_at = claimed_at + 0.9 * self._options.claim_seconds
        if asyncio.get_running_loop().time() >= ends_at:  # the process was paused, for example
            return Later("TimeoutError")
        try:
            async with asyncio.timeout_at(ends_at):
                return await bot.client.send(address, part)
        except TimeoutError:
            return Later("TimeoutError", uncertain=True)

    async def _postpone(self, bot: Bot, message: Outgoing, later: Later) -> None:
        now, options = self._memory.clock(), self._options
        # Sum the pauses between the attempts, because the age of the message includes times when the bot was off. If
        # the platform demands a pause now, assume that it demanded the same pause after each earlier attempt.
        tried = sum(max(self._pause(tries), later.seconds or 0) for tries in range(1, message.tries))
        if min((now - message.created_at).total_seconds(), tried) > options.give_up_seconds:
            await self._outbox.fail(message.number, self._owner, later.error)
            notify_sent(self._memory, bot, message, "failed", error=later.error)
            return
        pause = self._pause(message.tries) * random.uniform(0.8, 1.2) if later.seconds is None else later.seconds
        until = now + timedelta(seconds=pause)
        await self._outbox.postpone(message.number, self._owner, until, later.error, uncertain=later.uncertain)
        notify_sent(self._memory, bot, message, "postponed", error=later.error)
        if pause < options.poll_seconds:
            asyncio.get_running_loop().call_later(pause, self.wake)

    def _pause(self, tries: int) -> float:
        """Return the pause in seconds before the next attempt, after `tries` attempts to send an answer."""
        return min(self._options.first_pause_seconds * 2.0 ** min(tries - 1, 30), self._options.longest_pause_seconds)


async def note_failure(memory: Memory, bot: Bot, failed: AnswerFailed) -> None:
    """Mark a recent answer as failed, because the platform did not deliver a part that it had accepted."""
    outbox = memory.channels.outbox
    for message in await outbox.sent(bot.name, failed.session_id):
        ids = [Part("", _key(message, index)).sent_id for index in range(message.parts_sent + 1)]
        if failed.sent_id in ids:
            parts = ids.index(failed.sent_id)
            if await outbox.fail_sent(message.number, failed.error, parts=parts, address=failed.address):
                notify_sent(memory, bot, message, "failed", error=failed.error)
            return


async def answer_text(memory: Memory, bot: Bot, message: Outgoing) -> str:
    """Return the answer to a chat message; empty if its run has no answer, or the answer goes to a later message."""
    if message.run_id is None:
        return message.content or ""
    try:
        run = await memory.runs.run(message.run_id)
    except RecordUnreadable as error:
        if isinstance(error, RecordTooNew):
            raise  # a process of the newer version can read it
        run = await memory.runs.run(message.run_id, damaged=True)  # the transcript may have the answer
    if run is None:
        return ""
    return _answer_to(message, RunResult.of(await with_answer(memory, run)), bot)


def _key(message: Outgoing, index: int) -> str:
    # A message can get two texts, a run's question and its later answer, so the key contains the outbox entry's time.
    return f"{message.session_id}\n{message.message_id}\n{message.created_at.isoformat()}\n{index}"


def notify_sent(
    memory: Memory, bot: Bot, message: Outgoing, outcome: DeliveryOutcome, *, parts: int = 0, error: str | None = None
) -> None:
    """Notify observers of the outcome of an attempt to deliver an answer."""
    event = AnswerSent(
        channel=bot.channel.kind,
        bot=bot.name,
        outcome=outcome,
        parts=parts,
        error=error,
        uncertain=message.uncertain,
        milliseconds=(memory.clock() - message.created_at).total_seconds() * 1000,
        session_id=message.session_id,
    )
    memory.observers.notify(event)


def _answer_to(message: Outgoing, result: RunResult, bot: Bot) -> str:
    """Return the answer to a chat message. If a run answers several messages, only the newest one gets the answer."""
    if result.run.inputs and result.run.newest_message_id != message.message_id:
        return ""
    match result.status:
        case "done":
            # Other workflows than the built-in chat may end without an answer on purpose.
            needs_text = result.run.error or (result.run.workflow == CHAT and result.run.result is not None)
            return message.content or (bot.texts.failed if needs_text and not result.text.strip() else result.text)
        case "failed" | "interrupted":
            return bot.texts.failed
        case "waiting":
            return question_text(result.run, bot.texts)
        case _:
            return ""
