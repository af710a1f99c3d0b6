"""Turns of deep agents, run in the environment that has deepagents; the results are printed as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from threadkeep import Memory, SessionMemory, open_memory
from threadkeep.testing import ScriptedModel

ROOM: Any = {"configurable": {"thread_id": "telegram:1"}}


class Bound(ScriptedModel):
    """A scripted model that accepts tools."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model: the script says which tools it calls."""
        return self


@tool
def approve() -> str:
    """Ask a person."""
    return str(interrupt("may I?"))


def task(description: str = "find flights") -> AIMessage:
    """Return a message that gives a sub-agent a task."""
    arguments = {"description": description, "subagent_type": "searcher"}
    return AIMessage("one moment", tool_calls=[{"name": "task", "args": arguments, "id": f"call-{description}"}])


def asking(words: str, message_id: str | None = None) -> dict[str, Any]:
    """Return the input of a turn."""
    return {"messages": [{"role": "user", "content": words, "id": message_id}]}


def searcher(model: ScriptedModel, mode: str, memory: Memory | None = None, **options: Any) -> dict[str, Any]:
    """Return a sub-agent, with or without a memory of its own."""
    middleware = {} if memory is None else {"middleware": [SessionMemory(memory)]}
    agent = {"name": "searcher", "description": "Searches.", "system_prompt": "Search.", "model": model, "tools": []}
    return {**agent, "mode": mode, **middleware, **options}


async def transcript(memory: Memory) -> list[list[str | None]]:
    """Return author, status and text of the stored messages."""
    messages = await memory.session("telegram:1").tail(50)
    return [[one.author, one.status, one.content] for one in messages]


def texts(call: list[BaseMessage]) -> list[str]:
    """Return the texts that a model was sent, without system messages."""
    return [message.text for message in call if message.type != "system"]


async def delegating(mode: str, saver: InMemorySaver | None, *, remembering: bool) -> dict[str, Any]:
    """Run a delegated turn, the same message again, and another turn."""
    async with open_memory("sqlite://") as memory:
        child, chief = Bound(replies=["found one"]), Bound(replies=[task(), "booked", "fine"])
        sub = searcher(child, mode, memory if remembering else None)
        agent: Any = create_deep_agent(
            chief, [], middleware=[SessionMemory(memory)], subagents=[sub], checkpointer=saver, name="main"
        )
        told = [(await agent.ainvoke(asking("my card is 4111", "m1"), ROOM))["messages"][-1].text for _ in range(2)]
        calls = len(chief.calls)
        await agent.ainvoke(asking("and now?"), ROOM)
        return {
            "told": told,
            "calls": calls,
            "child": [texts(call) for call in child.calls],
            "next": texts(chief.calls[-1]),
            "stored": await transcript(memory),
        }


async def interrupted(mode: str) -> dict[str, Any]:
    """Interrupt a sub-agent, and resume the turn with other models, as another process would."""
    saver = InMemorySaver()
    call = AIMessage("", tool_calls=[{"name": "approve", "args": {}, "id": "call-approve"}])
    async with open_memory("sqlite://") as memory:

        def agent(chief: ScriptedModel, child: ScriptedModel) -> Any:
            sub = searcher(child, mode, memory, tools=[approve])
            middleware = [SessionMemory(memory)]
            return create_deep_agent(chief, [], middleware=middleware, subagents=[sub], checkpointer=saver, name="main")

        await agent(Bound(replies=[task()]), Bound(replies=[call])).ainvoke(asking("q"), ROOM)
        before = await transcript(memory)
        rest, child = Bound(replies=["booked"]), Bound(replies=["found one"])
        state = await agent(rest, child).ainvoke(Command(resume="yes"), ROOM)
        return {"before": before, "told": state["messages"][-1].text, "stored": await transcript(memory)}


async def main() -> None:
    """Print the results of all turns."""
    savers: dict[str, Callable[[], InMemorySaver | None]] = {"checkpointer": InMemorySaver, "none": lambda: None}
    found: dict[str, Any] = {}
    for mode, saver, remembering in product(("isolated", "fork"), savers, (True, False)):
        name = f"{mode} {saver} {'remembering' if remembering else 'plain'}"
        found[name] = await delegating(mode, savers[saver](), remembering=remembering)
    for mode in ("isolated", "fork"):
        found[f"{mode} interrupted"] = await interrupted(mode)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    # Ignore the warning of deepagents that forks are in beta.
    warnings.simplefilter("ignore")
    asyncio.run(main())
