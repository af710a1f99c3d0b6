"""Memory for agents: middleware and nodes for LangChain and LangGraph, and the conversion of messages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.agent.candidates import candidate_graph as candidate_graph

__all__ = ["candidate_graph"]


def __getattr__(name: str) -> Any:
    """Import `candidate_graph` on first use, because loading LangGraph is slow."""
    if name == "candidate_graph":
        return import_module("threadkeep.agent.candidates").candidate_graph
    raise AttributeError(f"module 'threadkeep.agent' has no attribute {name!r}")
