"""Threadkeep's sessions as the memory of LlamaIndex's agents and chat engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from threadkeep.adapters.items import item_message, read_messages, stored_item
from threadkeep.agent.counting import media_mark, media_name
from threadkeep.boundary import of_extra
from threadkeep.errors import InvalidInput
from threadkeep.history.session import Session
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.records import Json, Message, Role

with of_extra("llama-index"):
    from llama_index.core.base.llms.types import ChatMessage, MessageRole
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.memory import BaseMemory

_NAME = "llama-index"
_ROLES: Mapping[MessageRole, Role] = {MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant"}


class ChatMemory(BaseMemory):
    """A LlamaIndex memory that stores messages in a session. LlamaIndex runs its asynchronous methods in OS threads.

    Tool calls and tool results are stored as notes. The memory returns them unchanged, but Threadkeep sends no notes to
    the models of other agents.
    """

    max_messages: int = Field(100, ge=0)
    _session: OnLoop[Memory, Session] = PrivateAttr()

    def __init__(
        self, memory: Memory | SyncMemory, session_id: str, *, user_id: str | None = None, max_messages: int = 100
    ) -> None:
        """Create a memory; `get` returns up to `max_messages` messages."""
        super().__init__(max_messages=max_messages)
        self._session = OnLoop(memory, lambda opened: opened.session(session_id, user_id=user_id))

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex."""
        return "ThreadkeepChatMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> Self:
        """Create a memory with the arguments of `__init__`."""
        return cls(**kwargs)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Refuse to be serialized. LlamaIndex then leaves the memory out of a saved context.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput("A ChatMemory cannot be saved with a context; pass `memory` to each run.")

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002 - LlamaIndex's name
        """Return the newest messages since the last reset, at most `max_messages`, oldest first.

        If the session has more messages, the result begins with a user message, unless it contains none.
        """
        found = _items(self._session.wait_for(lambda one: read_messages(one, self.max_messages + 1, keep=_is_item)))
        left_out = max(0, len(found) - self.max_messages)
        from_user = (at for at, message in enumerate(found) if at >= left_out and message.role == MessageRole.USER)
        return found[next(from_user, left_out) :] if left_out else found

    def get_all(self) -> list[ChatMessage]:
        """Return all messages since the last reset, oldest first."""
        return _items(self._session.wait_for(read_messages))

    def put(self, message: ChatMessage) -> None:
        """Store a message."""
        self.put_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Store messages as one turn."""
        if turn := [_message(message) for message in messages]:
            self._session.wait_for(lambda session: session.append(turn))

    def set(self, messages: list[ChatMessage]) -> None:
        """Reset the session and store these messages. Earlier messages stay in the transcript."""
        self.reset()
        self.put_messages(messages)

    def reset(self) -> None:
        """Make `get` and `get_all` omit all present messages, which stay in the transcript."""
        self._session.wait_for(lambda session: session.reset())


def _message(message: ChatMessage) -> Message:
    item = cast("Json", message.model_dump(mode="json"))
    calls = message.additional_kwargs.get("tool_calls") or any(
        block.block_type == "tool_call" for block in message.blocks
    )
    role = None if calls else _ROLES.get(message.role)
    media = [{"type": block.block_type} for block in message.blocks]
    mark = media_mark([block for block in media if media_name(block) != "part"])  # for images and files
    text = "\n".join(part for part in (message.content, mark) if part and role)
    return item_message(_NAME, item, role=role if text else None, text=text or f"[{message.role.value}]")


def _is_item(message: Message) -> bool:
    return message.role != "system" or stored_item(_NAME, message) is not None


def _items(messages: Sequence[Message]) -> list[ChatMessage]:
    items = [(message, stored_item(_NAME, message)) for message in messages if _is_item(message)]
    return [
        ChatMessage(role=message.role, content=message.content) if item is None else ChatMessage.model_validate(item)
        for message, item in items
    ]
