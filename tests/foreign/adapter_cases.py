"""Cases of the adapters for Google ADK and LlamaIndex, which `test_adapters.py` runs in their environment."""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai.types import (
    Blob,
    Content,
    FileData,
    FunctionCall,
    GenerateContentResponseUsageMetadata,
    GroundingMetadata,
    Part,
    SearchEntryPoint,
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock, ThinkingBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.workflow import Context

from threadkeep import Memory, Message, open_memory, open_memory_sync
from threadkeep.adapters.google_adk import MemoryService, SessionService
from threadkeep.adapters.llama_index import ChatMemory
from threadkeep.history import keys
from threadkeep.records.sessions import Retention, RetentionLimits

URL = os.environ["THREADKEEP_TEST_DATABASE"]


def test_a_chat_engine_remembers() -> None:
    """Turns of the engine are in the transcript, tool messages survive, and a reset hides all."""
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
        assert [one.content for one in chat.get()] == ["cold", "new"]
        chat.reset()
        assert chat.get_all() == []
        assert session.count() == 8


@pytest.mark.filterwarnings("ignore:Skipping serialization of known unserializable key")
def test_an_agent_uses_its_context_and_its_memory_in_each_run() -> None:
    """LlamaIndex serializes the context between two runs; the memory is given again with the next run."""

    async def run() -> None:
        model = MockFunctionCallingLLM(
            response_generator=lambda messages, **_: ChatMessage(role="assistant", content="Hi")
        )
        agent = FunctionAgent(tools=[], llm=model, streaming=False)
        context = Context(agent)
        for question in ("one", "two"):
            await agent.run(question, ctx=context, memory=chat)

    with open_memory_sync(URL) as memory:
        chat = ChatMemory(memory, f"room:{uuid.uuid4()}")
        asyncio.run(run())
        assert [one.content for one in chat.get_all()] == ["one", "Hi", "two", "Hi"]


def test_a_message_without_text_is_a_mark_or_a_note() -> None:
    """Other agents see a mark for an image. A message that has only reasoning is a note, and so is a tool call."""
    image = ImageBlock(url="https://example.org/cat.png")
    messages = [
        ChatMessage(role="user", blocks=[image]),
        ChatMessage(role="user", blocks=[TextBlock(text="Two more:"), image, image]),
        ChatMessage(role="assistant", blocks=[ThinkingBlock(content="A cat.")]),
    ]
    with open_memory_sync(URL) as memory:
        name = f"room:{uuid.uuid4()}"
        chat = ChatMemory(memory, name)
        chat.put_messages(messages)
        stored = [(one.role, one.content) for one in memory.session(name).tail(3)]
        assert stored == [("user", "[image]"), ("user", "Two more:\n[2 images]"), ("system", "[assistant]")]
        assert chat.get_all() == messages
        assert ChatMemory(memory, name, max_messages=0).get() == []


def said(author: str, text: str, **fields: Any) -> Event:
    """Return an event in which something is said."""
    fields.setdefault("timestamp", time.time())
    return Event(author=author, content=Content(role="user", parts=[Part(text=text)]), **fields)


def test_an_agent_finds_messages_of_earlier_sessions() -> None:
    """Only sessions of the same user and app are searched; a session added twice is stored once."""

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


async def test_sessions_of_adks_database_are_imported(memory: Memory, tmp_path: Path) -> None:
    """Their events and state are equal in a session service. Media are marks, which a memory service stores too."""
    database = DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'adk.db'}")
    app = new_app()
    old = await database.create_session(app_name=app, user_id="ann", session_id="s", state={"user:y": 2, "z": 3})
    image = Part(inline_data=Blob(data=b"\x89PNG", mime_type="image/png"))
    document = Part(file_data=FileData(file_uri="gs://a/b.pdf", mime_type="application/pdf"))
    for parts in ([image], [Part(text="Two:"), document, image]):
        await database.append_event(old, said("user", "").model_copy(update={"content": Content(parts=parts)}))
    await database.append_event(old, said("guide", "A cat.", actions=EventActions(state_delta={"z": 4})))
    read = await database.get_session(app_name=app, user_id="ann", session_id="s")
    assert read is not None
    service = SessionService(memory)
    new = await service.create_session(app_name=app, user_id="ann", session_id="s", state=read.state)
    for event in read.events:
        await service.append_event(new, event)
    stored = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert stored is not None
    assert (stored.events, stored.state) == (read.events, read.state)
    await MemoryService(memory).add_events_to_memory(app_name=app, user_id="bob", session_id="s", events=read.events)
    for user in ("ann", "bob"):
        messages = await memory.session(f"adk:{keys.escape_key(app)}:{user}:s", user_id=user).tail(9)
        texts = [one.content for one in messages if one.role != "system"]
        assert texts == ["[image]", "Two:\n[file] [image]", "A cat."]


async def test_events_of_a_memory_service_can_be_appended_to_a_session(memory: Memory) -> None:
    """Their texts are stored once; the session has the whole events in their order, without a deleted one."""
    service, old, app = SessionService(memory), MemoryService(memory), new_app()
    events = [
        said("user", "My cat is Miso.", id="cat"),
        Event(author="guide", id="state"),
        said("guide", "Ok.", id="ok"),
    ]
    events[1].actions.state_delta["cat"] = "Miso"
    await old.add_events_to_memory(app_name=app, user_id="ann", session_id="s", events=events)
    session = await service.create_session(app_name=app, user_id="ann", session_id="s")
    for event in events:
        await service.append_event(session, event)
    stored = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert stored is not None
    assert (stored.events, stored.state) == (events, {"cat": "Miso"})
    assert session.events == events
    window = await memory.session(f"adk:{keys.escape_key(app)}:ann:s", user_id="ann").window()
    assert [one.content for one in window.messages] == ["My cat is Miso.", "Ok."]
    await old.delete_memory(app_name=app, user_id="ann", memory_id="cat")
    stored = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert stored is not None
    assert stored.events == events[1:]


async def test_an_event_that_is_appended_after_its_memory_was_deleted_is_in_the_session(memory: Memory) -> None:
    service, old, app = SessionService(memory), MemoryService(memory), new_app()
    cat = said("user", "My cat is Miso.", id="cat")
    await old.add_events_to_memory(app_name=app, user_id="ann", session_id="s", events=[cat])
    await old.delete_memory(app_name=app, user_id="ann", memory_id="cat")
    session = await service.create_session(app_name=app, user_id="ann", session_id="s")
    cat.actions.state_delta["cat"] = "Miso"
    await service.append_event(session, cat)
    stored = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert stored is not None
    assert (stored.events, stored.state) == ([cat], {"cat": "Miso"})


async def test_a_deleted_memory_is_not_found_again(memory: Memory) -> None:
    """Memories of other users stay; adding the same events again, or an unknown id, changes nothing."""
    service, app = MemoryService(memory), new_app()
    events = [said("user", "My cat is Miso.", id="cat"), said("guide", "A fine cat.", id="fine")]
    for user in ("ann", "bob"):
        await service.add_events_to_memory(app_name=app, user_id=user, events=events)
    for memory_id in ("cat", "cat", "unknown", None):
        await service.delete_memory(app_name=app, user_id="ann", memory_id=memory_id)
    await service.add_events_to_memory(app_name=app, user_id="ann", events=events)
    for user, ids in (("ann", ["fine"]), ("bob", ["fine", "cat"])):
        found = await service.search_memory(app_name=app, user_id=user, query="cat")
        assert {entry.id for entry in found.memories} == set(ids)


async def test_the_message_with_most_words_is_found_among_many_with_one(memory: Memory) -> None:
    """Many newer messages of the same and another app have one word each."""
    service, app, user = MemoryService(memory), new_app(), f"ann-{uuid.uuid4()}"
    both = said("user", "The zebra sleeps in a hammock.", id="both")
    many = [said("user", f"A {word}, {n}.", id=f"{word}{n}") for n in range(60) for word in ("zebra", "hammock")]
    await service.add_events_to_memory(app_name=app, user_id=user, events=[both, *many])
    others = [said("user", "zebra hammock", id=f"other{n}") for n in range(100)]
    await service.add_events_to_memory(app_name=new_app(), user_id=user, events=others)
    found = (await service.search_memory(app_name=app, user_id=user, query="zebra or hammock?")).memories
    assert found[0].id == "both"
    assert len(found) == 20


async def test_a_short_word_is_found_only_as_a_whole_word(memory: Memory) -> None:
    """Most messages have a short word as a part of other words. Chinese has no spaces between words."""
    service, app, user = MemoryService(memory), new_app(), f"ann-{uuid.uuid4()}"
    events = [said("user", text, id=f"short-{user}-{text}") for text in ("The parcel was late.", "I want a dog.")]
    await service.add_events_to_memory(app_name=app, user_id=user, events=events)
    found = (await service.search_memory(app_name=app, user_id=user, query="Is a")).memories
    assert [entry.content.parts[0].text for entry in found] == ["I want a dog."]
    texts = ("Un café noir.", "Il est né là.", "今天天气好")
    events = [said("user", text, id=f"short-{user}-{text}") for text in texts]
    await service.add_events_to_memory(app_name=app, user_id=user, events=events)
    for query, text in (("né", "Il est né là."), ("é", None), ("天气", "今天天气好")):
        found = (await service.search_memory(app_name=app, user_id=user, query=query)).memories
        assert [entry.content.parts[0].text for entry in found] == ([] if text is None else [text])


async def test_accents_are_found_in_both_normal_forms(memory: Memory) -> None:
    """A letter with an accent is one code point (NFC) or two (NFD), in the query and in the message."""
    service, app, user = MemoryService(memory), new_app(), f"ann-{uuid.uuid4()}"
    texts = ["I love café crème.", normalize("NFD", "No café today."), "A cafe in town.", "Bees and bears."]
    events = [said("user", text, id=f"{user}-{number}") for number, text in enumerate(texts)]
    await service.add_events_to_memory(app_name=app, user_id=user, events=events)
    for form in ("NFC", "NFD"):
        for query in ("café", "CAFÉ"):
            found = await service.search_memory(app_name=app, user_id=user, query=normalize(form, query))
            assert {entry.content.parts[0].text for entry in found.memories} == set(texts[:2])


def test_the_first_messages_need_no_user_unless_older_ones_are_left_out() -> None:
    """A greeting is part of the history until the history is cut, as in LlamaIndex's memory."""
    with open_memory_sync(URL) as memory:
        chat = ChatMemory(memory, f"room:{uuid.uuid4()}", max_messages=3)
        roles: list[MessageRole] = [MessageRole.SYSTEM, MessageRole.ASSISTANT, MessageRole.USER, MessageRole.ASSISTANT]
        for number, role in enumerate(roles):
            chat.put(ChatMessage(role=role, content=str(number)))
            read = [one.content for one in chat.get()]
            assert read == ([str(one) for one in range(number + 1)] if number < 3 else ["2", "3"])


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    """Open a memory on the database of the test, and close it after the test."""
    async with open_memory(URL) as opened:
        yield opened


def new_app() -> str:
    """Return an app's name that no other test has."""
    return f"app-{uuid.uuid4()}"


async def read(service: SessionService, app: str, user: str = "ann", name: str = "s", **config: Any) -> Any:
    """Return a session as it is stored; the arguments are those of a `GetSessionConfig`."""
    wanted = GetSessionConfig(**config) if config else None
    return await service.get_session(app_name=app, user_id=user, session_id=name, config=wanted)


def changing(state: dict[str, Any], **fields: Any) -> Event:
    """Return an event that changes state and says nothing."""
    return Event(author="guide", actions=EventActions(state_delta=state), **fields)


async def test_a_session_is_created_once_read_back_and_deleted(memory: Memory) -> None:
    service, app = SessionService(memory), new_app()
    key: dict[str, Any] = {"app_name": app, "user_id": "ann", "session_id": "s 1"}
    assert await read(service, app, name="s 1") is None
    attempts = [service.create_session(**key, state={"theme": "dark"}) for _ in range(3)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    [session] = [one for one in results if not isinstance(one, BaseException)]
    assert [type(one) for one in results if one is not session] == [AlreadyExistsError, AlreadyExistsError]
    assert await read(service, app, name="s 1") == session
    assert (session.id, session.state, session.events) == ("s 1", {"theme": "dark"}, [])
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**{**key, "session_id": " s 1 "})
    await service.delete_session(**key)
    assert await read(service, app, name="s 1") is None
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("user", "Hello?"))
    assert (await service.create_session(**key)).state == {}


class Echo(BaseAgent):
    """An agent that says the newest text of the person again."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event]:
        yield said(self.name, str(ctx.session.events[-1].content.parts[0].text), invocation_id=ctx.invocation_id)


def run_blocking(service: SessionService, app: str) -> None:
    """Run two turns with the blocking method of ADK, which starts an event loop in a thread."""
    runner = Runner(app_name=app, agent=Echo(name="echo"), session_service=service)
    for text in ("one", "two"):
        message = Content(role="user", parts=[Part(text=text)])
        assert len(list(runner.run(user_id="ann", session_id="s", new_message=message))) == 1


@pytest.mark.parametrize("opened", ["sync", "free", "blocked"])
def test_a_blocking_runner_uses_another_event_loop_than_the_memory(opened: str) -> None:
    """The memory's loop may be in its own thread, or run meanwhile, or wait for the runner."""

    async def run(app: str) -> Any:
        async with open_memory(URL) as memory:
            service = SessionService(memory)
            await service.create_session(app_name=app, user_id="ann", session_id="s")
            await asyncio.to_thread(run_blocking, service, app) if opened == "free" else run_blocking(service, app)
            return await read(service, app)

    def run_sync(app: str) -> Any:
        with open_memory_sync(URL) as memory:
            service = SessionService(memory)
            asyncio.run(service.create_session(app_name=app, user_id="ann", session_id="s"))
            run_blocking(service, app)
            return asyncio.run(read(SessionService(memory.asynchronous), app))

    session = run_sync(new_app()) if opened == "sync" else asyncio.run(run(new_app()))
    assert [event.content.parts[0].text for event in session.events] == ["one", "one", "two", "two"]


async def test_state_has_the_scope_of_its_prefix(memory: Memory) -> None:
    """App state is shared by all users, user state by the user's sessions, and temporary state is not stored."""
    service, app = SessionService(memory), new_app()
    given = {"app:a": 1, "user:u": {"name": "Ann"}, "s": [1], "temp:t": "x"}
    one = await service.create_session(app_name=app, user_id="ann", session_id="one", state=given)
    assert one.state == {"app:a": 1, "user:u": {"name": "Ann"}, "s": [1]}
    event = changing({"app:b": 2, "user:v": 2.5, "s": [2], "temp:t": "y", "made": datetime(2026, 1, 1, tzinfo=UTC)})
    await service.append_event(one, event)
    assert one.state["temp:t"] == "y"
    assert "temp:t" not in event.actions.state_delta
    shared = {"app:a": 1, "app:b": 2}
    ann = {**shared, "user:u": {"name": "Ann"}, "user:v": 2.5}
    again = await read(service, app, name="one")
    assert again.state == {**ann, "s": [2], "made": "2026-01-01T00:00:00Z"}
    assert (await service.create_session(app_name=app, user_id="ann", session_id="two")).state == ann
    assert (await service.create_session(app_name=app, user_id="bob", session_id="one")).state == shared
    assert await service.get_user_state(app_name=app, user_id="ann") == {"u": {"name": "Ann"}, "v": 2.5}
    assert await service.get_user_state(app_name=app, user_id="bob") == {}
    assert await service.get_user_state(app_name=new_app(), user_id="ann") == {}


async def test_an_event_survives_whole_and_its_text_is_a_message(memory: Memory) -> None:
    """Calls, actions, bytes and grounding are equal; texts are in the transcript and found by a search."""
    service, app = SessionService(memory), new_app()
    session = await service.create_session(app_name=app, user_id="ann", session_id="trip")
    word = f"lisbon{uuid.uuid4().hex[:8]}"
    call = Part(function_call=FunctionCall(id="c1", name="find", args={"city": word}))
    image = Part.from_bytes(data=b"\x00\xffpng", mime_type="image/png")
    events = [
        said("user", f"Flights to {word}?", invocation_id="i1"),
        Event(author="guide", content=Content(role="model", parts=[call]), long_running_tool_ids={"c1"}),
        Event(author="user", content=Content(role="user", parts=[image]), timestamp=1_700_000_000.125),
        said(
            "guide",
            "One at nine.",
            actions=EventActions(artifact_delta={"plan": 0}, transfer_to_agent="clerk", escalate=True),
            grounding_metadata=GroundingMetadata(
                web_search_queries=["flights"], search_entry_point=SearchEntryPoint(sdk_blob=b"blob")
            ),
            usage_metadata=GenerateContentResponseUsageMetadata(total_token_count=2),
            custom_metadata={"seat": "12a"},
            turn_complete=True,
        ),
    ]
    for event in events:
        await service.append_event(session, event)
    await service.append_event(session, Event(author="guide", partial=True))
    again = await read(service, app, name="trip")
    assert again == session
    assert again.events == events
    stored = memory.session(f"adk:{keys.escape_key(app)}:ann:trip", user_id="ann")
    texts = [(one.role, one.author, one.id, one.content) for one in await stored.tail(50) if one.role != "system"]
    assert texts == [
        ("user", None, events[0].id, f"Flights to {word}?"),
        ("user", None, events[2].id, "[image]"),
        ("assistant", "guide", events[3].id, "One at nine."),
    ]
    assert [hit.message.id for hit in await memory.search(word, user_id="ann")] == [events[0].id]
    found = await MemoryService(memory).search_memory(app_name=app, user_id="ann", query=word)
    assert [entry.id for entry in found.memories] == [events[0].id]


async def test_the_second_of_two_writers_of_a_revision_is_refused(memory: Memory) -> None:
    """Concurrent writers and copies without ADK's marker are refused too; a refused event stores nothing."""
    service, app = SessionService(memory), new_app()
    first = await service.create_session(app_name=app, user_id="ann", session_id="s")
    for number in range(4):
        second = first.model_copy(deep=True)
        pair = [(one, changing({f"{who}{number}": 1, "app:last": who})) for one, who in ((first, "a"), (second, "b"))]
        results = await asyncio.gather(*(service.append_event(*one) for one in pair), return_exceptions=True)
        lost = [place for place, result in enumerate(results) if isinstance(result, StaleSessionError)]
        assert len(lost) == 1
        with pytest.raises(ValueError, match="modified in storage"):
            await service.append_event(pair[lost[0]][0], said("user", "Too late."))
        first, event = pair[1 - lost[0]]
        again = await read(service, app)
        assert [one.id for one in again.events][-1] == event.id
        assert len(again.events) == number + 1
        assert again.state["app:last"] == event.actions.state_delta["app:last"]
    dumped = type(first).model_validate(first.model_dump())
    await service.append_event(dumped, said("user", "From a dump."))
    with pytest.raises(StaleSessionError):
        await service.append_event(type(first).model_validate(first.model_dump()), said("user", "Too late."))


async def test_an_event_that_is_appended_again_is_stored_once(memory: Memory) -> None:
    """ADK's in-memory service behaves in the same way; the session stays usable."""
    service, app = SessionService(memory), new_app()
    session = await service.create_session(app_name=app, user_id="ann", session_id="s")
    events = [said("user", "hi", actions=EventActions(state_delta={"temp:a": 1})), changing({"step": 1})]
    for event in events:
        first = event.model_copy(deep=True)
        await service.append_event(session, event)
        assert (await service.append_event(session, first)).id == event.id
    await service.append_event(session, said("agent", "hello"))
    stored = await read(service, app)
    assert [one.id for one in stored.events[:2]] == [one.id for one in events]
    assert len(stored.events) == len(session.events) == 3


async def test_a_session_is_created_again_after_retention_and_read_with_ids_of_others(memory: Memory) -> None:
    """One of several writers creates the session; older copies are refused; an id like a revision's is a message."""
    service, app = SessionService(memory), new_app()
    old = await service.create_session(app_name=app, user_id="ann", session_id="s")
    await service.append_event(old, said("user", "Old."))
    key = f"adk:{app}:ann:s"
    await memory.retention.prune(Retention(delete=RetentionLimits(max_age_days=1e-9)), session_ids=[key])
    assert await read(service, app) is None
    creations = [service.create_session(app_name=app, user_id="ann", session_id="s") for _ in range(3)]
    results = await asyncio.gather(*creations, return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["AlreadyExistsError", "AlreadyExistsError", "Session"]
    with pytest.raises(SessionNotFoundError):
        await service.append_event(old, said("user", "Too late."))
    await memory.session(key, user_id="ann").append([Message("user", "From a bot.", id="adk:update-1")])
    await service.append_event(await read(service, app), said("bot", "New."))
    assert [one.content.parts[0].text for one in (await read(service, app)).events] == ["From a bot.", "New."]


async def test_sessions_are_listed_by_activity_and_events_cut_by_the_config(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of a user or of all users come oldest activity first; events are limited by number or time."""
    service, app = SessionService(memory), new_app()
    for user, name in (("ann", "x"), ("ann", "y"), ("bob", "z")):
        await service.create_session(app_name=app, user_id=user, session_id=name, state={"name": name})
    session = await read(service, app, name="x")
    later = session.last_update_time + 1000
    for number in range(1, 6):
        await service.append_event(session, said("user", str(number), timestamp=later + number))
    assert session.last_update_time == later + 5
    listed = (await service.list_sessions(app_name=app)).sessions
    assert [(one.user_id, one.id, one.state, one.events) for one in listed] == [
        ("ann", "y", {"name": "y"}, []),
        ("bob", "z", {"name": "z"}, []),
        ("ann", "x", {"name": "x"}, []),
    ]
    for user in ("bob", "ann"):
        tied = Event(author="guide", timestamp=later + 9)
        one = await service.create_session(
            app_name=f"tied {app}", user_id=user, session_id="1" if user == "bob" else "2"
        )
        await service.append_event(one, tied)
    ties = (await service.list_sessions(app_name=f"tied {app}")).sessions
    assert [(one.user_id, one.id) for one in ties] == [("ann", "2"), ("bob", "1")]
    for odd in ("not:adk", "not_zz"):  # other sessions with the same prefix
        await memory.session(f"adk:{keys.escape_key(app)}:bob:{odd}", user_id="bob").append([Message("user", "hi")])
    assert [one.id for one in (await service.list_sessions(app_name=app, user_id="bob")).sessions] == ["z"]
    pages: list[str] = []
    page_of = memory.sessions_page

    async def noted(query: Any) -> Any:
        found = await page_of(query)
        pages.extend(info.session_id for info in found[0])
        return found

    monkeypatch.setattr(memory, "sessions_page", noted)
    await memory.session(f"other-{app}", user_id="bob").append([Message("user", "hi")])
    await service.create_session(app_name=new_app(), user_id="bob", session_id="z")
    await service.list_sessions(app_name=app, user_id="bob")
    assert len(pages) == 3  # the session and two with its prefix: the database filters all others
    for most, count in ((0, 0), (3, 3), (9, 5)):
        got = await read(service, app, name="x", num_recent_events=most)
        assert [one.timestamp for one in got.events] == [later + n for n in range(1, 6)][5 - count :]
    got = await read(service, app, name="x", after_timestamp=later + 4)
    assert [one.timestamp for one in got.events] == [later + 4, later + 5]


async def test_other_channels_share_the_session_and_an_erase_deletes_its_state(memory: Memory) -> None:
    """Messages of other channels are events, superseded ones are not; the state is erased with its user."""
    service, app, user = SessionService(memory), new_app(), f"ann-{uuid.uuid4()}"
    session = await service.create_session(app_name=app, user_id=user, session_id="s", state={"user:likes": "tea"})
    await service.append_event(session, said("user", "Hello."))
    stored = memory.session(f"adk:{keys.escape_key(app)}:{keys.escape_key(user)}:s", user_id=user)
    await stored.append([Message("assistant", "From the console.", author="clerk")])
    got = await read(service, app, user)
    assert [(one.author, one.content.parts[0].text) for one in got.events] == [
        ("user", "Hello."),
        ("clerk", "From the console."),
    ]
    await stored.take_back(1)
    got = await read(service, app, user)
    assert [one.author for one in got.events] == ["user"]
    await service.append_event(got, said("user", "And again."))
    assert (await memory.erase(user_id=user)).complete
    assert await service.get_user_state(app_name=app, user_id=user) == {}
    assert await read(service, app, user) is None


async def test_a_long_user_id_of_any_script_has_sessions(memory: Memory) -> None:
    """Sessions with long user ids are listed, found and deleted; a key that is short enough stays unhashed."""
    service, app = SessionService(memory), new_app()
    users = [f"{word}{uuid.uuid4().hex[:4]}" for word in ("\u738b" * 150, "\u0915_: " + "\u0915\u0940" * 30)]
    for user in users:
        for name in ("s", str(uuid.uuid4()), "\u4f1a\u3000\x85\u4e00"):
            state: dict[str, Any] = {"user:likes": "tea"}
            session = await service.create_session(app_name=app, user_id=user, session_id=name, state=state)
            await service.append_event(session, said("user", "My cat is Miso."))
            assert await read(service, app, user, name) == session
        listed = (await service.list_sessions(app_name=app, user_id=user)).sessions
        assert [one.user_id for one in listed] == [user] * 3
        assert listed[-1].id == "\u4f1a\u3000\x85\u4e00"
        found = await MemoryService(memory).search_memory(app_name=app, user_id=user, query="cat")
        assert len(found.memories) == 3
        await service.delete_session(app_name=app, user_id=user, session_id="s")
    assert len((await service.list_sessions(app_name=app)).sessions) == 4
    assert (await memory.erase(user_id=users[0])).complete
    assert await service.get_user_state(app_name=app, user_id=users[0]) == {}
    short = "\u738b\u4e94"
    await service.create_session(app_name=app, user_id=short, session_id="s")
    key = f"adk:{app}:{keys.escape_key(short)}:s"
    assert (await memory.session(key, user_id=short).info()).session_id == key


async def test_long_ids_have_sessions(memory: Memory) -> None:
    """Sessions with long ids are listed, found, deleted and erased, also after retention deleted old events."""
    service, app, others = SessionService(memory), new_app(), SessionService(memory)
    user = f"{uuid.uuid4()}@{'example.' * 58}org"
    for name in ("s", "n" * 300, "\u738b" * 300):
        session = await service.create_session(app_name=app, user_id=user, session_id=name, state={"name": name})
        await service.append_event(session, said("user", "My cat is Miso."))
        again = await read(others, app, user, name)
        assert (again, again.id) == (session, name)
        await service.append_event(again, said("bot", "Noted."))
        with pytest.raises(AlreadyExistsError):
            await service.create_session(app_name=app, user_id=user, session_id=name)
    [key, *more] = [info.session_id async for info in memory.sessions(user)]
    assert (len(more), re.fullmatch(f"adk:{keys.escape_key(app)}:sha256-[0-9a-f]{{64}}", key) is None) == (2, False)
    await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=1)), session_ids=[key])
    await memory.session(f"adk:{keys.escape_key(app)}:sha256-x", user_id=user).append([Message("user", "hi")])
    for whose in (user, None):
        listed = (await service.list_sessions(app_name=app, user_id=whose)).sessions
        assert [(one.user_id, one.id) for one in listed] == [(user, "s"), (user, "n" * 300), (user, "\u738b" * 300)]
    assert (await service.list_sessions(app_name=new_app(), user_id=user)).sessions == []
    found = await MemoryService(memory).search_memory(app_name=app, user_id=user, query="cat")
    assert len(found.memories) == 3
    await service.delete_session(app_name=app, user_id=user, session_id="n" * 300)
    assert await read(service, app, user, "n" * 300) is None
    assert (await memory.erase(user_id=user)).complete
    assert (await service.list_sessions(app_name=app)).sessions == []
