"""Threadkeep: the memory of LangGraph agents.

::

    async with open_memory("sqlite:////var/lib/threadkeep/threadkeep.db") as memory:
        agent = create_agent(model, tools, middleware=[SessionMemory(memory)])

Names are imported when they are first used, so `import threadkeep` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.app import MemoryOptions as MemoryOptions
    from threadkeep.app import open_memory as open_memory
    from threadkeep.errors import BudgetTooSmall as BudgetTooSmall
    from threadkeep.errors import InvalidInput as InvalidInput
    from threadkeep.errors import InvalidKey as InvalidKey
    from threadkeep.errors import InvalidMessage as InvalidMessage
    from threadkeep.errors import InvalidSettings as InvalidSettings
    from threadkeep.errors import SchemaTooNew as SchemaTooNew
    from threadkeep.errors import SessionNotFound as SessionNotFound
    from threadkeep.errors import StoreError as StoreError
    from threadkeep.errors import StoreUnavailable as StoreUnavailable
    from threadkeep.errors import ThreadkeepError as ThreadkeepError
    from threadkeep.errors import WrongUser as WrongUser
    from threadkeep.history.keys import escape_key as escape_key
    from threadkeep.history.keys import resolve_key as resolve_key
    from threadkeep.history.keys import unescape_key as unescape_key
    from threadkeep.history.memory import Memory as Memory
    from threadkeep.history.session import Session as Session
    from threadkeep.records import Message as Message
    from threadkeep.records import Page as Page
    from threadkeep.records import Receipt as Receipt
    from threadkeep.records import SearchHit as SearchHit
    from threadkeep.records import SessionInfo as SessionInfo

_HOMES = {
    "threadkeep.app": ("MemoryOptions", "open_memory"),
    "threadkeep.errors": (
        "BudgetTooSmall",
        "InvalidInput",
        "InvalidKey",
        "InvalidMessage",
        "InvalidSettings",
        "SchemaTooNew",
        "SessionNotFound",
        "StoreError",
        "StoreUnavailable",
        "ThreadkeepError",
        "WrongUser",
    ),
    "threadkeep.history.keys": ("escape_key", "resolve_key", "unescape_key"),
    "threadkeep.history.memory": ("Memory",),
    "threadkeep.history.session": ("Session",),
    "threadkeep.records": ("Message", "Page", "Receipt", "SearchHit", "SessionInfo"),
    "threadkeep.version": ("__version__",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  the list is the keys of one table


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if home := _HOME_OF.get(name):
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
