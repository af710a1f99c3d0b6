"""How the tests of the chat talk."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool

from threadkeep import Memory
from threadkeep.workflow.answering import ChatAgent
from threadkeep.workflow.chat import Chat, ChatEvent, ChatRequest, ChatToken, ChatTurn
from threadkeep.workflow.chat_options import ChatOptions

ROOM = "room:1"


def make_chat(
    memory: Memory, model: BaseChatModel, options: ChatOptions | None = None, tools: Sequence[BaseTool] = ()
) -> Chat:
    """A chat as the service makes it."""
    return Chat(memory, ChatAgent(memory, model, options or ChatOptions(), tools))


def said(
    message: str, message_id: str | None = None, *, session_id: str | None = ROOM, user_id: str | None = None
) -> ChatRequest:
    """A request of a person in the room."""
    return ChatRequest(message, session_id=session_id, user_id=user_id, message_id=message_id)


async def events_of(turn: ChatTurn) -> list[ChatEvent]:
    """All that a follower hears."""
    return [event async for event in turn.follow()]


def words_of(events: Sequence[ChatEvent]) -> str:
    """The pieces of an answer, put together."""
    return "".join(event.text for event in events if isinstance(event, ChatToken))
