"""Tests of recorded graphs in tools, in other recorded graphs, and beside agents with memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import config_of, input_of
from tests.agent.test_several_agents import in_line, said, writer
from threadkeep import Memory, SessionMemory, recorded
from threadkeep.errors import MiddlewareWarning
from threadkeep.testing import ScriptedModel


def team_of(memory: Memory, model: ScriptedModel) -> Any:
    """Return a recorded graph of one agent without memory."""
    return recorded(create_agent(model, [], name="team"), memory)


async def test_a_tool_asks_a_recorded_graph(small_memory: Memory) -> None:
    asked = ScriptedModel(["rainy"])
    team = team_of(small_memory, asked)

    @tool
    async def ask_team(question: str) -> str:
        """Ask."""
        return str((await team.ainvoke({"messages": [("user", question)]}))["messages"][-1].text)

    call = AIMessage("", tool_calls=[{"name": "ask_team", "args": {"question": "weather?"}, "id": "c"}])
    agent: Any = create_agent(
        ScriptedModel([call, "done"]), [ask_team], middleware=[SessionMemory(small_memory)], name="main"
    )
    await agent.ainvoke(input_of("q"), config_of())
    assert await said(small_memory) == [(None, "q"), ("main", "done")]
    assert [message.text for message in asked.calls[0]] == ["weather?"]


async def test_a_recorded_graph_in_a_recorded_graph_is_one_turn(small_memory: Memory) -> None:
    model = ScriptedModel(["one", "two"])
    graph = recorded(in_line(team_of(small_memory, model)), small_memory)
    for words in ("q1", "q2"):
        await graph.ainvoke(input_of(words), config_of())
    assert await said(small_memory) == [(None, "q1"), ("team", "one"), (None, "q2"), ("team", "two")]
    assert [message.text for message in model.calls[1]] == ["q1", "one", "q2"]


async def test_no_turn_begins_between_the_agents_of_a_recorded_graph(small_memory: Memory) -> None:
    replies = iter(range(100))

    async def reply(_: Any) -> str:
        await asyncio.sleep(0)
        return f"reply {next(replies)}"

    agents = [
        create_agent(ScriptedModel([reply] * 3), [], middleware=[SessionMemory(small_memory)], name=name)
        for name in ("w", "c")
    ]
    graph = recorded(in_line(*agents), small_memory)
    await asyncio.gather(*(graph.ainvoke(input_of(f"q{number}"), config_of()) for number in range(3)))
    assert [author for author, _ in await said(small_memory)] == [None, "w", "c"] * 3


async def test_a_question_that_an_inner_agent_redacts_is_stored_redacted(small_memory: Memory) -> None:
    model = ScriptedModel(["ok", "yes"])
    agent = create_agent(model, [], middleware=[PIIMiddleware("email")], name="s")
    graph = recorded(in_line(agent), small_memory)
    await graph.ainvoke(input_of("mail a@b.co"), config_of())
    await graph.ainvoke(input_of("again"), config_of())
    assert [text for _, text in await said(small_memory)] == ["mail [REDACTED_EMAIL]", "ok", "again", "yes"]
    assert [message.text for message in model.calls[1]] == ["mail [REDACTED_EMAIL]", "ok", "again"]


@pytest.mark.parametrize("place", ["graph", "node"])
async def test_a_graph_with_retries_is_recorded_as_the_graph_itself(memory: Memory, place: str) -> None:
    """The checkpointer and the `PIIMiddleware` of a graph that `with_retry` wraps are found."""
    model = ScriptedModel([ConnectionError("down"), "ok", "yes"])
    saver = InMemorySaver() if place == "graph" else None
    agent = create_agent(model, [], middleware=[PIIMiddleware("email")], name="s", checkpointer=saver)
    retried = agent.with_retry(wait_exponential_jitter=False)
    graph = recorded(retried if saver else in_line(retried), memory)
    await graph.ainvoke(input_of("mail a@b.co"), config_of())
    state = await graph.ainvoke(input_of("again"), config_of())
    texts = ["mail [REDACTED_EMAIL]", "ok", "again", "yes"]
    assert [text for _, text in await said(memory)] == texts
    assert [message.text for message in model.calls[-1]] == texts[:3]
    assert [message.text for message in state["messages"]] == (texts if saver else texts[2:])


async def test_a_question_of_blocks_is_stored_redacted(memory: Memory) -> None:
    agent = create_agent(ScriptedModel(["ok"]), [], middleware=[PIIMiddleware("email")], name="s")
    blocks: list[str | dict[str, Any]] = ["a@b.co ", {"type": "text", "text": "c@d.co"}, {"type": "image", "url": "x"}]
    await recorded(agent, memory).ainvoke({"messages": [HumanMessage(blocks)]}, config_of())
    question, _ = await said(memory)
    assert question == (None, "[REDACTED_EMAIL] [REDACTED_EMAIL]\n[image]")


async def test_a_custom_detector_causes_a_warning(small_memory: Memory) -> None:
    own = PIIMiddleware("badge", detector=r"B-\d+")
    with pytest.warns(MiddlewareWarning, match="badge"):
        recorded(create_agent(ScriptedModel([]), [], middleware=[own]), small_memory)


async def test_an_agent_after_a_recorded_graph_answers_too(small_memory: Memory) -> None:
    graph = in_line(team_of(small_memory, ScriptedModel(["first"])), writer(small_memory, "second"))
    state = await graph.ainvoke(input_of("q"), config_of())
    assert state["messages"][-1].text == "second"
    assert await said(small_memory) == [(None, "q"), ("team", "first"), ("writer", "second")]


async def test_a_recorded_graph_between_agents_takes_part_in_their_turn(small_memory: Memory) -> None:
    """The agent after it has the author of the agent before it, and answers too."""
    model = ScriptedModel(["remark 1", "remark 2"])
    drafts = ("draft 1", "draft 2"), ("final 1", "final 2")
    graph = in_line(writer(small_memory, *drafts[0]), team_of(small_memory, model), writer(small_memory, *drafts[1]))
    for words in ("q1", "q2"):
        await graph.ainvoke(input_of(words), config_of())
    turns = [
        [(None, f"q{turn}"), ("writer", f"draft {turn}"), ("team", f"remark {turn}"), ("writer", f"final {turn}")]
        for turn in (1, 2)
    ]
    assert await said(small_memory) == [*turns[0], *turns[1]]
    assert [message.text for message in model.calls[1]] == ["q1", "draft 1", "remark 1", "final 1", "q2", "draft 2"]
