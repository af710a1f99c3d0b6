"""Tests of the anchored window: most calls begin with the previous call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool

from tests.agent.context_laws import check_coverage, check_shape, rows_of, sent_calls
from tests.agent.shared_beginnings import shared_beginnings, told, up_to_input
from tests.agent.talking import ROOM, ask, config_of, make_agent, numbered
from threadkeep import (
    BudgetTooSmall,
    ContextManifest,
    Memory,
    MemoryOptions,
    Message,
    RecalledTurns,
    SessionMemory,
    count_tokens,
    open_memory,
)
from threadkeep.agent.provider_messages import OPENING
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.manifest import WindowKind
from threadkeep.context.window import Exclusion
from threadkeep.records import Role, Summary
from threadkeep.testing import ScriptedModel

pytestmark = pytest.mark.slow

TURNS = 200
ENOUGH = 0.85
ENOUGH_WITH_STEPS = 0.7


@tool
def look_up(term: str) -> str:
    """Look something up."""
    return f"{term}: " + "many words here " * 33


def looking_up(number: int) -> AIMessage:
    """Return a message that calls `look_up` one to three times."""
    terms = [f"{number}-{n}" for n in range(1 + number % 3)]
    return AIMessage("", tool_calls=[{"name": "look_up", "args": {"term": term}, "id": term} for term in terms])


def replies(*, with_tools: bool = False) -> Iterator[str | AIMessage]:
    """Yield answers of 20 to 119 words without end, each after tool calls if `with_tools` is set."""
    for number in itertools.count():
        if with_tools:
            yield looking_up(number)
        yield f"answer {number} " + "word " * (20 + 37 * number % 100)


def question(number: int) -> str:
    """Return a question of 5 to 34 words."""
    return f"question {number} " + "and " * (5 + 11 * number % 30)


async def talk(memory: Memory, limits: SessionMemory, turns: range, *, with_tools: bool = False) -> ScriptedModel:
    """Run the turns of an agent and return its model."""
    model = ScriptedModel(replies(with_tools=with_tools))
    agent = make_agent(model, [limits], [look_up], system_prompt="Be brief.")
    for number in turns:
        await ask(agent, question(number))
    return model


@pytest.mark.parametrize(
    ("max_messages", "with_tools", "tool_memory", "enough"),
    [(None, False, 1, ENOUGH), (20, False, 1, ENOUGH), (None, True, 0, ENOUGH), (20, True, 1, ENOUGH_WITH_STEPS)],
)
async def test_calls_begin_with_the_call_before(
    small_memory: Memory, max_messages: int | None, with_tools: bool, tool_memory: int, enough: float
) -> None:
    """At least 85 of 100 calls begin with the previous call, within a turn and between turns.

    If steps take a third of their share, every third turn drops the older steps.
    """
    limits = SessionMemory(small_memory, max_messages=max_messages, tool_memory=tool_memory)
    turns = range(TURNS // 2 if with_tools else TURNS)
    model = await talk(small_memory, limits, turns, with_tools=with_tools)
    assert len(model.calls) >= TURNS
    assert shared_beginnings(model.calls) >= enough


async def test_a_sliding_window_changes_the_beginning_of_each_call(small_memory: Memory) -> None:
    model = await talk(small_memory, SessionMemory(small_memory, max_messages=20, window="sliding"), range(60))
    assert shared_beginnings(model.calls[20:]) == 0


async def test_recalled_turns_do_not_change_the_beginning_of_calls(small_memory: Memory) -> None:
    limits = SessionMemory(small_memory, max_messages=None, sources=[RecalledTurns(small_memory)])
    model = await talk(small_memory, limits, range(TURNS))
    assert sum(len(told(call)) > len(up_to_input(call)) for call in model.calls) > TURNS // 2
    assert shared_beginnings(model.calls) >= ENOUGH


async def test_a_summary_changes_the_beginning_of_calls_once(small_memory: Memory) -> None:
    limits = SessionMemory(small_memory, max_messages=None)
    model = ScriptedModel(replies())
    agent = make_agent(model, [limits], system_prompt="Be brief.")
    covered = 0
    for number in range(TURNS):
        await ask(agent, question(number))
        begin = (await newest_manifest(small_memory)).anchor_seq if number % 25 == 24 else 0
        if begin > covered + 1:
            text = f"They spoke of {covered + 1} to {begin - 1}."
            await small_memory.summaries.add(Summary(ROOM, covered + 1, begin - 1, text, "by hand", "1", 8))
            covered = begin - 1
    assert covered > TURNS
    assert shared_beginnings(model.calls) >= ENOUGH


async def newest_manifest(memory: Memory) -> ContextManifest:
    """Return the manifest of the newest call of the session."""
    [stored] = await memory.manifests.of_session(ROOM, limit=1)
    return ContextManifest.from_dict(stored.manifest)


async def test_another_process_uses_the_stored_anchor(shared_url: str, memory_options: MemoryOptions) -> None:
    calls: list[Sequence[BaseMessage]] = []
    for first in range(0, 48, 4):
        async with open_memory(shared_url, options=memory_options) as memory:
            model = await talk(memory, SessionMemory(memory), range(first, first + 4))
            calls += model.calls
    assert shared_beginnings(calls) >= ENOUGH - 0.03
    assert shared_beginnings(calls[20:]) > 0.5


async def test_after_a_reset_the_window_has_nothing_older(memory: Memory) -> None:
    limits = SessionMemory(memory)
    await talk(memory, limits, range(15))
    assert (await newest_manifest(memory)).anchor_seq > 1
    await memory.session(ROOM).reset()
    model = await talk(memory, limits, range(15, 20))
    assert [len(call) for call in model.calls] == [2, 4, 6, 8, 10]
    assert shared_beginnings(model.calls) == 1
    assert (await newest_manifest(memory)).anchor_seq == 31


async def test_agents_with_other_limits_have_windows_of_their_own(memory: Memory) -> None:
    models = [ScriptedModel(itertools.repeat("an answer")) for _ in range(2)]
    large, small = (
        make_agent(model, [SessionMemory(memory, max_messages=limit)])
        for model, limit in zip(models, (None, 12), strict=True)
    )
    for number in range(16):
        await ask(large, question(number))
        await ask(small, question(number))
    assert [len(call) for call in models[0].calls] == list(range(1, 65, 4))
    sizes = [len(call) for call in models[1].calls]
    assert max(sizes) == 13
    assert shared_beginnings(models[1].calls) > 0.5


async def test_concurrent_turns_send_valid_calls_and_only_advance_the_anchor(memory: Memory) -> None:
    limits = SessionMemory(memory, max_messages=10, max_tokens=600)
    model = ScriptedModel(itertools.repeat("an answer of a few words"))
    agent = make_agent(model, [limits])
    anchors = [0]
    for round_ in range(3):
        await asyncio.gather(*(ask(agent, question(8 * round_ + number)) for number in range(8)))
        state = await memory.contexts.state(ROOM, "10/600")
        anchors.append(state.anchor_seq)
    rows = await rows_of(memory, ROOM)
    assert len(rows) == 48
    for manifest in [ContextManifest.from_dict(m.manifest) for m in await memory.manifests.of_session(ROOM, limit=99)]:
        assert manifest.tokens <= 600
        check_coverage(manifest, rows)
    for call in model.calls:
        check_shape(call)
    assert anchors == sorted(anchors)
    assert anchors[-1] > 1


@tool
def read_book(title: str) -> str:
    """Read a whole book aloud."""
    return f"{title}: " + "a long story " * 4_000


async def test_a_huge_result_removes_history_from_its_own_turn_only(memory: Memory) -> None:
    limits = SessionMemory(memory, max_messages=None)
    before = await talk(memory, limits, range(10))
    reading = AIMessage("", tool_calls=[{"name": "read_book", "args": {"title": "A"}, "id": "call-1"}])
    model = ScriptedModel([reading, "read", "and so on"])
    agent = make_agent(model, [limits], [read_book], system_prompt="Be brief.")
    await ask(agent, "read to me")
    await ask(agent, "and then?")
    first, cut, after = model.calls
    assert len(cut) < len(first)
    assert told(after)[: len(first)] == told(first)
    assert told(first)[: len(before.calls[-1])] == told(before.calls[-1])
    assert (await newest_manifest(memory)).anchor_seq == 0


@pytest.mark.parametrize("window", ["anchored", "sliding"])
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("later", [0, 1, 2])
async def test_a_huge_message_does_not_empty_the_window(
    small_memory: Memory, window: WindowKind, role: Role, later: int
) -> None:
    """The window contains part of a huge newest message, with a mark, and grows again after it."""
    said = [Message("user", "hi"), Message("assistant", "hello"), Message(role, "huge " * 20_000)]
    await small_memory.session(ROOM).append([*said, *(Message("assistant", "well") for _ in range(later))])
    model = ScriptedModel(itertools.repeat("fine"))
    agent = make_agent(model, [SessionMemory(small_memory, window=window)], system_prompt="Be brief.")
    for number in range(3):
        await ask(agent, question(number))
    assert all(len(call) > 2 for call in model.calls)
    first = next(message.text for message in model.calls[0] if message.text not in ("Be brief.", OPENING))
    assert first.endswith(CUT_MARK) == (later == 0)
    for sent in await sent_calls(small_memory, model.calls, ROOM):
        assert count_tokens(sent.messages) == sent.manifest.tokens <= 4000


async def test_a_summary_is_excluded_before_a_call_fails(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append([Message("user", "hi"), Message("assistant", "hello")])
    await small_memory.summaries.add(Summary(ROOM, 1, 2, "They greeted each other. " * 20, "by hand", "1", 100))
    for budget, works in ((12, True), (3, False)):
        model = ScriptedModel(["fine"])
        agent = make_agent(model, [SessionMemory(small_memory, max_tokens=budget)], system_prompt="Be very brief now.")
        if not works:
            with pytest.raises(BudgetTooSmall, match="raise the budget"):
                await ask(agent, "and now?")
            continue
        await ask(agent, "and now?")
        [sent] = await sent_calls(small_memory, model.calls, ROOM)
        assert [entry.section for entry in sent.manifest.entries] == ["system", "input"]
        assert sent.manifest.excluded == (Exclusion(1, 2, "over_budget"),)


@pytest.mark.parametrize(("max_messages", "max_tokens", "earlier"), [(0, None, 0), (2, None, 2), (None, 0, 0)])
async def test_a_question_in_several_messages_is_sent_whole(
    small_memory: Memory, max_messages: int | None, max_tokens: int | None, earlier: int
) -> None:
    await small_memory.session(ROOM).append(numbered(6))
    model = ScriptedModel([looking_up(0), "found"])
    limits = SessionMemory(small_memory, max_messages=max_messages, max_tokens=max_tokens)
    agent = make_agent(model, [limits], [look_up])
    question = [HumanMessage("look at this:"), HumanMessage("the shelf"), HumanMessage("what is on it?")]
    await agent.ainvoke({"messages": question}, config_of())
    for sent in await sent_calls(small_memory, model.calls, ROOM):
        texts = [str(message.text) for message in sent.messages]
        start = texts.index("look at this:")
        assert texts[start : start + 3] == ["look at this:", "the shelf", "what is on it?"]
        assert start == earlier
        assert [entry.seq for entry in sent.manifest.entries if entry.section == "input"] == [7, 8, 9]
        check_coverage(sent.manifest, await rows_of(small_memory, ROOM))
