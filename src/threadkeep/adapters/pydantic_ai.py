"""Conversations of Pydantic AI, stored as Threadkeep sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

from pydantic import TypeAdapter

from threadkeep.adapters.items import append_once, base_revision, item_message, messages_after, stored_item
from threadkeep.agent.counting import media_mark, media_type
from threadkeep.boundary import of_extra
from threadkeep.errors import InvalidInput
from threadkeep.history.session import Session
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import MemoryAdapter, on_any_loop
from threadkeep.records import Json, Message, Role
from threadkeep.store.driver import Joined

with of_extra("pydantic-ai"):
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelMessagesTypeAdapter,
        TextContent,
        TextPart,
        UserPromptPart,
        is_multi_modal_content,
    )

_NAME = "pydantic-ai"
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)
_PAGE = 50
_read_last: ContextVar[str | None] = ContextVar("conversation_read_last", default=None)


@on_any_loop
class Conversations(MemoryAdapter, ConversationStore):
    """A conversation store of Pydantic AI that uses a memory. A conversation is the session with the same id.

    An entry is stored as a message with the entry's id. Prompts and answers are stored like messages of other agents;
    tool calls and tool results are stored as notes. Each save is one transaction. If two writers change the same
    revision of a conversation, only the first succeeds. If a save continues from an earlier entry, the entries after it
    are superseded, but can still be read. A fork is a branch of the session, with copies of its messages.
    """

    def __init__(self, memory: Memory | SyncMemory, *, user_id: str | None = None) -> None:
        """Create a store; `user_id` limits it to the conversations of that user.

        Raises:
            InvalidInput: the memory stores its sessions in a LangGraph store instead of its own tables.
        """
        super().__init__(memory)
        if self.memory.in_graph_store:
            raise InvalidInput("Conversations of Pydantic AI need a memory in SQL tables; open one by a database URL.")
        self._user_id = user_id
        self._scope = f"{_NAME}:{user_id or ''}"
        # Sessions without entries of Pydantic AI, with the creation time and last `seq` that they had when checked.
        self._others: dict[str, tuple[datetime, int]] = {}

    # Not `async`: the context variable must be set in the caller's context, not on the memory's event loop.
    def read_record(self, conversation_id: str) -> Coroutine[Any, Any, ConversationRecord | None]:
        """Return the newest record of a conversation. If a `delete_record` was interrupted, complete it first."""
        _read_last.set(conversation_id)
        return self._newest_record(conversation_id)

    async def _newest_record(self, conversation_id: str) -> ConversationRecord | None:
        async for item in self._items_from_newest(self._session(conversation_id)):
            if item.get("deleted") == conversation_id:
                await self._session(conversation_id).delete()  # the delete was interrupted
                return None
            record = item.get("record")
            # A fork contains copies of the records of the conversation that it comes from; skip these.
            if isinstance(record, Mapping) and record["conversation_id"] == conversation_id:
                return _RECORD.validate_json(json.dumps(record))
        return None

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the newest record of each conversation, last updated first.

        All conversations are read, even with a `limit`. An imported session counts as a conversation if Pydantic AI
        stored one of its newest 50 messages. This is checked again only if the session has changed.
        """
        names = await self.memory.channels.state.values_of(self._scope, "conversation:")
        ids = {name.removeprefix("conversation:") for name in names}
        infos = [info async for info in self.memory.sessions(self._user_id) if info.user_id == self._user_id]
        unknown = {info.session_id: (info.created_at, info.last_seq) for info in infos if info.session_id not in ids}
        for session_id, state in unknown.items():
            if self._others.get(session_id) != state:
                newest = (await self._session(session_id).page(None, _PAGE, view="history")).messages
                if any(stored_item(_NAME, message) is not None for message in newest):
                    ids.add(session_id)
        self._others = {session_id: state for session_id, state in unknown.items() if session_id not in ids}
        found = [await self.read_record(conversation_id) for conversation_id in ids]
        records = [one for one in found if one is not None and scope in (None, one.scope)]
        return sorted(records, key=lambda one: one.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one transaction; a repeated call changes nothing.

        Raises:
            ConversationConflict: the stored revision is not `expected_revision`, or the parent entry is not stored.
            WrongUser: the conversation belongs to another user.
            StoreUnavailable: the database does not answer; the same call can be repeated.
        """
        stored = await self.read_record(record.conversation_id)
        if stored is not None and stored.revision == record.revision:
            return
        if (stored.revision if stored else None) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        parent_id = new_entries[0].parent_id if new_entries else record.head_id
        left = None if stored is None and parent_id is None else await self._continue_from(record, parent_id)
        dumped: Json = {"record": _RECORD.dump_python(record, mode="json")}
        state = self.memory.channels.state
        names = [f"conversation:{record.conversation_id}", *(f"entry:{entry.id}" for entry in new_entries)]
        statements = [state.keep_statement(self._scope, name, record.conversation_id) for name in names]
        session = self._session(record.conversation_id)
        previous = expected_revision or str(await base_revision(session) or "")
        messages = [_note(record.conversation_id, previous, dumped), *(_message(entry) for entry in new_entries)]
        if not await append_once(session, messages, Joined(after=statements, supersedes_after=left)):
            raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete the session of a conversation with all its messages. Forks keep their own copies.

        Raises:
            ConversationConflict: the stored revision is not `expected_revision`.
        """
        stored, session = await self.read_record(conversation_id), self._session(conversation_id)
        note = _note(conversation_id, expected_revision, {"deleted": conversation_id})
        if stored is None or stored.revision != expected_revision or not await append_once(session, [note], Joined()):
            raise ConversationConflict(conversation_id)
        entries = [one.id for one in await messages_after(session, 0, view="history") if _entry(one) is not None]
        await session.delete()
        for name in (f"conversation:{conversation_id}", *(f"entry:{entry_id}" for entry_id in entries)):
            await self.memory.channels.state.forget(self._scope, name, conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry from the conversation that this asyncio task read last, else from the first that stored it.

        In an imported conversation, entries are found only after the task has read the conversation's record.

        Raises:
            LookupError: neither of these conversations has the entry.
        """
        _, message = await self._find(entry_id)
        return cast("ConversationEntry", _entry(message))

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the last `limit` entries up to the entry `head_id`, oldest first.

        The session is read once. If retention has deleted entries, the history begins after them.
        """
        if head_id is None or limit == 0:
            return []
        session, _ = await self._find(head_id)
        messages = await messages_after(session, 0, view="history")
        entries = {entry.id: entry for message in messages if (entry := _entry(message)) is not None}
        history: list[ConversationEntry] = []
        next_id: str | None = head_id
        while next_id is not None and (limit is None or len(history) < limit):
            try:
                entry = entries.get(next_id) or await self.read_entry(next_id)
            except LookupError:
                break
            history.append(entry)
            next_id = entry.parent_id
        return history[::-1]

    async def _continue_from(self, record: ConversationRecord, entry_id: str | None) -> int | None:
        """Return the `seq` of the parent entry if later entries must be superseded, else None.

        If another session has the parent entry, create this conversation as a branch of that session.
        """
        session, seq = self._session(record.conversation_id), 0
        if entry_id is not None:
            try:
                home, message = await self._find(entry_id, record.forked_from)
            except LookupError:
                raise ConversationConflict(record.conversation_id) from None
            if home.session_id != session.session_id:
                await home.branch(message.seq, session_id=session.session_id)
                return None
            seq = message.seq or 0
        later = await messages_after(session, seq, 1, keep=lambda message: _entry(message) is not None)
        return seq if later else None

    async def _find(self, entry_id: str, origin_id: str | None = None) -> tuple[Session, Message]:
        first = await self.memory.channels.state.value(self._scope, f"entry:{entry_id}")
        for conversation_id in (_read_last.get(), first, origin_id):
            session = None if conversation_id is None else self._session(conversation_id)
            message = None if session is None else await session.find(entry_id)
            if session is not None and message is not None and _entry(message) is not None:
                return session, message
        raise LookupError(f"There is no entry {entry_id!r}.")

    async def _items_from_newest(self, session: Session) -> AsyncIterator[Mapping[str, Json]]:
        before: int | None = None
        while True:
            page = await session.page(before, _PAGE, view="history")
            for message in reversed(page.messages):
                item = stored_item(_NAME, message)
                if isinstance(item, Mapping):
                    yield item
            before = page.next_before
            if before is None:
                return

    def _session(self, conversation_id: str) -> Session:
        return self.memory.session(conversation_id, user_id=self._user_id)


def _note(conversation_id: str, revision: str, item: Json) -> Message:
    """Return the note of a new revision. Its id contains the previous `revision`, so only one writer succeeds."""
    return item_message(_NAME, item, role=None, text="[conversation]", message_id=f"{conversation_id}:{revision}")


def _message(entry: ConversationEntry) -> Message:
    dumped = json.loads(ModelMessagesTypeAdapter.dump_json([entry.message]))[0]
    item: Json = {"entry": {"parent_id": entry.parent_id, "message": dumped}}
    kind, text = entry.message.kind, _text(entry.message)
    role: Role = "user" if kind == "request" else "assistant"
    return item_message(_NAME, item, role=role if text else None, text=text or f"[{kind}]", message_id=entry.id)


def _text(message: ModelMessage) -> str:
    """Return the text of a message, with marks for images and files."""
    texts: list[str] = []
    media: list[Mapping[str, str]] = []
    for part in message.parts:
        if isinstance(part, UserPromptPart | TextPart):
            for piece in [part.content] if isinstance(part.content, str) else part.content:
                if isinstance(piece, str | TextContent):
                    texts.append(piece if isinstance(piece, str) else piece.content)
                elif is_multi_modal_content(piece):
                    kind = piece.media_type if isinstance(piece, BinaryContent) else piece.kind.removesuffix("-url")
                    media.append({"type": media_type(kind)})
    return "\n".join([*texts, media_mark(media)] if media else texts)


def _entry(message: Message) -> ConversationEntry | None:
    """Return the entry that a message contains, or None if it contains none."""
    item = stored_item(_NAME, message)
    stored = item.get("entry") if isinstance(item, Mapping) else None
    if not isinstance(stored, Mapping):
        return None
    [found] = ModelMessagesTypeAdapter.validate_json(json.dumps([stored["message"]]))
    return ConversationEntry(id=str(message.id), parent_id=cast("str | None", stored["parent_id"]), message=found)
