"""One chat at a terminal: lines in, answers out, until the person leaves."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from threadkeep.cli.answers import Answers
from threadkeep.cli.call_choice import CallChoice
from threadkeep.cli.context_now import show_now
from threadkeep.cli.context_view import ContextLook
from threadkeep.cli.line_input import LineInput
from threadkeep.cli.problems import Problem, problem_of
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted
from threadkeep.errors import Interrupted, SessionNotFound, ThreadkeepError
from threadkeep.history.memory import Memory
from threadkeep.observe import Event, ReadFailed, WriteDeferred, WriteRecovered
from threadkeep.runs.chat.chat import Chat
from threadkeep.runs.chat.turns import ChatAnswer, ChatContext, ChatRequest, ChatToken, ChatTurn

COMMANDS = {
    "/help": "what can be typed here",
    "/context": "what the model saw last and would see now, and what not",
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
    """A person (or a pipe) and one session of a chat. Nothing is opened or closed here."""

    def __init__(
        self,
        chat: Chat,
        memory: Memory,
        choice: CallChoice,
        *,
        look: ContextLook,
        terminal: Terminal,
        answers: Answers,
        notices: Notices,
    ) -> None:
        self._chat = chat
        self._memory = memory
        self._choice = choice
        self._session = memory.session(choice.session_id or "", user_id=choice.user_id)
        self._look = look
        self._terminal = terminal
        self._answers = answers
        self._notices = notices
        self._visit = _Visit()
        self._turn: ChatTurn | None = None
        self._stopped = False

    async def run(self, lines: LineInput, *, keep_on: bool) -> bool:
        """Answer line after line; False when a turn failed.

        Ctrl-C stops the answer that is on its way; it is the end where there is none, or without `keep_on`. SIGTERM and
        SIGHUP are the end in any case. What was said of an answer is stored.
        """
        with self._heeding_signals():
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
            request = ChatRequest(
                text, session_id=self._session.session_id, user_id=self._session.user_id, trigger="cli"
            )
            self._turn = self._chat.begin(request)
            async for event in self._turn.follow():
                if isinstance(event, ChatToken):
                    self._answers.piece(event.text)
                elif isinstance(event, ChatAnswer):
                    self._visit.count(event, time.perf_counter() - started)
                    self._answers.end(event)
        except Interrupted:
            self._answers.fail(Problem("interrupted", "Stopped; what was said so far is kept as interrupted."))
        except ThreadkeepError as error:
            self._visit.failed += 1
            self._answers.fail(problem_of(error))
        except asyncio.CancelledError:
            if self._turn is not None:
                self._chat.stop(self._turn)
            raise
        finally:
            self._turn = None

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        """One set of handlers for the whole talk: one that came and went with each turn would lose signals between."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            self._stopped = True
            if self._turn is not None:
                self._chat.stop(self._turn)
            elif task is not None:
                task.cancel()

        def end() -> None:
            if task is not None:
                task.cancel()

        handlers = {signal.SIGINT: interrupt, signal.SIGTERM: end, signal.SIGHUP: end}
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

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
        await self._session.info()
        await self._chat.reset(self._session.session_id)
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
        tokens = f"{counted(visit.input_tokens, 'token')} in, {visit.output_tokens:,} out"
        sentence = f"{info.session_id}: {counted(info.message_count, 'message')} in all. "
        sentence += f"Here: {counted(visit.turns, 'turn')}, {tokens}, {median:.1f} s a turn."
        if visit.last is not None:
            seen = f"{counted(visit.last.messages, 'message')} of {counted(visit.last.tokens, 'token')}"
            sentence += f" The last call saw {seen}; left out: {visit.last.dropped:,}."
        self._tell(values, sentence)

    async def _context(self) -> None:
        await show_now(self._terminal, self._memory, self._choice, self._look)

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
