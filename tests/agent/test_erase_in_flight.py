"""Tests of erasing a person from a group chat during model calls: later writes restore no text of the person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from tests.agent.talking import config_of
from tests.agent.test_fact_learning import found, proposals
from tests.databases import query
from threadkeep import FactLearning, Memory, MemoryOptions, Message, SessionMemory, open_memory
from threadkeep.testing import Gate, ScriptedModel

CANARY = "zanzibarquokka"
GROUP = "telegram:group"


@pytest.fixture
async def others(database_url: str, memory: Memory, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory of another process over the same database."""
    async with open_memory(database_url, options=memory_options) as opened:
        yield opened


def said_by(name: str, words: str) -> dict[str, Any]:
    """Return a person's text as input; a named message is stored with its call."""
    return {"messages": [HumanMessage(words, name=name)]}


@pytest.mark.parametrize("asker", ["carol", "dan"])
async def test_a_call_in_flight_stores_no_text_of_an_erased_person(
    database_url: str, memory: Memory, others: Memory, asker: str
) -> None:
    await memory.session(GROUP).append([Message(role="user", content=f"{CANARY} before", author="carol")])
    gate = Gate()
    agent: Any = create_agent(ScriptedModel([[gate, "fine"], "again"]), [], middleware=[SessionMemory(memory)])
    asking = asyncio.create_task(agent.ainvoke(said_by(asker, f"{CANARY} now"), config_of(GROUP)))
    await gate.reached()
    for person in ("carol", "dan"):
        assert (await others.erase(user_id=person)).complete
    gate.open()
    await asking
    await memory.manifests.flush()
    assert query(database_url, "SELECT body FROM chat_context_texts") == []
    await agent.ainvoke(said_by("erin", "hello"), config_of(GROUP))
    rows = query(database_url, "SELECT content, metadata FROM chat_messages")
    assert CANARY not in str(rows)


async def test_a_fact_that_is_being_learned_is_not_proposed(memory: Memory, others: Memory) -> None:
    gate = Gate()
    learner = ScriptedModel([[gate, json.dumps([found(1, "home_city", CANARY, about="session")])]])
    middleware = [SessionMemory(memory, learning=FactLearning(memory, model=learner))]
    agent: Any = create_agent(ScriptedModel(["noted"]), [], middleware=middleware)
    await agent.ainvoke(said_by("carol", f"I live in {CANARY}"), config_of(GROUP))
    await gate.reached()
    assert (await others.erase(user_id="carol")).complete
    gate.open()
    await memory.learning.idle()
    assert await proposals(memory) == []
