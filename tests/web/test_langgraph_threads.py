"""Tests of threads in LangGraph's server API: creation, search, ownership, and refused options."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk.errors import ConflictError, InternalServerError, NotFoundError, UnprocessableEntityError

from tests.history.retaining import deleting
from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.web.test_langgraph_protocol import asks, sdk, texts
from tests.workflows.test_agent_history import BOT
from tests.workflows.test_own_conversations import asked, numbered
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import StoreUnavailable
from threadkeep.store.runs.rows import RunRecords
from threadkeep.testing import ScriptedModel
from threadkeep.web.langgraph.states import message_json
from threadkeep.web.langgraph.threads import CreatedThread

ANN = {"user_id": "ann"}


async def test_the_metadata_of_a_new_thread_is_stored_for_its_user(tmp_path: Path) -> None:
    states: Any = []
    values: Any = None
    async with sdk(tmp_path, ScriptedModel(["hello", "bye"])) as (langgraph, _):
        await langgraph.threads.create(thread_id="t1", metadata={"page": "/cart", "graph_id": "chat"}, params=ANN)
        empty: Any = await langgraph.threads.get("t1")
        state = await langgraph.threads.get_state("t1")
        unbegun: Any = await langgraph.threads.search(metadata={"page": "/cart"}, params=ANN)
        for text in ("first", "second"):
            config: Any = {"configurable": ANN}
            values = await langgraph.runs.wait("t1", "chat", input=asks(text), config=config)
        found: Any = await langgraph.threads.search(metadata={"page": "/cart"}, params=ANN)
        others = await langgraph.threads.search(metadata={"page": "/cart"}, params={"user_id": "bob"})
        states = await langgraph.threads.get_history("t1")
    assert empty["metadata"]["page"] == "/cart"
    assert texts(state["values"]) == []
    assert [one["thread_id"] for one in unbegun] == ["t1"]
    assert unbegun[0]["values"] == {"messages": []}
    assert texts(values) == [("human", "first"), ("ai", "hello"), ("human", "second"), ("ai", "bye")]
    assert found[0]["metadata"]["page"] == "/cart"
    assert found[0]["metadata"]["title"] == "first"
    assert texts(found[0]["values"]) == [("human", "first"), ("ai", "bye")]
    assert others == []
    assert [len(texts(one["values"])) for one in states] == [4, 2, 0]


async def test_the_metadata_of_a_new_thread_without_a_user_is_stored_by_its_first_run(tmp_path: Path) -> None:
    """The user of the first run owns the thread.

    The metadata of a deleted thread are not used for a later one with its id.
    """
    async with sdk(tmp_path, ScriptedModel(["a", "b"])) as (langgraph, client):
        for thread_id in ("t1", "t2"):
            await langgraph.threads.create(thread_id=thread_id, metadata={"page": "/cart"})
        await langgraph.threads.delete("t2")
        again = await langgraph.threads.create(thread_id="t1", metadata={"page": "/other"}, if_exists="do_nothing")
        for thread_id in ("t1", "t2"):
            config: Any = {"configurable": ANN}
            await langgraph.runs.wait(thread_id, "chat", input=asks("first"), config=config)
        found: Any = [await langgraph.threads.get(thread_id) for thread_id in ("t1", "t2")]
        info = (await client.get("/api/v1/sessions/t1?user_id=ann")).json()
    assert again["metadata"] == {"page": "/cart"}
    assert [one["metadata"].get("page") for one in found] == ["/cart", None]
    assert (info["user_id"], info["metadata"]) == ("ann", {"page": "/cart"})


async def test_a_thread_exists_before_its_first_run(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["a"])) as (langgraph, _):
        created: Any = await langgraph.threads.create(metadata={"page": "/cart"})
        plain: Any = await langgraph.threads.create()
        assert [await langgraph.threads.get(one["thread_id"]) for one in (created, plain)] == [created, plain]
        with pytest.raises(ConflictError):
            await langgraph.threads.create(thread_id=plain["thread_id"])
        for one in (created, plain):
            await langgraph.threads.update(one["thread_id"], metadata={"title": "New"})
        changed: Any = await langgraph.threads.get(created["thread_id"])
        await langgraph.threads.delete(created["thread_id"])
        with pytest.raises(NotFoundError):
            await langgraph.threads.get(created["thread_id"])
        with pytest.raises(NotFoundError):
            await langgraph.threads.update(created["thread_id"], metadata={"title": "New"})
        await langgraph.runs.wait(plain["thread_id"], "chat", input=asks("first"))
        begun: Any = await langgraph.threads.get(plain["thread_id"])
    assert changed["metadata"] == {"page": "/cart", "title": "New"}
    assert changed["created_at"] == created["created_at"]
    assert begun["metadata"]["title"] == "New"
    assert texts(begun["values"]) == [("human", "first"), ("ai", "a")]


@pytest.mark.parametrize("user", [{}, ANN])
async def test_of_two_creations_at_once_one_creates_the_thread(tmp_path: Path, user: dict[str, str]) -> None:
    """The others get a conflict, or the existing thread without their metadata."""
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, _):
        for thread_id, if_exists in (("t1", None), ("t2", "do_nothing")):
            options: Any = {"thread_id": thread_id, "params": user, "if_exists": if_exists}
            creations = [langgraph.threads.create(metadata={f"by{each}": each}, **options) for each in range(4)]
            told: list[Any] = await asyncio.gather(*creations, return_exceptions=True)
            created: Any = await langgraph.threads.get(thread_id, params=user)
            given = {name: value for name, value in created["metadata"].items() if name.startswith("by")}
            assert len(given) == 1
            refused = [one for one in told if isinstance(one, ConflictError)]
            assert len(refused) == (3 if if_exists is None else 0)
            assert all(one["metadata"].items() >= given.items() for one in told if one not in refused)


async def test_a_thread_of_a_user_is_never_stored_without_its_metadata(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write of the service fails, as in a crash after the first one. A repeated creation changes nothing."""
    async with sdk(tmp_path, ScriptedModel([]), database_url=shared_url) as (langgraph, _):
        with monkeypatch.context() as patched:
            patched.setattr("threadkeep.history.session.Session.update", failing)
            with contextlib.suppress(InternalServerError):
                await langgraph.threads.create(thread_id="t1", metadata={"page": "/cart"}, params=ANN)
        again: Any = await langgraph.threads.create(thread_id="t1", metadata={}, params=ANN, if_exists="do_nothing")
        found: Any = await langgraph.threads.get("t1", params=ANN)
    assert [one["metadata"].get("page") for one in (again, found)] == ["/cart", "/cart"]


async def test_a_thread_without_its_creation_message_still_runs(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service crashed before it forgot the created thread, and retention deleted the creation message."""
    async with sdk(tmp_path, ScriptedModel(["a", "b"]), database_url=shared_url) as (langgraph, client):
        await langgraph.threads.create(thread_id="t1", metadata={"page": "/cart"})
        with monkeypatch.context() as patched:
            patched.setattr("threadkeep.store.duties.ChannelState.forget", failing)
            body = {"assistant_id": "chat", "input": asks("first")}
            assert (await client.post("/threads/t1/runs/wait", json=body)).status_code == 503
        await langgraph.threads.update("t1", metadata={"page": "/new"})
        await client.post("/api/v1/chat", json={"message": "hi", "session_id": "t1"})
        async with open_memory(shared_url) as memory:
            assert (await memory.retention.prune(deleting(max_messages=2))).deleted.messages == 1
        values: Any = await langgraph.runs.wait("t1", "chat", input=asks("second"))
        found: Any = await langgraph.threads.get("t1")
    assert texts(values) == [("human", "hi"), ("ai", "a"), ("human", "second"), ("ai", "b")]
    assert found["metadata"]["page"] == "/new"


async def test_a_thread_is_stored_while_other_turns_are_pending(memory: Memory) -> None:
    memory.pending.database_fails = True
    assert await CreatedThread(memory, "t1", "ann").begin({"page": "/cart"})
    assert not await CreatedThread(memory, "t1", "ann").begin({"page": "/other"})
    assert (await memory.session("t1").info()).metadata == {"page": "/cart"}


async def failing(*_: object, **__: object) -> None:
    """Fail as a database that does not answer."""
    raise StoreUnavailable("The database does not answer.")


async def test_a_created_thread_has_no_runs_and_is_copied(tmp_path: Path) -> None:
    """A thread without a user exists before its first run, also for a run that requires an existing thread."""
    async with sdk(tmp_path, ScriptedModel(["a"])) as (langgraph, client):
        await langgraph.threads.create(thread_id="t1", metadata={"page": "/cart"})
        assert await langgraph.runs.list("t1") == []
        states = [await langgraph.threads.get_state("t1", checkpoint_id=at) for at in (None, "0")]
        assert [(one["values"], one["next"]) for one in states] == [({"messages": []}, [])] * 2
        async with client.stream("POST", "/threads/t1/stream/events", json={"channels": []}) as response:
            assert response.status_code == 200
        copied: Any = (await client.post("/threads/t1/copy")).json()
        assert await langgraph.threads.get(copied["thread_id"]) == copied
        await langgraph.runs.wait("t1", "chat", input=asks("first"), if_not_exists="reject", params=ANN)
        for refused in (langgraph.runs.list("t2"), langgraph.threads.copy("t2"), langgraph.threads.get_state("t2")):
            with pytest.raises(NotFoundError):
                await refused
    assert copied["metadata"] == {"page": "/cart"}
    assert copied["thread_id"] != "t1"


async def test_a_created_thread_becomes_its_session(tmp_path: Path) -> None:
    """A thread whose session began by an update or a chat is deleted completely."""
    async with sdk(tmp_path, ScriptedModel(["a", "b"])) as (langgraph, client):
        for thread_id in ("t1", "t2", "t3"):
            await langgraph.threads.create(thread_id=thread_id, metadata={"page": "/cart"})
        await langgraph.threads.update_state("t1", asks("hello"))
        begun: Any = await langgraph.threads.get("t1")
        for thread_id in ("t2", "t3"):
            answered = await client.post("/api/v1/chat", json={"message": "hi", "session_id": thread_id})
            assert answered.status_code == 200
        changed: Any = await langgraph.threads.update("t2", metadata={"page": "/new"})
        await langgraph.threads.delete("t1")
        await langgraph.threads.delete("t2")
        assert (await client.delete("/api/v1/sessions/t3")).status_code == 204
        for thread_id in ("t1", "t2", "t3"):
            with pytest.raises(NotFoundError):
                await langgraph.threads.get(thread_id)
            with pytest.raises(NotFoundError):
                await langgraph.threads.delete(thread_id)
        sessions = (await client.get("/api/v1/sessions")).json()["sessions"]
    assert (begun["metadata"]["page"], texts(begun["values"])) == ("/cart", [("human", "hello")])
    assert changed["metadata"]["page"] == "/new"
    assert sessions == []


async def test_a_created_thread_belongs_to_its_user(tmp_path: Path) -> None:
    """A created thread belongs to its user at once.

    Without a user it is visible to requests without one, until its first run.
    """
    async with sdk(tmp_path, ScriptedModel(["a"])) as (langgraph, client):
        await langgraph.threads.create(thread_id="t1", params=ANN)
        await langgraph.threads.create(thread_id="t2")
        bob: Any = {"user_id": "bob"}
        for thread_id in ("t1", "t2"):
            for refused in (
                lambda name: langgraph.threads.get(name, params=bob),
                lambda name: langgraph.threads.update(name, metadata={"page": "x"}, params=bob),
                lambda name: langgraph.threads.delete(name, params=bob),
            ):
                with pytest.raises(NotFoundError):
                    await refused(thread_id)
        with pytest.raises(NotFoundError):
            await langgraph.threads.create(thread_id="t1", if_exists="do_nothing", params=bob)
        own: Any = await langgraph.threads.get("t1", params=ANN)
        plain: Any = await langgraph.threads.get("t2")
        await langgraph.threads.delete("t1", params=ANN)
        sessions = (await client.get("/api/v1/sessions")).json()["sessions"]
    assert own["metadata"].get("page") is None
    assert (plain["thread_id"], plain["metadata"]) == ("t2", {})
    assert sessions == []


async def test_the_user_in_the_query_is_the_user_of_a_run(tmp_path: Path) -> None:
    """The user may be in the query or in `config.configurable`. A request with two users is refused."""
    async with sdk(tmp_path, ScriptedModel(["a", "b", "c"])) as (langgraph, client):
        await langgraph.runs.wait("t1", "chat", input=asks("first"), params=ANN)
        config: Any = {"configurable": ANN}
        await langgraph.runs.wait("t1", "chat", input=asks("second"), config=config, params=ANN)
        run = await langgraph.runs.create("t1", "chat", input=asks("third"), params=ANN)
        await langgraph.runs.join("t1", run["run_id"], params=ANN)
        with pytest.raises(NotFoundError):
            await langgraph.runs.get("t1", run["run_id"], params={"user_id": "bob"})
        with pytest.raises(NotFoundError):
            await langgraph.runs.create("t1", "chat", input=asks("x"), params={"user_id": "bob"})
        for path in ("/threads/t2/runs", "/threads/t2/runs/wait", "/threads/t2/runs/stream", "/runs/wait"):
            body = {"assistant_id": "chat", "input": asks("x"), "config": config}
            refused = await client.post(path, json=body, params={"user_id": "bob"})
            assert (refused.status_code, "two users" in refused.text) == (422, True), path
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": asks("x")}}
        command["params"] |= {"config": config}  # type: ignore[operator]
        refused = await client.post("/threads/t2/commands", json=command, params={"user_id": "bob"})
        assert "two users" in refused.json()["message"]
        infos = (await client.get("/api/v1/sessions")).json()["sessions"]
    assert [(one["session_id"], one["user_id"], one["message_count"]) for one in infos] == [("t1", "ann", 6)]


async def test_a_run_may_require_an_existing_thread(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["a", "b"])) as (langgraph, _):
        with pytest.raises(NotFoundError, match="if_not_exists"):
            await langgraph.runs.create("t1", "chat", input=asks("x"), if_not_exists="reject")
        assert await langgraph.threads.search() == []
        await langgraph.runs.wait("t1", "chat", input=asks("first"), if_not_exists="create")
        values: Any = await langgraph.runs.wait("t1", "chat", input=asks("second"), if_not_exists="reject")
    assert len(values["messages"]) == 4


async def test_threads_are_sorted_and_read_without_values(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["1", "2", "3", "4"])) as (langgraph, _):
        for thread_id in ("b", "c", "a", "b"):
            await langgraph.runs.wait(thread_id, "chat", input=asks(thread_id))

        async def ids(**options: Any) -> str:
            return "".join(one["thread_id"] for one in await langgraph.threads.search(**options))

        assert await ids() == "bac"
        assert await ids(sort_by="updated_at", sort_order="asc") == "cab"
        assert await ids(sort_by="created_at") == "acb"
        assert await ids(sort_by="created_at", sort_order="asc", limit=1, offset=1) == "c"
        assert await ids(sort_by="thread_id", sort_order="asc") == "abc"
        [thread] = await langgraph.threads.search(ids=["a"], select=["thread_id", "metadata"])
        assert thread["values"] is None
        [thread] = await langgraph.threads.search(ids=["a"], select=["thread_id", "values"])
        assert texts(thread["values"]) == [("human", "a"), ("ai", "3")]


async def test_old_threads_are_found_by_id_and_on_later_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without ids examines a number of threads, and more if its page is after them."""
    monkeypatch.setattr("threadkeep.web.langgraph.threads._SEARCHED", 2)
    monkeypatch.setattr("threadkeep.web.langgraph.threads._PAGE", 1)
    async with sdk(tmp_path, ScriptedModel(["1", "2", "3", "4"])) as (langgraph, _):
        for thread_id in ("a", "b", "c", "d"):
            await langgraph.runs.wait(thread_id, "chat", input=asks(thread_id))

        async def ids(**options: Any) -> list[str]:
            return [one["thread_id"] for one in await langgraph.threads.search(**options)]

        assert [await ids(limit=1, offset=number) for number in range(5)] == [["d"], ["c"], ["b"], ["a"], []]
        assert await ids(ids=["a", "unknown", "a", "b", "\n"]) == ["b", "a"]
        assert await ids(ids=["a"], status="busy") == []
        assert await ids(sort_by="thread_id", sort_order="asc") == ["c", "d"]


async def test_threads_are_found_by_a_part_of_their_metadata(tmp_path: Path) -> None:
    """Nested objects and lists may have more values than the wanted ones, as on LangGraph's server."""
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, client):
        stored = {"order": {"id": 1, "items": [{"sku": "a", "count": 2}, {"sku": "b"}]}, "open": True}
        await client.post("/threads", params={"user_id": "u1"}, json={"thread_id": "t1", "metadata": stored})
        found: list[dict[str, Any]] = [
            {"order": {"id": 1}},
            {"order": {"items": [{"sku": "b"}]}, "open": True},
            {"order": {}},
        ]
        missing: list[dict[str, Any]] = [{"order": {"id": 2}}, {"order": {"id": True}}, {"open": 1}, {"no": None}]
        results = [await langgraph.threads.search(metadata=wanted) for wanted in (*found, *missing)]
    assert [len(one) for one in results] == [1, 1, 1, 0, 0, 0, 0]


async def test_a_search_reads_only_the_runs_of_threads_with_its_metadata(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runs are read at once."""
    asked: list[list[str]] = []
    listed = RunRecords.of_sessions

    async def counted(self: RunRecords, session_ids: list[str], *, user_id: str | None = None) -> Any:
        asked.append(session_ids)
        return await listed(self, session_ids, user_id=user_id)

    async with sdk(tmp_path, ScriptedModel(["1", "2", "3"]), database_url=shared_url) as (langgraph, _):
        for thread_id in ("a", "b", "c"):
            await langgraph.threads.create(thread_id=thread_id, metadata={"order": thread_id, "graph_id": "other"})
            await langgraph.runs.wait(thread_id, "chat", input=asks(thread_id))
        monkeypatch.setattr(RunRecords, "of_sessions", counted)
        found = await langgraph.threads.search(metadata={"order": "b", "graph_id": "chat"})
        assert ([one["thread_id"] for one in found], asked) == (["b"], [["b"]])
        assert await langgraph.threads.search(metadata={"order": "d"}) == []
        assert await langgraph.threads.search(status="busy") == []
        assert asked == [["b"], ["c", "b", "a"]]


async def test_a_history_converts_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work does not grow with the square of the number of turns, which would stop the service for seconds."""
    converted: list[Message] = []

    def counted(message: Message) -> dict[str, Any]:
        converted.append(message)
        return message_json(message)

    monkeypatch.setattr("threadkeep.web.langgraph.states.message_json", counted)
    async with sdk(tmp_path, ScriptedModel([])) as (langgraph, _):
        messages = [{"role": role, "content": f"{role} {turn}"} for turn in range(20) for role in ("user", "assistant")]
        await langgraph.threads.update_state("t1", {"messages": messages})
        converted.clear()
        states = await langgraph.threads.get_history("t1", limit=100)
    assert [len(texts(one["values"])) for one in states] == list(range(40, -1, -2))
    assert len(converted) == 40


async def test_conversations_of_agents_hide_no_older_thread(
    shared_url: str,
    tmp_path: Path,
    memory_options: MemoryOptions,
    events: RecordedEvents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A conversation that an agent manages itself is a session with a namespace, but no thread."""
    monkeypatch.setattr("threadkeep.web.langgraph.threads._SEARCHED", 2)
    monkeypatch.setattr("threadkeep.web.langgraph.threads._PAGE", 1)
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.session("a").append([Message("user", "x")])
        desk = RunDesk(memory, numbered(3), events, store=await memory.graph_store())
        async with desk.open(BOT % "") as service:
            for chat_id in (7, 8, 9):
                await carried_out(service, asked("Where is it?", chat_id=chat_id))
    async with sdk(tmp_path, ScriptedModel(), database_url=shared_url) as (langgraph, _):
        assert [one["thread_id"] for one in await langgraph.threads.search(limit=1)] == ["a"]


async def test_unsupported_thread_options_are_refused_with_the_cure(tmp_path: Path) -> None:
    async with sdk(tmp_path, ScriptedModel(["a"])) as (langgraph, _):
        await langgraph.runs.wait("t1", "chat", input=asks("x"))
        with pytest.raises(UnprocessableEntityError, match="metadata"):
            await langgraph.threads.search(values={"topic": "cats"})
        with pytest.raises(UnprocessableEntityError, match="select"):
            await langgraph.threads.search(extract={"last": "values.messages[-1]"})
        with pytest.raises(UnprocessableEntityError, match="/state"):
            await langgraph.threads.create(supersteps=[{"updates": []}])
        with pytest.raises(UnprocessableEntityError, match="retention"):
            await langgraph.threads.create(ttl=5)
        with pytest.raises(UnprocessableEntityError, match="retention"):
            await langgraph.threads.update("t1", metadata={}, ttl=5)
        with pytest.raises(UnprocessableEntityError, match="checkpoint"):
            await langgraph.threads.update_state("t1", {"messages": asks("y")["messages"]}, checkpoint_id="1")
        call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "args": {}}]}
        with pytest.raises(UnprocessableEntityError, match="without `tool_calls`"):
            await langgraph.threads.update_state("t1", {"messages": [*asks("y")["messages"], call]})
        await langgraph.threads.update_state("t1", {"messages": asks("y")["messages"]}, checkpoint_id="2")


async def test_values_that_no_database_stores_are_cleaned_or_refused(tmp_path: Path, shared_url: str) -> None:
    """Characters that cannot be stored are replaced in text.

    Numbers and times that would be changed are refused.
    """
    item: dict[str, Any] = {"namespace": ["n"], "key": "k", "value": {}}
    async with sdk(tmp_path, ScriptedModel([]), database_url=shared_url) as (langgraph, client):

        async def send(method: str, path: str, **body: object) -> httpx2.Response:
            headers = {"content-type": "application/json"}
            return await client.request(method, path, content=json.dumps(body), headers=headers)

        for text in ("a\ud800", "a\x00"):
            created = await send("POST", "/threads", metadata={"page": text})
            assert created.json()["metadata"] == {"page": "a\ufffd"}
            assert (await send("PUT", "/store/items", **{**item, "value": {"page": text}})).status_code == 204
            stored: Any = await langgraph.store.get_item(["n"], "k")
            assert stored["value"] == {"page": "a\ufffd"}
            found = await send("POST", "/store/items/search", namespace_prefix=["n"], filter={"page": text})
            assert [one["key"] for one in found.json()["items"]] == ["k"]
        named = {"namespace": ["n", "a\x00"], "key": "k\x00"}
        assert (await send("PUT", "/store/items", **named, value={})).status_code == 204
        assert (await client.get("/store/items", params=named)).json()["key"] == "k\ufffd"
        for wrong in ({"value": {"page": [2**64]}}, {"ttl": 1e300}):
            assert (await send("PUT", "/store/items", **{**item, **wrong})).status_code == 422
