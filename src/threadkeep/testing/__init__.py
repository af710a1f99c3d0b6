"""Test doubles (a model, a clock, a Graphiti server), and contract tests for transcripts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadkeep.testing.clock import SettableClock
    from threadkeep.testing.contract import TranscriptContract
    from threadkeep.testing.fake_graphiti import FakeGraphiti
    from threadkeep.testing.scripted import Gate, ScriptedModel, ScriptEnded

__all__ = ["FakeGraphiti", "Gate", "ScriptEnded", "ScriptedModel", "SettableClock", "TranscriptContract"]

_MODULES = {
    "FakeGraphiti": "fake_graphiti",
    "Gate": "scripted",
    "ScriptEnded": "scripted",
    "ScriptedModel": "scripted",
    "SettableClock": "clock",
    "TranscriptContract": "contract",
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that using the clock does not load LangChain."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
