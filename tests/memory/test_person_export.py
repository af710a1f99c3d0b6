"""Tests of the export of a person: the data that an erase would delete, as lines and as an archive."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from zipfile import ZipFile

import pytest

from tests.databases import execute
from threadkeep import InvalidInput, Memory, MemoryOptions, Message, open_memory
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.memory.person_archive import archive, whole_lines
from threadkeep.records.knowledge import Scope
from threadkeep.records.runs import NewRun
from threadkeep.store.contexts import Steps
from threadkeep.testing import SettableClock

ANN, BOB = "telegram:ann", "telegram:bob"


def said(words: str, sender: str | None = None) -> Message:
    """Return a message of a person as channels store it."""
    return Message(role="user", content=words, metadata={} if sender is None else {"sender_id": sender})


async def live(memory: Memory) -> None:
    """Write data of Ann to every store, and data of Bob beside it."""
    own = memory.session("telegram:1", user_id=ANN)
    noted = (Message(role="assistant", content=f"<b>noted</b> {number}") for number in range(250))
    await own.append([message for number, note in enumerate(noted) for message in (said(f"ann {number}"), note)])
    await own.take_back(2)
    await memory.persons.resolve(ANN, name="Ann")
    await memory.persons.resolve("telegram:ann2")
    await memory.persons.merge("telegram:ann2", into=ANN)
    await memory.session("telegram:2", user_id="telegram:ann2").append([said("ann elsewhere")])
    await memory.knowledge.remember(Scope("user", ANN), "likes", "tea")
    group = memory.session("telegram:group")
    await group.append([said("ann in the group", ANN), said("bob's words", BOB)])
    await memory.session("telegram:3", user_id=BOB).append([said("bob alone")])
    for scope in (f"chatkit:{ANN}", "adk:telegram:ann2", f"pydantic-ai:{ANN}", f"adk:{BOB}", "bot"):
        await memory.channels.state.keep(scope, "name", f"value of {scope}".replace(BOB, "bob"))
    store = await memory.graph_store()
    await store.aput(("memories", ANN), "k", {"text": "ann's item"})
    await store.aput(("memories", BOB), "k", {"text": "bob's item"})
    agents = await memory.namespace(GraphLayout(("agents",)))
    await agents.session("telegram:group").append([said("ann to an agent", ANN), said("bob too", BOB)])


async def lines_of(memory: Memory, after: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of Ann's export."""
    return [json.loads(line) async for line in memory.export(user_id=ANN, after=after)]


async def test_an_export_has_the_data_that_an_erase_would_delete(memory: Memory) -> None:
    """The export covers all ids, superseded messages and sessions of others, but no data of others."""
    await live(memory)
    lines = await lines_of(memory)
    kinds = [line["type"] for line in lines if line["type"] != "position"]
    receipt = await memory.erase(user_id=ANN, dry_run=True)
    before = {store.name: store.before for store in receipt.stores}
    assert (kinds[0], kinds[-1]) == ("person", "end")
    assert kinds.count("session") == before["chat_sessions"] == 2
    assert kinds.count("message") == before["chat_messages"] == 501
    in_stores = before["messages in conversations of others"]
    assert (kinds.count("shared_message"), before["shared messages"], in_stores) == (2, 1, 1)
    assert kinds.count("fact") == before["chat_facts"] == 1
    assert kinds.count("item") == before["graph store items"] == 1
    assert kinds.count("value") == before["chat_channel_state"] == 3
    assert sorted(lines[0]["ids"]) == [ANN, "telegram:ann2"]
    assert "bob" not in json.dumps(lines)


async def test_an_export_has_keys_steps_and_proposals_in_sessions_of_others(memory: Memory) -> None:
    """The counts equal those of an erase; digests of API keys are not exported."""
    own = memory.session("telegram:1", user_id=ANN)
    await own.append([Message(role="user", content="tea?", id="q"), Message(role="assistant", content="yes")])
    steps = Steps(1, '[{"tool": "kettle"}]')
    await memory.contexts.keep_steps("telegram:1", steps, question_id="q", author="chef")
    await memory.session("telegram:group").append([said("ann likes tea", BOB)])
    for session_id, key in (("telegram:1", "sort"), ("telegram:group", "drink")):
        reading = Reading(session_id, "model", "scripted", 0, 1)
        await memory.proposals.add(reading, [Proposed(Scope("user", ANN), key, "tea", 1)])
    await memory.api_keys.add("ann's key", scope="read", user_id=ANN)
    await memory.api_keys.add("bob's key", scope="read", user_id=BOB)
    [hers] = [one for one in await memory.api_keys.all() if one.user_id == ANN]
    lines = await lines_of(memory)
    found = {kind: [line for line in lines if line["type"] == kind] for kind in ("proposal", "step", "api_key")}
    before = {store.name: store.before for store in (await memory.erase(user_id=ANN, dry_run=True)).stores}
    assert sorted(line["key"] for line in found["proposal"]) == ["drink", "sort"]
    assert len(found["proposal"]) == before["chat_fact_proposals"]
    assert [line["steps"] for line in found["step"]] == [[{"tool": "kettle"}]]
    assert before["chat_steps"] == before["chat_api_keys"] == 1
    [exported] = found["api_key"]
    assert (exported["name"], exported["scope"]) == ("ann's key", "read")
    assert hers.digest not in str(lines)


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_an_export_marks_damaged_runs(memory: Memory, database_url: str) -> None:
    """The records that cannot be read are missing. Everything else is exported, also of these runs."""
    for name in ("run:1", "run:2", "run:3"):
        new = NewRun(run_id=name, workflow="desk", input={"text": name}, session_id=name, user_id=ANN, message_id="m")
        await memory.runs.order.add(new, owner="o")
        assert await memory.runs.finish(name, "o", "done")
    blob = "X'01ff'" if database_url.startswith("sqlite") else "decode('01ff', 'hex')"
    execute(database_url, f"UPDATE chat_runs SET input = {blob} WHERE run_id = 'run:1'")
    execute(database_url, f"UPDATE chat_run_traces SET events = {blob} WHERE run_id = 'run:2'")
    lines = await lines_of(memory)
    runs = {line["run_id"]: (line["error"], len(line["inputs"])) for line in lines if line["type"] == "run"}
    assert runs == {"run:1": ("RecordUnreadable", 0), "run:2": (None, 1), "run:3": (None, 1)}
    events = {line["run_id"]: line.get("error") for line in lines if line["type"] == "run_event"}
    assert events == {"run:1": None, "run:2": "RecordUnreadable", "run:3": None}


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
@pytest.mark.parametrize(("column", "value"), [("tags", "null"), ("metadata", "[]"), ("retention", "3")])
async def test_damaged_sessions_are_exported_with_a_mark_and_erased(
    memory: Memory, database_url: str, column: str, value: str
) -> None:
    """The messages of a damaged session are exported; steps that cannot be read are marked."""
    for name in ("s1", "s11"):
        await memory.session(name, user_id=ANN).append([Message("user", f"hi {name}", id="m")])
        for ordinal in (1, 2):
            await memory.contexts.keep_steps(name, Steps(1, "[]"), question_id="m", author="desk", ordinal=ordinal)
    execute(database_url, f"UPDATE chat_sessions SET {column} = '{value}' WHERE session_id = 's1'")
    blob = "X'01ff'" if database_url.startswith("sqlite") else "decode('01ff', 'hex')"
    execute(database_url, f"UPDATE chat_steps SET body = {blob} WHERE session_id = 's1' AND ordinal = 2")
    lines = await lines_of(memory)
    marks = {
        line["session_id"]: line["metadata"].get("threadkeep:error") for line in lines if line["type"] == "session"
    }
    assert marks == {"s1": "RecordUnreadable", "s11": None}
    assert [line["content"] for line in lines if line["type"] == "message"] == ["hi s1", "hi s11"]
    steps_of = [line["steps"] for line in lines if line["type"] == "step"]
    assert steps_of == [[], {"error": "RecordUnreadable"}, [], []]
    receipt = await memory.erase(user_id=ANN)
    assert (receipt.sessions, await memory.session("s1").count()) == (2, 0)


async def test_an_export_can_be_continued_after_any_position(memory: Memory) -> None:
    await live(memory)
    whole = await lines_of(memory)
    positions = [number for number, line in enumerate(whole) if line["type"] == "position"]
    assert len(positions) > 8
    for number in positions:
        rest = await lines_of(memory, whole[number]["after"])
        assert rest[:-1] == whole[number + 1 : -1]
        assert rest[-1]["type"] == "end"
    for wrong in ("", "x", "WyJ4Il0", "ü"):
        with pytest.raises(InvalidInput, match="not a position"):
            await lines_of(memory, wrong)


async def test_an_export_can_be_continued_for_the_same_person_only(memory: Memory) -> None:
    """Any id of the person is accepted with a position; another person is refused."""
    await live(memory)
    position = next(line["after"] for line in await lines_of(memory) if line["type"] == "position")
    assert [line async for line in memory.export(user_id="telegram:ann2", after=position)]
    with pytest.raises(InvalidInput, match="another person"):
        _ = [line async for line in memory.export(user_id=BOB, after=position)]


async def test_the_archive_has_the_lines_and_a_page(memory: Memory) -> None:
    """The page escapes the texts."""
    await live(memory)
    data = b"".join([part async for part in memory.export_archive(user_id=ANN)])
    with ZipFile(io.BytesIO(data)) as archived:
        assert archived.testzip() is None
        lines = archived.read("person.jsonl").decode().splitlines()
        page = archived.read("person.html").decode()
    assert [json.loads(line)["type"] for line in lines][-1] == "end"
    assert "ann in the group" in page
    assert "&lt;b&gt;noted&lt;/b&gt; 7" in page
    assert "<b>noted" not in page


async def test_a_broken_file_is_continued_after_its_last_position(clock: SettableClock) -> None:
    """A partial line and the lines after the last position are written again."""
    file = io.BytesIO(b'{"type": "person"}\n{"type": "position", "after": "a"}\n{"type": "session"}\n{"type": "posi')
    assert whole_lines(file) == ("a", 2)
    assert file.read() == b""
    assert file.getvalue().endswith(b'"a"}\n')
    assert whole_lines(io.BytesIO(b'{"type": "person"}\n')) == (None, 0)

    async def lines() -> AsyncIterator[str]:
        yield '{"type": "message", "role": "user", "content": "\ud800"}\n'

    assert b"".join([part async for part in archive(lines(), clock())])


async def test_pending_turns_are_exported(memory_options: MemoryOptions, sqlite_url: str) -> None:
    from tests.outages import Outage
    from threadkeep.store.address import parse_address
    from threadkeep.store.driver import StoreOptions

    path = parse_address(sqlite_url).path
    assert path is not None
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    async with open_memory(sqlite_url, options=options) as memory:
        await memory.session("telegram:1", user_id=ANN).append([said("ann")])
        async with Outage(path)():
            await memory.session("telegram:1", user_id=ANN).record([said("ann waits")])
            await memory.session("telegram:3", user_id=BOB).record([said("bob waits")])
            entries = [line for line in await lines_of(memory) if line["type"] == "pending_message"]
    assert [line["content"] for line in entries] == ["ann waits"]
