"""Marks for tools that must not run twice."""

from __future__ import annotations

from typing import Final

from langchain_core.tools import BaseTool

_MARK: Final = "idempotent"


def not_idempotent[T](tool: T) -> T:
    """Mark a tool, or a function that becomes one, so that it is not run twice without a person's consent.

    This equals the metadata `{"idempotent": False}` of a LangChain tool. In a run of a workflow each of its calls
    runs once. If its process died during a call, so that the outcome is unknown, the run asks a person.
    """
    if isinstance(tool, BaseTool):
        tool.metadata = {**(tool.metadata or {}), _MARK: False}
    else:
        setattr(tool, _MARK, False)
    return tool


def is_idempotent(tool: object) -> bool:
    """Return True if a tool, or a function that becomes one, may run again after a call with an unknown outcome."""
    marked = [tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)]
    marks: list[object] = [getattr(each, _MARK, None) for each in marked]
    metadata = tool.metadata if isinstance(tool, BaseTool) else None
    return (metadata or {}).get(_MARK) is not False and not any(mark is False for mark in marks)
