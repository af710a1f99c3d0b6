"""Tests of lasting facts: lines of a summary that merges copy word for word."""

from __future__ import annotations

from tests.history.summaries import Asked, WrittenDown, check_coverage, talk
from threadkeep import Memory
from threadkeep.history.compression import Compression

OPTIONS = Compression(trigger=("messages", 20), keep=("messages", 6), max_summary_tokens=250)
BUDGET = 8_000


def _noting(asked: Asked) -> str:
    """Return a long text, and for messages a fact that names the last one."""
    prose = f"{asked.task} " + "much " * 60
    if asked.task == "summaries":
        return f"{prose}\n\nFacts:\n- The model words it in another way."
    return f"{prose}\n\n**Facts:**\n* Code {asked.lines[-1]['message']}."


async def _compressed(memory: Memory, times: int, summarizer: WrittenDown | None = None) -> WrittenDown:
    summarizer = summarizer or WrittenDown()
    summarizer.answer = _noting
    for _ in range(times):
        await talk(memory, 10)
        await memory.compressor.compress_now("room", OPTIONS, summarizer, budget=BUDGET)
    return summarizer


async def test_facts_are_copied_word_for_word(memory: Memory) -> None:
    """A merge copies facts without passing them to the model, and ignores facts in the model's text."""
    summarizer = await _compressed(memory, 6)
    oldest, *newer = await check_coverage(memory)
    assert oldest.first_seq < oldest.last_seq - 60
    assert oldest.text.startswith("summaries much")
    held = "\n".join(summary.text for summary in (oldest, *newer))
    assert [line for line in held.splitlines() if line.startswith("- ")] == [f"- Code {n}." for n in range(14, 115, 20)]
    assert all("Code" not in asked.record for asked in summarizer.asked if asked.task == "summaries")
    assert sum(summary.tokens for summary in (oldest, *newer)) <= 250


async def test_the_oldest_facts_are_dropped_when_there_are_too_many(memory: Memory) -> None:
    """A merged summary drops the oldest facts, which stay in its parts; duplicates are kept once."""
    summarizer = WrittenDown()
    summarizer.answer = lambda asked: (
        "much " * 60 + "\nFacts:\n- The same always.\n- " + f"code{asked.lines[-1].get('message')} " * 12
    )
    for _ in range(6):
        await talk(memory, 10)
        await memory.compressor.compress_now("room", OPTIONS, summarizer, budget=BUDGET)
    oldest, *_ = await check_coverage(memory)
    assert oldest.text.count("The same always.") == 1
    assert "code14 " not in oldest.text
    assert f"code{oldest.last_seq} " in oldest.text
    assert any("code14 " in summary.text for summary in await memory.summaries.all_of("room"))


async def test_facts_of_superseded_messages_are_dropped(memory: Memory) -> None:
    await _compressed(memory, 5)
    [question] = await memory.session("room").at([69])
    await memory.session("room").edit(str(question.id), "other", new_id="new")
    held = "\n".join(summary.text for summary in await memory.summaries.active("room"))
    assert "Code 54." in held
    assert "Code 74." not in held
    later = await _compressed(memory, 3)
    held = "\n".join(summary.text for summary in await memory.summaries.active("room"))
    assert "Code 54." in held
    assert "Code 74." not in held
    read = [line["summary_of_messages"] for asked in later.asked if asked.task == "summaries" for line in asked.lines]
    assert "35-54" in read
    assert "55-74" not in read
