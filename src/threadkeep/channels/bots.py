"""A configured bot: its workflow, limits, texts and commands, and the loop that receives its messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Never

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.channels.contract import Channel, ChannelClient, IncomingMessage, Response
from threadkeep.errors import InvalidInput, RecordTooNew, StoreError
from threadkeep.history.memory import Memory
from threadkeep.observe import ChannelTrouble
from threadkeep.observe.events import ChannelWork
from threadkeep.records.runs import DoubleTexting, Run, RunQuery, RunStatus, interrupts_of
from threadkeep.runs.service import RunService

_WINDOW_SECONDS = 60.0
_MAX_SENDERS = 10_000

type Language = Literal["en", "zh"]
type Rate = Literal["within", "first_beyond", "beyond"]
type Action = Literal["say", "reset", "forget"]


@dataclass(frozen=True)
class Texts:
    """The texts that a bot sends without a model. An empty text is not sent.

    - `welcome`, `help`, `new`: the answers to /start, to /help, and to /new or /reset.
    - `whoami`: the answer to /whoami. `{id}` is replaced by the id of the sender, `{session}` by the id of the session.
    - `media`: the answer to a picture or another message without text.
    - `failed`: replaces the answer of a failed run.
    - `busy`: the answer to a message that the workflow rejects because another run is active.
    - `too_long`: the answer to a message with more than `max_characters`.
    - `too_many`: the answer to the first message beyond the limit per minute.
    - `later`: ends a stream if the answer takes too long.
    - `asked_elsewhere`: is added to a run's question if a text message in the chat cannot answer it.
    - `forget_question`: the answer to /forget. After the deletion or its failure: `forgotten`, `not_forgotten`.
    - `forget_group`: rejects /forget in a group.
    """

    welcome: str
    help: str
    new: str
    whoami: str
    forget_question: str
    forgotten: str
    not_forgotten: str
    forget_group: str
    media: str
    failed: str
    busy: str
    too_long: str
    too_many: str
    later: str
    asked_elsewhere: str

    def changed(self, texts: Mapping[str, str]) -> Texts:
        """Return a copy in which the given texts replace the texts of the same names.

        Raises:
            InvalidInput: a text has a name that bots do not use.
        """
        names = [field.name for field in fields(self)]
        if unknown := sorted(set(texts) - set(names)):
            raise InvalidInput(f"There is no text {unknown[0]!r}; there are {', '.join(names)}.")
        return replace(self, **texts)


TEXTS: Mapping[Language, Texts] = {
    "en": Texts(
        welcome="Hello! Write me a message. /help lists my commands.",
        help="/new starts a new conversation\n/whoami shows your id\n/forget deletes our conversation",
        new="This is a new conversation.",
        whoami="Your id: {id}\nThis conversation: {session}",
        forget_question="This permanently deletes our conversation. Send /forget yes to confirm.",
        forgotten="Our conversation is deleted.",
        not_forgotten="I could not delete our conversation. Please send /forget yes again later.",
        forget_group="I cannot delete a group's conversation. Send me /forget in a private chat.",
        media="I can only read text.",
        failed="I could not answer that. Please try again later.",
        busy="I am still answering your last message. Please try again later.",
        too_long="That message is too long for me. Please send a shorter one.",
        too_many="You are sending messages too fast. Please wait a minute.",
        later="This takes longer. The answer follows.",
        asked_elsewhere=(
            "This has to be decided outside of this chat. I will write when it is; until then you can go on here, "
            "or send /new to cancel it."
        ),
    ),
    "zh": Texts(
        welcome="你好！请直接给我发消息。发送 /help 查看可用的命令。",
        help="/new 开始新的对话\n/whoami 查看你的 ID\n/forget 删除我们的聊天记录",
        new="已开始新的对话。",
        whoami="你的 ID：{id}\n当前对话：{session}",
        forget_question="这会永久删除我们所有的聊天记录。确认请发送 /forget yes。",
        forgotten="所有聊天记录已删除。",
        not_forgotten="聊天记录未能删除，请稍后再发送 /forget yes。",
        forget_group="群聊中不能替其他人删除记录，请私聊我。",
        media="我目前只能阅读文字消息。",
        failed="抱歉，我暂时无法回答，请稍后再试。",
        busy="我还在处理你的上一条消息，请稍后再试。",
        too_long="这条消息太长了，请发送短一些的内容。",
        too_many="消息发送得太快了，请一分钟后再试。",
        later="处理时间较长，稍后回复。",
        asked_elsewhere="此事需要在其他地方确认，确认后我会回复你；在此之前你可以继续聊天，或发送 /new 取消。",
    ),
}
"""The texts by language."""


class SenderRates:
    """A counter of each sender's messages in the last minute, with the limit `per_minute` (0: no limit).

    A message that the platform sends twice counts once. Each process counts only the messages that it receives.
    """

    def __init__(self, per_minute: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        # Maps each sender to times of messages, by message id. The id None marks a sender who was told about the limit.
        self._seen: dict[str, dict[str | None, float]] = {}

    def count(self, sender: str, message_id: str) -> Rate:
        """Count a message. Return `within` up to the limit, `first_beyond` for the next message, then `beyond`."""
        if not self._per_minute:
            return "within"
        now = self._clock()
        if len(self._seen) > _MAX_SENDERS:  # forget senders without a message in the last minute
            since = now - _WINDOW_SECONDS
            self._seen = {key: seen for key, seen in self._seen.items() if max(seen.values(), default=0.0) > since}
        seen = self._seen.setdefault(sender, {})
        if message_id in seen:
            return "within"
        for old in [known for known, at in seen.items() if now - at >= _WINDOW_SECONDS]:
            del seen[old]
        if len(seen.keys() - {None}) < self._per_minute:
            seen[message_id] = now
            return "within"
        was_told = None in seen
        seen.setdefault(None, now)
        return "beyond" if was_told else "first_beyond"


@dataclass(frozen=True, kw_only=True)
class Bot:
    """A bot. If `allowed_users` (ids of the platform) is set, it answers only these users.

    `double_texting` replaces the workflow's policy for a message that arrives during a turn.
    """

    channel: Channel
    client: ChannelClient = field(repr=False)
    workflow: str = "chat"
    texts: Texts = TEXTS["en"]
    allowed_users: frozenset[str] = frozenset()
    max_characters: int = 20_000
    double_texting: DoubleTexting | None = None
    rates: SenderRates = field(default_factory=SenderRates, repr=False)

    @property
    def name(self) -> str:
        """The bot's configured name."""
        return self.channel.name

    def allows(self, message: IncomingMessage) -> bool:
        """Return True if the bot answers the sender of this message: any sender, unless `allowed_users` is set."""
        # The sender's id is `kind:id` or, for these two kinds, `kind:<company or bot>:id`. The id may have colons.
        parts = 2 if self.channel.kind in ("wecom_dm", "wecom_aibot") else 1
        sender = message.sender.id.split(":", parts)[-1] if message.sender is not None else ""
        return not self.allowed_users or sender in self.allowed_users


@dataclass(frozen=True)
class Command:
    """A command in a chat, such as /new or /help: the bot's action, and the text of its answer."""

    action: Action
    text: str


def command_in(message: IncomingMessage, texts: Texts) -> Command | None:
    """Return the command, such as /new, that a message contains, or None if it is an ordinary message."""
    words = message.text.lower().split()
    match words:
        case ["/new"] | ["/reset"]:
            return Command("reset", texts.new)
        case ["/forget", "yes"] if message.private:
            return Command("forget", texts.forgotten)
        case ["/forget"] | ["/forget", "yes"]:
            text = texts.forget_question if message.private else texts.forget_group
        case ["/start", *_]:  # a link to the bot may add a parameter
            text = texts.welcome
        case ["/help"]:
            text = texts.help
        case ["/whoami"]:
            sender = message.sender.id if message.sender is not None else "-"
            text = texts.whoami.replace("{id}", sender).replace("{session}", message.session_id)
        case _:
            return None
    return Command("say", text)


_NEWEST = 50


def question_text(run: Run, texts: Texts) -> str:
    """Return the questions that a run asks a person, with a notice if a text in the chat cannot answer them."""
    asked = [text for text in _questions(run) if text is not None]
    return "\n".join(asked if is_answered_by_text(run) else [*asked, *filter(None, [texts.asked_elsewhere])])


def is_answered_by_text(run: Run) -> bool:
    """Return True if a run asks a person exactly one question, and a text message can answer it."""
    asked = _questions(run)
    return len(asked) == 1 and asked[0] is not None


async def question_for(memory: Memory, runs: RunService, bot: Bot, message: IncomingMessage) -> Run | None:
    """Return the waiting run that this message answers, or None.

    Only the sender's newest run in the conversation can be this run. Its question must have been sent to the chat, and
    must be one that a text can answer.
    """
    if await _newest_of_sender(runs, message, "waiting") is None:
        return None
    run = await _newest_of_sender(runs, message)
    if run is None or run.status != "waiting" or run.trigger != "webhook":
        return None
    if run.error == RecordTooNew.__name__:
        return run  # this process cannot read its question, and `resume` raises the error
    if not is_answered_by_text(run) or run.newest_message_id is None:
        return None
    sent = await memory.channels.outbox.find(bot.name, message.session_id, run.newest_message_id)
    # A delivered outbox entry is deleted after some time. After a failed attempt, the question may have arrived anyway.
    is_sent = sent is None or sent.status == "delivered" or (sent.status == "ready" and sent.tries > 0)
    return run if is_sent else None


async def end_questions(runs: RunService, message: IncomingMessage) -> None:
    """Cancel up to 50 runs of this conversation that wait for a person, if messages in the chat have started them."""
    query = RunQuery(session_id=message.session_id, status="waiting", limit=_NEWEST)
    for run in (await runs.list(query))[0]:
        if run.trigger == "webhook" and _may_see(message, run):
            await runs.cancel(run.run_id)


async def _newest_of_sender(runs: RunService, message: IncomingMessage, status: RunStatus | None = None) -> Run | None:
    """Return the newest run of the message's sender in this conversation; if `status` is given, only of this status."""
    query = RunQuery(session_id=message.session_id, status=status, limit=_NEWEST)
    while True:
        found, cursor = await runs.list(query)
        for run in found:
            if _may_see(message, run) and (message.private or _is_by(message, run)):
                return run
        if cursor is None:
            return None
        query = replace(query, cursor=cursor)


def _may_see(message: IncomingMessage, run: Run) -> bool:
    return run.parent_run_id is None and message.user_id in (None, run.user_id)


def _is_by(message: IncomingMessage, run: Run) -> bool:
    """Return True if one of the run's messages is from the sender of `message`."""
    if message.sender is None:
        return False
    known = [one.values.get("metadata") for one in run.inputs]
    return any(isinstance(one, Mapping) and one.get("sender_id") == message.sender.id for one in known)


def _questions(run: Run) -> list[str | None]:
    asked = [one.get("value") for one in interrupts_of(run)]
    texts = [value.get("question") if isinstance(value, Mapping) else value for value in asked]
    return [text if isinstance(text, str) and text.strip() else None for text in texts]


def notify_trouble(memory: Memory, work: ChannelWork, error: Exception | str, channel: Channel | None = None) -> None:
    """Report that `work`, such as polling, failed and will be retried, for one bot or, without a `channel`, for all."""
    name = error if isinstance(error, str) else type(error).__name__
    bot = None if channel is None else channel.name
    event = ChannelTrouble(channel="other" if channel is None else channel.kind, bot=bot, work=work, error=name)
    memory.observers.notify(event)


class Receiver:
    """The base class of workers that receive the messages of a bot.

    Only one process receives a bot's messages: the process that has claimed this work in the database. A claim lasts
    for the next pause (at most `longest_claim_seconds`) plus `claim_seconds`. Others try again every `look_seconds`.
    """

    claim_seconds, look_seconds = 60.0, 5.0
    first_pause_seconds, longest_pause_seconds = 1.0, 30.0
    longest_claim_seconds = 900.0  # processes ignore claims that end in more than half an hour by their clocks

    def __init__(self, memory: Memory, channel: Channel) -> None:
        self._memory = memory
        self._channel = channel
        self._state = memory.channels.state
        self._owner = str(uuid7())
        self._pause = self.first_pause_seconds
        self._is_demanded = False

    async def _keep_trying(self, receive: Callable[[], Awaitable[str | None]]) -> Never:
        """Call `receive` until cancelled. If it raises or returns an error, pause. Further errors extend the pause."""
        while True:
            result = None
            with ErrorBoundary() as attempt:
                result = await receive()
            error = attempt.error or result
            if error is None:
                self._pause = self.first_pause_seconds
                continue
            notify_trouble(self._memory, "polling", error, self._channel)
            await self._sleep(self._pause)
            self._is_demanded = False
            self._pause = min(self._pause * 2, self.longest_pause_seconds)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _refused(self, duty: str, answer: Response) -> str:
        """Return the error of a response. If the platform demands a pause, extend the claim on the duty for it."""
        if answer.retry_after is not None:
            self._pause, self._is_demanded = answer.retry_after, True
            await self._claim(duty)
        return answer.error or "UnreadableAnswer"

    async def _claim(self, duty: str) -> bool:
        duties = self._memory.channels.duties
        seconds = self.claim_seconds + min(self._pause, self.longest_claim_seconds)
        return await duties.claim(duty, self._owner, seconds=seconds, every_seconds=0.0)

    async def _release(self, duty: str) -> None:
        with contextlib.suppress(StoreError):  # the claim expires
            await self._memory.channels.duties.release(duty, self._owner)
