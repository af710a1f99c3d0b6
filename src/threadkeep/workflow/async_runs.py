"""What a middleware of asynchronous runs says when an agent is run in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from threadkeep.errors import InvalidInput


class AsyncRunsOnly(AgentMiddleware[AgentState[Any], Any, Any]):
    """A middleware whose agent is called with `ainvoke` or `astream`; in other runs each hook raises `InvalidInput`."""

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> NoReturn:
        """Refuse the run."""
        self._refuse()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> NoReturn:
        """Refuse the run; it began before an interrupt, asynchronously."""
        self._refuse()

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> NoReturn:
        """Refuse the run; it began before an interrupt, asynchronously."""
        self._refuse()

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> NoReturn:
        """Refuse the run; it began before an interrupt, asynchronously."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidInput(
            f"{self.name} needs an asynchronous run: call the agent with ainvoke or astream, not invoke or stream."
        )
