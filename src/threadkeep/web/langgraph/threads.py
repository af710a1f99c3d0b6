"""Routes of threads, their states and checkpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from langchain_core.messages import AIMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.adapters.items import append_once, item_message
from threadkeep.agent.conversion import from_langchain
from threadkeep.app import App
from threadkeep.errors import InvalidInput, InvalidKey, SessionDamaged, SessionNotFound, StoreUnavailable
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.store.driver import Joined
from threadkeep.store.transcripts import SessionChanges, SessionQuery
from threadkeep.web.api.parameters import AppInUse, EncodedPathRoute, UserId
from threadkeep.web.api.sessions import delete_session
from threadkeep.web.callers import READS
from threadkeep.web.langgraph.schemas import (
    CheckpointQueryBody,
    HistoryBody,
    StateUpdateBody,
    StateUpdatedBody,
    ThreadBody,
    ThreadCreateBody,
    ThreadPatchBody,
    ThreadSearchBody,
    ThreadStateBody,
)
from threadkeep.web.langgraph.states import (
    CREATION,
    MESSAGES,
    Thread,
    find_thread,
    history_of,
    is_creation,
    message_json,
    messages_of,
    seq_of,
    state_of,
    thread_body,
    values_of,
)
from threadkeep.web.problems import ProblemRaised, documented, make_problem

type ThreadId = Annotated[str, Path(description="The thread, which is a session. Encode a slash as %2F.")]

_FAILURES = documented(404, 409, 422, 503)
_WRITING = documented(400, 413)
_READING: dict[str, Any] = {"responses": _WRITING, "openapi_extra": READS}

router = APIRouter(prefix="/threads", tags=["langgraph"], route_class=EncodedPathRoute, responses=_FAILURES)

_WORKFLOW_NAMES = ("graph_id", "assistant_id")
_ACTIVITY = ("updated_at", "state_updated_at")
_PAGE, _SEARCHED = 200, 1000
_CREATED, _KEPT_FOR = "langgraph-threads", timedelta(days=30)
_CREATION_ID = "langgraph:thread"


class CreatedThread:
    """A thread that a client has created, before its first run.

    If the client named a user, the thread is stored as a session at once. Otherwise it is stored in `ChannelState`, a
    table of small values, for at most 30 days, and requests that name a user do not find it.
    """

    def __init__(self, memory: Memory, thread_id: str, user_id: str | None = None) -> None:
        self._memory = memory
        self._state = memory.channels.state
        self._session = memory.session(thread_id, user_id=user_id)  # validates the id

    async def thread(self) -> ThreadBody | None:
        """Return the thread, or None if it has expired, or if the request names a user."""
        kept = await self._kept()
        return None if kept is None else ThreadBody.model_validate_json(kept)

    async def keep(self, metadata: Mapping[str, Json]) -> tuple[ThreadBody, bool]:
        """Store the thread until its first run, in `ChannelState`. Return it, and True if it was stored before."""
        now = self._memory.clock()
        thread = ThreadBody(
            thread_id=self._session.session_id, created_at=now, updated_at=now, metadata=dict(metadata), status="idle"
        )
        name, value = self._session.session_id, thread.model_dump_json()
        if await self._state.keep_first(_CREATED, name, value, expires_at=now + _KEPT_FOR):
            return thread, False
        return await self.thread() or thread, True

    async def change(self, metadata: Mapping[str, Json]) -> ThreadBody | None:
        """Add fields to the metadata. Return None if the thread is missing or was changed meanwhile."""
        kept = await self._kept()
        if kept is None:
            return None
        thread, now = ThreadBody.model_validate_json(kept), self._memory.clock()
        thread.metadata, thread.updated_at = {**thread.metadata, **metadata}, now
        name, value = self._session.session_id, thread.model_dump_json()
        changed = await self._state.replace(_CREATED, name, kept, value, expires_at=now + _KEPT_FOR)
        return thread if changed else None

    async def begin(self, new: Mapping[str, Json] | None = None) -> bool:
        """Store the thread as a session if `keep` stored it with metadata, or if `new` metadata is given.

        Existing fields of the session's metadata are not replaced. Return True if this call stored the thread.

        Raises:
            WrongUser: the session belongs to another user.
        """
        kept, stored = await self._state.value(_CREATED, self._session.session_id), False
        metadata = {} if kept is None else ThreadBody.model_validate_json(kept).metadata
        if metadata or new is not None:
            stored = await self._store({**(new or {}), **metadata})
            if metadata and not stored:
                await self._session.update(metadata={**metadata, **(await self._session.info()).metadata})
        if kept is not None:
            await self._state.forget(_CREATED, self._session.session_id, kept)
        return stored

    async def _store(self, metadata: Mapping[str, Json]) -> bool:
        """Store the thread and its metadata as a session. Return False if the session already exists."""
        session = self._session
        with suppress(SessionNotFound):
            await session.info()
            return False
        creation = item_message(CREATION, str(uuid7()), role=None, text="[thread]", message_id=_CREATION_ID)
        if not self._memory.in_graph_store:
            set_metadata = SessionChanges(metadata=metadata).statements(session.session_id)
            with suppress(StoreUnavailable):  # if earlier turns are pending, append behind them below
                return await append_once(session, [creation], Joined(after=set_metadata))
        # If the process crashes before `update`, the next call of `begin` adds the metadata from `ChannelState`.
        stored = not (await session.append([creation])).duplicates
        if stored and metadata:
            await session.update(metadata={**metadata, **(await session.info()).metadata})
        return stored

    async def forget(self) -> bool:
        """Delete the created thread. Return False if it does not exist, or if the request names a user."""
        kept = await self._kept()
        if kept is not None:
            await self._state.forget(_CREATED, self._session.session_id, kept)
        return kept is not None

    async def _kept(self) -> str | None:
        if self._session.user_id is not None:
            return None
        return await self._state.value(_CREATED, self._session.session_id)


async def known_thread(app: App, thread_id: str, user_id: str | None) -> Thread:
    """Return a thread. If a client has created it, but it has had no run yet, return it without messages and runs.

    Raises:
        SessionNotFound: this user has no such thread.
    """
    try:
        return await find_thread(app, thread_id, user_id=user_id)
    except SessionNotFound:
        created = await CreatedThread(app.memory, thread_id, user_id).thread()
        if created is None:
            raise
        return Thread(thread_id, app.memory.session(thread_id, user_id=user_id), None, (), created)


@router.post("", summary="Create a thread", responses=_WRITING)
async def create_thread(
    body: ThreadCreateBody, app: AppInUse, response: Response, user_id: UserId = None
) -> ThreadBody:
    """Return a new thread, or the existing thread if `if_exists` is `do_nothing`.

    The thread is stored at once if the request names a user. Otherwise its first run within 30 days stores it, and the
    user of that run owns it.
    """
    if body.metadata and app.memory.in_graph_store:
        raise InvalidInput("A graph store keeps no `metadata` of a new thread; PATCH the thread after its first run.")
    thread_id = body.thread_id or str(uuid7())
    created = CreatedThread(app.memory, thread_id, user_id)
    try:
        found, existed = thread_body(await find_thread(app, thread_id, user_id=user_id)), True
    except SessionNotFound:
        if user_id is None:
            found, existed = await created.keep(body.metadata or {})
        else:
            existed = not await created.begin(body.metadata or {})
            found = thread_body(await find_thread(app, thread_id, user_id=user_id))
    if existed and body.if_exists != "do_nothing":
        sentence = "The thread exists already; send if_exists: do_nothing to get it, or another thread_id."
        raise ProblemRaised(make_problem(409, "thread-exists", sentence))
    return found


@router.post("/search", summary="Find threads", **_READING)
async def search_threads(body: ThreadSearchBody, app: AppInUse, user_id: UserId = None) -> list[ThreadBody]:
    """Return the threads that match, each with its first and its newest message.

    Without `ids`, the 1,000 threads with the newest activity are searched. Later pages search more threads if they are
    sorted by newest activity. A damaged thread is omitted, or is listed without values.
    """
    by_activity = body.sort_order == "desc" and body.sort_by in _ACTIVITY and body.ids is None
    most = body.offset + body.limit if by_activity else _SEARCHED
    found: list[tuple[Thread, ThreadBody]] = []
    threads = _newest(app, user_id, body, max(most, _SEARCHED)) if body.ids is None else _named(app, user_id, body.ids)
    async with aclosing(threads) as matching:
        async for thread in matching:
            if _matches(listed := thread_body(thread), body):
                found.append((thread, listed))
            if len(found) >= most:
                break
    if not by_activity:
        name = "updated_at" if body.sort_by in _ACTIVITY else body.sort_by
        found.sort(key=lambda one: (getattr(one[1], name), one[1].thread_id), reverse=body.sort_order == "desc")
    found = found[body.offset : body.offset + body.limit]
    if body.select is None or "values" in body.select:
        for thread, listed in found:
            with suppress(SessionDamaged):
                start = thread.info.deleted_seq + 1 if thread.info is not None else 1
                first, newest = await thread.session.at([start, start + 1]), await thread.session.tail(1)
                ends = [*[one for one in first if not is_creation(one)][:1], *newest]
                shown = {one.seq: one for one in ends if one.superseded_at is None and not is_creation(one)}
                listed.values = {MESSAGES: [message_json(one) for one in shown.values()]}
    return [listed for _, listed in found]


@router.get("/{thread_id}", summary="See a thread")
async def get_thread(thread_id: ThreadId, app: AppInUse, user_id: UserId = None) -> ThreadBody:
    """Return a thread with its newest 1,000 messages as its values."""
    thread = await known_thread(app, thread_id, user_id)
    return thread.created or thread_body(thread, await values_of(thread.session))


@router.patch("/{thread_id}", summary="Change the metadata of a thread", responses=_WRITING)
async def change_thread(
    thread_id: ThreadId, body: ThreadPatchBody, app: AppInUse, user_id: UserId = None
) -> ThreadBody:
    """Add fields to the metadata of a thread, or replace fields of the same names."""
    everything = AllSessions(app.memory)
    try:
        session, info = await everything.find(thread_id, user_id=user_id)
    except SessionNotFound:
        created = CreatedThread(app.memory, thread_id, user_id)
        if changed := await created.change(body.metadata or {}):
            return changed
        session, info = await everything.find(thread_id, user_id=user_id)  # the first run may have stored it meanwhile
    if body.metadata:
        await session.update(metadata={**info.metadata, **body.metadata})
    return thread_body(await find_thread(app, thread_id, user_id=user_id))


@router.delete("/{thread_id}", summary="Delete a thread", status_code=204)
async def delete_thread(thread_id: ThreadId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a thread with all its messages, permanently."""
    created = CreatedThread(app.memory, thread_id, user_id)
    try:
        await delete_session(thread_id, app, user_id)
    except SessionNotFound:
        if not await created.forget():
            raise
        return
    await CreatedThread(app.memory, thread_id).forget()  # the owner was checked above


@router.get("/{thread_id}/state", summary="See the state of a thread")
async def get_state(thread_id: ThreadId, app: AppInUse, user_id: UserId = None) -> ThreadStateBody:
    """Return a thread's newest 1,000 messages and its waiting run's questions."""
    return await state_of(await known_thread(app, thread_id, user_id))


@router.get("/{thread_id}/state/{checkpoint_id}", summary="See an earlier state")
async def get_state_at(
    thread_id: ThreadId,
    checkpoint_id: Annotated[str, Path(description="The `seq` of a message; 0 for before the first message.")],
    app: AppInUse,
    user_id: UserId = None,
) -> ThreadStateBody:
    """Return the newest 1,000 messages of a thread up to a checkpoint."""
    return await state_of(await known_thread(app, thread_id, user_id), at=seq_of(checkpoint_id))


@router.post("/{thread_id}/state/checkpoint", summary="See a thread at a checkpoint", **_READING)
async def get_state_at_checkpoint(
    thread_id: ThreadId, body: CheckpointQueryBody, app: AppInUse, user_id: UserId = None
) -> ThreadStateBody:
    """Return the newest 1,000 messages of a thread up to a checkpoint, by default the newest one."""
    return await state_of(await known_thread(app, thread_id, user_id), at=seq_of(body.checkpoint))


@router.post("/{thread_id}/state", summary="Add messages to a thread", responses=_WRITING)
async def update_state(
    thread_id: ThreadId, body: StateUpdateBody, app: AppInUse, user_id: UserId = None
) -> StateUpdatedBody:
    """Append messages to a thread as one turn, without starting a run. Messages with a stored id are skipped.

    The state of a thread has messages only; other values are rejected.
    """
    if body.values is None or set(body.values) - {MESSAGES}:
        raise InvalidInput('`values` must have `messages` only: {"messages": [{"role": "user", "content": "Hello"}]}.')
    messages = messages_of(body.values.get(MESSAGES))
    if any(isinstance(one, AIMessage) and one.tool_calls for one in messages):
        raise InvalidInput("Tool calls are not part of a conversation; add the answer without `tool_calls`.")
    session = app.memory.session(thread_id, user_id=user_id)
    at = seq_of(body.checkpoint_id if body.checkpoint is None else body.checkpoint)
    if at is not None and str(at) != (await get_state(thread_id, app, user_id)).checkpoint.checkpoint_id:
        raise InvalidInput("Add messages after the newest checkpoint only; to branch, start a run with `checkpoint`.")
    if messages:
        await CreatedThread(app.memory, thread_id, user_id).begin()
        await session.append([from_langchain(one) for one in messages])
    state = await state_of(await find_thread(app, thread_id, user_id=user_id))
    return StateUpdatedBody(checkpoint=state.checkpoint)


@router.post("/{thread_id}/copy", summary="Copy a thread")
async def copy_thread(thread_id: ThreadId, app: AppInUse, user_id: UserId = None) -> ThreadBody:
    """Create a thread with copies of the messages of this thread. Both threads continue independently."""
    thread = await known_thread(app, thread_id, user_id)
    if thread.created is not None:
        return (await CreatedThread(app.memory, str(uuid7())).keep(thread.created.metadata))[0]
    branched = await thread.session.branch()
    return thread_body(await find_thread(app, branched.session_id, user_id=user_id))


@router.post("/{thread_id}/history", summary="See the checkpoints of a thread", **_READING)
async def get_history(
    thread_id: ThreadId, app: AppInUse, body: HistoryBody | None = None, user_id: UserId = None
) -> list[ThreadStateBody]:
    """Return up to `limit` states at the ends of turns, newest first. With a checkpoint, return only its state.

    The list is empty if the thread is not stored yet, or has no such checkpoint.
    """
    asked = body or HistoryBody()
    try:
        thread = await find_thread(app, thread_id, user_id=user_id)
    except SessionNotFound:
        return []
    return await history_of(thread, limit=asked.limit, before=seq_of(asked.before), at=seq_of(asked.checkpoint))


async def _newest(app: App, user_id: str | None, body: ThreadSearchBody, count: int) -> AsyncGenerator[Thread]:
    """Search pages of threads, newest activity first, until `count` threads were searched.

    Yield each thread that matches, with its runs. The caller must still check the status and the workflow.
    """
    everything = AllSessions(app.memory)
    wanted = {name: value for name, value in (body.metadata or {}).items() if name not in _WORKFLOW_NAMES}
    own = body.model_copy(update={"status": None, "metadata": wanted})
    cursor, searched = None, 0
    while searched < count:
        page, cursor = await everything.page(SessionQuery(user_id, None, None, _PAGE, cursor))
        sessions = [(info, app.memory.session(info.session_id, user_id=user_id)) for info in page if not info.namespace]
        searched += len(sessions)
        threads = [Thread(session.session_id, session, info, ()) for info, session in sessions]
        found = [thread for thread in threads if _matches(thread_body(thread), own)]
        ids = [thread.thread_id for thread in found]
        runs = await app.memory.runs.records.of_sessions(ids, user_id=user_id) if ids else []
        for thread in found:
            yield replace(thread, runs=[run for run in runs if run.session_id == thread.thread_id])
        if cursor is None:
            return


async def _named(app: App, user_id: str | None, ids: Sequence[str]) -> AsyncGenerator[Thread]:
    """Yield the stored threads with these ids, except damaged ones."""
    for thread_id in dict.fromkeys(ids):
        thread = None
        with suppress(SessionNotFound, InvalidKey, SessionDamaged):
            thread = await find_thread(app, thread_id, user_id=user_id)
        if thread is not None and thread.info is not None and not thread.info.namespace:
            yield thread


def _matches(thread: ThreadBody, body: ThreadSearchBody) -> bool:
    if body.status is not None and thread.status != body.status:
        return False
    # If the thread's runs were deleted, the name of its workflow is unknown, so accept any name.
    known = thread.metadata.keys()
    wanted = {name: one for name, one in (body.metadata or {}).items() if name not in _WORKFLOW_NAMES or name in known}
    return _contains(thread.metadata, wanted)


def _contains(stored: Json, wanted: Json) -> bool:
    """Return True if a value of the metadata contains `wanted`, as PostgreSQL's operator `@>` on JSON decides."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(
            name in stored and _contains(stored[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(stored, list) and all(any(_contains(one, each) for one in stored) for each in wanted)
    return stored == wanted and isinstance(stored, bool) == isinstance(wanted, bool)
