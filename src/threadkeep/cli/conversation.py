"""One chat at a terminal: lines in, answers out, until the person leaves."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from threadkeep.cli.answers import Answers
from threadkeep.cli.context_view import ContextLimits, look, show_view
from threadkeep.cli.line_input import LineInput
from threadkeep.cli.problems import Problem, problem_of
from threadkeep.cli.terminal import Terminal
from threadkeep.errors import Interrupted, SessionNotFound, ThreadkeepError
from threadkeep.history.session import Session
from threadkeep.observe import Event, ReadFailed, WriteDeferred, WriteRecovered
from threadkeep.workflow.chat import ChatAnswer, ChatContext, ChatRequest, ChatToken, ChatTurn

if TYPE_CHECKING:
    from threadkeep.app import App

COMMANDS = {
    "/help": "what can be typed here",
    "/context": "what the model would see now, and what not",
    "/stats": "how much was said, here and in the whole session",
    "/reset": "start afresh; the transcript stays",
    "/quit": "leave (so do Ctrl-C and Ctrl-D)",
}


@dataclass
class _Visit:
    """What happened since the chat was opened."""

    turns: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    last: ChatContext | None = None

    def count(self, answer: ChatAnswer, seconds: float) -> None:
        self.turns += 1
        self.input_tokens += answer.usage.input_tokens
        self.output_tokens += answer.usage.output_tokens
        self.seconds.append(seconds)
        self.last = answer.context


class Notices:
    """An observer that keeps, for the end of the turn, what a person should know of the memory."""

    def __init__(self) -> None:
        self._told: list[str] = []

    def notify(self, event: Event, /) -> None:
        """Note what changes what the person sees or what is kept."""
        if isinstance(event, ReadFailed) and event.outcome == "fallback":
            self._told.append("The memory could not be read: this was answered without what was said before.")
        elif isinstance(event, WriteDeferred):
            self._told.append("The database did not take this: it is kept on disk, and written when it can be.")
        elif isinstance(event, WriteRecovered):
            self._told.append("What waited to be written is written now.")

    def take(self) -> list[str]:
        """What was noted since the last time, each once."""
        told, self._told = list(dict.fromkeys(self._told)), []
        return told


class Conversation:
    """A person (or a pipe) and one session of an app. Nothing is opened or closed here."""

    def __init__(
        self,
        app: App,
        session: Session,
        *,
        limits: ContextLimits,
        terminal: Terminal,
        answers: Answers,
        notices: Notices,
    ) -> None:
        self._chat = app.chat
        self._session = session
        self._limits = limits
        self._terminal = terminal
        self._answers = answers
        self._notices = notices
        self._visit = _Visit()
        self._stopped = False

    async def run(self, lines: LineInput, *, keep_on: bool) -> bool:
        """Answer line after line; False when a turn failed. With `keep_on`, Ctrl-C in an answer is not the end."""
        while keep_on or not self._stopped:
            line = await lines.next_line()
            if line is None or (line.startswith("/") and not await self._command(line)):
                break
            if line.strip() and not line.startswith("/"):
                await self._answer(line)
                for sentence in self._notices.take():
                    self._terminal.note(sentence)
        return keep_on or not (self._visit.failed or self._stopped)

    async def _answer(self, text: str) -> None:
        started = time.perf_counter()
        self._answers.begin()
        try:
            request = ChatRequest(text, session_id=self._session.session_id, user_id=self._session.user_id)
            with _stoppable(self._chat.begin(request)) as turn:
                async for event in turn.follow():
                    if isinstance(event, ChatToken):
                        self._answers.piece(event.text)
                    elif isinstance(event, ChatAnswer):
                        self._visit.count(event, time.perf_counter() - started)
                        self._answers.end(event)
        except Interrupted:
            self._stopped = True
            self._answers.fail(Problem("interrupted", "Stopped; what was said so far is kept as interrupted."))
        except ThreadkeepError as error:
            self._visit.failed += 1
            self._answers.fail(problem_of(error))

    async def _command(self, text: str) -> bool:
        """Do what a line with a slash says; False to leave."""
        name = text.split(maxsplit=1)[0].lower()
        try:
            match name:
                case "/quit" | "/exit":
                    return False
                case "/reset":
                    await self._reset()
                case "/stats":
                    await self._stats()
                case "/context":
                    await self._context()
                case "/help":
                    self._help()
                case _:
                    self._terminal.error(f"There is no command {name}; /help lists those there are.")
        except SessionNotFound:
            self._tell({"session_id": self._session.session_id}, "Nothing was said in this session yet.")
        except ThreadkeepError as error:
            self._answers.fail(problem_of(error))
        return True

    async def _reset(self) -> None:
        await self._session.reset()
        info = await self._session.info()
        self._tell(
            {"session_id": info.session_id, "reset_seq": info.reset_seq},
            f"From here on the model sees nothing of messages 1 to {info.reset_seq}; the transcript stays.",
        )

    async def _stats(self) -> None:
        visit = self._visit
        info = await self._session.info()
        median = statistics.median(visit.seconds) if visit.seconds else 0.0
        values = {
            "session_id": info.session_id,
            "messages": info.message_count,
            "reset_seq": info.reset_seq,
            "turns": visit.turns,
            "failed": visit.failed,
            "input_tokens": visit.input_tokens,
            "output_tokens": visit.output_tokens,
            "median_seconds": median,
            "last_context": visit.last and asdict(visit.last),
        }
        sentence = (
            f"{info.session_id}: {info.message_count:,} messages in all. Here: {visit.turns} turns, "
            f"{visit.input_tokens:,} tokens in, {visit.output_tokens:,} out, {median:.1f} s a turn."
        )
        if visit.last is not None:
            last = visit.last
            sentence += f" The last call saw {last.messages} messages, {last.tokens:,} tokens; {last.dropped} were out."
        self._tell(values, sentence)

    async def _context(self) -> None:
        view = await look(self._session, self._limits)
        if self._terminal.as_json:
            self._terminal.json(view.to_dict())
        else:
            show_view(self._terminal, view)

    def _help(self) -> None:
        if self._terminal.as_json:
            self._terminal.json({"commands": COMMANDS})
        else:
            self._terminal.table(["command", ""], list(COMMANDS.items()))

    def _tell(self, values: dict[str, object], sentence: str) -> None:
        if self._terminal.as_json:
            self._terminal.json(values)
        else:
            self._terminal.say(sentence, style="dim")


@contextmanager
def _stoppable(turn: ChatTurn) -> Iterator[ChatTurn]:
    """While the block runs, Ctrl-C stops the turn and not the chat; a chat that is ended takes its turn along."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def stop() -> None:
        if turn.task is not None:
            turn.task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield turn
    except asyncio.CancelledError:
        stop()
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


async def until_told_to_end(talking: Coroutine[None, None, bool]) -> bool:
    """The result of a talk that SIGTERM and SIGHUP cancel, so that what was said so far is stored."""
    task = asyncio.create_task(talking)
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
