"""An agent with memory and the authentication of its callers, for LangGraph's own server (`langgraph dev`)."""

from __future__ import annotations

import asyncio
import atexit
import os
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph_sdk import Auth

from bench.endings import end_with_parent
from threadkeep import SessionMemory, SyncMemory

end_with_parent()


class Echo(BaseChatModel):
    """A model that repeats the texts of users; `send` calls the tool, and `slow` takes a minute."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model, which knows its only tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        asked = [message.text for message in messages if message.type == "human"]
        call: Any = {"name": "send", "args": {"to": "bob"}, "id": "call-1"}
        calls = messages[-1].type == "human" and asked[-1] == "send"
        answer = AIMessage("", tool_calls=[call]) if calls else AIMessage(", ".join(asked))
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if messages[-1].text == "slow":
            await asyncio.sleep(60)
        return self._generate(messages)


@tool
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


memory = SyncMemory.open(os.environ["MEMORY_URL"])
atexit.register(memory.close)
asking = HumanInTheLoopMiddleware(interrupt_on={"send": True})
graph = create_agent(Echo(), tools=[send], middleware=[SessionMemory(memory), asking])

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    """Return the name of the caller, without checking it."""
    return (authorization or "").removeprefix("Bearer ")
