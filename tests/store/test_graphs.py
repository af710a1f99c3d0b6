"""Tests of LangGraph stores and checkpointers that are opened from the settings."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, GetOp, IndexConfig, Item, Op, PutOp, SearchOp
from langgraph.store.postgres.aio import AsyncPostgresStore

from tests.children import run_together
from tests.limits import HANG_SECONDS
from tests.outages import locked_meanwhile
from tests.servers import Postgres
from threadkeep import (
    InvalidInput,
    MemoryOptions,
    Message,
    Settings,
    StoreUnavailable,
    create_checkpointer,
    create_graph_store,
    load_settings,
    open_memory,
)

_PROCESSES = 8
_ITEMS = 20


def settings_of(url: str) -> Settings:
    """Return settings for a database URL."""
    return load_settings(database_url=url, lock_timeout=30.0)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database of each engine without tables."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))


async def test_a_store_keeps_items_after_it_is_reopened(empty_url: str) -> None:
    settings = settings_of(empty_url)
    async with create_graph_store(settings) as store:
        await store.aput(("users", "ann"), "colour", {"value": "green"})
    async with create_graph_store(settings) as store:
        item = await store.aget(("users", "ann"), "colour")
        assert item is not None
        assert item.value == {"value": "green"}
        assert [found.key for found in await store.asearch(("users",))] == ["colour"]


async def test_a_closed_store_leaves_no_task(empty_url: str) -> None:
    """If LangGraph's task were destroyed with the store, asyncio would log an error."""
    before = asyncio.all_tasks()
    async with create_graph_store(settings_of(empty_url)) as store:
        await store.aput(("notes",), "key", {"text": "x"})
    assert asyncio.all_tasks() == before


async def lengths(texts: Sequence[str]) -> list[list[float]]:
    """Return embeddings by the length of the texts."""
    return [[float(len(text)), 1.0] for text in texts]


async def test_a_store_with_an_index_searches_by_meaning(empty_postgres_url: str) -> None:
    """The closest item comes first, and each indexed item has a score."""
    index: IndexConfig = {"dims": 2, "embed": lengths, "fields": ["text"]}
    async with create_graph_store(settings_of(empty_postgres_url), index=index) as store:
        for word in ("a", "abcde", "abcdefghij"):
            await store.aput(("words",), word, {"text": word})
        await store.aput(("words",), "silent", {"text": "abcde"}, index=False)
        found = await store.asearch(("words",), query="x" * 9)
        assert [item.key for item in found][:1] == ["abcdefghij"]
        assert all(item.score is not None for item in found if item.key != "silent")


async def test_on_sqlite_an_index_works_or_is_refused(sqlite_url: str) -> None:
    """Some Python builds cannot load SQLite extensions."""
    opening = create_graph_store(settings_of(sqlite_url), index={"dims": 2, "embed": lengths})
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        with pytest.raises(InvalidInput, match="loads no extensions"):
            await opening.__aenter__()
        return
    async with opening as store:
        await store.aput(("words",), "a", {"text": "a"})
        assert [item.key for item in await store.asearch(("words",), query="b")] == ["a"]


async def test_a_query_without_an_index_is_refused(empty_url: str) -> None:
    """Without an index the store would return any items; other operations in the same batch succeed."""
    async with create_graph_store(settings_of(empty_url)) as store:
        await store.aput(("words",), "a", {"text": "a"})
        refused, found, item = await asyncio.gather(
            store.asearch(("words",), query="a"),
            store.asearch(("words",), filter={"text": "a"}),
            store.aget(("words",), "a"),
            return_exceptions=True,
        )
    assert isinstance(refused, InvalidInput)
    assert "index=" in str(refused)
    assert isinstance(found, list)
    assert isinstance(item, Item)


# LangGraph's store on SQLite uses the adapter for the expiry times of items.
@pytest.mark.filterwarnings("ignore:The default datetime adapter is deprecated")
async def test_items_expire_and_conversations_do_not(empty_url: str) -> None:
    """A background sweep deletes items after their TTL."""
    often = cast("int", 0.001)
    settings = settings_of(empty_url)
    async with create_graph_store(settings, ttl={"default_ttl": 0.001, "sweep_interval_minutes": often}) as store:
        options = MemoryOptions(transcripts="graph_store", graph_store=store)
        async with open_memory("sqlite://", options=options) as memory:
            await memory.session("a").append([Message(role="user", content="hi")])
            await store.aput(("words",), "a", {"text": "a"})
            async with asyncio.timeout(HANG_SECONDS):
                while await store.asearch(("words",), refresh_ttl=False):  # noqa: ASYNC110 - the sweep signals nothing
                    await asyncio.sleep(0.01)
            assert await memory.session("a").count() == 1
            assert await store.asearch(("agent_chat_history",), refresh_ttl=False)


async def test_a_checkpointer_keeps_the_state_of_a_thread(empty_url: str) -> None:
    def count(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    builder = StateGraph(MessagesState)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    settings = settings_of(empty_url)
    for expected in ("1", "3"):
        async with create_checkpointer(settings) as checkpointer, create_graph_store(settings) as store:
            graph = builder.compile(checkpointer=checkpointer, store=store)
            state = await graph.ainvoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "t"}})
            assert state["messages"][-1].content == expected


@pytest.mark.xdist_group("unsteady_postgres")
async def test_an_outage_raises_store_unavailable(unsteady_postgres: Postgres) -> None:
    """Callers of a graph and its nodes can tell an outage from another error."""
    builder = StateGraph(MessagesState)
    builder.add_sequence([("answer", lambda _: {"messages": [AIMessage("hi")]})])
    builder.add_edge(START, "answer")
    with unsteady_postgres.database() as url:
        settings = load_settings(database_url=url, postgres_pool_timeout=0.2)
        async with create_checkpointer(settings) as checkpointer, create_graph_store(settings) as store:
            graph = builder.compile(checkpointer=checkpointer)
            await asyncio.to_thread(unsteady_postgres.stop, "immediate")
            with pytest.raises(StoreUnavailable):
                await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": "t"}})
            with pytest.raises(StoreUnavailable):
                await checkpointer.adelete_thread("t")
            with pytest.raises(StoreUnavailable):
                await store.aget(("a",), "b")


async def test_a_write_to_a_locked_file_raises_store_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "threadkeep.db"
    settings = load_settings(database_url=f"sqlite:///{path}", lock_timeout=0.1)
    thread = RunnableConfig(configurable={"thread_id": "t", "checkpoint_ns": ""})
    async with create_checkpointer(settings) as checkpointer, create_graph_store(settings) as store:
        async with locked_meanwhile(path):
            assert await checkpointer.aget_tuple(thread) is None
            with pytest.raises(StoreUnavailable):
                await checkpointer.aput(thread, empty_checkpoint(), {}, {})
            with pytest.raises(StoreUnavailable):
                await store.aput(("a",), "b", {"c": 1})
        await store.aput(("a",), "b", {"c": 1})


@pytest.mark.parametrize("kind", ["checkpoint", "writes", "deletion", "item"])
async def test_a_cancelled_write_leaves_the_file_unlocked(tmp_path: Path, kind: str) -> None:
    settings = load_settings(database_url=f"sqlite:///{tmp_path}/threadkeep.db", lock_timeout=0.2)

    def write(number: int) -> Coroutine[Any, Any, object]:
        config: RunnableConfig = {"configurable": {"thread_id": str(number), "checkpoint_ns": "", "checkpoint_id": "1"}}
        match kind:
            case "checkpoint":
                return saver.aput(config, empty_checkpoint(), {}, {})
            case "writes":
                return saver.aput_writes(config, [("a", 1), ("b", 2)], "task")
            case "deletion":
                return saver.adelete_thread(str(number))
            case _:
                return store.abatch([PutOp(("users",), str(number), {"value": number})])

    async with create_checkpointer(settings) as saver, create_graph_store(settings) as store:
        for steps in range(12):
            task = asyncio.create_task(write(steps))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            with closing(sqlite3.connect(tmp_path / "threadkeep.db", timeout=0.2)) as other:
                other.execute("BEGIN IMMEDIATE")
            await write(100 + steps)
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as other:
        counts = dict(other.execute("SELECT thread_id, 1 FROM checkpoints UNION SELECT key, 1 FROM store").fetchall())
    if kind in ("checkpoint", "item"):
        assert all(str(100 + steps) in counts for steps in range(12))


@pytest.mark.parametrize("recorded", [1, 2], ids=["two-columns", "one-column"])
async def test_an_interrupted_first_start_of_a_store_is_completed(tmp_path: Path, recorded: int) -> None:
    """LangGraph records a new column after it has added it; a lock or a killed process may come between the two."""
    settings = settings_of(f"sqlite:///{tmp_path / 'store.db'}")
    async with create_graph_store(settings) as store:
        await store.aput(("users", "ann"), "colour", {"value": "green"})
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        database.execute("DELETE FROM store_migrations WHERE v > ?", (recorded,))
    async with create_graph_store(settings) as store:
        item = await store.aget(("users", "ann"), "colour")
    assert item is not None
    assert item.value == {"value": "green"}


async def test_results_are_in_the_order_of_the_operations(sqlite_url: str) -> None:
    async with create_graph_store(settings_of(sqlite_url)) as store:
        await store.aput(("a",), "old", {"n": 0})
        operations: list[Op] = [
            PutOp(("a",), "new", {"n": 1}),
            GetOp(("a",), "old"),
            PutOp(("a",), "old", {"n": 2}),
            SearchOp(("a",)),
            GetOp(("a",), "nothing"),
        ]
        put, got, put_again, found, nothing = await store.abatch(operations)
        assert put is put_again is nothing is None
        assert isinstance(got, Item)
        assert got.value == {"n": 0}
        assert isinstance(found, list)
        assert len(found) == 1
        assert {item.key for item in await store.asearch(("a",))} == {"new", "old"}


async def test_a_store_and_a_checkpointer_share_the_database_of_a_memory(empty_url: str) -> None:
    settings = settings_of(empty_url)
    async with (
        create_graph_store(settings) as store,
        open_memory(empty_url) as memory,
        create_checkpointer(settings),
    ):
        await memory.session("room:1").append([Message(role="user", content="hi")])
        await store.aput(("a",), "b", {"c": 1})
        assert await memory.session("room:1").count() == 1


def test_eight_first_starts_at_once_on_an_empty_database(empty_url: str) -> None:
    counts = run_together(start_and_work, [(empty_url, n) for n in range(_PROCESSES)])
    assert counts == [_ITEMS] * _PROCESSES

    async def all_items() -> int:
        async with create_graph_store(settings_of(empty_url)) as store:
            return len(await store.asearch(("items",), limit=1000))

    assert asyncio.run(all_items()) == _PROCESSES * _ITEMS


def start_and_work(url: str, number: int) -> int:
    """Store items as each of the processes does; return the number of items found."""

    async def work() -> int:
        settings = settings_of(url)
        async with create_graph_store(settings) as store, create_checkpointer(settings):
            await asyncio.gather(*(put_and_get(store, ("items", str(number)), str(n)) for n in range(_ITEMS)))
            return len(await store.asearch(("items", str(number)), limit=1000))

    return asyncio.run(work())


async def put_and_get(store: BaseStore, namespace: tuple[str, ...], key: str) -> None:
    """Read and write in one batch, which the store executes in one transaction."""
    await asyncio.gather(store.aget(namespace, "nothing"), store.aput(namespace, key, {"n": key}))
    item = await store.aget(namespace, key)
    assert item is not None


async def test_sqlite_is_in_wal_mode(sqlite_url: str, tmp_path: Path) -> None:
    """In WAL mode, readers and writers of other processes do not block each other."""
    settings = settings_of(sqlite_url)
    for opened in (create_graph_store(settings), create_checkpointer(settings)):
        async with opened:
            with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_each_sqlite_in_memory_is_separate() -> None:
    settings = settings_of("sqlite://")
    async with create_graph_store(settings) as store, create_checkpointer(settings) as checkpointer:
        await store.aput(("a",), "b", {"c": 1})
        assert isinstance(checkpointer, AsyncSqliteSaver)
    async with create_graph_store(settings) as store:
        assert await store.aget(("a",), "b") is None


async def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    for name, create in (("store", create_graph_store), ("checkpointer", create_checkpointer)):
        async with create(settings_of(f"sqlite:///{tmp_path}/{name}/deep/threadkeep.db")):
            assert (tmp_path / name / "deep" / "threadkeep.db").exists()


async def test_a_graph_store_may_have_its_own_database(
    sqlite_url: str, empty_postgres_url: str, tmp_path: Path
) -> None:
    settings = load_settings(database_url=empty_postgres_url, graph_store_sqlite_path=str(tmp_path / "graph.db"))
    async with create_graph_store(settings) as store:
        await store.aput(("a",), "b", {"c": 1})
    assert (tmp_path / "graph.db").exists()
    settings = load_settings(database_url=sqlite_url, graph_store_backend="postgres", postgres_dsn=empty_postgres_url)
    async with create_graph_store(settings) as store:
        assert isinstance(store, AsyncPostgresStore)
        await store.aput(("a",), "b", {"c": 1})
        assert await store.aget(("a",), "b") is not None


async def test_the_settings_set_the_size_of_the_pool(empty_postgres_url: str) -> None:
    """The default of LangGraph is a single connection."""
    settings = load_settings(database_url=empty_postgres_url, postgres_pool_min_size=2, postgres_pool_max_size=7)
    for create in (create_graph_store, create_checkpointer):
        async with create(settings) as opened:
            pool = getattr(opened, "conn")  # noqa: B009  typed as a connection or a pool
            assert (pool.min_size, pool.max_size) == (2, 7)


@pytest.mark.parametrize("create", [create_graph_store, create_checkpointer])
async def test_an_unavailable_database_raises_store_unavailable(
    create: object, tmp_path: Path, empty_postgres_url: str
) -> None:
    assert callable(create)
    (tmp_path / "file").touch()
    nowhere = load_settings(database_url=f"sqlite:///{tmp_path}/file/threadkeep.db")
    with pytest.raises(StoreUnavailable, match="folder"):
        async with create(nowhere):
            pytest.fail("opened an unusable path")
    silent = load_settings(
        database_url=f"postgresql:///nothing?host={tmp_path}", postgres_pool_timeout=0.2, postgres_pool_max_size=1
    )
    with pytest.raises(StoreUnavailable, match="PostgreSQL"):
        async with create(silent):
            pytest.fail("opened without a server")
