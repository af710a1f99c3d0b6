"""Tools that may not run twice: how they are marked."""

from __future__ import annotations

from typing import Final

from langchain_core.tools import BaseTool

_MARK: Final = "idempotent"


def not_idempotent[T](tool: T) -> T:
    """Mark a tool, or a function that becomes one, as one that may not be run twice without a person.

    The same as the metadata `{"idempotent": False}` of a LangChain tool. In a run of a workflow each of its calls is
    run once; where nobody knows how one ended, because its process died in it, the run asks a person.
    """
    if isinstance(tool, BaseTool):
        tool.metadata = {**(tool.metadata or {}), _MARK: False}
    else:
        setattr(tool, _MARK, False)
    return tool


def is_idempotent(tool: object) -> bool:
    """Whether a tool, or a function that becomes one, may be run again when nobody knows how its call ended."""
    marked = [tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)]
    marks: list[object] = [getattr(each, _MARK, None) for each in marked]
    metadata = tool.metadata if isinstance(tool, BaseTool) else None
    return (metadata or {}).get(_MARK) is not False and not any(mark is False for mark in marks)
