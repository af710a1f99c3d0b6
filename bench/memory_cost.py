"""`python -m bench memory-cost`: CPU that `SessionMemory` adds to an agent's turn, and that `AsyncSqliteSaver` adds.

`hooks` is an agent with a middleware that has the same hooks as `SessionMemory` and does nothing. `commits` also stores
the question, the answer and a manifest of 600 bytes with plain `sqlite3`, in two commits and without any checks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.runtime import Runtime

from threadkeep import SessionMemory, open_memory

_TURNS_OF_THREAD = 10
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE messages (id BLOB PRIMARY KEY, role TEXT, content TEXT);
CREATE TABLE manifests (id BLOB PRIMARY KEY, content TEXT);
"""
_QUESTION = "What do you think about the weather in the mountains at this time of the year, number {}?"
_ANSWER = "It is mostly sunny, but the nights are cold: take a warm jacket with you."


class _Hooks(AgentMiddleware[Any, Any, Any]):
    """A middleware with the hooks of `SessionMemory` for agents without tools; each does nothing."""

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Do nothing."""

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model."""
        return await handler(request)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Do nothing."""


class _Commits(_Hooks):
    """A middleware that stores each turn in two commits, in a thread, because a commit waits for the disk."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        super().__init__()
        self._connection = connection
        self._thread = thread
        connection.executescript(_TABLES)

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Store the question."""
        await self._store(state)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Store the answer and a manifest."""
        await self._store(state, manifest="x" * 600)

    async def _store(self, state: AgentState[Any], manifest: str | None = None) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, state["messages"][-1], manifest)

    def _commit(self, message: BaseMessage, manifest: str | None) -> None:
        with self._connection as connection:
            row = (uuid4().bytes, message.type, str(message.content))
            connection.execute("INSERT INTO messages VALUES (?, ?, ?)", row)
            if manifest is not None:
                connection.execute("INSERT INTO manifests VALUES (?, ?)", (uuid4().bytes, manifest))


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line of JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench memory-cost", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of ten turns in each round")
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args(arguments)
    print(json.dumps(asyncio.run(_measured(given.threads, given.rounds))))
    return 0


async def _measured(threads: int, rounds: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        memory = await stack.enter_async_context(open_memory(f"sqlite:///{folder / 'memory.db'}"))
        saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "saver.db")))
        connection = sqlite3.connect(folder / "commits.db", check_same_thread=False)
        stack.callback(connection.close)
        thread = stack.enter_context(ThreadPoolExecutor(1))
        model = FakeListChatModel(responses=[_ANSWER])
        agents = {
            "alone": create_agent(model),
            "hooks": create_agent(model, middleware=[_Hooks()]),
            "commits": create_agent(model, middleware=[_Commits(connection, thread)]),
            "memory": create_agent(model, middleware=[SessionMemory(memory)]),
            "saver": create_agent(model, checkpointer=saver),
        }
        costs: dict[str, list[float]] = {name: [] for name in agents}
        for number in range(rounds + 1):
            for name, agent in agents.items():
                cost = await _turn_ms(agent, threads, f"round-{number}")
                if number:  # the first round warms up
                    costs[name].append(cost)
    found = {name: median(each) for name, each in costs.items()}
    adds = {
        name: median(with_it - alone for with_it, alone in zip(costs[name], costs["alone"], strict=True))
        for name in ("hooks", "commits", "memory", "saver")
    }
    return {
        **{f"{name}_cpu_ms": round(cost, 3) for name, cost in found.items()},
        **{f"{name}_adds_ms": round(added, 3) for name, added in adds.items()},
        "hooks_ratio": round(adds["hooks"] / adds["saver"], 2),
        "commits_ratio": round(adds["commits"] / adds["saver"], 2),
        "added_ratio": round(adds["memory"] / adds["saver"], 2),
        "whole_ratio": round(found["memory"] / found["saver"], 2),
    }


async def _turn_ms(agent: Any, threads: int, prefix: str) -> float:
    """Return the mean CPU of a turn in milliseconds."""
    began = time.process_time()
    for thread in range(threads):
        config: RunnableConfig = {"configurable": {"thread_id": f"{prefix}-{thread}"}}
        for turn in range(_TURNS_OF_THREAD):
            await agent.ainvoke({"messages": [HumanMessage(_QUESTION.format(turn))]}, config)
    return (time.process_time() - began) / (threads * _TURNS_OF_THREAD) * 1000
