"""Doubles to test agents with: a scripted chat model, a clock to set, and the contract of a transcript."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadkeep.testing.clock import SettableClock
    from threadkeep.testing.contract import TranscriptContract
    from threadkeep.testing.scripted import Gate, ScriptedModel, ScriptEnded

__all__ = ["Gate", "ScriptEnded", "ScriptedModel", "SettableClock", "TranscriptContract"]

_MODULES = {
    "Gate": "scripted",
    "ScriptEnded": "scripted",
    "ScriptedModel": "scripted",
    "SettableClock": "clock",
    "TranscriptContract": "contract",
}


def __getattr__(name: str) -> object:
    """Import a double when it is first asked for, so that a clock does not load LangChain."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
