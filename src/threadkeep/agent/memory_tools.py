"""Tools over a memory that synchronous and asynchronous agents call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop


def memory_tool[M: Memory, H](
    tools: OnLoop[M, H], verb: Callable[[H], Callable[..., Coroutine[Any, Any, str]]]
) -> BaseTool:
    """Return the tool of a verb, with its name, arguments and docstring; it runs on the event loop of the memory."""
    described = verb(tools.made[0])

    @functools.wraps(described)
    async def acall(*args: Any, **kwargs: Any) -> str:
        return await tools.call(lambda made: verb(made)(*args, **kwargs))

    @functools.wraps(described)
    def call(*args: Any, **kwargs: Any) -> str:
        return tools.wait_for(lambda made: verb(made)(*args, **kwargs))

    return StructuredTool.from_function(func=call, coroutine=acall, parse_docstring=True)
