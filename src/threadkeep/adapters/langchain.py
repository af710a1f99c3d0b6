"""Threadkeep's sessions as LangChain's `BaseChatMessageHistory`, for chains with `RunnableWithMessageHistory`.

LangChain has deprecated both. For agents, use `threadkeep.SessionMemory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, messages_from_dict

from threadkeep.adapters.items import item_message, read_messages, stored_item
from threadkeep.agent.conversion import as_data, from_langchain, id_of, is_utterance, to_langchain
from threadkeep.history.session import Session
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.records import Message

_NAME = "langchain"


class ChatHistory(BaseChatMessageHistory):
    """A LangChain chat history that stores messages in a Threadkeep session, with blocking and asynchronous methods.

    Tool calls, tool results and system messages are stored as notes. The history returns them unchanged, but Threadkeep
    sends no notes to the models of other agents.
    """

    def __init__(self, memory: Memory | SyncMemory, session_id: str, *, user_id: str | None = None) -> None:
        super().__init__()
        self._session = OnLoop[Memory, Session](memory, lambda one: one.session(session_id, user_id=user_id))

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Return the messages since the last reset, oldest first."""
        return _as_langchain(self._session.wait_for(read_messages))

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages since the last reset, oldest first."""
        return _as_langchain(await self._session.call_even_if_blocked(read_messages))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store the messages as one turn; skip messages whose id is already stored.

        Raises:
            InvalidMessage, WrongUser, StoreUnavailable: nothing was stored.
        """
        if turn := [_message(message) for message in messages]:
            self._session.wait_for(lambda session: session.append(turn))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store the messages as `add_messages` does."""
        if turn := [_message(message) for message in messages]:
            await self._session.call_even_if_blocked(lambda session: session.append(turn))

    def clear(self) -> None:
        """Delete the session with all its messages."""
        self._session.wait_for(lambda session: session.delete())

    async def aclear(self) -> None:
        """Delete the session with all its messages."""
        await self._session.call_even_if_blocked(lambda session: session.delete())


def _message(message: BaseMessage) -> Message:
    if is_utterance(message):
        return from_langchain(message, full=True)
    return item_message(_NAME, as_data(message), role=None, text=f"[{message.type}]", message_id=id_of(message))


def _as_langchain(messages: Sequence[Message]) -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for message in messages:
        item = stored_item(_NAME, message)
        if isinstance(item, Mapping):
            found += messages_from_dict([dict(item)])
        elif message.role != "system":
            found.append(to_langchain(message))
    return found
