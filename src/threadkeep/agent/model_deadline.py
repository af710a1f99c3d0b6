"""A limit for how long a model may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse


class ModelDeadline(AgentMiddleware[AgentState[Any], Any, Any]):
    """Gives each model call a time limit: one that is over raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model within the limit."""
        async with asyncio.timeout(self._seconds):
            return await handler(request)
