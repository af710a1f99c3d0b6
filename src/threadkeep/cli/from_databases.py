"""Conversations in databases from other systems: OpenAI Agents SDK, LangGraph stores and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.message import _messages_delta_reducer

from threadkeep.adapters.items import openai_role, openai_text
from threadkeep.agent.conversion import from_langchain, role_of, text_of
from threadkeep.agent.counting import media_name
from threadkeep.boundary import ErrorBoundary
from threadkeep.cli.foreign import (
    Conversation,
    Conversations,
    LeftOut,
    Reading,
    Unreadable,
    open_source_database,
    utc_time,
)
from threadkeep.cli.terminal import NotDone
from threadkeep.errors import StoreUnavailable
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import MAX_ID_CHARACTERS, SPEAKERS, Message
from threadkeep.store.checkpointers import open_foreign_checkpoints
from threadkeep.store.driver import Row


async def read_agent_sessions(source: str, reading: Reading, *, branch: str, user_id: str | None) -> Conversations:
    """Yield the sessions of the OpenAI Agents SDK in a SQLite file (its path), or at a URL.

    If a session has branches, only `branch` is read. `user_id` becomes the owner of the sessions.
    """
    async with open_source_database(source, "openai-agents") as (_, database):
        sessions = await database.rows("agent_sessions")
        reading.total = len(sessions)
        yield None
        for session_id, created_at, updated_at in sessions:
            begun, changed = utc_time(created_at), utc_time(updated_at)
            line = SessionLine(str(session_id), user_id, created_at=begun, updated_at=changed)
            if "message_structure" in database.columns and await database.rows("agent_branches", session_id=session_id):
                rows = await database.rows("agent_branch_items", session_id=session_id, branch=branch)
            else:
                rows = await database.rows("agent_items", session_id=session_id)
            found = (_message_of_item(line.session_id, row, reading) for row in rows)
            yield Conversation(line, [message for message in found if message is not None])
            reading.done += 1


def _message_of_item(session_id: str, row: Row, reading: Reading) -> Message | None:
    """Return the message in an item, or None if the item is skipped."""
    number, data, created_at = row
    try:
        item = json.loads(data)
    except (ValueError, RecursionError):
        item = None
    if (reason := _left_out(item)) is not None:
        reading.left_out[reason] += 1
        return None
    role, text = openai_role(item) or "user", openai_text(item["content"])
    # Do not use the SDK's ids, because some models give all answers the same id. Row numbers stay the same in later
    # imports.
    digest = sha256(f"{session_id}\n{number}\n{role}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return Message(role, text, id=f"openai-agents:{digest[:32]}", created_at=utc_time(created_at))


def _left_out(item: object) -> LeftOut | None:
    """Return the reason why an item is skipped, or None if it is imported."""
    if not isinstance(item, dict):
        return "other"
    kind = item.get("type", "message")
    if kind != "message":
        if kind == "reasoning":
            return "reasoning"
        return "tool_result" if str(kind).endswith("_output") else "tool_call" if "call" in str(kind) else "other"
    if item.get("role") in ("system", "developer"):
        return "system"
    if openai_role(item) is None:
        return "other"
    return None if openai_text(item.get("content")).strip() else "empty"


async def read_histories(source: str, reading: Reading, layout: GraphLayout, *, as_sessions: bool) -> Conversations:
    """Yield a LangGraph store's chat histories in the namespace of `layout`, in the order of their keys.

    Each history becomes a session if `as_sessions` is true, otherwise a conversation in a graph store. Other items of
    the namespace are skipped.
    """
    prefix = ".".join(layout.namespace)
    async with open_source_database(source, "graph-store") as (_, database):
        keys = await database.rows("store_keys", prefix=prefix)
        reading.total = len(keys)
        yield None
        for (key,) in keys:
            for row in await database.rows("store_item", prefix=prefix, key=str(key)):
                if (found := _history(str(key), row, reading, layout, as_sessions=as_sessions)) is not None:
                    yield found
            reading.done += 1


def _history(
    key: str, row: Row, reading: Reading, layout: GraphLayout, *, as_sessions: bool
) -> Conversation | Unreadable | None:
    """Return the chat history in an item of the store, or None if the item contains something else."""
    value, created_at, updated_at = row
    try:
        item = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return Unreadable(key, "Its item is not JSON, or is nested too deeply.")
    if not isinstance(item, dict) or "start_seq" in item or not isinstance(item.get("messages"), list):
        return None
    changed = utc_time(updated_at)
    line = SessionLine(
        key,
        created_at=utc_time(created_at),
        updated_at=changed,
        namespace=() if as_sessions else layout.namespace,
        value_field=layout.value_field,
    )
    messages = (_message_of_entry(entry, reading, layout, changed) for entry in item["messages"])
    return Conversation(line, [message for message in messages if message is not None])


def _message_of_entry(value: object, reading: Reading, layout: GraphLayout, moment: datetime | None) -> Message | None:
    """Return the message in an entry of a history, with the time `moment`, or None if the entry is skipped."""
    if not isinstance(value, dict) or value.get("role") not in SPEAKERS:
        system = isinstance(value, dict) and value.get("role") == "system"
        reading.left_out["system" if system else "other"] += 1
        return None
    text = value.get(layout.value_field, value.get("content"))
    if not isinstance(text, str) or not text.strip():
        reading.left_out["empty"] += 1
        return None
    return Message(value["role"], text, created_at=moment)


async def read_threads(source: str, reading: Reading, *, channel: str, user_id: str | None) -> Conversations:
    """Yield the threads of a LangGraph checkpointer in the order of their ids, except those of Threadkeep's own runs.

    Checkpoints of an outdated or a shallow saver are rejected. `channel` is the state's channel with the messages.
    `user_id` becomes the owner of threads whose newest checkpoint names no user.
    """
    async with open_source_database(source, "langgraph") as (address, database):
        columns, writes = database.columns, "writes" if address.dsn is None else "checkpoint_writes"
        if "checkpoint_id" not in columns["checkpoints"]:
            raise NotDone(
                "A shallow saver wrote these checkpoints; convert its states to JSONL, and import that instead."
            )
        if writes not in columns or (address.dsn is not None and "task_path" not in columns[writes]):
            raise NotDone(f"`{writes}` is missing or outdated; call `setup()` of the current LangGraph saver once.")
        threads = await database.rows("threads_but_runs" if "chat_runs" in database.columns else "threads")
        reading.total = len(threads)
        async with open_foreign_checkpoints(address, database.columns) as saver:
            yield None
            for (thread_id,) in threads:
                # Catch every error, because decoding another program's bytes may raise any error.
                with ErrorBoundary(raising=(StoreUnavailable,)) as attempt:
                    conversation = await _thread(saver, str(thread_id), reading, channel=channel, user_id=user_id)
                if attempt.error is None:
                    yield conversation
                elif isinstance(attempt.error, NotImplementedError):
                    yield Unreadable(str(thread_id), "Its state is encrypted or in an unknown format.")
                else:
                    kind = type(attempt.error).__name__
                    yield Unreadable(str(thread_id), f"Its newest checkpoint cannot be read ({kind}).")
                reading.done += 1


async def _thread(
    saver: BaseCheckpointSaver[str], thread_id: str, reading: Reading, *, channel: str, user_id: str | None
) -> Conversation:
    newest = await saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    if newest is None:
        return Conversation(SessionLine(thread_id), [])
    named = newest.metadata.get("user_id")
    line = SessionLine(thread_id, user_id=named if isinstance(named, str) and named else user_id)
    moment = datetime.fromisoformat(newest.checkpoint["ts"])
    values = await _values(saver, newest, reading, channel)
    return Conversation(line, [one.with_fields(created_at=moment) for one in _messages(values, reading)])


async def _values(
    saver: BaseCheckpointSaver[str], newest: CheckpointTuple, reading: Reading, channel: str
) -> list[object]:
    """Return the values of the state channel. For a DeltaChannel, they are in the writes of earlier checkpoints."""
    values = newest.checkpoint["channel_values"]
    if channel in values:
        found = _empty_channel().from_checkpoint(values[channel])
    elif channel in newest.checkpoint["channel_versions"]:
        histories = await saver.aget_delta_channel_history(config=newest.config, channels=[channel])
        found = _empty_channel().from_checkpoint(histories[channel].get("seed", []))
        found.replay_writes(histories[channel]["writes"])
    else:
        return []
    reading.has_channel = True
    value: object = found.get()
    return value if isinstance(value, list) else [value]


def _messages(values: Iterable[object], reading: Reading) -> Iterator[Message]:
    """Yield the messages from people and assistants. Count the other values as left out."""
    for value in values:
        message = _message_of(value)
        reason: LeftOut | None = "other" if message is None else _message_left_out(message)
        if message is None or reason is not None:
            reading.left_out[reason or "other"] += 1
        else:
            stored, name = from_langchain(message), message.name
            is_author = name and len(name) <= MAX_ID_CHARACTERS and name.isprintable()
            text = stored.content if stored.content.strip() else _marks(message)
            yield stored.with_fields(content=text, author=name if is_author else None)


def _empty_channel() -> DeltaChannel[Any]:
    return DeltaChannel(cast("Callable[[Any, Sequence[Any]], Any]", _messages_delta_reducer), list)


def _message_of(value: object) -> BaseMessage | None:
    """Return a value of the state as a message, or None if it is not a message."""
    if isinstance(value, str):
        return None
    try:
        [message] = convert_to_messages([value])  # type: ignore[list-item]
    except (ValueError, TypeError, LookupError, NotImplementedError):
        return None
    return message


def _message_left_out(message: BaseMessage) -> LeftOut | None:
    """Return the reason why a message is skipped, or None if it is imported."""
    if message.type in ("tool", "function"):
        return "tool_result"
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        return "tool_call"
    role = role_of(message)
    if role is None:
        return "other"
    if role == "system":
        return "system"
    if message.additional_kwargs.get("lc_source") == "summarization":
        return "summary"
    return None if text_of(message).strip() or (role == "user" and _marks(message)) else "empty"


def _marks(message: BaseMessage) -> str:
    """Return marks such as `[image]` for the media and files of a message without text."""
    if isinstance(message.content, str):
        return ""
    names = (media_name(block) for block in message.content)
    return " ".join(f"[{name}]" for name in names if name != "part")
