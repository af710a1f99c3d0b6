"""Threads of a LangGraph checkpointer, each in its newest state. Importing this module imports LangGraph."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.message import _messages_delta_reducer

from threadkeep.agent.conversion import from_langchain, role_of, text_of
from threadkeep.agent.counting import media_name
from threadkeep.boundary import ErrorBoundary
from threadkeep.cli.foreign import Conversation, LeftOut, Unreadable, open_source_database
from threadkeep.cli.problems import NotDone
from threadkeep.errors import StoreError
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import MAX_ID_CHARACTERS, Message
from threadkeep.store.checkpointers import open_foreign_checkpoints


@asynccontextmanager
async def open_threads(source: str, *, channel: str, user_id: str | None) -> AsyncIterator[LangGraphThreads]:
    """Open the checkpoints of a SQLite file or a PostgreSQL database.

    Raises:
        WrongUse: the database is of another kind.
        NotDone: another version of LangGraph wrote it.
    """
    async with open_source_database(source, "langgraph") as (address, database):
        _check_version(database.columns, "writes" if address.dsn is None else "checkpoint_writes")
        rows = await database.rows("threads_but_runs" if "chat_runs" in database.columns else "threads")
        threads = [str(thread_id) for (thread_id,) in rows]
        async with open_foreign_checkpoints(address, database.columns) as saver:
            yield LangGraphThreads(saver, threads, channel=channel, user_id=user_id)


def _check_version(columns: Mapping[str, frozenset[str]], writes: str) -> None:
    if "checkpoint_id" not in columns["checkpoints"]:
        raise NotDone("A shallow saver wrote these checkpoints; write the lines of an import from its states instead.")
    if writes not in columns or (writes == "checkpoint_writes" and "task_path" not in columns[writes]):
        raise NotDone(f"`{writes}` is missing or of an older LangGraph; call `setup()` of the current saver once.")


class LangGraphThreads:
    """The threads of a checkpointer; `has_channel` is True if any thread read so far has the channel."""

    def __init__(
        self, saver: BaseCheckpointSaver[str], threads: Sequence[str], *, channel: str, user_id: str | None
    ) -> None:
        self.total = len(threads)
        self.done = 0
        self.left_out: Counter[LeftOut] = Counter()
        self.has_channel = False
        self._saver = saver
        self._threads = threads
        self._channel = channel
        self._user_id = user_id

    async def conversations(self) -> AsyncIterator[Conversation | Unreadable]:
        """Yield the threads by their ids."""
        for thread_id in self._threads:
            # Anything may be wrong with bytes that another program wrote.
            with ErrorBoundary(raising=(StoreError,)) as attempt:
                conversation = await self._conversation(thread_id)
            if attempt.error is None:
                yield conversation
            elif isinstance(attempt.error, NotImplementedError):
                yield Unreadable(thread_id, "Its state is encrypted, or in a format that is not known here.")
            else:
                kind = type(attempt.error).__name__
                yield Unreadable(thread_id, f"Its newest checkpoint cannot be read ({kind}).")
            self.done += 1

    async def _conversation(self, thread_id: str) -> Conversation:
        newest = await self._saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
        if newest is None:
            return Conversation(SessionLine(thread_id), [])
        user_id = newest.metadata.get("user_id")
        line = SessionLine(thread_id, user_id=user_id if isinstance(user_id, str) and user_id else self._user_id)
        moment = datetime.fromisoformat(newest.checkpoint["ts"])
        messages = [message.with_fields(created_at=moment) for message in self._utterances(await self._values(newest))]
        return Conversation(line, messages)

    async def _values(self, newest: CheckpointTuple) -> list[object]:
        """Return the values of the channel; a DeltaChannel stores them in the writes of earlier checkpoints."""
        channel, values = self._channel, newest.checkpoint["channel_values"]
        if channel in values:
            found = _empty_channel().from_checkpoint(values[channel])
        elif channel in newest.checkpoint["channel_versions"]:
            histories = await self._saver.aget_delta_channel_history(config=newest.config, channels=[channel])
            found = _empty_channel().from_checkpoint(histories[channel].get("seed", []))
            found.replay_writes(histories[channel]["writes"])
        else:
            return []
        self.has_channel = True
        value: object = found.get()
        return value if isinstance(value, list) else [value]

    def _utterances(self, values: Iterable[object]) -> list[Message]:
        """Return the utterances of people and assistants; count the rest."""
        messages: list[Message] = []
        for value in values:
            message = _message_of(value)
            reason: LeftOut | None = "other" if message is None else _left_out(message)
            if message is None or reason is not None:
                self.left_out[reason or "other"] += 1
            else:
                stored = from_langchain(message)
                text = stored.content if stored.content.strip() else _marks(message)
                messages.append(stored.with_fields(content=text, author=_author(message)))
        return messages


def _empty_channel() -> DeltaChannel[Any]:
    """Return the channel that rebuilds messages from writes and accepts lists unchanged."""
    return DeltaChannel(cast("Callable[[Any, Sequence[Any]], Any]", _messages_delta_reducer), list)


def _message_of(value: object) -> BaseMessage | None:
    """Return a value of the state as a message; None if it is none."""
    if isinstance(value, str):
        return None
    try:
        [message] = convert_to_messages([value])  # type: ignore[list-item]
    except (ValueError, TypeError, NotImplementedError):
        return None
    return message


def _left_out(message: BaseMessage) -> LeftOut | None:
    """Return the reason why a message is not an utterance; None if it is one."""
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


def _author(message: BaseMessage) -> str | None:
    """Return the author's name if it can be stored."""
    name = message.name
    return name if name and len(name) <= MAX_ID_CHARACTERS and name.isprintable() else None


def _marks(message: BaseMessage) -> str:
    """Return marks for the images and files of a message without text."""
    if isinstance(message.content, str):
        return ""
    names = (media_name(block) for block in message.content)
    return " ".join(f"[{name}]" for name in names if name != "part")
