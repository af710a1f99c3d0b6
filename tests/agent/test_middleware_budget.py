"""Tests of the budget of `SessionMemory`: no model call exceeds it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, add, adding, ask, config_of, kept, make_agent, numbered, seen
from tests.recorded_events import RecordedEvents
from threadkeep import (
    BudgetTooSmall,
    Memory,
    Message,
    SessionMemory,
    count_tokens,
    open_memory,
)
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.tokens import chars4
from threadkeep.observe import ContextBuilt, HistoryTruncated
from threadkeep.testing import ScriptedModel

HUGE = "a long text with many words in it, " * 2000


@tool
def read_book(title: str) -> str:
    """Read a whole book aloud."""
    return f"{title}: {HUGE}"


def reading(*titles: str) -> AIMessage:
    """Return a message that reads several books at once."""
    return AIMessage("", tool_calls=[{"name": "read_book", "args": {"title": t}, "id": f"call-{t}"} for t in titles])


def check(model: ScriptedModel, budget: int) -> None:
    """Check that no call exceeds the budget."""
    assert model.calls
    for call in model.calls:
        assert count_tokens(call) <= budget


async def test_a_long_history_is_cut_to_the_budget(memory: Memory) -> None:
    await memory.session(ROOM).append([m.with_fields(content=f"{m.content} " + "word " * 40) for m in numbered(20)])
    model = ScriptedModel(["fine"])
    agent = make_agent(model, [SessionMemory(memory, max_tokens=300)], system_prompt="be kind")
    await ask(agent, "and now?")
    check(model, 300)
    texts = [text for _, text in seen(model.calls[0])]
    assert (texts[0], texts[-1]) == ("be kind", "and now?")
    assert texts[-2].startswith("message 20 ")
    assert 3 < len(texts) < 22


async def test_huge_tool_results_are_cut_in_the_middle(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(10))
    model = ScriptedModel([reading("A", "B", "C"), reading("D"), "done"])
    agent = make_agent(model, [SessionMemory(small_memory, max_tokens=500)], [read_book], system_prompt="be kind")
    await ask(agent, "read to me")
    check(model, 500)
    for call, titles in zip(model.calls[1:], ("ABC", "ABCD"), strict=True):
        results = [message.text for message in call if message.type == "tool"]
        assert len(results) == len(titles)
        assert all("[cut " in result for result in results)
        assert ("human", "read to me") in seen(call)


async def test_a_huge_question_is_cut_with_a_mark(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(10))
    model = ScriptedModel([adding(), "done"])
    agent = make_agent(model, [SessionMemory(small_memory, max_tokens=300)], [add], system_prompt="be kind")
    await ask(agent, HUGE)
    check(model, 300)
    assert model.calls[0][1].text.endswith(CUT_MARK)
    assert [message.type for message in model.calls[1]] == ["system", "human", "ai", "tool"]
    assert (await kept(small_memory))[-2:] == [("user", HUGE), ("assistant", "done")]


async def test_a_huge_stored_message_does_not_exceed_the_budget(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append([*numbered(2), Message(role="user", content=HUGE)])
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [SessionMemory(small_memory, max_tokens=300)]), "and now?")
    check(model, 300)
    [(_, cut), question] = seen(model.calls[0])
    assert cut.startswith(HUGE[:100])
    assert cut.endswith(CUT_MARK)
    assert question == ("human", "and now?")


async def test_a_system_prompt_over_the_budget_is_an_error(small_memory: Memory) -> None:
    """The error names the budget, no model is called, and the question is stored."""
    model = ScriptedModel(["never"])
    agent = make_agent(model, [SessionMemory(small_memory, max_tokens=50)], system_prompt="be kind " * 200)
    with pytest.raises(BudgetTooSmall, match="50"):
        await ask(agent, "hi")
    assert model.calls == []
    assert await kept(small_memory) == [("user", "hi")]


async def test_the_budget_is_counted_by_the_counter_in_use(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append([m.with_fields(content=f"{m.content} " + "x" * 90) for m in numbered(20)])
    for counter, budget in (("chars4", 100), (len, 400), (chars4, 100)):
        model = ScriptedModel(["fine"])
        await ask(make_agent(model, [SessionMemory(small_memory, max_tokens=budget, counter=counter)]), "and now?")
        used = chars4 if counter == "chars4" else counter
        assert not isinstance(used, str)
        assert budget - 110 < sum(used(message.text) for message in model.calls[0]) <= budget


async def test_messages_of_a_checkpointed_state_count_too(small_memory: Memory) -> None:
    model = ScriptedModel(itertools.cycle([adding(), "word " * 30]))
    limits = SessionMemory(small_memory, max_messages=4, max_tokens=200)
    agent = make_agent(model, [limits], [add], checkpointer=InMemorySaver())
    for n in range(8):
        await ask(agent, f"question {n} " + "word " * 20)
    check(model, 200)
    assert all(sum(m.type == "human" for m in call) <= 3 for call in model.calls)


@pytest.mark.parametrize("max_tokens", [None, 0])
async def test_the_message_limit_applies_without_a_budget(small_memory: Memory, max_tokens: int | None) -> None:
    model = ScriptedModel(itertools.repeat("fine"))
    limits = SessionMemory(small_memory, max_messages=4, max_tokens=max_tokens)
    agent = make_agent(model, [limits], checkpointer=InMemorySaver())
    for n in range(6):
        await ask(agent, f"question {n}")
    assert len(model.calls[-1]) == (5 if max_tokens is None else 1)
    assert seen(model.calls[-1])[-1] == ("human", "question 5")


async def test_displaced_history_is_counted(small_memory: Memory, events: RecordedEvents) -> None:
    """Events count the history that tool results displaced, and report its truncation once per turn."""
    await small_memory.session(ROOM).append(
        [m.with_fields(content=f"{m.content} " + "word " * 20) for m in numbered(4)]
    )
    model = ScriptedModel([reading("A"), reading("B"), "done"])
    await ask(make_agent(model, [SessionMemory(small_memory, max_tokens=300)], [read_book]), "read to me")
    assert [event.dropped for event in events.of(ContextBuilt)] == [0, 4, 4]
    assert [event.tokens for event in events.of(ContextBuilt)] == [count_tokens(call) for call in model.calls]
    assert [event.dropped for event in events.of(HistoryTruncated)] == [4]


words = st.text(st.sampled_from("ab 中文🎉é\n"), max_size=400)


@given(
    history=st.lists(words, max_size=12),
    question=words.filter(str.strip),
    results=st.lists(st.integers(0, 3000), max_size=3),
    budget=st.integers(60, 600),
)
@pytest.mark.slow
async def test_no_conversation_is_sent_over_its_budget(
    history: list[str], question: str, results: list[int], budget: int
) -> None:
    @tool
    def measure(size: int) -> str:
        """Say many words."""
        return "word " * size

    calls = [
        AIMessage("", tool_calls=[{"name": "measure", "args": {"size": size}, "id": f"call-{n}"}])
        for n, size in enumerate(results)
    ]
    async with open_memory("sqlite://") as memory:
        if history:
            await memory.session(ROOM).append([Message(role="user", content=text) for text in history])
        model = ScriptedModel([*calls, "done"])
        agent = make_agent(model, [SessionMemory(memory, max_tokens=budget)], [measure], system_prompt="be kind")
        await agent.ainvoke({"messages": [HumanMessage(question)]}, config_of())
        check(model, budget)
        assert len(model.calls) == len(results) + 1
