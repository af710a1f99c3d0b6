"""LangSmith's tracing of middleware, without a thread for each hook while nothing is traced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import langsmith
from langsmith.utils import tracing_is_enabled


def trace_without_threads() -> None:
    """Let LangSmith set its runs up in the event loop of this process as long as tracing is off.

    LangChain wraps each `awrap_model_call` of a middleware for LangSmith, which runs two functions in threads around
    it, traced or not. For processes that are Threadkeep's own: the setting is LangSmith's, and holds for all agents.
    """
    langsmith.set_runtime_overrides(aio_to_thread=_in_loop)


async def _in_loop(
    in_thread: Callable[..., Awaitable[Any]],
    context: Context,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if tracing_is_enabled():
        return await in_thread(context, function, *args, **kwargs)
    return context.run(function, *args, **kwargs)
