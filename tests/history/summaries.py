"""A summarizer for tests, and the guarantees that hold for the summaries of any session."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from threadkeep import Memory, Message
from threadkeep.history.compression import SummaryTask
from threadkeep.records import Summary


class Asked(NamedTuple):
    """The arguments of one call of a summarizer."""

    record: str
    earlier: str | None
    task: SummaryTask
    max_tokens: int

    @property
    def lines(self) -> list[dict[str, object]]:
        """Return the record as parsed JSON lines."""
        return [json.loads(line) for line in self.record.splitlines()]


class WrittenDown:
    """A summarizer whose text names the messages it read, such as `1-20`, or the text that a test sets."""

    name = "written-down"
    prompt_version = "test-1"

    def __init__(self, input_tokens: int = 30_000) -> None:
        self.input_tokens = input_tokens
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], str | Awaitable[str]] | None = None

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """Record the arguments, and return the text."""
        asked = Asked(record, earlier, task, max_tokens)
        self.asked.append(asked)
        if self.answer is not None:
            said = self.answer(asked)
            return said if isinstance(said, str) else await said
        lines = asked.lines
        if task == "summaries":
            return f"Of {lines[0]['summary_of_messages']} to {lines[-1]['summary_of_messages']}."
        return f"Messages {lines[0]['message']} to {lines[-1]['message']}."

    def given(self, task: SummaryTask = "messages") -> list[object]:
        """Return the seq of each message that was passed, in order and with repetitions."""
        return [line["message"] for asked in self.asked if asked.task == task for line in asked.lines]


def exchange(number: int, words: int = 40) -> list[Message]:
    """Return a question and an answer of some length."""
    return [
        Message(role="user", content=f"question {number} " + "word " * words),
        Message(role="assistant", content=f"answer {number} " + "word " * words),
    ]


async def talk(memory: Memory, exchanges: int, session_id: str = "room", *, words: int = 40) -> None:
    """Append some turns to a session."""
    session = memory.session(session_id)
    for number in range(1, exchanges + 1):
        await session.append(exchange(number, words))


async def ranges(memory: Memory, session_id: str = "room") -> list[tuple[int, int]]:
    """Return the ranges of the active summaries."""
    return [(summary.first_seq, summary.last_seq) for summary in await memory.summaries.active(session_id)]


async def check_coverage(memory: Memory, session_id: str = "room") -> list[Summary]:
    """Check that each message since the reset is in exactly one active summary or after all of them.

    No summary may contain the newest question.
    """
    session = memory.session(session_id)
    active = await memory.summaries.active(session_id)
    messages = await session.tail(10_000)
    reset_seq = (await session.info()).reset_seq if messages else 0
    covered = [seq for summary in active for seq in range(summary.first_seq, summary.last_seq + 1)]
    assert covered == list(range(reset_seq + 1, reset_seq + 1 + len(covered)))
    assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
    newest_user = max((m.seq or 0 for m in messages if m.role == "user"), default=0)
    assert newest_user not in covered or newest_user <= reset_seq
    return active
