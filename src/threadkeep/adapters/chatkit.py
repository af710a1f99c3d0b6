"""Threadkeep's sessions as the threads of ChatKit, OpenAI's chat interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from langchain_core.utils.uuid import uuid7
from pydantic import TypeAdapter

from threadkeep.adapters.items import item_message, messages_after, stored_item
from threadkeep.agent.counting import media_mark
from threadkeep.boundary import of_extra
from threadkeep.errors import SessionNotFound, StoreUnavailable, WrongUser
from threadkeep.history.session import Session
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import MemoryAdapter, on_any_loop
from threadkeep.records import Json, Message, Receipt, Role, SessionInfo
from threadkeep.store.transcripts import SessionQuery

with of_extra("chatkit"):
    from chatkit.store import NotFoundError, Store, StoreItemType
    from chatkit.types import (
        AssistantMessageContent,
        AssistantMessageItem,
        Attachment,
        ClosedStatus,
        InferenceOptions,
        Page,
        ThreadItem,
        ThreadMetadata,
        UserMessageItem,
        UserMessageTextContent,
    )

_NAME = "chatkit"
_PREFIXES: Mapping[StoreItemType, str] = {
    "thread": "thr",
    "message": "msg",
    "tool_call": "tc",
    "workflow": "wf",
    "task": "tsk",
    "attachment": "atc",
    "sdk_hidden_context": "shcx",
}
_PAGE = 1000
_ATTEMPTS = 20
_ITEM: TypeAdapter[ThreadItem] = TypeAdapter(ThreadItem)
_ATTACHMENT: TypeAdapter[Attachment] = TypeAdapter(Attachment)


@on_any_loop
class ThreadkeepStore[TContext](MemoryAdapter, Store[TContext]):
    """A ChatKit `Store` that stores each thread as a Threadkeep session, and each item as a message of the session.

    User and assistant messages are stored like messages of other channels. Other items, such as widgets, are stored as
    notes, which are never sent to a model. Threads and attachments of other users are not found.
    """

    def __init__(self, memory: Memory | SyncMemory, *, user_id: Callable[[TContext], str | None]) -> None:
        """Create a store.

        Args:
            memory: the memory that contains the sessions.
            user_id: returns the verified user id from a request's context. If it returns None, the sessions of all
                users are visible.
        """
        super().__init__(memory)
        self._user_id = user_id
        self._changing: dict[Memory, asyncio.Lock] = {}  # a lock belongs to one event loop

    def generate_thread_id(self, context: TContext) -> str:
        """Return a new id with a complete UUID, because ChatKit's default ids could collide."""
        return _new_id("thread")

    def generate_item_id(self, item_type: StoreItemType, thread: ThreadMetadata, context: TContext) -> str:
        """Return a new id with a complete UUID, because ChatKit's default ids could collide."""
        return _new_id(item_type)

    def session(self, thread_id: str, context: TContext) -> Session:
        """Return the session of a thread for the user of the request."""
        return self.memory.session(thread_id, user_id=self._user_id(context))

    async def load_thread(self, thread_id: str, context: TContext) -> ThreadMetadata:
        """Return a thread. Every session of the user is a thread."""
        return _thread(await self._info(self.session(thread_id, context)))

    async def save_thread(self, thread: ThreadMetadata, context: TContext) -> None:
        """Store the title, the status and the metadata of a thread; create its session if there is none."""
        session = self.session(thread.id, context)
        try:
            info = await session.info()
        except SessionNotFound:
            await _append(session, item_message(_NAME, {}, role=None, text="[thread]"))
            info = await session.info()
        known: Json = thread.model_dump(mode="json", exclude={"items"})
        await session.update(
            title=thread.title, metadata={**info.metadata, _NAME: known}, active=thread.status.type == "active"
        )

    async def load_threads(self, limit: int, after: str | None, order: str, context: TContext) -> Page[ThreadMetadata]:
        """Return up to `limit` threads, sorted by last activity. If `after` is set, begin after this thread's id.

        With the order `desc`, the most recently active thread is first, and a page has at most 1,000 threads. If a
        thread becomes active between two calls, the later page can repeat or omit threads.
        """
        user_id = self._user_id(context)
        if order == "asc":
            infos = {info.session_id: info for info in [one async for one in self.memory.sessions(user_id)][::-1]}
            ids, next_after = _page([*infos], after, limit)
            threads = [_thread(infos[thread_id]) for thread_id in ids]
            return Page(data=threads, has_more=next_after is not None, after=next_after)
        last = await self._info(self.session(after, context)) if after else None
        cursor = (last.updated_at, last.session_id) if last else None
        found, more = await self.memory.sessions_page(SessionQuery(user_id, limit=min(limit, _PAGE), cursor=cursor))
        threads = [_thread(info) for info in found]
        return Page(data=threads, has_more=more is not None, after=threads[-1].id if more and threads else None)

    async def delete_thread(self, thread_id: str, context: TContext) -> None:
        """Delete a session with its messages and the descriptions of its attachments."""
        session, state = self.session(thread_id, context), self.memory.channels.state
        owner = (await self._info(session)).user_id
        if not await session.delete():
            raise NotFoundError(f"Thread {thread_id} not found")
        for scope in {_scope(owner), _scope(self._user_id(context))}:
            for name, value in (await state.values_of(scope, "")).items():
                if json.loads(value).get("thread_id") == thread_id:
                    await state.forget(scope, name, value)

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: TContext
    ) -> Page[ThreadItem]:
        """Return up to `limit` items of a thread. Each call reads all messages of the thread."""
        found = await self._messages(thread_id, context)
        ids, next_after = _page([*found][::-1] if order == "desc" else [*found], after, limit)
        items = [_item(found[item_id], thread_id) for item_id in ids]
        return Page(data=items, has_more=next_after is not None, after=next_after)

    async def load_item(self, thread_id: str, item_id: str, context: TContext) -> ThreadItem:
        """Return an item of the thread."""
        if message := (await self._messages(thread_id, context)).get(item_id):
            return _item(message, thread_id)
        raise NotFoundError(f"Item {item_id} not found in thread {thread_id}")

    async def add_thread_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Append an item to its thread, unless it is there already. An item that this store deleted is stored again."""
        session = self.session(thread_id, context)
        await self._info(session)
        receipt = await _append(session, _message(item, item.id))
        if receipt.duplicates and not receipt.deleted:
            await self._change(session, item.id, item, restores=True)

    async def save_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Replace the stored item that has the same id, and keep its position. If there is none, append the item.

        Raises:
            NotFoundError: the user has no such thread, or retention has deleted the item.
        """
        await self._change(self.session(thread_id, context), item.id, item)

    async def delete_thread_item(self, thread_id: str, item_id: str, context: TContext) -> None:
        """Remove an item from the thread, if it exists. The session's history keeps it, but no model receives it."""
        await self._change(self.session(thread_id, context), item_id, None)

    async def add_feedback(self, thread_id: str, item_ids: list[str], feedback: str, context: TContext) -> None:
        """Store a person's feedback on items as a note, which no model receives."""
        session = self.session(thread_id, context)
        await self._info(session)
        note: Json = {"feedback": feedback, "items": list(item_ids)}
        await _append(session, item_message(_NAME, note, role=None, text="[feedback]"))

    async def save_attachment(self, attachment: Attachment, context: TContext) -> None:
        """Store the metadata of an attachment (such as its name and type, but not the file) for its user."""
        value = json.dumps(_ATTACHMENT.dump_python(attachment, mode="json"))
        await self.memory.channels.state.keep(_scope(self._user_id(context)), attachment.id, value)

    async def load_attachment(self, attachment_id: str, context: TContext) -> Attachment:
        """Return the stored metadata of an attachment. Attachments of other users are not found."""
        value = await self.memory.channels.state.value(_scope(self._user_id(context)), attachment_id)
        if value is None:
            raise NotFoundError(f"Attachment {attachment_id} not found")
        return _ATTACHMENT.validate_json(value)

    async def delete_attachment(self, attachment_id: str, context: TContext) -> None:
        """Delete the metadata of an attachment of the user."""
        scope, state = _scope(self._user_id(context)), self.memory.channels.state
        value = await state.value(scope, attachment_id)
        if value is None:
            raise NotFoundError(f"Attachment {attachment_id} not found")
        await state.forget(scope, attachment_id, value)

    async def _info(self, session: Session) -> SessionInfo:
        try:
            return await session.info()
        except SessionNotFound:
            raise NotFoundError(f"Thread {session.session_id} not found") from None

    async def _messages(self, thread_id: str, context: TContext) -> dict[str, Message]:
        """Return the messages that contain the current items of a thread, by the items' ids, oldest first."""
        session, found = self.session(thread_id, context), dict[str, Message]()
        await self._info(session)
        for message in await messages_after(session, 0):
            stored = stored_item(_NAME, message)
            if isinstance(stored, Mapping) and isinstance(deleted := stored.get("deleted"), str):
                found.pop(deleted, None)
            elif "item" in stored if isinstance(stored, Mapping) else message.role != "system":
                found[str(_item_id(message))] = message
        return found

    async def _change(self, session: Session, item_id: str, item: ThreadItem | None, *, restores: bool = False) -> None:
        """Store a new version of an item, or a note that it is deleted. Try again if the session changes in between.

        With `restores`, do nothing unless this store has deleted the item. An item that was edited, taken back or
        erased is not restored.

        If this changes the text that a model receives, the old message and all later ones are superseded. Then the new
        version and copies of the later messages are appended.

        Raises:
            StoreUnavailable: the database does not answer, or other writers changed the session during each attempt.
        """
        stored: Json = {"deleted": item_id} if item is None else _wrapped(item)
        note = item_message(_NAME, stored, role=None, text="[deleted]" if item is None else f"[{item.type}]")
        new = note if item is None else _message(item, None)
        async with self._changing.setdefault(self.memory, asyncio.Lock()):
            for _ in range(_ATTEMPTS):
                if await self._change_once(session, item_id, new, note, restores=restores):
                    return
        raise StoreUnavailable("The item was not changed: the database is busy. Try again.")

    async def _change_once(
        self, session: Session, item_id: str, new: Message, note: Message, *, restores: bool
    ) -> bool:
        """Store a change in one transaction. Return False if another writer changed the session first."""
        await session.deliver()
        info = await self._info(session)
        messages = await messages_after(session, 0)
        if any(one.id in (new.id, note.id) for one in messages):
            return True  # an earlier attempt has stored the change, although it seemed to fail
        deletions = [at for at, one in enumerate(messages) if stored_item(_NAME, one) == {"deleted": item_id}]
        after = deletions[-1] if deletions else -1
        position = next((at for at, one in enumerate(messages) if at > after and _item_id(one) == item_id), None)
        if (restores and (position is not None or not deletions)) or (position is None and new is note):
            return True
        later, added = list[Message](), [note]
        if position is None:
            if await session.find(item_id) is None:
                receipt = await _append(session, new.with_fields(id=item_id))
                if receipt.deleted:
                    raise NotFoundError(f"Item {item_id} was deleted with other old messages")
                return not receipt.duplicates
            added = [new]
        elif _text(new) != _text(messages[position]):
            later = messages[position:]
            fresh = {"seq": None, "created_at": None, "superseded_at": None, "superseded_by": None}
            others = [one for one in later if _item_id(one) != item_id]
            added = [new, *(one.with_fields(id=str(uuid7()), **fresh) for one in others)]
        end = (later[0].seq or 0) - 1 if later else info.last_seq
        return await session.append_instead(added, end, (info.last_seq, info.revision))


def _scope(user_id: str | None) -> str:
    return f"{_NAME}:{user_id or ''}"


def _new_id(item_type: StoreItemType) -> str:
    return f"{_PREFIXES[item_type]}_{uuid7().hex}"


async def _append(session: Session, *messages: Message) -> Receipt:
    """Store messages as one turn.

    Raises:
        NotFoundError: the session belongs to another user.
    """
    try:
        return await session.append(messages)
    except WrongUser:
        raise NotFoundError(f"Thread {session.session_id} not found") from None


def _page(ids: list[str], after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Return up to `limit` ids that follow the id `after`, or the first ids; and the last of them if others follow."""
    if after and after not in ids:
        raise NotFoundError(f"{after} not found")
    start = ids.index(after) + 1 if after else 0
    found = ids[start : start + limit]
    return found, found[-1] if found and start + limit < len(ids) else None


def _thread(info: SessionInfo) -> ThreadMetadata:
    known = info.metadata.get(_NAME)
    if isinstance(known, Mapping):
        thread = ThreadMetadata.model_validate(known)
    else:
        thread = ThreadMetadata(id=info.session_id, created_at=info.created_at)
    if not info.active and thread.status.type == "active":
        thread.status = ClosedStatus()
    # A branch has a copy of the original thread's metadata, so set the branch's own id.
    return thread.model_copy(update={"id": info.session_id, "title": info.title or thread.title})


def _wrapped(item: ThreadItem) -> Json:
    return {"item": cast("Json", _ITEM.dump_python(item, mode="json"))}


def _message(item: ThreadItem, message_id: str | None) -> Message:
    if isinstance(item, UserMessageItem):
        return item_message(_NAME, _wrapped(item), role="user", text=user_text(item), message_id=message_id)
    if isinstance(item, AssistantMessageItem):
        text = "\n".join(part.text for part in item.content)
        return item_message(_NAME, _wrapped(item), role="assistant", text=text, message_id=message_id)
    return item_message(_NAME, _wrapped(item), role=None, text=f"[{item.type}]", message_id=message_id)


def user_text(item: UserMessageItem) -> str:
    """Return the text of a person's message, with a mark for its attachments (`[image]`)."""
    mark = media_mark([{"type": one.type} for one in item.attachments])
    return "\n".join(filter(None, (*(part.text for part in item.content), mark)))


def _item(message: Message, thread_id: str) -> ThreadItem:
    """Return the ChatKit item that a message contains, or an item made from a message of another channel or a run."""
    stored = stored_item(_NAME, message)
    if isinstance(stored, Mapping):
        return _ITEM.validate_python(stored["item"])
    created_at = message.created_at or datetime.min.replace(tzinfo=UTC)
    place: Any = {"id": str(message.id), "thread_id": thread_id, "created_at": created_at}
    if message.role == "assistant":
        return AssistantMessageItem(content=[AssistantMessageContent(text=message.content)], **place)
    said = UserMessageTextContent(text=message.content)
    return UserMessageItem(content=[said], inference_options=InferenceOptions(), **place)


def _text(message: Message) -> tuple[Role, str] | None:
    """Return the role and the text that a model receives for a message; None for a note, which no model receives."""
    return None if message.role == "system" else (message.role, message.content)


def _item_id(message: Message) -> str | None:
    """Return the id of the item that a message contains, or else the message's own id."""
    stored = stored_item(_NAME, message)
    item = stored.get("item") if isinstance(stored, Mapping) else None
    return str(item["id"]) if isinstance(item, Mapping) else message.id
