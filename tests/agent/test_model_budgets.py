"""Tests of the default budget of an agent, which depends on its model's context window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from tests.agent.talking import ROOM, add, ask, config_of, make_agent, numbered
from threadkeep import (
    ContextManifest,
    Memory,
    Message,
    SessionMemory,
    TurnOptions,
    input_budget,
    memory_node,
    session_turn,
)
from threadkeep.agent.call_measure import tools_text
from threadkeep.testing import ScriptedModel
from threadkeep.testing.scripted import Reply


class Named(ScriptedModel):
    """A model with a name."""

    model_name: str = "gpt-4o"

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        super().__init__(replies)


async def manifest_of(memory: Memory) -> ContextManifest:
    """Return the manifest of the newest call."""
    return ContextManifest.from_dict((await memory.manifests.of_session(ROOM))[0].manifest)


@pytest.mark.parametrize(
    ("name", "profile", "options", "budget"),
    [
        ("gpt-4o", None, {}, input_budget("gpt-4o")),
        ("anthropic/claude-sonnet-5", None, {}, input_budget("claude-sonnet-5")),
        ("gpt-4o", {"max_input_tokens": 32_000}, {}, 23_488),
        ("my-model", {"max_input_tokens": 32_000}, {}, 23_488),
        ("my-model", None, {}, 4_000),
        ("my-model", None, {"context_window": 32_000}, 23_488),
        ("my-model", None, {"context_window": 4_000}, 2_488),
        ("gpt-4o", None, {"max_output_tokens": 100_000}, 28_000 - 512),
        ("gpt-4o", None, {"max_tokens": 1_000}, 1_000),
        ("gpt-4o", None, {"max_tokens": None}, input_budget("gpt-4o")),
        ("my-model", None, {"max_tokens": None}, input_budget(None)),
    ],
)
async def test_the_budget_is_what_the_model_allows(
    sqlite_memory: Memory, name: str, profile: Any, options: dict[str, Any], budget: int
) -> None:
    """The budget depends on the model's profile, then its name; otherwise it is 4,000 tokens."""
    model = Named(["fine"])
    model.model_name, model.profile = name, profile
    await ask(make_agent(model, [SessionMemory(sqlite_memory, **options)]), "hi")
    assert (await manifest_of(sqlite_memory)).budget == budget


async def test_tool_definitions_are_subtracted_from_the_budget(sqlite_memory: Memory) -> None:
    agent = make_agent(Named(["fine"]), [SessionMemory(sqlite_memory, counter="chars4")], [add])
    await ask(agent, "hi")
    manifest = await manifest_of(sqlite_memory)
    assert manifest.tools == len(tools_text([add])) // 4
    assert manifest.budget == input_budget("gpt-4o") - manifest.tools


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, 20),
        ({"max_messages": 22}, 22),
        ({"max_tokens": 2_000}, 30),
        ({"max_messages": 22, "max_tokens": 2_000}, 22),
        ({"max_messages": None}, 30),
        ({"max_messages": "auto", "max_tokens": "auto"}, 20),
    ],
)
async def test_twenty_messages_unless_a_limit_is_given(
    sqlite_memory: Memory, options: dict[str, Any], seen: int
) -> None:
    """Without limits a call has 20 messages; giving one limit disables the default of the other."""
    await sqlite_memory.session(ROOM).append(numbered(30))
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [SessionMemory(sqlite_memory, **options)]), "and now?")
    assert len(model.calls[0]) == seen + 1


async def test_a_model_with_a_large_window_receives_long_messages_uncut(memory: Memory) -> None:
    said = [Message(role=one.role, content=f"{one.content} " + "word " * 1_000) for one in numbered(20)]
    await memory.session(ROOM).append(said)
    model = Named(["fine"])
    await ask(make_agent(model, [SessionMemory(memory)]), "and now?")
    assert [message.text for message in model.calls[0][:-1]] == [message.content for message in said]


async def test_nodes_have_the_same_defaults(sqlite_memory: Memory) -> None:
    """A `memory_node` uses its model's budget; `session_turn` uses that of the given model."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chat", memory_node(sqlite_memory, Named(["fine"])))
    graph.add_edge(START, "chat")
    await graph.compile().ainvoke({"messages": [HumanMessage("hi")]}, config_of())
    assert (await manifest_of(sqlite_memory)).budget == input_budget("gpt-4o")
    for model, budget in ((None, 4_000), (Named(), input_budget("gpt-4o"))):
        async with session_turn(sqlite_memory, [HumanMessage("and now?")], config_of()) as turn:
            await turn.messages(model=model)
            turn.answer(AIMessage("fine"))
        assert (await manifest_of(sqlite_memory)).budget == budget


def test_recalled_text_has_a_share_of_a_limited_budget() -> None:
    """Recalled text has a share of a limited common budget, so that it does not fill a huge window."""
    plan = TurnOptions().plan
    assert plan.rooms(1_000_000, 50_000, ["selected"], shared=16_000) == {"selected": 4_000}
    assert plan.rooms(1_000_000, 50_000, ["selected"]) == {"selected": 700_000}
    assert plan.rooms(4_000, 100, ["selected"], shared=16_000) == {"selected": 2_900}
