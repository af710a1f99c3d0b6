"""Cases of Pydantic AI's conversation store, which `test_adapters.py` runs in the environment of the adapters."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import DocumentUrl, ImageUrl, ModelMessage, ModelResponse, TextContent, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from threadkeep import Memory, Message, open_memory
from threadkeep.adapters.pydantic_ai import Conversations
from threadkeep.history.exporting import every_session, export
from threadkeep.history.importing import Importer
from threadkeep.history.session import Session
from threadkeep.records.sessions import Retention, RetentionLimits

URL = os.environ["THREADKEEP_TEST_DATABASE"]


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    """Open a memory on the database of the test, and close it after the test."""
    async with open_memory(URL) as opened:
        yield opened


def counting() -> Agent[None, str]:
    """Return an agent that calls a tool once per turn, and answers with the number of messages it got."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart(f"I see {len(messages)} messages.")])
        return ModelResponse(parts=[ToolCallPart("look", {"at": "it"})])

    agent = Agent(FunctionModel(answer))
    agent.tool_plain(name="look")(lambda at: f"{at}: fine")
    return agent


async def ask(store: Conversations, name: str, prompt: Any, **scope: str) -> Any:
    """Load a conversation, run a turn, save it, and return the result."""
    conversation = await store.load(name) or Conversation(conversation_id=name)
    result = await counting().run(prompt, conversation=conversation)
    await store.save(result, **scope)
    return result


def new_name() -> str:
    """Return a conversation id that no other test has."""
    return f"room-{uuid.uuid4()}"


async def texts(memory: Memory, name: str, user: str | None = None) -> list[tuple[str, str]]:
    """Return roles and texts of a session, without system messages."""
    found = await memory.session(name, user_id=user).tail(100)
    return [(one.role, one.content) for one in found if one.role != "system"]


async def test_a_conversation_is_stored_in_the_transcript(memory: Memory) -> None:
    """Messages, usage and ids are equal after loading, each is stored once, and a search finds texts."""
    store, name = Conversations(memory, user_id="ann"), new_name()
    word = f"lisbon{uuid.uuid4().hex[:8]}"
    first = await ask(store, name, [f"Flights to {word}?", BinaryContent(b"\x00\xff", media_type="image/png")])
    second = await ask(store, name, "And back?")
    loaded = await store.load(name)
    assert loaded.messages == second.conversation.messages
    assert len(loaded.messages) == 8
    assert loaded.usage.requests == 4
    entries = await store.load_entries(name)
    assert [one.message for one in entries] == loaded.messages
    assert [await store.read_entry(one.id) for one in entries] == entries
    assert [one.message for one in await store.load_entries(name, limit=3)] == loaded.messages[-3:]
    assert await texts(memory, name, "ann") == [
        ("user", f"Flights to {word}?\n[image]"),
        ("assistant", first.output),
        ("user", "And back?"),
        ("assistant", second.output),
    ]
    assert [hit.message.id for hit in await memory.search(word, user_id="ann")] == [entries[0].id]
    assert await Conversations(memory, user_id="bob").load(name) is None
    with pytest.raises(LookupError):
        await store.read_entry("nothing")


async def test_other_agents_see_each_prompt(memory: Memory) -> None:
    """A prompt of typed text has its text, and one without text has marks."""
    store, name = Conversations(memory), new_name()
    image, pdf = ImageUrl("https://example.org/cat.png"), DocumentUrl("https://example.org/bill")
    sound = BinaryContent(b"\x00", media_type="audio/wav")
    prompts: list[Any] = [[image, image], [sound, pdf], [TextContent("Hello.", metadata={"page": 1}), image]]
    for prompt in prompts:
        await ask(store, name, prompt)
    asked = [text for role, text in await texts(memory, name) if role == "user"]
    assert asked == ["[2 images]", "[recording] [file]", "Hello.\n[image]"]


async def test_the_second_of_two_saves_of_a_revision_is_refused(memory: Memory) -> None:
    """Concurrent saves and new conversations behave in the same way; a repeated write changes nothing."""
    store, name = Conversations(memory), new_name()
    entry = ConversationEntry(parent_id=None, message=ModelResponse(parts=[TextPart("Hello.")]))
    record = ConversationRecord(conversation_id=name, head_id=entry.id)
    other = dataclasses.replace(entry, id=str(uuid.uuid4()))
    another = ConversationRecord(conversation_id=name, head_id=other.id)
    writes = [
        store.write_record(one, new_entries=[new], expected_revision=None)
        for one, new in ((record, entry), (another, other))
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["ConversationConflict", "NoneType"]
    won, new = ((record, entry), (another, other))[results.index(None)]
    await store.write_record(won, new_entries=[new], expected_revision=None)
    assert await store.read_record(name) == won
    assert [one.id for one in await store.read_history(won.head_id)] == [new.id]
    copies = [await store.load(name) for _ in range(2)]
    await store.save(await counting().run("One.", conversation=copies[0]))
    with pytest.raises(ConversationConflict):
        await store.save(await counting().run("Two.", conversation=copies[1]))
    with pytest.raises(ConversationConflict):
        await store.write_record(
            dataclasses.replace(won, head_id="nothing", revision="r"),
            expected_revision=(await store.load(name)).revision,
        )
    assert await texts(memory, name) == [("assistant", "Hello."), ("user", "One."), ("assistant", "I see 4 messages.")]


async def test_a_branch_supersedes_and_a_fork_is_a_session_of_its_own(memory: Memory) -> None:
    """The superseded history can be continued again; a fork survives the deletion of its origin."""
    store, name, fork_name = Conversations(memory), new_name(), new_name()
    await ask(store, name, "One.")
    await ask(store, name, "Two.")
    left = (await store.load_entries(name))[-1].id
    revision = (await store.load(name)).revision
    branched = await store.branch(name, at=4, expected_revision=revision)
    assert len(branched.messages) == 4
    with pytest.raises(ConversationConflict):
        await store.branch(name, at=2, expected_revision=revision)
    await ask(store, name, "Three.")
    assert [text for role, text in await texts(memory, name) if role == "user"] == ["One.", "Three."]
    record: Any = await store.read_record(name)
    assert record.branches == [left]
    fork = await store.fork(name, at=4, new_conversation_id=fork_name)
    assert fork.messages == branched.messages
    back = await store.branch(name, from_entry=left, expected_revision=record.revision)
    assert len(back.messages) == 8
    await store.delete(name)
    assert await store.load(name) is None
    assert await memory.session(name).count(view="history") == 0
    assert [text for role, text in await texts(memory, fork_name) if role == "user"] == ["One."]
    await ask(store, fork_name, "Four.")
    assert len((await store.load(fork_name)).messages) == 8
    forked: Any = await store.read_record(fork_name)
    assert forked.forked_from == name
    await ask(store, name, "Anew.")
    assert len((await store.load(name)).messages) == 4


async def test_a_store_works_on_another_event_loop_than_its_memory(memory: Memory) -> None:
    """There, too, a fork whose origin was deleted is found by the task that has read its record."""

    async def use() -> int:
        await asyncio.gather(ask(store, name, "One."), ask(store, other_name, "One."))
        await store.fork(name, at=4, new_conversation_id=fork_name)
        await store.delete(name)
        await ask(store, fork_name, "Two.")
        return len((await store.load(fork_name)).messages)

    store, name, other_name, fork_name = Conversations(memory), new_name(), new_name(), new_name()
    assert await asyncio.to_thread(asyncio.run, use()) == 8
    assert [text for role, text in await texts(memory, fork_name) if role == "user"] == ["One.", "Two."]


class LateWriter(Conversations):
    """A store that reads a record, and then waits until another writer has written."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.has_read, self.may_write = asyncio.Event(), asyncio.Event()

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record as it was before the other write."""
        found = await super().read_record(conversation_id)
        self.has_read.set()
        await self.may_write.wait()
        return found


async def test_a_refused_branch_takes_back_nothing(memory: Memory) -> None:
    """The second writer read the record before the first one stored its branch."""
    store, late, name = Conversations(memory), LateWriter(memory), new_name()
    await ask(store, name, "One.")
    await ask(store, name, "Two.")
    record: Any = await store.read_record(name)
    entries = await store.read_history(record.head_id)
    new, refused = [
        ConversationEntry(parent_id=entries[at].id, message=ModelResponse(parts=[TextPart(text)]))
        for at, text in ((3, "First."), (1, "Second."))
    ]
    first, second = [dataclasses.replace(record, head_id=one.id, revision=one.id) for one in (new, refused)]
    writing = asyncio.create_task(late.write_record(second, new_entries=[refused], expected_revision=record.revision))
    await late.has_read.wait()
    await store.write_record(first, new_entries=[new], expected_revision=record.revision)
    late.may_write.set()
    with pytest.raises(ConversationConflict):
        await writing
    said = [("user", "One."), ("assistant", "I see 3 messages."), ("assistant", "First.")]
    assert await texts(memory, name) == said
    # Repeating the stored write changes nothing either.
    await store.write_record(first, new_entries=[new], expected_revision=record.revision)
    assert await texts(memory, name) == said
    assert [one.id for one in await store.read_history(new.id)] == [*(one.id for one in entries[:4]), new.id]


async def test_conversations_are_listed_by_scope_newest_first(memory: Memory) -> None:
    """Only conversations of the store's user are listed, and an erase of the user deletes them."""
    user = f"ann-{uuid.uuid4()}"
    store, names = Conversations(memory, user_id=user), [new_name() for _ in range(3)]
    for name, scope in zip(names, ("desk", "desk", "phone"), strict=True):
        await ask(store, name, "Hello.", scope=scope)
    assert [one.conversation_id for one in await store.list_conversations()] == names[::-1]
    assert [one.conversation_id for one in await store.list_conversations(scope="desk", limit=1)] == [names[1]]
    assert await store.load(names[0], scope="phone") is None
    assert (await memory.erase(user_id=user)).complete
    assert await store.list_conversations() == []
    assert await memory.channels.state.values_of(f"pydantic-ai:{user}", "") == {}


async def test_a_list_reads_sessions_of_other_agents_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store reads such a session again only if it has a new message, since it may have been imported."""
    user, reads = f"ann-{uuid.uuid4()}", list[str]()
    store, name, others = Conversations(memory, user_id=user), new_name(), [new_name() for _ in range(3)]
    for other in others:
        await memory.session(other, user_id=user).append([Message("user", "Hello?")])
    await ask(store, name, "Hello.")
    page = Session.page

    async def noted(session: Session, *arguments: Any, **options: Any) -> Any:
        reads.append(session.session_id)
        return await page(session, *arguments, **options)

    monkeypatch.setattr(Session, "page", noted)
    for _ in range(2):
        assert [one.conversation_id for one in await store.list_conversations()] == [name]
    assert sorted(reads) == sorted([*others, name, name])
    await memory.session(others[0], user_id=user).append([Message("user", "Hello?")])
    reads.clear()
    assert [one.conversation_id for one in await store.list_conversations()] == [name]
    assert sorted(reads) == sorted([others[0], name])


async def test_imported_conversations_are_listed_forked_and_continued(memory: Memory) -> None:
    """Exports have no adapter state; sessions of other agents and users are no conversations."""
    user, lines, refused = f"ann-{uuid.uuid4()}", io.BytesIO(), []
    store, names, fork_name = Conversations(memory, user_id=user), [new_name() for _ in range(2)], new_name()
    for name in names:
        await ask(store, name, "Hello.", scope="desk")
        await memory.session(name, user_id=user).append([Message("user", "From a bot.")])
    await memory.session(new_name(), user_id=user).append([Message("user", "Hello?")])
    await ask(Conversations(memory), new_name(), "Hello.", scope="desk")
    await export(every_session(memory, user), lines, lambda _: None, view="history")
    assert (await memory.erase(user_id=user)).complete
    assert await store.list_conversations() == []
    importer = Importer(memory, lambda position, sentence: refused.append((position, sentence)))
    for number, line in enumerate(lines.getvalue().splitlines(), start=1):
        await importer.take(number, line)
    await importer.store()
    assert (refused, importer.done.sessions) == ([], 3)
    assert [one.conversation_id for one in await store.list_conversations(scope="desk")] == names[::-1]
    assert len((await store.fork(names[0], at=2, new_conversation_id=fork_name)).messages) == 2
    await ask(store, names[0], "And now?")
    assert [one.conversation_id for one in await store.list_conversations()] == [names[0], fork_name, names[1]]


@pytest.mark.parametrize(
    ("limits", "left"),
    [(RetentionLimits(max_messages=5), ["Two.", "Three."]), (RetentionLimits(max_age_days=1e-9), ["Three."])],
)
async def test_a_conversation_continues_after_retention(
    memory: Memory, limits: RetentionLimits, left: list[str]
) -> None:
    """The conversation begins with the oldest remaining entry; without one, one writer can create it again."""
    store, name = Conversations(memory), new_name()
    for text in ("One.", "Two."):
        await ask(store, name, text)
    await memory.retention.prune(Retention(delete=limits), session_ids=[name])
    copies = [await store.load(name) or Conversation(conversation_id=name) for _ in range(2)]
    await store.save(await counting().run("Three.", conversation=copies[0]))
    with pytest.raises(ConversationConflict):
        await store.save(await counting().run("Late.", conversation=copies[1]))
    asked = [
        part.content
        for one in (await store.load(name)).messages
        for part in one.parts
        if part.part_kind == "user-prompt"
    ]
    assert asked == left
    await ask(store, name, "Four.")
    assert [text for role, text in await texts(memory, name) if role == "user"] == [*left, "Four."]
