"""Tests of ChatKit's store on a memory, with items of the real package."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from chatkit.store import NotFoundError
from chatkit.types import (
    AssistantMessageContent,
    AssistantMessageItem,
    ClientToolCallItem,
    FileAttachment,
    InferenceOptions,
    SDKHiddenContextItem,
    ThreadItem,
    ThreadMetadata,
    UserMessageItem,
    UserMessageTextContent,
)

from tests.limits import HANG_SECONDS
from threadkeep import Memory, MemoryOptions, Message, Retention, RetentionLimits, open_memory
from threadkeep.adapters.items import messages_after
from threadkeep.chatkit import ThreadkeepStore
from threadkeep.history.session import Session
from threadkeep.store.address import TranscriptLocation

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TRANSCRIPTS: tuple[TranscriptLocation, ...] = ("tables", "graph_store")
BASE: dict[str, Any] = {"thread_id": "t1", "created_at": NOW}


def store_of(memory: Memory) -> ThreadkeepStore[str | None]:
    """Return a store whose contexts are user ids."""
    return ThreadkeepStore[str | None](memory, user_id=lambda user: user)


def asked(item_id: str, text: str) -> UserMessageItem:
    """Return a person's message."""
    part = UserMessageTextContent(text=text)
    return UserMessageItem(id=item_id, content=[part], inference_options=InferenceOptions(), **BASE)


def answered(item_id: str, text: str) -> AssistantMessageItem:
    """Return an answer."""
    return AssistantMessageItem(id=item_id, content=[AssistantMessageContent(text=text)], **BASE)


async def filled(memory: Memory) -> tuple[ThreadkeepStore[str | None], list[ThreadItem]]:
    """Return a store with a thread of ann's that has items of several kinds."""
    store = store_of(memory)
    items: list[ThreadItem] = [
        asked("m1", "q1"),
        ClientToolCallItem(id="c1", call_id="call", name="pick", arguments={"of": [1, 2]}, **BASE),
        answered("m2", "a1"),
        asked("m3", "q2"),
        SDKHiddenContextItem(id="h1", content="hidden", **BASE),
    ]
    await store.save_thread(ThreadMetadata(id="t1", created_at=NOW, metadata={"k": 1}), "ann")
    for item in items:
        await store.add_thread_item("t1", item, "ann")
    return store, items


async def items_in(store: ThreadkeepStore[str | None], **options: Any) -> list[str]:
    """Return the ids of a page of the thread."""
    page = await store.load_thread_items(
        "t1", **{"after": None, "limit": 10, "order": "asc", "context": "ann"} | options
    )
    return [item.id for item in page.data]


async def test_every_kind_of_item_survives_in_order(memory: Memory) -> None:
    """The window has only the texts of user and assistant; a repeated item is stored once."""
    store, items = await filled(memory)
    await store.add_thread_item("t1", items[0], "ann")
    page = await store.load_thread_items("t1", None, 3, "asc", "ann")
    assert (page.data, page.has_more, page.after) == (items[:3], True, "m2")
    assert await items_in(store, after="m2", order="desc") == ["c1", "m1"]
    assert await store.load_item("t1", "c1", "ann") == items[1]
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages] == ["q1", "a1", "q2"]
    assert (await store.load_thread("t1", "ann")).metadata == {"k": 1}


async def test_items_are_replaced_and_removed_at_their_place(memory: Memory) -> None:
    """The window changes too; the history keeps the old texts."""
    store, items = await filled(memory)
    call = items[1].model_copy(update={"status": "completed", "output": "1"})
    await store.save_item("t1", call, "ann")
    await store.save_item("t1", answered("m2", "better"), "ann")
    assert await items_in(store) == ["m1", "c1", "m2", "m3", "h1"]
    assert await store.load_item("t1", "c1", "ann") == call
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages] == ["q1", "better", "q2"]

    for item_id in ("c1", "m3", "h1", "unknown"):
        await store.delete_thread_item("t1", item_id, "ann")
    assert await items_in(store) == ["m1", "m2"]
    await store.save_item("t1", asked("m4", "q3"), "ann")
    assert await items_in(store) == ["m1", "m2", "m4"]
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages] == ["q1", "better", "q3"]
    history = (await memory.session("t1").page(view="history")).messages
    assert "a1" in [message.content for message in history]

    for item in (call, asked("m3", "again")):  # deleted above
        await store.add_thread_item("t1", item, "ann")
        await store.add_thread_item("t1", item, "ann")
        assert await store.load_item("t1", item.id, "ann") == item
    assert await items_in(store) == ["m1", "m2", "m4", "c1", "m3"]
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages] == ["q1", "better", "q3", "again"]


async def test_an_item_is_deleted_and_restored_once(shared_url: str) -> None:
    """Repeats, also at once and in two processes, store nothing more."""
    async with open_memory(shared_url) as memory, open_memory(shared_url) as other:
        store, items = await filled(memory)
        stores = [store, store_of(memory), store_of(other)]
        for item in items:
            for _ in range(2):
                await asyncio.gather(*(one.delete_thread_item("t1", item.id, "ann") for one in stores))
                assert item.id not in await items_in(store)
            for _ in range(2):
                await asyncio.gather(*(one.add_thread_item("t1", item, "ann") for one in stores))
        assert await items_in(store) == [item.id for item in items]
        stored = [str(one.original) for one in await messages_after(memory.session("t1"), 0) if one.role == "system"]
    assert [sum(f"{{'deleted': '{item.id}'}}" in note for note in stored) for item in items] == [1] * len(items)
    assert sum("item" in note for note in stored) == 4  # the call and the hidden context, before and after


async def test_an_item_that_retention_deleted_cannot_be_saved(memory: Memory) -> None:
    store, _ = await filled(memory)
    await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=2)))
    with pytest.raises(NotFoundError, match="deleted"):
        await store.save_item("t1", asked("m1", "q1"), "ann")
    assert await items_in(store) == ["m3", "h1"]


async def test_a_repeated_item_stays_away_if_its_message_was_changed_elsewhere(memory: Memory) -> None:
    """An item that was edited or taken back is not stored again."""
    store, _ = await filled(memory)
    session = memory.session("t1")
    await store.add_thread_item("t1", asked("m4", "q3"), "ann")
    await session.take_back()
    await session.edit("m3", "edited", new_id="m5")
    for item in (asked("m3", "q2"), asked("m4", "q3")):
        await store.add_thread_item("t1", item, "ann")
    window = await session.window()
    assert [message.content for message in window.messages] == ["q1", "a1", "edited"]


async def test_a_repeated_item_that_retention_deleted_is_not_stored_again(memory: Memory) -> None:
    store, _ = await filled(memory)
    await store.delete_thread_item("t1", "m2", "ann")
    await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=3)))
    for item in (asked("m1", "q1"), answered("m2", "a1")):
        await store.add_thread_item("t1", item, "ann")
    assert await items_in(store) == ["m3", "h1"]


async def test_items_in_a_graph_store_are_replaced_and_removed(
    database_url: str, memory_options: MemoryOptions
) -> None:
    """Transcripts in a graph store behave like tables, also with concurrent appends."""
    for check in (
        test_items_are_replaced_and_removed_at_their_place,
        test_a_repeated_item_stays_away_if_its_message_was_changed_elsewhere,
        test_items_that_are_saved_at_once_stay_in_order,
    ):
        async with open_memory(database_url, options=replace(memory_options, transcripts="graph_store")) as memory:
            await check(memory)
            await store_of(memory).delete_thread("t1", "ann")


async def test_an_item_that_was_saved_with_the_same_text_can_be_changed_and_removed(memory: Memory) -> None:
    """Older versions are removed too; an answer that was empty at first is in the window after a save."""
    store, _ = await filled(memory)
    await store.add_thread_item("t1", answered("m4", ""), "ann")
    for item in (answered("m2", "a1"), answered("m2", "better"), asked("m3", "q2"), answered("m4", "late")):
        await store.save_item("t1", item, "ann")
    assert await store.load_item("t1", "m2", "ann") == answered("m2", "better")
    await store.delete_thread_item("t1", "m3", "ann")
    assert await items_in(store) == ["m1", "c1", "m2", "h1", "m4"]
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages] == ["q1", "better", "late"]


async def test_items_that_are_saved_at_once_stay_in_order(memory: Memory) -> None:
    store, _ = await filled(memory)
    saved = (store.save_item("t1", answered("m2", f"version {number}"), "ann") for number in range(4))
    added = (memory.session("t1").append([Message("user", f"new {number}", f"n{number}")]) for number in range(4))
    await asyncio.gather(*(one for pair in zip(saved, added, strict=True) for one in pair))
    found = await items_in(store, limit=20)
    assert found[:5] == ["m1", "c1", "m2", "m3", "h1"]
    assert len(found) == 9
    window = await memory.session("t1").window()
    assert [message.content for message in window.messages][2:3] == ["q2"]
    assert sorted(message.content for message in window.messages[3:]) == [f"new {number}" for number in range(4)]


@pytest.mark.parametrize("blocked", [False, True], ids=["free", "blocked"])
async def test_a_store_works_on_another_event_loop_than_its_memory(memory: Memory, *, blocked: bool) -> None:
    """Calls at the same time are stored once each, also while the memory's loop waits for them."""

    async def use() -> None:
        await asyncio.gather(*(store.save_item("t1", answered(f"n{at}", "new"), "ann") for at in range(4)))
        await store.save_item("t1", asked("m1", "changed"), "ann")

    store, _ = await filled(memory)
    thread = threading.Thread(target=lambda: asyncio.run(use()), daemon=True)
    thread.start()
    if not blocked:
        await asyncio.to_thread(thread.join, HANG_SECONDS)
    thread.join(HANG_SECONDS)
    await asyncio.gather(*(store.save_item("t1", answered(f"n{at}", "newer"), "ann") for at in (3, 4)))
    assert sorted(await items_in(store)) == ["c1", "h1", "m1", "m2", "m3", "n0", "n1", "n2", "n3", "n4"]
    assert isinstance(item := await store.load_item("t1", "m1", "ann"), UserMessageItem)
    assert item.content[0].text == "changed"


async def test_an_item_is_saved_while_a_blocked_loop_is_saving_another(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = Session.deliver

    async def waiting(self: Session) -> Any:
        if memory.loop.is_running_here:
            began.set()
            await ended.wait()
        return await deliver(self)

    monkeypatch.setattr(Session, "deliver", waiting)
    began, ended, (store, _) = asyncio.Event(), asyncio.Event(), await filled(memory)
    first = asyncio.create_task(store.save_item("t1", answered("n1", "new"), "ann"))
    await began.wait()
    second = store.save_item("t1", answered("n2", "new"), "ann")
    thread = threading.Thread(target=lambda: asyncio.run(second), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert "n2" in await items_in(store)
    ended.set()
    await first
    assert "n1" in await items_in(store)


@pytest.mark.parametrize("transcripts", TRANSCRIPTS)
async def test_items_that_two_processes_rewrite_at_once_are_stored_once(
    shared_url: str, transcripts: TranscriptLocation
) -> None:
    options = MemoryOptions(transcripts=transcripts)
    async with open_memory(shared_url, options=options) as memory, open_memory(shared_url, options=options) as other:
        store, _ = await filled(memory)
        for number in range(5):
            texts = [f"{number} of {name}" for name in ("one", "other")]
            await asyncio.gather(
                store.save_item("t1", answered("m2", texts[0]), "ann"),
                store_of(other).save_item("t1", answered("m2", texts[1]), "ann"),
                store_of(other).save_item("t1", asked("m3", texts[1]), "ann"),
                other.session("t1", user_id="ann").append([Message("user", f"new {number}")]),
            )
            assert (await items_in(store, limit=20))[:5] == ["m1", "c1", "m2", "m3", "h1"]
            assert len(await items_in(store, limit=20)) == 6 + number
            window = [message.content for message in (await memory.session("t1").window()).messages]
            assert window[1] in texts
            assert window == ["q1", window[1], texts[1], *(f"new {one}" for one in range(number + 1))]


@pytest.mark.parametrize("saved", [answered("new", "late"), answered("m2", "a1"), None])
@pytest.mark.parametrize("transcripts", TRANSCRIPTS)
async def test_an_item_is_saved_after_another_process_saved_it(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, saved: ThreadItem | None, transcripts: TranscriptLocation
) -> None:
    """The later save counts, the window matches the thread, and a removed item stays removed."""
    options = MemoryOptions(transcripts=transcripts)
    async with open_memory(shared_url, options=options) as memory, open_memory(shared_url, options=options) as other:
        store, _ = await filled(memory)
        firsts = [answered("new" if saved and saved.id == "new" else "m2", "first")]

        async def overtaken(session: Session, after: int) -> list[Message]:
            found = await messages_after(session, after)
            if firsts:
                await store_of(other).save_item("t1", firsts.pop(), "ann")
            return found

        monkeypatch.setattr("threadkeep.adapters.chatkit.messages_after", overtaken)
        await (store.save_item("t1", saved, "ann") if saved else store.delete_thread_item("t1", "m2", "ann"))
        monkeypatch.undo()
        page = await store.load_thread_items("t1", None, 10, "asc", "ann")
        shown = [item.content[0].text for item in page.data if isinstance(item, AssistantMessageItem | UserMessageItem)]
        expected = ["q1", "q2"] if saved is None else ["q1", "a1", "q2", *(["late"] if saved.id == "new" else [])]
        session = memory.session("t1")
        assert (shown, [message.content for message in (await session.window()).messages]) == (expected, expected)
        info, active = await session.info(), await session.tail(20)
        assert (info.message_count, info.title, info.last_message) == (len(active), "q1", active[-1].content)


async def test_messages_of_other_channels_are_items(memory: Memory) -> None:
    """A session of another channel is a thread; an inactive session is a closed thread."""
    session = memory.session("t1", user_id="ann")
    await session.append([Message("user", "hi", "u1"), Message("system", "note"), Message("assistant", "hello", "a1")])
    await session.update(active=False)
    store = store_of(memory)
    assert await items_in(store) == ["u1", "a1"]
    thread = await store.load_thread("t1", "ann")
    assert (thread.title, thread.status.type) == ("hi", "closed")


async def test_a_title_is_the_newest_one(memory: Memory) -> None:
    """ChatKit or another client of the memory may have set it."""
    store, _ = await filled(memory)
    thread = ThreadMetadata(id="t1", created_at=NOW, title="First")
    await store.save_thread(thread, "ann")
    await memory.session("t1", user_id="ann").update(title="Second")
    assert (await store.load_thread("t1", "ann")).title == "Second"
    await store.save_thread(thread.model_copy(update={"title": "Third"}), "ann")
    assert (await store.load_thread("t1", "ann")).title == "Third"


async def test_threads_and_attachments_of_others_are_not_found(memory: Memory) -> None:
    """Attachments are deleted with their thread, or with their person."""
    store, _ = await filled(memory)
    file = FileAttachment(id="f1", name="a.txt", mime_type="text/plain", thread_id="t1")
    await store.save_attachment(file, "ann")
    await store.save_attachment(file.model_copy(update={"id": "f2", "thread_id": None}), "ann")
    for call in (
        store.load_thread("t1", "bob"),
        store.save_thread(ThreadMetadata(id="t1", created_at=NOW), "bob"),
        store.load_thread_items("t1", None, 1, "asc", "bob"),
        store.load_item("t1", "m1", "bob"),
        store.add_thread_item("t1", asked("x", "x"), "bob"),
        store.save_item("t1", asked("m1", "x"), "bob"),
        store.delete_thread_item("t1", "m1", "bob"),
        store.delete_thread("t1", "bob"),
        store.load_attachment("f1", "bob"),
        store.delete_attachment("f1", "bob"),
    ):
        with pytest.raises(NotFoundError):
            await call
    assert (await store.load_threads(5, None, "desc", "bob")).data == []

    assert await store.load_attachment("f1", "ann") == file
    await store.delete_thread("t1", "ann")
    with pytest.raises(NotFoundError):
        await store.load_attachment("f1", "ann")
    assert (await store.load_attachment("f2", "ann")).id == "f2"
    await memory.erase(user_id="ann")
    with pytest.raises(NotFoundError):
        await store.load_attachment("f2", "ann")
