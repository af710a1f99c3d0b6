"""Tests of the history of an agent in the graph store: keys, windows, repeats, resets and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.memory import InMemoryStore

from tests.recorded_events import RecordedEvents
from tests.workflows.desk import Desk, spoken
from threadkeep import Memory, create_graph_store, load_settings
from threadkeep.observe import (
    HistoryTruncated,
    KeyResolutionFailed,
    PendingWrites,
    ReadFailed,
    StoreRead,
    StoreWrite,
    WriteDeferred,
)
from threadkeep.records import Json
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.nodes import AgentNode

BOT = "schema: 1\nname: bot\nnodes:\n  answer: {kind: agent, use_graph_chat_history: true, next: end%s}"
HISTORY = ("agent_chat_history",)


def telegram(**fields: Json) -> Mapping[str, Json]:
    """Return the results of the parser of Telegram events."""
    return {"telegram_events_parser": fields}


async def keys_in(store: BaseStore, namespace: tuple[str, ...] = HISTORY) -> list[str]:
    """Return the keys of the conversations in a store."""
    found = await store.asearch(namespace, limit=1000)
    return sorted(item.key.removesuffix("__meta__") for item in found if item.key.endswith("__meta__"))


async def said_in(store: BaseStore, key: str, namespace: tuple[str, ...] = HISTORY) -> list[tuple[int, str, str]]:
    """Return the messages of a conversation, read directly from the store."""
    found: list[tuple[int, str, str]] = []
    for item in sorted(await store.asearch(namespace, limit=1000), key=lambda one: one.key):
        if item.key.startswith(f"{key}:chunk:"):
            found += [(one["seq"], one["role"], one["content"]) for one in item.value["messages"]]
    return found


def test_the_fields_have_their_documented_defaults() -> None:
    node = AgentNode()
    assert node.use_graph_chat_history is False
    assert node.history_namespace == HISTORY
    assert node.history_key_template == "{{conversation_key}}"
    assert (node.history_meta_key_suffix, node.history_chunk_size, node.history_value_field) == (
        "__meta__",
        200,
        "content",
    )
    assert (node.max_messages, node.reset_command) == (30, None)
    assert node.history_key_candidates[:3] == (
        "{{results.resolve_history_key.session_key}}",
        "{{configurable.history_key}}",
        "{{inputs.history_key}}",
    )
    assert node.history_key_candidates[-1] == "{{thread_id}}"


def test_candidates_that_are_no_text_are_skipped() -> None:
    node = AgentNode(history_key_candidates=(123, "{{results.none.x}}", "room-1"))
    resolution = node.resolve({}, by_hand=False)
    assert (resolution.key, [one.reason for one in resolution.refused]) == ("room-1", ["unresolved_template"])


@pytest.mark.parametrize(
    "fields",
    [
        {"history_namespace": ["langgraph"]},
        {"history_namespace": []},
        {"history_chunk_size": 0},
        {"history_value_field": "seq"},
        {"history_meta_key_suffix": ""},
        {"history_key_template": "{{conversation_key"},
        {"history_key_template": ""},
        {"reset_command": " "},
        {"history_key_candidates": ["{{nothing.there}}"]},
        {"max_messages": -1},
    ],
)
def test_fields_that_cannot_work_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        AgentNode(**fields)


async def test_earlier_turns_come_from_the_store(desk: Desk) -> None:
    """Runs with the same key are one conversation, which is not a session of the memory."""
    desk.use(BOT % "")
    for text in ("one", "two", "one"):
        await desk.run("bot", text, results=telegram(bot_id="b", chat_id=7))
    assert await keys_in(desk.store) == ["telegram:b:7"]
    assert spoken(desk.model.calls[2]) == [
        ("human", "one"),
        ("ai", "reply 1"),
        ("human", "two"),
        ("ai", "reply 2"),
        ("human", "one"),
    ]
    assert [seq for seq, _, _ in await said_in(desk.store, "telegram:b:7")] == [1, 2, 3, 4, 5, 6]
    assert [one async for one in desk.memory.sessions()] == []


async def test_a_complete_key_is_not_escaped(desk: Desk) -> None:
    """A `{{key:...}}` template takes a complete key without escaping it."""
    desk.use(BOT % ", history_key_candidates: ['{{key:inputs.history_key}}']")
    for key in ("telegram:b:7", "me@example.com"):
        for text in ("one", "two"):
            await desk.run("bot", text, inputs={"history_key": key})
        assert [text for _, _, text in await said_in(desk.store, key)][::2] == ["one", "two"]
    assert await keys_in(desk.store) == ["me@example.com", "telegram:b:7"]


@pytest.mark.parametrize("candidate", ["b:{{key:inputs.a}}", "{{key:inputs.a}}{{key:inputs.b}}", "{{key:nothing.a}}"])
def test_a_complete_key_beside_other_text_is_refused(candidate: str) -> None:
    with pytest.raises(ValueError, match="key"):
        AgentNode(history_key_candidates=(candidate,))


async def test_two_users_of_one_node_get_two_keys(desk: Desk) -> None:
    """Simultaneous runs of a node use separate keys, and the node does not change."""
    desk.use(BOT % "")
    node = desk.workflows.get("bot").nodes["answer"]
    before = node.model_dump()

    def echo(messages: Sequence[BaseMessage]) -> str:
        return f"to {messages[-1].text}"

    desk.model = ScriptedModel([echo] * 40)
    for _ in range(2):
        await asyncio.gather(
            *(desk.run("bot", f"I am {n}", results=telegram(bot_id="b", chat_id=n)) for n in range(1, 11))
        )
    assert await keys_in(desk.store) == sorted(f"telegram:b:{n}" for n in range(1, 11))
    for n in range(1, 11):
        texts = {content for _, _, content in await said_in(desk.store, f"telegram:b:{n}")}
        assert texts == {f"I am {n}", f"to I am {n}"}
    assert node.model_dump() == before


@pytest.mark.parametrize(
    ("results", "key"),
    [
        (telegram(bot_id="b", chat_id=-100123), "telegram:b:-100123"),
        (telegram(bot_id="b", chat_id=-100123, message_thread_id=77), "telegram:b:-100123:77"),
        (telegram(bot_id="other", chat_id=-100123), "telegram:other:-100123"),
        ({"wecom_cs_sync": {"open_kf_id": "kf-001", "external_userid": "ext-abc"}}, "wecom_cs:kf-001:ext-abc"),
        (
            {"wecom_ai_bot_events_parser": {"bot_id": "a", "chat_type": "group", "chat_id": "g1", "user": "u1"}},
            "wecom_aibot:a:group:g1",
        ),
        (
            {"wecom_ai_bot_events_parser": {"bot_id": "a", "chat_type": "single", "user": "u1"}},
            "wecom_aibot:a:single:u1",
        ),
        ({"wecom_events_parser": {"corp_id": "c", "agent_id": 5, "user": "li@corp"}}, "wecom_dm:c:5:li_40corp"),
        ({**telegram(bot_id="b", chat_id=7), "resolve_history_key": {"session_key": "vip"}}, "vip"),
    ],
)
async def test_each_channel_has_its_key(desk: Desk, results: Mapping[str, Json], key: str) -> None:
    """The key of a channel names the bot and the chat; an explicit key has precedence."""
    await desk.use(BOT % "").run("bot", "Hi", results=results, trigger="webhook")
    assert await keys_in(desk.store) == [key]


@pytest.mark.parametrize(
    ("results", "channel"),
    [
        (telegram(chat_id=7), "telegram"),
        ({"wecom_cs_sync": {"open_kf_id": "kf-001", "external_userid": ""}}, "wecom_cs"),
        ({}, "other"),
    ],
)
async def test_without_a_key_the_agent_works_in_memory(desk: Desk, results: Mapping[str, Json], channel: str) -> None:
    """An agent without a key stores nothing, and the failure is reported. A chat without its bot gives no key."""
    desk.use(BOT % "")
    await desk.run("bot", "Hi", results=results, trigger="webhook", session_id="room:1")
    state = await desk.run("bot", "Hi", results=results, trigger="webhook", session_id="room:1")
    assert spoken(desk.model.calls[1]) == [("human", "Hi")]
    assert await keys_in(desk.store) == []
    failures = [(event.channel, event.reason) for event in desk.events.of(KeyResolutionFailed)]
    assert failures == [(channel, "unresolved_template")] * 2
    assert state["results"]["answer"]["text"] == "reply 2"


async def test_the_session_is_the_key_only_in_runs_by_hand(desk: Desk) -> None:
    """The session is the key in runs that a person starts. The run's own thread is never a key."""
    desk.use(BOT % "")
    await desk.run("bot", "Hi", session_id="room-1", trigger="http")
    assert await keys_in(desk.store) == ["room-1"]
    await desk.run("bot", "Hi", session_id="room-2", trigger="webhook")
    await desk.run("bot", "Hi", trigger="http")
    assert await keys_in(desk.store) == ["room-1"]


async def test_an_agent_without_graph_history_does_not_use_the_store(desk: Desk) -> None:
    """An agent without `use_graph_chat_history` uses the session of the run."""
    desk.use((BOT % "").replace("true", "false"))
    await desk.run("bot", "Hi", session_id="room:1", results=telegram(bot_id="b", chat_id=7))
    assert await desk.store.asearch(HISTORY) == []
    assert await desk.transcript("room:1") == [("user", "Hi"), ("assistant", "reply 1")]


async def test_the_newest_messages_are_sent_and_all_are_kept(desk: Desk) -> None:
    """The newest 30 messages are sent, across chunks, and all messages stay in the store."""
    desk.use(BOT % ", history_chunk_size: 10")
    for number in range(1, 21):
        await desk.run("bot", f"question {number}", results=telegram(bot_id="b", chat_id=7))
    sent = spoken(desk.model.calls[-1])
    assert len(sent) == 31
    assert (sent[0], sent[-1]) == (("human", "question 5"), ("human", "question 20"))
    kept = await said_in(desk.store, "telegram:b:7")
    assert [seq for seq, _, _ in kept] == list(range(1, 41))
    chunk = await desk.store.aget(HISTORY, "telegram:b:7:chunk:000003")
    assert chunk is not None
    assert (chunk.value["start_seq"], chunk.value["end_seq"]) == (31, 40)
    assert desk.events.of(HistoryTruncated)
    assert {event.channel for event in desk.events.of(StoreRead)} == {"telegram"}
    assert {event.outcome for event in desk.events.of(StoreWrite)} == {"ok"}


async def test_the_fields_determine_the_layout_in_the_store(desk: Desk) -> None:
    """The fields set the namespace, the suffix, the key and the name of the text in the store."""
    more = ", history_namespace: [bots, support], history_meta_key_suffix: '::m', history_value_field: text"
    desk.use(BOT % f"{more}, history_key_template: 'v2:{{{{conversation_key}}}}', history_key_candidates: [room-1]")
    await desk.run("bot", "Hi")
    metadata = await desk.store.aget(("bots", "support"), "v2:room-1::m")
    chunk = await desk.store.aget(("bots", "support"), "v2:room-1:chunk:000000")
    assert metadata is not None
    assert chunk is not None
    assert (metadata.value["conversation_key"], metadata.value["last_seq"]) == ("v2:room-1", 2)
    assert [message["text"] for message in chunk.value["messages"]] == ["Hi", "reply 1"]


async def test_a_reset_command_resets_the_conversation(desk: Desk) -> None:
    """A reset command is not stored, hides the earlier messages from later runs, and deletes nothing."""
    desk.use(BOT % ", reset_command: /new")
    for text in ("one", " /new ", "two"):
        await desk.run("bot", text, results=telegram(bot_id="b", chat_id=7), session_id="room:1")
    assert spoken(desk.model.calls[-1]) == [("human", "two")]
    assert [content for _, _, content in await said_in(desk.store, "telegram:b:7")] == [
        "one",
        "reply 1",
        "two",
        "reply 2",
    ]
    assert ("user", "/new") not in [(role, content.strip()) for role, content in await desk.transcript("room:1")]


async def test_a_reset_command_resets_a_session(desk: Desk) -> None:
    desk.use("schema: 1\nname: bot\nnodes:\n  answer: {kind: agent, reset_command: /new, next: end}")
    for text in ("one", "/new", "two"):
        await desk.run("bot", text, session_id="room:1")
    assert spoken(desk.model.calls[-1]) == [("human", "two")]
    assert [content for _, content in await desk.transcript("room:1")] == ["one", "reply 1", "two", "reply 2"]


async def test_the_same_message_twice_is_one_turn(desk: Desk) -> None:
    desk.use(BOT % "")
    for _ in range(2):
        await desk.run("bot", "ok", results=telegram(bot_id="b", chat_id=7), message_id="telegram:42")
    assert len(desk.model.calls) == 1
    await desk.run("bot", "ok", results=telegram(bot_id="b", chat_id=7), message_id="telegram:43")
    assert len(await said_in(desk.store, "telegram:b:7")) == 4


class FailingStore(InMemoryStore):
    """A store that fails while `down` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    async def abatch(self, ops: Any) -> list[Result]:
        """Raise an error while the store is down."""
        batch: list[Op] = list(ops)
        if self.down:
            raise ConnectionError("no route to the store")
        return await super().abatch(batch)


async def test_a_store_that_is_down_loses_no_answer_and_no_turn(sqlite_memory: Memory, events: RecordedEvents) -> None:
    store = FailingStore()
    desk = Desk(sqlite_memory, ScriptedModel(f"reply {n}" for n in range(1, 9)), events, store=store).use(BOT % "")
    await desk.run("bot", "one", results=telegram(bot_id="b", chat_id=7))
    store.down = True
    state = await desk.run("bot", "two", results=telegram(bot_id="b", chat_id=7))
    assert state["results"]["answer"]["text"] == "reply 2"
    assert desk.events.of(ReadFailed)
    assert desk.events.of(WriteDeferred)
    store.down = False
    await desk.run("bot", "three", results=telegram(bot_id="b", chat_id=7))
    await events.until(lambda: events.of(PendingWrites)[-1].count == 0)
    texts = [content for _, _, content in await said_in(store, "telegram:b:7")]
    assert texts == ["one", "reply 1", "two", "reply 2", "three", "reply 3"]


async def test_a_graph_without_a_store_works_in_memory(desk: Desk) -> None:
    from threadkeep.workflows.definition import Compiler

    desk.use(BOT % "")
    desk.compiler = Compiler(checkpointer=desk.saver, store=None)
    await desk.run("bot", "Hi", results=telegram(bot_id="b", chat_id=7))
    assert [event.error for event in desk.events.of(ReadFailed)] == ["NoGraphStore"]


@asynccontextmanager
async def opened_stores(url: str) -> AsyncIterator[tuple[BaseStore, BaseStore]]:
    """Open the graph store of a database twice, as two processes would."""
    settings = load_settings(database_url=url)
    async with create_graph_store(settings) as one, create_graph_store(settings) as other:
        yield one, other


@pytest.mark.slow
async def test_simultaneous_turns_from_two_stores_are_all_stored(
    shared_url: str, sqlite_memory: Memory, events: RecordedEvents
) -> None:
    async with opened_stores(shared_url) as stores:
        desks = [
            Desk(sqlite_memory, ScriptedModel([f"reply {n} of {name}" for n in range(20)]), events, store=store).use(
                BOT % ""
            )
            for name, store in zip("ab", stores, strict=True)
        ]
        await asyncio.gather(
            *(desks[n % 2].run("bot", f"question {n}", results=telegram(bot_id="b", chat_id=7)) for n in range(20))
        )
        kept = await said_in(stores[0], "telegram:b:7")
    assert [seq for seq, _, _ in kept] == list(range(1, 41))
    assert len({content for _, _, content in kept}) == 40
