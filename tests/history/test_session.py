"""Tests of sessions and of the memory that opens them, through the public API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_events import RecordedEvents
from threadkeep import (
    InvalidInput,
    InvalidMessage,
    Memory,
    MemoryOptions,
    Message,
    Retention,
    Session,
    SessionNotFound,
    WrongUser,
    open_memory,
)
from threadkeep.observe import StoreRead, StoreWrite
from threadkeep.records.knowledge import FactQuery, Scope
from threadkeep.store.transcripts import SessionQuery
from threadkeep.testing import SettableClock


def turn(words: str) -> list[Message]:
    """Return a question and its answer."""
    return [Message(role="user", content=words), Message(role="assistant", content=f"you said {words}")]


async def test_the_example_of_the_interface(memory: Memory) -> None:
    session = memory.session("telegram:123", user_id="u1")
    receipt = await session.append(
        [Message(role="user", content="hi", id="telegram:42"), Message(role="assistant", content="hello")]
    )
    assert (receipt.first_seq, receipt.last_seq, receipt.duplicates) == (1, 2, ())
    assert [message.content for message in await session.tail(20)] == ["hi", "hello"]
    page = await session.page(before=None, limit=50)
    assert (len(page.messages), page.next_before) == (2, None)
    window = await session.window(max_messages=20, max_tokens=4000)
    assert len(window.messages) == 2
    assert window.tokens == sum(message.tokens or 0 for message in window.messages) > 0
    assert await session.count() == 2
    info = await session.info()
    assert (info.title, info.last_message, info.message_count, info.user_id) == ("hi", "hello", 2, "u1")
    assert (info.active, info.tags, info.metadata) == (True, (), {})
    assert info.created_at == info.updated_at == memory.clock()
    await session.reset()
    assert [info.session_id async for info in memory.sessions(user_id="u1", query=None)] == ["telegram:123"]
    [(session_id, message, _)] = await memory.search("hello", user_id="u1", limit=10)
    assert (session_id, message.content) == ("telegram:123", "hello")
    assert await session.delete()


async def test_a_session_without_messages_does_not_exist(memory: Memory) -> None:
    """Reading a session does not create it."""
    session = memory.session("room")
    assert await session.tail(5) == []
    assert await session.count() == 0
    assert await session.find("m1") is None
    assert (await session.window()).messages == ()
    await session.reset()
    with pytest.raises(SessionNotFound, match="threadkeep sessions list"):
        await session.info()
    with pytest.raises(SessionNotFound):
        await session.update(title="new")
    assert not await session.delete()
    assert [info async for info in memory.sessions()] == []


@pytest.mark.parametrize("user_id", ["", " ", "a\nb", "x" * 513, "a\x00"])
async def test_an_invalid_user_id_is_refused(sqlite_memory: Memory, user_id: str) -> None:
    with pytest.raises(InvalidInput, match="user_id"):
        sqlite_memory.session("room", user_id=user_id)
    with pytest.raises(InvalidInput, match="user_id"):
        _ = [info async for info in sqlite_memory.sessions(user_id=user_id)]
    with pytest.raises(InvalidInput, match="user_id"):
        await sqlite_memory.search("hello", user_id=user_id)


async def test_a_user_sees_own_sessions_only(memory: Memory) -> None:
    """Reads of another user's session return nothing; writes raise and store nothing."""
    await memory.session("room", user_id="u1").append([Message(role="user", content="mine", id="m1")])
    other = memory.session("room", user_id="u2")
    assert await other.tail(5) == []
    assert await other.count() == 0
    assert await other.find("m1") is None
    assert not await other.delete()
    await other.reset()
    with pytest.raises(SessionNotFound):
        await other.info()
    with pytest.raises(SessionNotFound):
        await other.update(title="stolen")
    with pytest.raises(WrongUser):
        await other.append(turn("not mine"))
    with pytest.raises(WrongUser):
        await other.record(turn("not mine"))
    info = await memory.session("room", user_id="u1").info()
    assert (info.title, info.message_count, info.reset_seq) == ("mine", 1, 0)


async def test_a_session_created_during_a_read_is_not_refused(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that another process creates between the two reads is not taken for another user's."""
    session = memory.session("room", user_id="ann")
    await session.append([Message("user", "hi", "m1")])

    async def nothing(_: object) -> None:
        return None

    monkeypatch.setattr(Session, "_info", nothing)
    assert (await session.question()).id == "m1"


async def test_the_first_turn_sets_the_owner(memory: Memory) -> None:
    """A session that began without a user never gets an owner."""
    await memory.session("room").append(turn("hi"))
    with pytest.raises(WrongUser):
        await memory.session("room", user_id="u1").append(turn("mine"))
    assert (await memory.session("room").info()).user_id is None


async def test_pages_have_limits(memory: Memory) -> None:
    session = memory.session("room")
    await session.append(turn("hi"))
    assert await session.tail(0) == []
    for limit in (-1, 10_001):
        with pytest.raises(InvalidInput, match="A page has 0 to"):
            await session.page(limit=limit)


async def test_pages_walk_to_the_beginning(memory: Memory) -> None:
    session = memory.session("room")
    for number in range(5):
        await session.append(turn(str(number)))
    before, seen = None, []
    while True:
        page = await session.page(before=before, limit=3)
        seen.append([message.seq for message in page.messages])
        before = page.next_before
        if before is None:
            break
    assert seen == [[8, 9, 10], [5, 6, 7], [2, 3, 4], [1]]


async def test_all_sessions_come_page_by_page(memory: Memory, clock: SettableClock) -> None:
    for number in range(7):
        clock.advance(1)
        await memory.session(f"room:{number}", user_id=f"u{number % 2}").append(turn(f"topic {number}"))
    newest_first = [f"room:{number}" for number in range(6, -1, -1)]
    for size in (1, 2, 3, 7, 100):
        assert [info.session_id async for info in memory.sessions(page_size=size)] == newest_first
    assert [info.session_id async for info in memory.sessions("u1", page_size=2)] == ["room:5", "room:3", "room:1"]
    assert [info.session_id async for info in memory.sessions(query="topic 3")] == ["room:3"]


async def test_a_page_size_below_1_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        [info async for info in memory.sessions(page_size=0)]


async def test_sessions_with_equal_times_are_listed_once_each(memory: Memory) -> None:
    for number in range(5):
        await memory.session(f"room:{number}").append(turn("hi"))
    found = [info.session_id async for info in memory.sessions(page_size=2)]
    assert sorted(found) == [f"room:{number}" for number in range(5)]


async def test_the_fields_of_a_session_can_be_updated(memory: Memory, clock: SettableClock) -> None:
    """Each field can be updated alone, and an update does not count as activity."""
    session = memory.session("room", user_id="u1")
    await session.append(turn("hi"))
    clock.advance(60)
    before = await session.info()
    info = await session.update(title="A title", tags=["vip"], metadata={"plan": "pro"})
    assert (info.title, info.tags, info.metadata) == ("A title", ("vip",), {"plan": "pro"})
    info = await session.update(active=False)
    assert (info.title, info.active, info.updated_at) == ("A title", False, before.updated_at)
    assert [info.session_id async for info in memory.sessions(active=True)] == []


async def test_a_clock_that_goes_back_does_not_change_the_last_activity(memory: Memory, clock: SettableClock) -> None:
    """Messages stay in the order of their seq, and the last activity never gets older."""
    session = memory.session("room")
    await session.append(turn("first"))
    latest = clock()
    clock.advance(-3600)
    await session.append(turn("second"))
    assert [message.seq for message in await session.tail(4)] == [1, 2, 3, 4]
    assert (await session.info()).updated_at == latest


async def test_a_stored_message_survives_json_unchanged(memory: Memory) -> None:
    session = memory.session("room")
    await session.append(
        [Message(role="user", content="é 中 \u2028 😀", metadata={"a": [1, {"b": None}]}, confidence=0.1)]
    )
    [message] = await session.tail(1)
    assert Message.from_json(message.to_json()) == message
    assert json.loads(message.to_json())["created_at"] == "2026-01-01T12:00:00+00:00"


async def test_reads_and_writes_are_reported_with_their_channel(memory: Memory, events: RecordedEvents) -> None:
    """Each read and write emits one event with its channel and duration, and never with the user id."""
    session = memory.session("wecom_cs:kf-1:ext-1", user_id="u1")
    await session.append(turn("hi"))
    await session.record(turn("again"))
    await session.tail(5)
    assert [(event.channel, event.outcome) for event in events.of(StoreWrite)] == [("wecom_cs", "ok")] * 2
    [read] = events.of(StoreRead)
    assert (read.channel, read.outcome, read.session_id) == ("wecom_cs", "ok", session.session_id)
    assert read.milliseconds > 0
    assert "u1" not in repr(events.all)


async def test_an_empty_turn_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidMessage, match="at least one message"):
        await memory.session("room").append([])
    with pytest.raises(InvalidMessage, match="at least one message"):
        await memory.session("room").record([])
    assert [info async for info in memory.sessions()] == []


async def test_sessions_survive_a_restart(shared_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        session = memory.session("room", user_id="u1")
        await session.append(turn("before"))
        await session.reset()
        await session.update(tags=["vip"])
        before = await session.tail(5)
    async with open_memory(shared_url, options=memory_options) as memory:
        session = memory.session("room", user_id="u1")
        assert await session.tail(5) == before
        assert (await session.append(turn("after"))).first_seq == 3
        assert [message.content for message in (await session.window()).messages] == ["after", "you said after"]
        assert (await session.info()).tags == ("vip",)
        with pytest.raises(WrongUser):
            await memory.session("room", user_id="u2").append(turn("not mine"))


async def test_cancelled_turns_are_stored_whole_or_not_at_all(shared_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        tasks = []
        for number in range(50):
            tasks.append(asyncio.ensure_future(memory.session("room").append(turn(str(number)))))
            for _ in range(number % 10):
                await asyncio.sleep(0)
            tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with open_memory(shared_url, options=memory_options) as memory:
        messages = await memory.session("room").tail(100)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert 0 < len(messages) < 100
        texts = [message.content for message in messages]
        assert texts[1::2] == [f"you said {text}" for text in texts[::2]]


async def test_two_memories_of_one_process_share_a_database(shared_url: str, memory_options: MemoryOptions) -> None:
    async with (
        open_memory(shared_url, options=memory_options) as one,
        open_memory(shared_url, options=memory_options) as two,
    ):
        for number in range(5):
            await one.session("room").append(turn(f"one {number}"))
            await two.session("room").append(turn(f"two {number}"))
            assert await one.session("room").count() == await two.session("room").count() == 4 * (number + 1)


async def test_nothing_is_written_outside_of_the_database(
    sqlite_url: str, tmp_path: Path, memory_options: MemoryOptions
) -> None:
    async with open_memory(sqlite_url, options=memory_options) as memory:
        await memory.session("room").record(turn("hi"))
        assert await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.rglob("*.jsonl"))) == []


@pytest.mark.parametrize(
    "given", ["hi", b"hi", None, 5, {"role": "user"}, [None], [("user", "hi")], Message("user", "")]
)
async def test_only_messages_can_be_appended(memory: Memory, given: list[Message]) -> None:
    session = memory.session("room")
    for store in (session.append, session.record):
        with pytest.raises(InvalidMessage, match="list of Message objects"):
            await store(given)
    assert await session.count() == 0


async def test_an_invalid_workspace_or_answer_is_never_pending(memory: Memory) -> None:
    """An invalid value raises at once, since it could not be written to a pending file either."""
    with pytest.raises(InvalidInput, match="A workspace is text or None, not object"):
        memory.session("room", workspace=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="answers is the id of a message or None, not bytes"):
        await memory.session("room").record(turn("hi"), answers=b"q")  # type: ignore[arg-type]
    assert not memory.pending.entries


@pytest.mark.parametrize(
    "changes",
    [{"tags": "vip"}, {"tags": [1]}, {"tags": 5}, {"title": 5}, {"metadata": "x"}, {"metadata": [1]}, {"active": "no"}],
)
async def test_values_of_a_wrong_type_are_refused(memory: Memory, changes: dict[str, Any]) -> None:
    """SQLite would store such values, and an import would then refuse the export of the session."""
    session = memory.session("room")
    await session.append(turn("hi"))
    before = await session.info()
    with pytest.raises(InvalidInput, match=next(iter(changes))):
        await session.update(**changes)
    assert await session.info() == before


@pytest.mark.parametrize("wrong", [5, 1.5, b"x", True, ["x"]])
async def test_an_error_names_the_type_that_was_passed_for_a_text(memory: Memory, wrong: Any) -> None:
    """Without the check, a number would match a text in SQLite and raise a driver error on PostgreSQL."""
    session = memory.session("room")
    await session.append(turn("hi"))
    for call in (
        session.find(wrong),
        session.edit(wrong, "x"),
        session.question(wrong),
        session.regenerate(wrong),
        session.take_back_turn(wrong),
        memory.search(wrong),
        memory.search("hi", session_id=wrong),
        anext(memory.sessions(query=wrong)),
        memory.erase(session_id=wrong),
    ):
        with pytest.raises(InvalidInput, match=f"is text.* not {type(wrong).__name__}"):
            await call
    assert await session.count() == 2


@pytest.mark.parametrize("wrong", ["5", 1.5, b"x", True, [1]])
async def test_an_error_names_the_type_that_was_passed_for_a_number(memory: Memory, wrong: Any) -> None:
    session = memory.session("room")
    await session.append(turn("hi"))
    for call in (
        session.tail(wrong),
        session.page(wrong),
        session.window(before=wrong),
        session.regenerate(upto=wrong),
        session.branch(wrong),
        memory.search("hi", limit=wrong),
        memory.search("hi", after=wrong),
        anext(memory.sessions(page_size=wrong)),
    ):
        with pytest.raises(InvalidInput, match=f"is a whole number.* not {type(wrong).__name__}"):
            await call
    with pytest.raises(InvalidInput):
        await session.branch(10**30)
    assert await session.count() == 2


@pytest.mark.parametrize("wrong", [7, 1.5, [object()]])
async def test_an_argument_of_a_wrong_type_raises_invalid_input(sqlite_memory: Memory, wrong: Any) -> None:
    memory, session = sqlite_memory, sqlite_memory.session("room")
    await session.append([Message("user", "hi")])
    no_number: Any = [wrong]

    async def first(items: AsyncIterator[Any]) -> None:
        async for _ in items:
            return

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: memory.restore(wrong),
        lambda: memory.verify_erased(wrong),
        lambda: first(memory.export(user_id="ann", after=wrong)),
        lambda: session.window(counter=wrong),
        lambda: session.at(wrong),
        lambda: session.recall(wrong),
        lambda: session.tell(wrong),
        lambda: session.answers_to(wrong),
        lambda: memory.manifests.of_session(wrong),
        lambda: memory.manifests.of_session("room", limit=no_number),
        lambda: memory.manifests.of_session("room", before=wrong),
        lambda: memory.manifests.of_run(wrong),
        lambda: memory.summaries.active(wrong),
        lambda: memory.summaries.of_messages("room", 1, 2, no_number),
        lambda: memory.summaries.for_export(wrong),
        lambda: memory.summaries.add(wrong),
        lambda: memory.retention.of(wrong),
        lambda: memory.retention.change("room", wrong),
        lambda: first(memory.retention.plan(wrong)),
        lambda: memory.retention.prune(session_ids=wrong),
        lambda: memory.manifests.of_runs(wrong),
        lambda: memory.manifests.texts("room", wrong),
        lambda: memory.namespace(wrong),
        lambda: memory.sessions_page(wrong),
        lambda: memory.sessions_page(SessionQuery(cursor=no_number)),
        lambda: memory.compressor.compress_now("room", wrong, wrong, budget=10),
        lambda: memory.knowledge.facts(wrong),
        lambda: memory.knowledge.facts(text=wrong),
        lambda: memory.knowledge.facts(limit=no_number),
        lambda: memory.knowledge.recall("x", wrong),
        lambda: memory.knowledge.valid(wrong),
        lambda: memory.knowledge.remember(wrong, "key", "value"),
        lambda: memory.knowledge.forget(wrong, "key"),
        lambda: memory.procedures.recall("x", wrong),
        lambda: memory.persons.all(text=wrong),
        lambda: memory.episodes.latest(wrong),
        lambda: memory.episodes.recall("x", wrong),
        lambda: memory.manifests.of_session("room", before=no_number),
        lambda: memory.summaries.claim("room", "summary", "me", no_number),
        lambda: memory.knowledge.facts(key=no_number),
        lambda: memory.knowledge.facts_page(wrong),
        lambda: memory.knowledge.facts_page(FactQuery(cursor=no_number)),
        lambda: memory.knowledge.forget_keys(Scope("workspace", "w"), wrong),
        lambda: memory.knowledge.forget_facts(wrong),
        lambda: memory.knowledge.rank("x", wrong),
        lambda: memory.knowledge.rank(no_number, []),
        lambda: memory.knowledge.rank("x", [], limit=no_number),
        lambda: memory.knowledge.rank("x", [], recent=[no_number]),
        lambda: memory.knowledge.restore(wrong),
        lambda: memory.persons.page(wrong),
        lambda: memory.procedures.page(wrong),
        lambda: memory.procedures.teach(wrong),
        lambda: memory.procedures.forget(wrong),
        lambda: memory.proposals.add(wrong, []),
        lambda: memory.proposals.page(wrong),
        lambda: first(memory.run_retention.plan(wrong)),
        lambda: memory.run_retention.prune(wrong),
        lambda: memory.graphiti.recall(wrong),
        lambda: memory.graphiti.deliveries(limit=no_number),
        lambda: memory.graphiti.retry(no_number),
        lambda: memory.graphiti.drop(no_number),
        lambda: memory.graphiti.promote(wrong, "w"),
        lambda: memory.graphiti.send_fact(wrong, wrong),
        lambda: memory.graphiti.fact_closure(wrong),
        lambda: memory.graphiti.retract(wrong),
        lambda: memory.graphiti.backfill(wrong),
        lambda: memory.graphiti.purge(wrong),
        lambda: memory.graphiti.grant(wrong, by="ann"),
        lambda: memory.graphiti.consents.trust(no_number, by="ann"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"text|number|type|function|list|cursor"):
            await call()
    with pytest.raises(InvalidMessage, match="a mapping of its fields, not from"):
        Message.from_dict(wrong)


@pytest.mark.parametrize(("before", "messages"), [(-(10**30), 0), (-1, 0), (0, 0), (2, 1), (10**30, 2)])
async def test_a_page_ends_before_any_number(memory: Memory, before: int, messages: int) -> None:
    """`before` may be any integer, also one that no database can store."""
    session = memory.session("room")
    await session.append(turn("hi"))
    assert len((await session.page(before)).messages) == messages
    assert len((await session.window(before=before)).messages) == messages


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_duplicates_are_in_the_order_of_the_turn(
    database_url: str, memory_options: MemoryOptions, transcripts: Any
) -> None:
    """A receipt lists duplicates in the order of the new turn, not in the order of the stored messages."""
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        session = memory.session("room")
        await session.append([Message("user", "one", id="1"), Message("user", "two", id="2")])
        receipt = await session.append([Message("user", name, id=name) for name in ("2", "3", "1")])
        assert (receipt.duplicates, receipt.ids) == (("2", "1"), ("2", "3", "1"))


async def test_an_answer_in_the_session_of_another_user_is_not_marked_as_delivered(memory: Memory) -> None:
    await memory.session("room", user_id="ann").append([Message("user", "hi", "q"), Message("assistant", "yes", "a")])
    assert await memory.session("room", user_id="bob").tell("a") is None
    answer = await memory.session("room", user_id="ann").tell("a")
    assert answer is not None
    assert answer.content == "yes"


@pytest.mark.parametrize("ordinal", [None, 1])
async def test_two_complete_answers_to_a_question_in_one_append_are_refused(
    memory: Memory, ordinal: int | None
) -> None:
    """An answer without an ordinal is the first one. Answers with different ordinals are stored."""
    session = memory.session("room")
    await session.append([Message("user", "q", id="q")])
    one = Message("assistant", "one", id="a1", answers="q")
    with pytest.raises(InvalidMessage, match="two complete answers of one author"):
        await session.append([one, replace(one, id="a2", ordinal=ordinal)])
    await session.append([one, replace(one, id="a2", ordinal=2)])
    assert await session.count() == 3


async def test_answers_in_the_session_of_another_user_are_not_found(memory: Memory) -> None:
    mine = memory.session("room", user_id="u1")
    await mine.append([Message("user", "q", id="q"), Message("assistant", "a", id="a", answers="q")])
    [question, answer] = await mine.tail(2)
    assert await mine.answers_to(question) == await memory.session("room").answers_to(question) == [answer]
    assert await memory.session("room", user_id="u2").answers_to(question) == []


@pytest.mark.parametrize("wrong", [None, 5, {"max_messages": 5}, Retention()])
def test_a_retention_has_limits_only(wrong: Any) -> None:
    """Invalid limits are refused when the retention is created, not in each retention round."""
    with pytest.raises(InvalidInput, match="must be RetentionLimits"):
        Retention(archive=wrong)
    with pytest.raises(InvalidInput, match="must be RetentionLimits"):
        Retention(delete=wrong)
