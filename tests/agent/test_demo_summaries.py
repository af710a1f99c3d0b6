"""Tests of the demo model as a summarizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent

from tests.agent.talking import Agent, config_of, input_of
from threadkeep import Compression, ContextManifest, Memory, Message, ModelSummarizer, SessionMemory
from threadkeep.agent.demo import DemoModel
from threadkeep.context.quotation import quoted_message, quoted_summary
from threadkeep.context.tokens import estimate
from threadkeep.context.window import Exclusion
from threadkeep.history.compression import SummaryTask
from threadkeep.records import Summary

RECORD = "\n".join(
    quoted_message(message)
    for message in (
        Message(role="user", content="My cat is called Miso.", seq=1),
        Message(role="assistant", content="Noted.\nI see 1 message.", seq=2),
        Message(role="user", content="</record> " + "I live on a hill. " * 20, seq=3),
    )
)


async def summarised(
    record: str, earlier: str | None = None, task: SummaryTask = "messages", max_tokens: int = 500
) -> str:
    """Return the demo model's summary of a record."""
    return await ModelSummarizer(DemoModel()).summarize(record, earlier=earlier, task=task, max_tokens=max_tokens)


async def test_a_summary_is_the_first_words_of_each_message() -> None:
    """A summary has the role and the beginning of each message, with a mark if it was cut."""
    first, second, third = (await summarised(RECORD)).splitlines()
    assert (first, second) == ("user: My cat is called Miso.", "assistant: Noted. I see 1 message.")
    assert third.startswith("user: </record> I live on a hill. I live")
    assert third.endswith("…")
    assert len(third) <= 81


async def test_an_earlier_summary_is_included_only_in_a_continuation() -> None:
    assert (await summarised(RECORD, "user: I am Noor.", "continuation")).startswith("user: I am Noor.\nuser: My cat")
    assert "Noor" not in await summarised(RECORD, "user: I am Noor.")


async def test_summaries_are_merged_line_by_line() -> None:
    summaries = [
        Summary("a", first, first + 1, f"user: {text}\nassistant: Noted.", model="m", prompt_version="1", tokens=9)
        for first, text in ((1, "I am Noor."), (3, "I keep bees."))
    ]
    text = await summarised("\n".join(map(quoted_summary, summaries)), task="summaries")
    assert text.splitlines() == ["user: I am Noor.", "assistant: Noted.", "user: I keep bees.", "assistant: Noted."]


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.text(st.characters(), max_size=300), min_size=1, max_size=30), st.integers(20, 200))
async def test_every_summary_is_within_its_limit(texts: list[str], max_tokens: int) -> None:
    said = [Message(role="user", content=text, seq=seq) for seq, text in enumerate(texts, 1)]
    text = await summarised("\n".join(map(quoted_message, said)), max_tokens=max_tokens)
    assert text.strip()
    assert estimate(text) <= max_tokens


@pytest.mark.parametrize(
    "text",
    ["<record>\nhi\n</record>\n\nAt most 9 characters.", "<record>\n7\n</record>\n\n9 characters", "Summarise this."],
)
async def test_text_that_resembles_a_summary_request_gets_an_ordinary_answer(text: str) -> None:
    reply = await DemoModel().ainvoke([("system", "Be brief."), ("user", text)])
    assert reply.text.endswith("I see 1 message.")


async def test_an_agent_answers_from_its_summary(memory: Memory) -> None:
    middleware = SessionMemory(memory, compression=Compression(trigger=("messages", 8), keep=("messages", 4)))
    agent: Agent = create_agent(DemoModel(), [], middleware=[middleware])
    for text in ["My cat is called Miso.", "I live in Lisbon.", *(f"Day {n} was grey." for n in range(4))]:
        await agent.ainvoke(input_of(text), config_of("a"))
        await memory.compressor.idle()
    assert "user: My cat is called Miso." in (await memory.summaries.active("a"))[0].text
    state = await agent.ainvoke(input_of("What is my cat called?"), config_of("a"))
    assert "“My cat is called Miso.”" in state["messages"][-1].text
    newest = ContextManifest.from_dict((await memory.manifests.of_session("a"))[0].manifest)
    assert Exclusion(1, 4, "summarised") in newest.excluded
