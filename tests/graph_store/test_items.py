"""Tests of the items of a conversation in a graph store: metadata and chunks that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from tests.graph_store.opening import transcripts_of
from threadkeep.errors import InvalidInput, SessionDamaged
from threadkeep.graph_store.foreign import StoreItems
from threadkeep.graph_store.items import Value
from threadkeep.graph_store.layout import GraphLayout, ItemKey
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.records import Message
from threadkeep.store.transcripts import SessionQuery
from threadkeep.testing.transcript_source import assistant, contents, seqs, turn, user

HISTORY = ("agent_chat_history",)
ROOM = "telegram:123456789"


class CountingItems(StoreItems):
    """The items of a store, which record the chunks that were read."""

    def __init__(self, store: BaseStore) -> None:
        super().__init__(store)
        self.chunks: list[str] = []

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, and record the chunks."""
        self.chunks += [key.key.removeprefix(f"{ROOM}:") for key in keys if ":chunk:" in key.key]
        return await super().get(keys)


def opened(layout: GraphLayout | None = None) -> tuple[InMemoryStore, CountingItems, GraphTranscripts]:
    """Return transcripts in a new store."""
    store = InMemoryStore()
    items = CountingItems(store)
    return store, items, transcripts_of(items, layout)


async def value_of(store: BaseStore, key: str) -> dict[str, object]:
    """Return the value of a key through LangGraph's interface."""
    item = await store.aget(HISTORY, key)
    assert item is not None
    return item.value


async def say(transcripts: GraphTranscripts, count: int) -> None:
    """Append `count` messages in one turn."""
    await transcripts.append(turn(*[user(f"{n}", f"m:{n}") for n in range(1, count + 1)], session=ROOM))


async def test_the_metadata_and_the_chunk_of_a_conversation() -> None:
    store, _, transcripts = opened()
    for _ in range(2):
        await transcripts.append(turn(user("Hi"), assistant("Hello"), session=ROOM))
    metadata = await value_of(store, f"{ROOM}__meta__")
    assert {name: metadata[name] for name in ("conversation_key", "last_seq", "chunk_size", "latest_chunk_key")} == {
        "conversation_key": ROOM,
        "last_seq": 4,
        "chunk_size": 200,
        "latest_chunk_key": "chunk:000000",
    }
    assert metadata["version"] == 2
    assert datetime.fromisoformat(str(metadata["updated_at"])).tzinfo is not None
    chunk = await value_of(store, f"{ROOM}:chunk:000000")
    assert set(chunk) == {"conversation_key", "chunk_key", "start_seq", "end_seq", "messages", "updated_at"}
    assert (chunk["conversation_key"], chunk["chunk_key"]) == (ROOM, "chunk:000000")
    assert (chunk["start_seq"], chunk["end_seq"]) == (1, 4)
    messages = chunk["messages"]
    assert isinstance(messages, list)
    assert [(message["seq"], message["role"], message["content"]) for message in messages] == [
        (1, "user", "Hi"),
        (2, "assistant", "Hello"),
        (3, "user", "Hi"),
        (4, "assistant", "Hello"),
    ]


@pytest.mark.parametrize(("count", "chunks"), [(199, 1), (200, 1), (201, 2)])
async def test_a_full_chunk_is_followed_by_another(count: int, chunks: int) -> None:
    store, _, transcripts = opened()
    await say(transcripts, count)
    found = [item.value for item in await store.asearch(HISTORY, limit=100) if "chunk_key" in item.value]
    ends = sorted((value["start_seq"], value["end_seq"]) for value in found)
    assert ends == [(1, min(count, 200)), (201, 201)][:chunks]
    assert (await value_of(store, f"{ROOM}__meta__"))["latest_chunk_key"] == f"chunk:{chunks - 1:06d}"


async def test_a_turn_of_three_spans_two_chunks() -> None:
    store, _, transcripts = opened()
    await say(transcripts, 198)
    receipt = await transcripts.append(turn(user("a"), assistant("b"), user("c"), session=ROOM))
    assert (receipt.first_seq, receipt.last_seq) == (199, 201)
    assert (await value_of(store, f"{ROOM}:chunk:000000"))["end_seq"] == 200
    assert (await value_of(store, f"{ROOM}:chunk:000001"))["start_seq"] == 201
    page = await transcripts.newest(ROOM, limit=3)
    assert contents(page.messages) == ["a", "b", "c"]


async def test_thirty_messages_over_a_last_chunk_of_five_read_two_chunks() -> None:
    """The number of chunks read does not depend on the length of the conversation."""
    _, items, transcripts = opened()
    await say(transcripts, 1005)
    items.chunks.clear()
    recent = await transcripts.recent(ROOM, limit=30)
    assert seqs(recent.messages) == list(range(1005, 975, -1))
    assert items.chunks == ["chunk:000005", "chunk:000004"]
    items.chunks.clear()
    page = await transcripts.newest(ROOM, limit=450)
    assert seqs(page.messages) == list(range(556, 1006))
    assert items.chunks == ["chunk:000002", "chunk:000003", "chunk:000004", "chunk:000005"]
    assert page.next_before == 556


async def test_a_conversation_keeps_the_size_of_its_chunks() -> None:
    """The layout of a later writer does not change the chunk size."""
    store, items, transcripts = opened(GraphLayout(chunk_size=2))
    await say(transcripts, 3)
    later = transcripts_of(items, GraphLayout(chunk_size=200))
    await later.append(turn(user("4"), user("5"), session=ROOM))
    assert (await value_of(store, f"{ROOM}:chunk:000002"))["start_seq"] == 5
    assert contents((await later.newest(ROOM, limit=9)).messages) == ["1", "2", "3", "4", "5"]


async def test_a_conversation_of_another_program_is_continued() -> None:
    store, _, transcripts = opened()
    said = [{"seq": 4228, "role": "user", "content": "Hi"}, {"seq": 4229, "role": "assistant", "content": "Hello"}]
    common = {"conversation_key": ROOM, "updated_at": "2026-02-26T20:30:00Z"}
    metadata = {**common, "last_seq": 4229, "chunk_size": 200, "latest_chunk_key": "chunk:000021", "version": 17}
    chunk = {**common, "chunk_key": "chunk:000021", "start_seq": 4201, "end_seq": 4229, "messages": said}
    await store.aput(HISTORY, f"{ROOM}__meta__", metadata)
    await store.aput(HISTORY, f"{ROOM}:chunk:000021", chunk)
    recent = await transcripts.recent(ROOM, limit=5)
    assert contents(recent.messages) == ["Hello", "Hi"]
    receipt = await transcripts.append(turn(user("Need help"), session=ROOM))
    assert receipt.first_seq == 4230
    assert contents((await transcripts.newest(ROOM, limit=3)).messages) == ["Hi", "Hello", "Need help"]
    assert (await value_of(store, f"{ROOM}__meta__"))["version"] == 18
    grown = await value_of(store, f"{ROOM}:chunk:000021")
    assert (grown["start_seq"], grown["end_seq"]) == (4201, 4230)
    assert [info.session_id for info in await transcripts.sessions(SessionQuery())] == [ROOM]


async def test_an_unfinished_turn_is_ignored() -> None:
    """A store without transactions may have a chunk without its metadata; the turn can be retried."""
    store, _, transcripts = opened()
    await say(transcripts, 2)
    before = await value_of(store, f"{ROOM}__meta__")
    lost = turn(user("lost", "p:1"), assistant("reply", "p:2"), session=ROOM)
    await transcripts.append(lost)
    await store.aput(HISTORY, f"{ROOM}__meta__", before)
    assert contents((await transcripts.newest(ROOM, limit=9)).messages) == ["1", "2"]
    assert await transcripts.find(ROOM, "p:1") is None
    await transcripts.append(turn(user("between"), user("others"), session=ROOM))
    receipt = await transcripts.append(lost)
    assert (receipt.first_seq, receipt.duplicates) == (5, ())
    found = contents((await transcripts.newest(ROOM, limit=9)).messages)
    assert found == ["1", "2", "between", "others", "lost", "reply"]


async def test_nothing_of_a_deleted_conversation_is_left() -> None:
    store, _, transcripts = opened(GraphLayout(chunk_size=2))
    await say(transcripts, 7)
    await transcripts.append(turn(user("other", "p:1"), session="telegram:2"))
    assert await transcripts.delete(ROOM)
    left = {item.key for item in await store.asearch((), limit=100)}
    assert left == {"telegram:2__meta__", "telegram:2:chunk:000000", "p:1"}


async def test_a_custom_layout() -> None:
    layout = GraphLayout(("bots", "history"), meta_key_suffix="/meta", chunk_size=10, value_field="text")
    store, _, transcripts = opened(layout)
    await say(transcripts, 1)
    metadata = await store.aget(("bots", "history"), f"{ROOM}/meta")
    chunk = await store.aget(("bots", "history"), f"{ROOM}:chunk:000000")
    assert metadata is not None
    assert chunk is not None
    assert metadata.value["chunk_size"] == 10
    assert chunk.value["messages"][0]["text"] == "1"
    assert contents((await transcripts.newest(ROOM, limit=1)).messages) == ["1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": ()},
        {"namespace": ("a.b",)},
        {"namespace": ("a", "")},
        {"namespace": ("langgraph", "a")},
        {"meta_key_suffix": ""},
        {"meta_key_suffix": ":chunk:000000"},
        {"chunk_size": 0},
        {"chunk_size": True},
        {"chunk_size": 1.5},
        {"chunk_size": "200"},
        {"value_field": "role"},
        {"value_field": "run_id"},
        {"value_field": ""},
    ],
)
def test_an_invalid_layout_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"\.$"):
        GraphLayout(**wrong)  # type: ignore[arg-type]


async def test_an_item_that_is_no_metadata_raises() -> None:
    """Another program may use the namespace; the error quotes nothing of the item."""
    store, _, transcripts = opened()
    await store.aput(HISTORY, f"{ROOM}__meta__", {"secret": "words"})
    with pytest.raises(SessionDamaged, match="metadata") as caught:
        await transcripts.newest(ROOM, limit=1)
    assert "words" not in str(caught.value)


async def test_default_values_of_messages_are_left_out_of_chunks() -> None:
    """A plain message has five fields besides its text."""
    store, _, transcripts = opened()
    await transcripts.append(turn(Message(role="user", content="hi", metadata={"a": 1.0}), user("ho"), session=ROOM))
    messages = (await value_of(store, f"{ROOM}:chunk:000000"))["messages"]
    assert isinstance(messages, list)
    assert set(messages[1]) == {"seq", "role", "content", "id", "tokens", "created_at"}
    assert messages[0]["metadata"] == '{"a":1.0}'
