"""Tests of coverage: each message is in exactly one active summary, or can still be shown itself."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history.summaries import Asked, WrittenDown, check_coverage
from threadkeep import Memory, Message
from threadkeep.errors import StoreUnavailable
from threadkeep.history.compression import Compression, CompressionFailed, CompressionRequest, Summarizer
from threadkeep.records import Role

_SESSIONS = count(1)

sizes = st.one_of(
    st.tuples(st.just("messages"), st.integers(2, 30)),
    st.tuples(st.just("tokens"), st.integers(50, 2_000)),
    st.tuples(st.just("fraction"), st.sampled_from([0.05, 0.2, 0.5])),
)
messages = st.tuples(st.sampled_from("uuaaas"), st.integers(0, 200))
steps = st.one_of(
    st.lists(messages, min_size=1, max_size=12),
    st.sampled_from(["compress", "compress", "compress", "reset", "fail", "left out", "wordy"]),
)


class Moody(WrittenDown):
    """A summarizer that fails, or writes too much, depending on its mood."""

    mood = ""

    async def summarize(self, record: str, *, earlier: str | None, task: object, max_tokens: int) -> str:
        """Return the text, raise, or return a text that is too long."""
        said = await super().summarize(record, earlier=earlier, task=task, max_tokens=max_tokens)  # type: ignore[arg-type]
        if self.mood == "fail" and len(self.asked) % 2:
            raise StoreUnavailable("a model's own trouble")
        return said + " more" * max_tokens if self.mood == "wordy" else said


def compression_of(trigger: tuple[str, float], keep: tuple[str, float]) -> Compression | None:
    """Return the options, or None if they are invalid."""
    if trigger[0] == keep[0] and keep[1] >= trigger[1]:
        return None
    return Compression(trigger, keep, max_summary_tokens=200)  # type: ignore[arg-type]


@given(sizes, sizes, st.lists(steps, min_size=3, max_size=25), st.sampled_from([400, 1_000, 30_000]))
@pytest.mark.slow
async def test_each_message_is_covered_once(
    memory: Memory,
    trigger: tuple[str, float],
    keep: tuple[str, float],
    todo: list[str | list[tuple[str, int]]],
    input_tokens: int,
) -> None:
    """Coverage holds after every step of any conversation, with failures, resets and long texts."""
    compression = compression_of(trigger, keep)
    if compression is None:
        return
    session = memory.session(f"room-{next(_SESSIONS)}")
    summarizer = Moody(input_tokens)
    chance = random.Random(len(todo))
    for step in todo:
        if isinstance(step, list):
            await session.append([said(letter, words) for letter, words in step])
        elif step == "reset":
            await session.reset()
        else:
            summarizer.mood = step
            place = chance.randrange(await session.count() + 1) if step == "left out" else 0
            await compress(memory, session.session_id, compression, summarizer, place)
        await check_coverage(memory, session.session_id)
    asked = [asked for asked in summarizer.asked if asked.task != "summaries"]
    assert all(len(one.record) < 8 * input_tokens + 2_000 for one in asked)


async def compress(
    memory: Memory, session_id: str, compression: Compression, summarizer: Summarizer, left_out_upto_seq: int
) -> None:
    """Try to compress; check that messages excluded from a window are then in a summary."""
    compressor = memory.compressor
    try:
        await compressor.compress_now(
            session_id, compression, summarizer, budget=4_000, left_out_upto_seq=left_out_upto_seq
        )
    except CompressionFailed:
        return
    talk = await memory.session(session_id).tail(1_000)
    newest_user = max((m.seq or 0 for m in talk if m.role == "user"), default=0)
    uncovered = await memory.summaries.uncovered(session_id)
    info = await memory.session(session_id).info() if talk else None
    if info is not None and newest_user > info.reset_seq:
        before_turn = max((m.seq or 0 for m in talk if m.role == "assistant" and (m.seq or 0) < newest_user), default=0)
        assert uncovered.after_seq >= min(left_out_upto_seq, before_turn)


def said(letter: str, words: int) -> Message:
    """Return a message of some words."""
    roles: dict[str, Role] = {"u": "user", "a": "assistant", "s": "system"}
    return Message(role=roles[letter], content=" ".join(["word"] * words))


@pytest.mark.slow
async def test_eight_hundred_messages_leave_none_uncovered(memory: Memory) -> None:
    """With a trigger of 20,000 tokens, each message is read once and is in one summary or in the kept tail."""
    summarizer = WrittenDown()
    session = memory.session("room")
    compression = Compression(trigger=("tokens", 20_000))
    largest = 0
    for number in range(400):
        words = "some words of a long talk about nothing in particular " * 12
        question = Message(role="user", content=f"question {number}: {words}")
        await session.append([question, Message(role="assistant", content=f"answer {number}: {words}")])
        memory.compressor.consider(CompressionRequest("room", compression, summarizer, 100_000))
        await memory.compressor.idle()
        largest = max(largest, (await memory.summaries.uncovered("room")).tokens)
    active = await check_coverage(memory)
    covered = active[-1].last_seq
    read = summarizer.given()
    assert read == list(range(1, covered + 1))
    assert 780 >= covered >= 600
    assert largest < 20_000
    assert all(task_is_plain(asked) for asked in summarizer.asked)


def task_is_plain(asked: Asked) -> bool:
    """Return whether no message was read in pieces."""
    return asked.task == "messages" and all("part" not in line for line in asked.lines)
