"""Tests of large tool calls, results and images within a turn: they are cut with a mark, never dropped silently."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from tests.agent.context_laws import sent_calls
from tests.agent.shared_beginnings import told
from tests.agent.talking import ROOM, ask, config_of, make_agent, numbered
from threadkeep import BudgetTooSmall, Memory, SessionMemory, count_tokens, open_memory, rebuild
from threadkeep.testing import ScriptedModel

pytestmark = pytest.mark.slow

IMAGE: dict[str, object] = {"type": "image", "base64": "iVBORw0KGgo" * 40, "mime_type": "image/png"}


@tool
def use(name: str, size: int, note: str = "") -> str:
    """Answer with so many words."""
    return f"{name}: " + "word " * size


@tool
def show(images: int) -> list[dict[str, object]]:
    """Show images."""
    return [{"type": "text", "text": "here: "}, *[IMAGE] * images]


def using(name: str, size: int, note: str = "") -> AIMessage:
    """Return a message that calls `use`."""
    return AIMessage("", tool_calls=[{"name": "use", "args": {"name": name, "size": size, "note": note}, "id": name}])


def forgetful(steps: Mapping[str, AIMessage]) -> Callable[[Sequence[BaseMessage]], AIMessage | str]:
    """Return a model function that makes each call until the messages contain its result."""

    def reply(messages: Sequence[BaseMessage]) -> AIMessage | str:
        answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
        called = {c["id"] for message in messages if isinstance(message, AIMessage) for c in message.tool_calls}
        return next((step for name, step in steps.items() if name not in answered & called), "done")

    return reply


async def loop(memory: Memory, steps: Sequence[AIMessage], max_tokens: int = 4_000) -> ScriptedModel:
    """Run a turn of a forgetful agent and return its model."""
    known = {str(step.tool_calls[0]["id"]): step for step in steps}
    model = ScriptedModel(itertools.repeat(forgetful(known), 2 * len(steps) + 2))
    agent = make_agent(model, [SessionMemory(memory, max_tokens=max_tokens)], [use, show], system_prompt="Be brief.")
    await ask(agent, "Use your tools.")
    return model


async def test_a_huge_result_is_sent_in_part_beside_later_ones(small_memory: Memory) -> None:
    model = await loop(small_memory, [using("fetch", 20_000), using("reckon", 1)])
    assert len(model.calls) == 3
    fetched, reckoned = (message for message in model.calls[2] if isinstance(message, ToolMessage))
    assert fetched.text.startswith("fetch: word")
    assert "… [cut 9" in fetched.text
    assert reckoned.text == "reckon: word "
    assert 1_500 < count_tokens(fetched) < 2_500


@given(
    sizes=st.lists(st.sampled_from((0, 20, 300, 3_000, 30_000)), min_size=1, max_size=6),
    notes=st.lists(st.sampled_from((0, 0, 10, 6_000)), min_size=6, max_size=6),
    budget=st.sampled_from((400, 1_000, 4_000)),
)
async def test_an_agent_that_repeats_invisible_calls_ends(sizes: list[int], notes: list[int], budget: int) -> None:
    """Each call and result stays visible, so that an agent that repeats invisible calls ends."""
    steps = [using(f"t{n}", size, "as said " * note) for n, (size, note) in enumerate(zip(sizes, notes, strict=False))]
    async with open_memory("sqlite://") as memory:
        model = await loop(memory, steps, budget)
        assert len(model.calls) == len(steps) + 1
        for sent in await sent_calls(memory, model.calls, ROOM):
            assert count_tokens(sent.messages) == sent.manifest.tokens <= budget


async def test_cut_results_stay_unchanged_in_later_calls(small_memory: Memory) -> None:
    """Cut results stay unchanged in later calls, so that a provider's cache can be used."""
    sizes = [30_000, *[40, 600, 10, 250, 80, 5_000, 90, 30] * 5]
    model = await loop(small_memory, [using(f"t{n}", size) for n, size in enumerate(sizes)])
    pairs = [(told(before[:-2]), told(after)) for before, after in itertools.pairwise(model.calls[1:])]
    assert sum(after[: len(before)] == before for before, after in pairs) / len(pairs) > 0.8


async def test_long_arguments_of_a_call_are_cut_in_the_middle(small_memory: Memory) -> None:
    said = using("book", 1, "one " + "word " * 9_000 + "end")
    model = await loop(small_memory, [said])
    call = model.calls[1][-2]
    assert isinstance(call, AIMessage)
    args = call.tool_calls[0]["args"]
    assert (args["name"], args["size"]) == ("book", 1)
    assert args["note"].startswith("one word")
    assert "… [cut " in args["note"]
    assert args["note"].endswith("word end")
    *_, sent = await sent_calls(small_memory, model.calls, ROOM)
    entry = sent.manifest.entries[-2]
    assert entry.tokens < (entry.tokens_before or 0)
    assert sent.manifest.tokens > 3_900
    assert await rebuild(sent.manifest, small_memory) == model.calls[1]


async def test_images_over_the_budget_are_replaced_by_marks(small_memory: Memory) -> None:
    """Images over the budget are replaced by marks, oldest first, and text beside them stays."""
    showing = AIMessage("", tool_calls=[{"name": "show", "args": {"images": 5}, "id": "s"}])
    model = await loop(small_memory, [showing])
    mark = {"type": "text", "text": "[image left out]"}
    assert model.calls[1][-1].content[1:] == [mark, mark, IMAGE, IMAGE, IMAGE]

    model = ScriptedModel(["nice"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    question = HumanMessage([{"type": "text", "text": "look at these"}, *[IMAGE] * 5], id="q")
    await agent.ainvoke({"messages": [question]}, config_of("other"))
    assert model.calls[0][-1].text == "look at these" + "[image left out]" * 2
    [sent] = await sent_calls(small_memory, model.calls, "other")
    assert sent.manifest.entries[-1].tokens_before == count_tokens(question)
    assert await rebuild(sent.manifest, small_memory) == model.calls[0]


async def test_history_dropped_during_a_turn_is_back_in_the_next(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(6))
    model = await loop(small_memory, [using("fetch", 20_000), using("reckon", 1), using("reckon-2", 1)])
    assert [len(call) for call in model.calls] == [8, 4, 6, 8]
    after = ScriptedModel(["so"])
    await ask(make_agent(after, [SessionMemory(small_memory)], system_prompt="Be brief."), "and then?")
    assert len(after.calls[0]) == 10


async def test_a_call_that_cannot_be_short_enough_is_an_error(small_memory: Memory) -> None:
    with pytest.raises(BudgetTooSmall, match=r"newest tool call and its results need at least \d+ tokens"):
        await loop(small_memory, [using("a" * 400, 1)], 12)
