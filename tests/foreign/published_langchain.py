"""A plugin for LangChain's tests of `RunnableWithMessageHistory`, which replaces its history by `ChatHistory`.

`test_published.py` runs it in the source of langchain-core, whose `tests` package it imports.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from langchain_core import chat_history
from langchain_core.messages import BaseMessage

from threadkeep import SyncMemory, open_memory_sync
from threadkeep.adapters.langchain import ChatHistory

_opened = ExitStack()
_memories: list[SyncMemory] = []

SKIPPED = {"reads the docstring of LangChain's class": ("test_chat_history_deprecated",)}


class HistoryInstead(ChatHistory):
    """A history with the arguments of `InMemoryChatMessageHistory`, equal to another one with the same messages."""

    def __init__(self, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(_memories[0], str(uuid.uuid4()))
        self.add_messages(messages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HistoryInstead) and self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Return the messages without ids, which Threadkeep adds to messages without one."""
        return [message.model_copy(update={"id": None}) for message in super().messages]

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages without their ids."""
        return [message.model_copy(update={"id": None}) for message in await super().aget_messages()]


def pytest_configure() -> None:
    """Replace LangChain's history before the tests import it."""
    _memories.append(_opened.enter_context(open_memory_sync(os.environ["THREADKEEP_TEST_DATABASE"])))
    chat_history.InMemoryChatMessageHistory = HistoryInstead  # type: ignore[misc, assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that `SKIPPED` names."""
    for item in items:
        for reason, names in SKIPPED.items():
            if item.name.startswith(names):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_unconfigure() -> None:
    """Close the memory."""
    _opened.close()
