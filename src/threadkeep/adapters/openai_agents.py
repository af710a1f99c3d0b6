"""Sessions for the OpenAI Agents SDK: `Runner.run(agent, text, session=AgentsSession(memory, "room:1"))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from threadkeep.adapters.items import (
    item_message,
    openai_role,
    openai_text,
    read_messages,
    stored_item,
    take_back_newest,
)
from threadkeep.boundary import of_extra
from threadkeep.history.session import Session
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.records import Json, Message

with of_extra("openai-agents"):
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

_NAME = "openai-agents"


class AgentsSession:
    """A `Session` of the OpenAI Agents SDK that stores its items in a Threadkeep session, usable on any event loop.

    User and assistant messages are stored like messages of other agents. Tool calls, tool results and reasoning are
    stored as notes. The session returns them unchanged, but Threadkeep sends no notes to the models of other agents.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        session_id: str,
        *,
        user_id: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or {})
        self._session = OnLoop[Memory, Session](memory, lambda one: one.session(session_id, user_id=user_id))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items since the last reset, oldest first.

        The default of `limit` is in `session_settings`. Without a limit, or with a negative one (as in the SDK's
        `SQLiteSession`), all items are returned.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        limit = None if limit is not None and limit < 0 else limit
        messages = await self._session.call_even_if_blocked(lambda one: read_messages(one, limit, keep=_is_item))
        return [item for message in messages if (item := _item(message)) is not None]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Store the items as one turn.

        Raises:
            InvalidMessage: an item cannot be stored as JSON; nothing was stored.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database does not answer; nothing was stored.
        """
        messages: list[Message] = []
        for item in cast("list[dict[str, Json]]", items):
            role = openai_role(item)
            text = openai_text(item.get("content")) if role else ""
            mark = f"[{item.get('type') or item.get('role') or 'item'}]"
            messages.append(item_message(_NAME, dict(item), role=role if text else None, text=text or mark))
        if messages:
            await self._session.call_even_if_blocked(lambda session: session.append(messages))

    async def pop_item(self) -> TResponseInputItem | None:
        """Return the newest item, and mark it as taken back; None if there is none. The transcript keeps its row."""
        message = await self._session.call_even_if_blocked(lambda session: take_back_newest(session, _is_item))
        return None if message is None else _item(message)

    async def clear_session(self) -> None:
        """Delete the session with all its items."""
        await self._session.call_even_if_blocked(lambda session: session.delete())


def _is_item(message: Message) -> bool:
    return _item(message) is not None


def _item(message: Message) -> TResponseInputItem | None:
    """Return the item that the SDK stored; for other messages, an item made of the text, or None for a note."""
    item = stored_item(_NAME, message)
    if item is None and message.role != "system" and message.content:
        item = {"role": message.role, "content": message.content}
    return cast("TResponseInputItem | None", item)
