"""`python -m bench memory-cost`: CPU that `SessionMemory` adds to an agent's turn, and that `AsyncSqliteSaver` adds."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from threadkeep import SessionMemory, open_memory
from threadkeep.agent.models import make_model

_TURNS_OF_THREAD = 10
_QUESTION = "What do you think about the weather in the mountains at this time of the year, number {}?"


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
    memory_adds = median(ours - alone for ours, alone in zip(costs["memory"], costs["alone"], strict=True))
    saver_adds = median(theirs - alone for theirs, alone in zip(costs["saver"], costs["alone"], strict=True))
    return {
        **{f"{name}_cpu_ms": round(cost, 3) for name, cost in found.items()},
        "memory_adds_ms": round(memory_adds, 3),
        "saver_adds_ms": round(saver_adds, 3),
        "added_ratio": round(memory_adds / saver_adds, 2),
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
