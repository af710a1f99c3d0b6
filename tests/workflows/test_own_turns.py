"""Tests of what is stored in an agent's own conversation, also if a run fails or is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage

from tests.agent.context_laws import check_shape
from tests.workflows.desk import Desk, spoken
from tests.workflows.test_agent_history import BOT, said_in, telegram
from threadkeep import InvalidKey, InvalidWorkflow
from threadkeep.agent.provider_messages import OPENING
from threadkeep.observe import KeyResolutionFailed
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.loading import read_workflow

KEY = "telegram:b:7"
CHAT = telegram(bot_id="b", chat_id=7)


async def test_an_appended_message_enters_the_own_conversation(desk: Desk) -> None:
    """An appended message is stored once and is in the agent's next context.

    Without a key it is refused and reported.
    """
    news = "schema: 1\nname: news\nnodes:\n  tell: {kind: append_message, text: 'News: {{inputs.news}}', %s next: end}"
    desk.use(BOT % "", news % "use_graph_chat_history: true,")
    context = desk.context("news", trigger="schedule")
    for _ in range(2):
        await desk.run("news", context=context, inputs={"news": "we are open"}, results=CHAT)
    await desk.run("bot", "Really?", results=CHAT)
    assert spoken(desk.model.calls[0]) == [("human", OPENING), ("ai", "News: we are open"), ("human", "Really?")]
    with pytest.raises(InvalidKey, match="not a valid key in this run"):
        await desk.run("news", inputs={"news": "x"}, trigger="schedule")
    assert len(desk.events.of(KeyResolutionFailed)) == 1
    with pytest.raises(InvalidWorkflow, match="leave one out"):
        desk.use(news % "use_graph_chat_history: true, session: room,")


async def test_only_messages_and_answers_are_stored(desk: Desk) -> None:
    """The user message and the final answer are stored once, without the prompt, tool results or errors."""
    call = AIMessage("", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])
    desk.model = ScriptedModel([ValueError("no"), call, "It is on its way.", "You are welcome."])
    desk.use(BOT % ", system_prompt: Be kind., tools: ['tests.workflows.tools:both']")
    with pytest.raises(ValueError, match="no"):
        await desk.run("bot", "Where is 7?", results=CHAT, message_id="telegram:1")
    assert [text for _, _, text in await said_in(desk.store, KEY)] == ["Where is 7?"]
    await desk.run("bot", "Where is 7?", results=CHAT, message_id="telegram:1")
    await desk.run("bot", "Thanks", results=CHAT, message_id="telegram:2")
    kept = await said_in(desk.store, KEY)
    assert [text for _, _, text in kept] == ["Where is 7?", "It is on its way.", "Thanks", "You are welcome."]
    assert [text for role, text in spoken(desk.model.calls[-1])[1:] if role in ("human", "ai") and text] == [
        "Where is 7?",
        "It is on its way.",
        "Thanks",
    ]


async def test_a_conversation_continues_after_a_cancelled_run(desk: Desk) -> None:
    """After a cancelled run, the next model call has no tool call without a result."""
    call = AIMessage("One moment.", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])
    gate = Gate()
    desk.model = ScriptedModel([call, gate, "Hello again."])
    desk.use(BOT % ", tools: ['tests.workflows.tools:both']")
    running = asyncio.create_task(desk.run("bot", "Hi", results=CHAT, message_id="telegram:1"))
    await gate.reached()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await desk.run("bot", "Hello?", results=CHAT, message_id="telegram:2")
    assert spoken(desk.model.calls[-1])[-1] == ("human", "Hello?")
    check_shape(desk.model.calls[-1])
    assert [seq for seq, _, _ in await said_in(desk.store, KEY)] == list(
        range(1, len(await said_in(desk.store, KEY)) + 1)
    )


@pytest.mark.parametrize("history", ["", ", use_graph_chat_history: true"])
async def test_the_history_tools_search_the_agents_own_conversation(desk: Desk, history: str) -> None:
    """The history tools search the run's session or the agent's own conversation, and no other."""
    look = [("read_history", {"from_seq": 1, "to_seq": 2}), ("search_history", {"query": "order"})]
    calls = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"c{n}"}]) for n, (name, args) in enumerate(look)
    ]
    desk.model = ScriptedModel(["Well.", "Hello.", *calls, "It was 4711."])
    desk.use((BOT % ", history_tools: true, max_messages: 0").replace(", use_graph_chat_history: true", history))
    asked = [("My order is 4711", 7), ("My order is 815", 8), ("Which was it?", 7)]
    for text, chat_id in asked:
        results = telegram(bot_id="b", chat_id=chat_id)
        await desk.run("bot", text, results=results, trigger="webhook", session_id=f"room:{chat_id}")
    told = str([message.text for message in desk.model.calls[-1] if message.type == "tool"])
    assert told.count("My order is 4711") == 2
    assert "815" not in told


@pytest.mark.parametrize("kind", ["agent", "model"])
def test_a_reply_without_room_for_a_prompt_is_refused_when_the_workflow_is_read(kind: str) -> None:
    """The error names the numbers."""
    node = f"{{kind: {kind}, model: openai:gpt-4-0613, max_output_tokens: 8000, next: end}}"
    with pytest.raises(InvalidWorkflow, match=r"8,?192.*8,?000"):
        read_workflow(f"schema: 1\nname: one\nnodes:\n  answer: {node}")
