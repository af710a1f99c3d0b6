"""Tests of the tool calls of earlier turns in the context of an agent, in a session and in its own conversation."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.store.base import BaseStore

from tests.recorded_events import RecordedEvents
from tests.workflows.desk import Desk
from tests.workflows.test_agent_history import HISTORY, telegram
from threadkeep import InvalidWorkflow, Memory
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.loading import read_workflow

KEY = "telegram:b:7"
CHAT = telegram(bot_id="b", chat_id=7)
AGENT = "schema: 1\nname: bot\nnodes:\n  answer: {kind: agent, tools: ['tests.workflows.tools:both'], %s next: end}"
OWN = "use_graph_chat_history: true, "
IDS = ("agent_chat_history_ids", KEY)


def finding(number: int) -> AIMessage:
    """Return a model answer that looks up an order."""
    return AIMessage("", tool_calls=[{"name": "find_order", "args": {"number": str(number)}, "id": f"c{number}"}])


@pytest.fixture
async def own_desk(memory: Memory, events: RecordedEvents) -> Desk:
    """Return a desk for each database, with its graph store and a model that looks up one order per turn."""
    replies = (reply for n in count(1) for reply in (finding(n), f"answer {n}"))
    return Desk(memory, ScriptedModel(replies), events, store=await memory.graph_store())


async def talk(desk: Desk, turns: int, **more: Any) -> list[int]:
    """Send some messages, and return the number of tool results in the first call of each turn."""
    begin = len(desk.model.calls)
    for number in range(turns):
        await desk.run("bot", f"question {begin}:{number}", results=CHAT, session_id=KEY, trigger="webhook", **more)
    firsts = desk.model.calls[begin::2]
    return [sum(message.type == "tool" for message in call) for call in firsts]


async def own_session(desk: Desk) -> Session:
    """Return the agent's own conversation."""
    return (await desk.memory.namespace(GraphLayout(), desk.store)).session(KEY)


@pytest.mark.parametrize(("fields", "seen"), [("", [0, 1, 1]), ("tool_memory: 0,", [0, 0, 0])])
@pytest.mark.parametrize("own", ["", OWN])
async def test_tool_memory_is_a_field_of_the_node(own_desk: Desk, own: str, fields: str, seen: list[int]) -> None:
    """By default the tool calls of the last turn are shown, with `tool_memory: 0` none.

    Those of an agent's own conversation are in the graph store.
    """
    found = await talk(own_desk.use(AGENT % f"{own}{fields}"), 3)
    assert [min(one, 1) for one in found] == seen
    items = await steps_in(own_desk.store)
    assert bool(items) is bool(own and not fields)


async def steps_in(store: BaseStore) -> list[Any]:
    """Return the items with tool calls, read directly from the store."""
    found = await store.asearch(IDS, limit=1000)
    return [item.value for item in found if item.key.startswith("steps-sha256:")]


async def test_the_store_keeps_the_tool_calls_of_the_newest_turns(own_desk: Desk) -> None:
    assert await talk(own_desk.use(AGENT % f"{OWN}tool_memory: 2,"), 4) == [0, 1, 2, 2]
    [item] = await steps_in(own_desk.store)
    assert [turn["seq"] for turn in item["turns"]] == [5, 7]


async def test_tool_calls_of_superseded_turns_are_not_shown(own_desk: Desk) -> None:
    own_desk.use(AGENT % f"{OWN}tool_memory: 9,")
    await talk(own_desk, 3)
    session = await own_session(own_desk)
    await session.take_back(2)
    assert await talk(own_desk, 1) == [2]
    await session.take_back(1)
    assert await talk(own_desk, 1) == [2]


async def test_tool_calls_are_deleted_with_their_messages(own_desk: Desk) -> None:
    """The tool calls of a turn are deleted with the beginning of the conversation, and with all of it."""
    own_desk.use(AGENT % f"{OWN}tool_memory: 9,")
    await talk(own_desk, 3)
    session = await own_session(own_desk)
    writer = session._transcripts.writer  # type: ignore[attr-defined]  # noqa: SLF001 - what retention does
    from threadkeep.graph_store.writing import Beginning

    assert await writer.delete_old(KEY, Beginning(0, 2), title=(None, None))
    [item] = await steps_in(own_desk.store)
    assert [turn["seq"] for turn in item["turns"]] == [3, 5]
    assert '"number":"1"' not in str(item)
    await session.delete()
    assert await own_desk.store.asearch(HISTORY) == await own_desk.store.asearch(IDS) == []


async def test_damaged_tool_calls_are_ignored(own_desk: Desk) -> None:
    own_desk.use(AGENT % f"{OWN}")
    await talk(own_desk, 1)
    [key] = [item.key for item in await own_desk.store.asearch(IDS, limit=99) if item.key.startswith("steps-")]
    for damage in ({"turns": 7}, {"turns": [{"seq": "x"}]}, {}, {"turns": [None]}):
        await own_desk.store.aput(IDS, key, damage)
        assert await talk(own_desk, 2) == [0, 1]


async def test_an_appended_message_belongs_to_no_turn(own_desk: Desk) -> None:
    """An appended message does not hide the tool calls of the turn before it."""
    own_desk.use(AGENT % OWN)
    await talk(own_desk, 1)
    await (await own_session(own_desk)).append([Message(role="assistant", content="a reminder")])
    assert await talk(own_desk, 1) == [1]


@pytest.mark.parametrize("value", ["-1", "many", "true"])
def test_an_invalid_tool_memory_is_refused(value: str) -> None:
    with pytest.raises(InvalidWorkflow, match="tool_memory"):
        read_workflow(AGENT % f"tool_memory: {value},")
