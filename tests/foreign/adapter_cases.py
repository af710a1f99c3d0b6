"""Cases of the adapters whose packages have an environment of their own; `test_adapters.py` runs them there."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from google.genai.types import Content, Part
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM

from threadkeep import open_memory, open_memory_sync
from threadkeep.adapters.google_adk import MemoryService
from threadkeep.adapters.llama_index import ChatMemory

URL = os.environ["THREADKEEP_TEST_DATABASE"]


def test_a_chat_engine_remembers() -> None:
    """The engine's turns are in the transcript; tool messages survive, and a reset hides all."""
    with open_memory_sync(URL) as memory:
        chat = ChatMemory(memory, "room:1", user_id="ann")
        engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=chat)
        engine.chat("I am Ada.")
        asyncio.run(engine.achat("Who am I?"))
        session = memory.session("room:1", user_id="ann")
        assert [one.role for one in session.tail(10)] == ["user", "assistant"] * 2
        tool = ChatMessage(role=MessageRole.TOOL, content="cold", additional_kwargs={"tool_call_id": "c1"})
        call = ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [{"id": "c1", "name": "w"}]})
        chat.put_messages([call, tool])
        assert chat.get_all()[-2:] == [call, tool]
        assert len(chat.get()) == 6
        assert len(session.window().messages) == 4
        assert ChatMemory.from_defaults(memory=memory, session_id="room:1", user_id="bob").get() == []
        chat.set([tool, ChatMessage(role="user", content="new")])
        assert [one.content for one in chat.get_all()] == ["cold", "new"]
        assert [one.content for one in chat.get()] == ["new"]
        chat.reset()
        assert chat.get_all() == []
        assert session.count() == 8


def said(author: str, text: str, **fields: Any) -> Event:
    """Return an event in which something is said."""
    return Event(author=author, content=Content(role="user", parts=[Part(text=text)]), timestamp=time.time(), **fields)


def test_an_agent_finds_what_was_said_in_earlier_sessions() -> None:
    """Of its user and its app; a session that is added again is stored once."""

    async def run() -> None:
        sessions = InMemorySessionService()
        async with open_memory(URL) as memory:
            service = MemoryService(memory)
            for app, user, text in (("shop", "ann", "My cat is Miso."), ("shop", "bob", "My cat is Tom.")):
                session = await sessions.create_session(app_name=app, user_id=user, session_id="s:1")
                await sessions.append_event(session, said("user", text))
                await sessions.append_event(session, said("guide", "A fine cat."))
                await service.add_session_to_memory(session)
                await service.add_session_to_memory(session)
            found = await service.search_memory(app_name="shop", user_id="ann", query="What is the name of my cat?")
            texts = [entry.content.parts[0].text for entry in found.memories]
            assert texts == ["My cat is Miso.", "A fine cat."]
            assert [entry.author for entry in found.memories] == ["user", "guide"]
            other = await service.search_memory(app_name="bank", user_id="ann", query="cat")
            assert other.memories == []
            assert await memory.session("adk:shop:ann:s_3a1", user_id="ann").count() == 2

    asyncio.run(run())
