"""Tests of LangChain's chat history on a session."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.store.memory import InMemoryStore

from tests.limits import HANG_SECONDS
from threadkeep import Memory, MemoryOptions, open_memory, open_memory_sync
from threadkeep.adapters.langchain import ChatHistory

ROOM = "room:1"


async def test_every_kind_of_message_survives(memory: Memory) -> None:
    """Tool calls and results are read back unchanged; the window has only the texts of user and assistant."""
    call = AIMessage("", id="a1", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "c1"}])
    messages = [
        SystemMessage("Be brief.", id="s1"),
        HumanMessage("Weather?", id="h1", name="Ann"),
        call,
        ToolMessage("cold", tool_call_id="c1", id="t1", status="success"),
        AIMessage("It is cold.", id="a2"),
    ]
    history = ChatHistory(memory, ROOM)
    await history.aadd_messages(messages)
    await history.aadd_messages(messages[-1:])  # the same id again
    assert await history.aget_messages() == messages
    window = await memory.session(ROOM).window()
    assert [message.content for message in window.messages] == ["Weather?", "It is cold."]
    assert await ChatHistory(memory, ROOM, user_id="bob").aget_messages() == []
    await history.aclear()
    assert await history.aget_messages() == []


def test_a_chain_with_a_message_history_remembers(shared_url: str) -> None:
    """Synchronous and asynchronous calls of one chain share a session."""
    with open_memory_sync(shared_url) as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain has deprecated the chain
        model = FakeListChatModel(responses=["one", "two"])
        chain = RunnableWithMessageHistory(model, lambda session_id: ChatHistory(memory, session_id))
        config: RunnableConfig = {"configurable": {"session_id": ROOM}}
        chain.invoke([HumanMessage("first")], config)
        asyncio.run(chain.ainvoke([HumanMessage("second")], config))
        history = ChatHistory(memory, ROOM)
        assert [message.text for message in history.messages] == ["first", "one", "second", "two"]
        history.clear()
        assert history.messages == []


async def test_a_history_works_on_another_event_loop_while_that_of_the_memory_waits(memory: Memory) -> None:
    """Its asynchronous methods, like the blocking ones, use the database on a loop that is not blocked."""

    async def use() -> None:
        history = ChatHistory(memory, ROOM)
        await history.aadd_messages([HumanMessage("hi", id="h1")])
        found.extend(await history.aget_messages())

    found = list[BaseMessage]()
    thread = threading.Thread(target=lambda: asyncio.run(use()), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert found == await ChatHistory(memory, ROOM).aget_messages() == [HumanMessage("hi", id="h1")]


async def test_a_history_waits_for_a_busy_loop_if_the_store_cannot_be_opened_again() -> None:
    async def use() -> None:
        await ChatHistory(memory, ROOM).aadd_messages([HumanMessage("hi", id="h1")])

    options = MemoryOptions(graph_store=InMemoryStore(), transcripts="graph_store")
    async with open_memory("sqlite://", options=options) as memory:
        thread = threading.Thread(target=lambda: asyncio.run(use()), daemon=True)
        thread.start()
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is busy, and does not wait for the thread
        await asyncio.to_thread(thread.join, HANG_SECONDS)
        assert await ChatHistory(memory, ROOM).aget_messages() == [HumanMessage("hi", id="h1")]
