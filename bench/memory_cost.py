"""`python -m bench memory-cost`: CPU that `SessionMemory` adds to an agent's turn, and that `AsyncSqliteSaver` adds.

`hooks` is an agent with a middleware that has the same hooks as `SessionMemory` and does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.runtime import Runtime

from threadkeep import SessionMemory, open_memory
from threadkeep.agent.models import make_model

_TURNS_OF_THREAD = 10
_QUESTION = "What do you think about the weather in the mountains at this time of the year, number {}?"


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


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line of JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench memory-cost", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of ten turns in each round")
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args(arguments)
    print(json.dumps(asyncio.run(_measured(given.threads, given.rounds))))
    return 0


async def _measured(threads: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_memory(f"sqlite:///{Path(folder) / 'memory.db'}") as memory,
            AsyncSqliteSaver.from_conn_string(str(Path(folder) / "saver.db")) as saver,
        ):
            agents = {
                "alone": create_agent(make_model("demo")),
                "hooks": create_agent(make_model("demo"), middleware=[_Hooks()]),
                "memory": create_agent(make_model("demo"), middleware=[SessionMemory(memory)]),
                "saver": create_agent(make_model("demo"), checkpointer=saver),
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
        for name in ("hooks", "memory", "saver")
    }
    return {
        **{f"{name}_cpu_ms": round(cost, 3) for name, cost in found.items()},
        **{f"{name}_adds_ms": round(added, 3) for name, added in adds.items()},
        "hooks_ratio": round(adds["hooks"] / adds["saver"], 2),
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
