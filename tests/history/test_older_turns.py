"""Tests of finding older turns while sessions change, with any vectors of an embedding model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.databases import query
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, Retention, RetentionLimits, open_memory
from threadkeep.history.older_turns import RecallScope, Search
from threadkeep.observe import EmbeddingsSkipped
from threadkeep.records import Summary

ROOM = "telegram:1"


class Vectors:
    """An embedding model that returns the same vector for every text."""

    def __init__(self, vector: list[float]) -> None:
        self._vector = vector
        self.name = "vectors"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return the vector once per text."""
        return [self._vector for _ in texts]

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector."""
        return self._vector


class Picky(Vectors):
    """An embedding model that refuses a batch with poison in it, until it is well."""

    def __init__(self) -> None:
        super().__init__([1.0, 0.0])
        self.asked = 0
        self.well = False

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Count the call; return one vector per text, or raise for the whole batch."""
        self.asked += 1
        if not self.well and any("poison" in text for text in texts):
            raise ValueError("what it says is nobody's business")
        return await super().embed(texts)


class Topical(Vectors):
    """An embedding model for which only texts about bees are like the query."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return the vector of the query for texts about bees, and another one for others."""
        return [self._vector if "bees" in text else [0.0, 1.0] for text in texts]


async def say(memory: Memory, count: int, session_id: str = ROOM, *, user_id: str | None = None) -> None:
    """Append messages that have no word in common with the vault."""
    turns = [
        Message(role="user" if number % 2 else "assistant", content=f"word{number} word{number % 37} about cake")
        for number in range(count)
    ]
    await memory.session(session_id, user_id=user_id).append(turns)


async def found(memory: Memory, query: str = "the code of the vault", session_id: str = ROOM) -> list[str]:
    """Return the texts of the turns that a search in a session returns."""
    turns = await memory.older_turns.find(Search(session_id, None, query), 1_000)
    return [turn.message.content for turn in turns]


async def test_an_append_does_not_update_the_indexes(shared_url: str, memory_options: MemoryOptions) -> None:
    """The next search indexes new messages, both for full-text search and for older turns."""
    options = replace(memory_options, background=False)
    indexed = "SELECT indexed_seq, last_seq FROM chat_sessions"
    async with open_memory(shared_url, options=options) as memory:
        await say(memory, 20)
        assert query(shared_url, indexed) == [(0, 20)]
        assert memory.older_turns.index("session", ROOM) is None
        assert [hit.message.seq for hit in await memory.search("word7")] == [8]
        assert "word7 word7 about cake" in await found(memory, "word7")
        index = memory.older_turns.index("session", ROOM)
        assert index is not None
        await memory.session(ROOM).append([Message(role="user", content="The vault opens with 4711.")])
        assert query(shared_url, indexed) == [(20, 21)]
        assert index.read == {ROOM: 20}
        assert [hit.message.seq for hit in await memory.search("4711")] == [21]
        assert "The vault opens with 4711." in await found(memory)
        assert index.read == {ROOM: 21}


async def test_a_reset_during_a_search_does_not_block_it(memory: Memory) -> None:
    """A search that waits for an index and a search that finds it outdated by a reset both return."""
    await say(memory, 4_000)
    looking = asyncio.create_task(found(memory, "cake word5"))
    while memory.older_turns.index("session", ROOM) is None:  # noqa: ASYNC110 - no event signals it
        await asyncio.sleep(0)
    await memory.session(ROOM).reset()
    await memory.session(ROOM).append([Message(role="user", content="the code of the vault is 4711")])
    assert await found(memory) == ["the code of the vault is 4711"]
    assert isinstance(await looking, list)


@pytest.mark.parametrize("scope", ["session", "user"])
async def test_messages_before_a_reset_are_not_found(memory: Memory, scope: RecallScope) -> None:
    """Messages before a reset stay excluded when messages after it are taken back."""
    session = memory.session(ROOM, user_id="u1")
    await session.append([Message("user", "The vault opens with 4711."), Message("assistant", "Noted.")])
    await session.reset()
    await say(memory, 4, user_id="u1")
    await session.take_back(2)
    turns = await memory.older_turns.find(Search(ROOM, "u1", "the code of the vault", scope=scope), 1_000)
    assert "4711" not in " ".join(turn.message.content for turn in turns)


async def test_the_index_of_a_user_with_many_sessions_is_kept(sqlite_memory: Memory) -> None:
    """Only the newest sessions are searched; a turn in another one does not rebuild the index of the user."""
    for number in range(103):
        await say(sqlite_memory, 2, f"room:{number}", user_id="u1")
    first = None
    for number in range(3):
        await say(sqlite_memory, 2, f"room:{number}", user_id="u1")
        search = Search(f"room:{number}", "u1", "cake", scope="user")
        assert await sqlite_memory.older_turns.find(search, 1_000)
        first = first or sqlite_memory.older_turns.index("user", "u1")
    assert sqlite_memory.older_turns.index("user", "u1") is first


async def test_the_index_of_a_user_forgets_a_deleted_session(sqlite_memory: Memory) -> None:
    for name in ("room:1", "room:2"):
        await say(sqlite_memory, 2, name, user_id="u1")
    search = Search("room:2", "u1", "cake", scope="user")
    assert {turn.session_id for turn in await sqlite_memory.older_turns.find(search, 1_000)} == {"room:1", "room:2"}
    await sqlite_memory.session("room:1").delete()
    assert {turn.session_id for turn in await sqlite_memory.older_turns.find(search, 1_000)} == {"room:2"}


async def test_the_least_recently_used_indexes_are_evicted(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of a process are bounded by their bytes; the index in use is never evicted."""
    for name in ("room:1", "room:2", "room:3", "room:4"):
        await say(sqlite_memory, 20, name)
        assert await found(sqlite_memory, "cake", name)
        if (first := sqlite_memory.older_turns.index("session", "room:1")) is not None:
            monkeypatch.setattr("threadkeep.history.older_turns._MOST_BYTES", first.size * 5 // 4)
    indexes = [sqlite_memory.older_turns.index("session", f"room:{number}") for number in range(1, 5)]
    assert [index is not None for index in indexes] == [False, False, True, True]


async def test_a_summary_of_archived_messages_is_found_by_meaning(memory: Memory) -> None:
    """A summary is found by its vector; the vector is not stored, since it would outlive the summary."""
    await say(memory, 30)
    for first in range(1, 26, 5):
        text = "All bees swarm in May." if first == 11 else f"Cake was baked at {first}."
        assert await memory.summaries.add(Summary(ROOM, first, first + 4, text, "m", "1", 20))
    await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=2)))
    model = Topical([1.0, 0.0])
    await embed_all(memory, model)
    turns = await memory.older_turns.find(Search(ROOM, None, "Which insects fly then?"), 1_000, model)
    assert [turn.message.content for turn in turns][:1] == ["All bees swarm in May."]
    assert all(seq > 28 for seq, _ in await memory.embeddings.of_session(ROOM, "vectors"))


@pytest.mark.parametrize("vector", [[math.nan] * 3, [math.inf, 0.0], [0.0, 0.0], [1e308] * 4, []])
async def test_vectors_without_a_direction_are_similar_to_nothing(memory: Memory, vector: list[float]) -> None:
    """Turns are still found by words, and each message is embedded once."""
    await memory.session(ROOM).append([Message(role="user", content="the code of the vault is 4711")])
    search = Search(ROOM, None, "the code of the vault")
    for _ in range(3):
        turns = await memory.older_turns.find(search, 1_000, Vectors(vector))
        assert [turn.message.seq for turn in turns] == [1]
        index = memory.older_turns.index("session", ROOM)
        assert index is not None
        assert index.embedding is not None
        await index.embedding
    assert len(await memory.embeddings.of_session(ROOM, "vectors")) == 1


async def embed_all(memory: Memory, embedder: Vectors) -> None:
    """Search once with the model, and wait until the messages are embedded."""
    await memory.older_turns.find(Search(ROOM, None, "cake"), 1_000, embedder)
    index = memory.older_turns.index("session", ROOM)
    assert index is not None
    assert index.embedding is not None
    await index.embedding


async def test_a_text_that_the_model_refuses_does_not_block_others(memory: Memory, events: RecordedEvents) -> None:
    """A failing batch is halved until the bad text is isolated; the text is reported, skipped and retried later."""
    await say(memory, 40)
    await memory.session(ROOM).append([Message(role="user", content="poison")])
    await say(memory, 100)
    model = Picky()
    await embed_all(memory, model)
    assert len(await memory.embeddings.of_session(ROOM, "vectors")) == 140
    assert model.asked <= 20
    assert [(event.count, event.error) for event in events.of(EmbeddingsSkipped)] == [(1, "ValueError")]
    asked = model.asked
    await embed_all(memory, model)
    assert model.asked == asked
    model.well = True
    for _ in range(3):
        await embed_all(memory, model)
    assert len(await memory.embeddings.of_session(ROOM, "vectors")) == 141


async def test_a_failing_model_is_not_called_for_every_text(memory: Memory, events: RecordedEvents) -> None:
    """After a dozen failures in a row, the remaining texts wait for the next search."""
    await memory.session(ROOM).append([Message(role="user", content=f"poison {number}") for number in range(200)])
    model = Picky()
    await embed_all(memory, model)
    assert model.asked <= 12
    model.well = True
    for _ in range(4):
        await embed_all(memory, model)
    assert len(await memory.embeddings.of_session(ROOM, "vectors")) == 200
    assert len(events.of(EmbeddingsSkipped)) == 1


async def test_the_indexes_of_a_deleted_session_are_deleted(shared_url: str, memory_options: MemoryOptions) -> None:
    """The process that deletes a session drops its indexes at once; other processes do so at their next search."""
    async with (
        open_memory(shared_url, options=memory_options) as here,
        open_memory(shared_url, options=memory_options) as elsewhere,
    ):
        await say(here, 4, user_id="u1")
        searches = [Search(ROOM, "u1", "cake"), Search(ROOM, "u1", "cake", scope="user")]
        for memory in (here, elsewhere):
            for search in searches:
                assert await memory.older_turns.find(search, 1_000)
        await here.session(ROOM).delete()
        assert here.older_turns.index("session", ROOM) is None
        assert here.older_turns.index("user", "u1") is None
        for search in searches:
            assert await elsewhere.older_turns.find(search, 1_000) == []
        assert elsewhere.older_turns.index("session", ROOM) is None
        assert elsewhere.older_turns.index("user", "u1") is None


async def test_other_tasks_run_while_long_messages_are_indexed(sqlite_memory: Memory) -> None:
    """Indexing yields to the event loop after each long message, not after each page."""
    long = "The garden has beans, roses and a pond. " * 500
    await sqlite_memory.session(ROOM).append([Message(role="user", content=long) for _ in range(100)])
    passes = 0

    async def other() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += len(sqlite_memory.older_turns.index("session", ROOM).tokens) > 0  # type: ignore[union-attr]

    looking = asyncio.create_task(found(sqlite_memory, "beans"))
    while sqlite_memory.older_turns.index("session", ROOM) is None:  # noqa: ASYNC110 - no event signals it
        await asyncio.sleep(0)
    running = asyncio.create_task(other())
    await looking
    running.cancel()
    index = sqlite_memory.older_turns.index("session", ROOM)
    assert index is not None
    assert passes >= len(index.tokens) - 1


async def test_concurrent_searches_index_messages_once_and_in_order(sqlite_memory: Memory) -> None:
    session = sqlite_memory.session(ROOM)
    padding = "It was said at length. " * 300
    for number in range(4):
        said = [f"Bean {number}. {padding}", f"Rose {number}.", f"{padding} Pond {number}."]
        await session.append([Message(role="user", content=text) for text in said])
        await asyncio.gather(*(found(sqlite_memory, word) for word in ("bean", "rose", "pond")))
    index = sqlite_memory.older_turns.index("session", ROOM)
    assert index is not None
    assert list(index.tokens) == [f"{ROOM}#{seq}" for seq in range(1, 13)]


async def test_the_newest_messages_of_a_long_conversation_are_found_at_once(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newest messages are found while older ones are indexed in the background; then all are found."""
    monkeypatch.setattr("threadkeep.history.older_turns._TIMEOUT_SECONDS", 0)
    session = memory.session(ROOM)
    await session.append([Message(role="user", content="the code of the cellar is 1147")])
    await say(memory, 2_000)
    await session.append([Message(role="user", content="the code of the vault is 4711")])
    await say(memory, 60)
    assert "the code of the vault is 4711" in await found(memory)
    await session.append([Message(role="user", content="the code of the attic is 7114")])
    assert "the code of the attic is 7114" in await found(memory, "the code of the attic")
    index = memory.older_turns.index("session", ROOM)
    assert index is not None
    while len(index.tokens) < 2_063:
        await asyncio.sleep(0.01)
        await found(memory)
    assert index.newest is None
    assert "the code of the cellar is 1147" in await found(memory, "the code of the cellar")


async def test_an_edit_keeps_the_index(memory: Memory) -> None:
    """An edit does not discard the index; otherwise regenerating would not find old messages."""
    session = memory.session(ROOM)
    await session.append([Message(role="user", content="the code of the vault is 4711")])
    await say(memory, 6)
    await session.append([Message("user", "the code of the vault, please", "asked"), Message("assistant", "no vault")])
    assert len(await found(memory)) > 2
    index = memory.older_turns.index("session", ROOM)
    await session.edit("asked", "the code of the vault!")
    assert {"the code of the vault is 4711", "the code of the vault!"} <= set(texts := await found(memory))
    assert not {"the code of the vault, please", "no vault"}.intersection(texts)
    assert memory.older_turns.index("session", ROOM) is index
    await session.take_back()
    assert "the code of the vault!" not in await found(memory)


async def test_a_message_recalled_in_a_chat_is_not_found(memory: Memory) -> None:
    """The message stays in the transcript with a note after it, but leaves the index."""
    session = memory.session(ROOM)
    await session.append([Message("user", "the code of the vault is 4711", "m1"), Message("user", "the vault is big")])
    assert "the code of the vault is 4711" in await found(memory)
    note = Message("system", "The person took a message back.", "recall:m1", metadata={"recalled": "m1"})
    await session.append([note])
    assert await found(memory) == ["the vault is big"]


@pytest.mark.parametrize("taken_back", [False, True])
async def test_erased_words_leave_the_indexes_of_other_processes(
    shared_url: str, memory_options: MemoryOptions, taken_back: bool
) -> None:
    """An index with erased words is discarded at the next search, also if they were excluded from it before."""
    async with (
        open_memory(shared_url, options=memory_options) as here,
        open_memory(shared_url, options=memory_options) as elsewhere,
    ):
        group = here.session("group:1")
        await group.append([Message("user", "my vault has the code 4711", author="ann"), Message("assistant", "I see")])
        assert await found(elsewhere, "the code of the vault", "group:1")
        index = elsewhere.older_turns.index("session", "group:1")
        if taken_back:
            await group.take_back(2)
            assert not await found(elsewhere, "the code of the vault", "group:1")
            assert elsewhere.older_turns.index("session", "group:1") is index
        await here.erase(user_id="ann")
        assert not await found(elsewhere, "the code of the vault", "group:1")
        assert elsewhere.older_turns.index("session", "group:1") is not index


async def test_only_the_newest_messages_of_a_user_are_indexed(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.history.older_turns._MOST_OF_USER", 50)
    for number in range(5):
        await say(sqlite_memory, 20, f"room:{number}", user_id="u1")
    await sqlite_memory.older_turns.find(Search("room:4", "u1", "cake", scope="user"), 1_000)
    index = sqlite_memory.older_turns.index("user", "u1")
    assert index is not None
    assert index.read == {f"room:{number}": 20 for number in (2, 3, 4)}
    assert index.first == {"room:2": 11, "room:3": 1, "room:4": 1}


async def test_only_the_newest_summaries_of_a_user_are_indexed(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of summaries is bounded over all sessions, and they count in the size of the index."""
    monkeypatch.setattr("threadkeep.history.conversation_index._MOST_SUMMARIES", 5)
    for name in ("room:1", "room:2", "room:3"):
        await say(memory, 20, name, user_id="u1")
        for first in range(1, 16, 5):
            text = f"Bees, summed up at {first}."
            assert await memory.summaries.add(Summary(name, first, first + 4, text, "m", "1", 20))
    await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=2)))
    found = await memory.older_turns.find(Search("room:2", "u1", "bees summed up", scope="user"), 1_000)
    assert {turn.message.seq for turn in found if turn.summary_id} == {10, 15}
    index = memory.older_turns.index("user", "u1")
    assert index is not None
    assert set(index.summaries) == {"room:2#10", "room:2#15", "room:3#5", "room:3#10", "room:3#15"}
    await say(memory, 20, "room:4", user_id="u1")
    assert await memory.summaries.add(Summary("room:4", 1, 10, "More bees.", "m", "1", 20))
    await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=2)))
    await memory.older_turns.find(Search("room:4", "u1", "bees", scope="user"), 1_000)
    assert memory.older_turns.index("user", "u1") is index
    assert len(index.summaries) == 5
    assert index.size - len(index.tokens) * 600 - index.words.size == 10_000


async def test_long_messages_fill_the_indexes_sooner(sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.history.older_turns._MOST_BYTES", 1_000_000)
    for name in ("room:1", "room:2", "room:3"):
        words = " ".join(f"word{number} of {name}" for number in range(2_000))
        await sqlite_memory.session(name).append([Message(role="user", content=words)])
        assert await found(sqlite_memory, "word7", name)
    indexes = [sqlite_memory.older_turns.index("session", f"room:{number}") for number in (1, 2, 3)]
    assert [index is not None for index in indexes] == [False, True, True]


async def test_vectors_and_long_words_fill_the_indexes_sooner(sqlite_memory: Memory) -> None:
    await say(sqlite_memory, 20)
    await found(sqlite_memory, "cake")
    index = sqlite_memory.older_turns.index("session", ROOM)
    assert index is not None
    words = index.size
    await sqlite_memory.older_turns.find(Search(ROOM, None, "cake"), 1_000, Vectors([1.0] * 1_000))
    assert index.embedding is not None
    await index.embedding
    assert 20 * 4_000 < index.size - words < 20 * 5_000
    words = index.size
    await sqlite_memory.session(ROOM).append([Message("user", "x" * 10_000)])
    await found(sqlite_memory, "cake")
    assert index.size - words > 10_000
