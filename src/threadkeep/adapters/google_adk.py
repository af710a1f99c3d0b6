"""Sessions and memory for Google's Agent Development Kit (ADK).

An ADK session is stored as the session `adk:<app>:<user>:<session>` of its user. If this id would be too long, it is
`adk:<app>:sha256-<digest>` instead, and the note that is stored with each event contains the ADK session id.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import cast
from unicodedata import normalize

from langchain_core.utils.uuid import uuid7
from pydantic_core import to_jsonable_python

from threadkeep.adapters.items import append_once, base_revision, item_message, messages_after, stored_item
from threadkeep.agent.counting import media_mark, media_type
from threadkeep.boundary import of_extra
from threadkeep.errors import InvalidInput, InvalidKey, SessionNotFound
from threadkeep.history import keys
from threadkeep.history.session import Session as StoredSession
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import MemoryAdapter, on_any_loop
from threadkeep.records import Json, Message, SearchHit
from threadkeep.store.driver import Joined, Statement

with of_extra("google-adk"):
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import BaseSessionService, Session, State
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.genai.types import Content, Part

_NAME = "google-adk"
_REVISION = "adk:"
_MOST_HITS = 20
_MOST_OF_WORD = 500
_MOST_WORDS = 12
_WORD = re.compile(r"\w+")
_STALE = (
    "The session has been modified in storage since it was loaded. "
    "Please reload the session before appending more events."
)


@on_any_loop
class SessionService(MemoryAdapter, BaseSessionService):
    """An ADK session service that stores the texts of events as Threadkeep messages, which other channels can read.

    An event, its changes to shared state and a new revision of the session are stored in one transaction. If several
    writers store the same revision, only the first succeeds. The state of a session is computed from its events.
    Messages of other channels are returned as events. Events that were taken back, or precede a reset, are not
    returned.
    """

    def __init__(self, memory: Memory | SyncMemory) -> None:
        """Create a service.

        Raises:
            InvalidInput: the memory stores its sessions in a LangGraph store instead of its own tables.
        """
        super().__init__(memory)
        if self.memory.in_graph_store:
            raise InvalidInput("Sessions of ADK need a memory in SQL tables; open one by a database URL.")

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, object] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. Values of `state` under `app:` or `user:` keys are stored for the app or for the user.

        Raises:
            AlreadyExistsError: the session already exists.
        """
        session_id = (session_id or "").strip() or str(uuid7())
        stored = self._session(app_name, user_id, session_id)
        item = {"state": _state_of_session(state), "created": time.time(), **_long_id(stored, session_id)}
        first = f"{_REVISION}{await base_revision(stored)}"
        note = item_message(_NAME, item, role=None, text="[session]", message_id=first)
        exists = await self._read(app_name, user_id, session_id) is not None
        if exists or not await self._append(stored, app_name, state, note):
            raise AlreadyExistsError(f"Session with id {session_id} already exists.")
        return cast("Session", await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with the events that `config` selects, including the state of its user and app."""
        session = await self._read(app_name, user_id, session_id)
        if session is None:
            return None
        session.state |= await self._shared_state(app_name, user_id)
        if config and config.after_timestamp:
            session.events = [event for event in session.events if event.timestamp >= config.after_timestamp]
        if config and config.num_recent_events is not None:
            session.events = session.events[max(0, len(session.events) - config.num_recent_events) :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app or of one of its users, without events, least recently active first.

        Each session is read completely, because its state is computed from its events.
        """
        sessions: list[Session] = []
        shared: dict[str, dict[str, object]] = {}
        infos = [info async for info in self.memory.sessions(user_id, _prefix(app_name))]
        for info in infos:
            owner = info.user_id or ""
            stored = self.memory.session(info.session_id, user_id=info.user_id)
            session = await self._read_stored(stored, app_name, owner, _adk_id(info.session_id))
            if session is not None and info.session_id == _key(app_name, owner, session.id):
                if owner not in shared:
                    shared[owner] = await self._shared_state(app_name, owner)
                state = {**session.state, **shared[owner]}
                sessions.append(session.model_copy(update={"events": [], "state": state}))
        return ListSessionsResponse(
            sessions=sorted(sessions, key=lambda one: (one.last_update_time, one.user_id, one.id))
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events and its state."""
        await self._session(app_name, user_id, session_id).delete()

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, object]:
        """Return the state of a user in an app. Its keys do not have the prefix `user:`."""
        values = await self.memory.channels.state.values_of(_user_scope(user_id), _user_prefix(app_name))
        return {key.removeprefix(_user_prefix(app_name)): json.loads(value) for key, value in values.items()}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event with its changes to the state, and return the event.

        A partial event, and an event that the session already contains, is returned without being stored.

        Raises:
            StaleSessionError: another event was stored after the session was read; nothing was stored.
            SessionNotFoundError: the session was deleted.
            StoreUnavailable: the database does not answer; the call can be repeated.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        stored = self._session(session.app_name, session.user_id, session.id)
        revision = await self._revision(session, stored)
        if any(one.id == event.id and one == event for one in session.events):
            return event
        item: dict[str, Json] = {"event": event.model_dump(mode="json", exclude_none=True)}
        message = _message(event)
        known = None if message is None else await stored.find(str(message.id))
        if is_in_memory := known is not None and stored_item(_NAME, known) is None:
            # `MemoryService` has already stored the text as a message, so store the event itself in the note below.
            message = None
        messages = [] if message is None else [message.with_fields(original={_NAME: item})]
        note = item_message(
            _NAME,
            {**({"said": event.id} if message else item), **_long_id(stored, session.id)},
            role=None,
            text="[event]",
            message_id=f"{_REVISION}{revision + 1}",
        )
        if not await self._append(stored, session.app_name, event.actions.state_delta, note, *messages):
            raise StaleSessionError(_STALE)
        if is_in_memory:
            session.events = [one for one in session.events if one.id != event.id]
        session.last_update_time = event.timestamp
        session._storage_update_marker = str(revision + 1)  # noqa: SLF001 - ADK keeps the revision there
        return self._commit_event_to_session(session, event)

    async def _append(
        self, stored: StoredSession, app_name: str, delta: Mapping[str, object] | None, *messages: Message
    ) -> bool:
        """Store messages and the state of app and user in one transaction. Return False if another writer was first."""
        state = self.memory.channels.state
        statements: list[Statement] = []
        for key, value in _json_safe(delta).items():
            if key.startswith(State.APP_PREFIX):
                name = key.removeprefix(State.APP_PREFIX)
                statements.append(state.keep_statement(_app_scope(app_name), name, json.dumps(value)))
            elif key.startswith(State.USER_PREFIX):
                name = _user_prefix(app_name) + key.removeprefix(State.USER_PREFIX)
                statements.append(state.keep_statement(_user_scope(str(stored.user_id)), name, json.dumps(value)))
        return await append_once(stored, messages, Joined(after=statements))

    async def _revision(self, session: Session, stored: StoredSession) -> int:
        """Return the revision number of the caller's copy of a session."""
        if marker := session._storage_update_marker:  # noqa: SLF001 - ADK keeps the revision there
            if await stored.find(f"{_REVISION}{marker}") is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            return int(marker)
        # The session comes from elsewhere, such as a dump: accept it only if its last event is the newest stored one.
        newest = await self._read(session.app_name, session.user_id, session.id)
        if newest is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        if [event.id for event in newest.events[-1:]] != [event.id for event in session.events[-1:]]:
            raise StaleSessionError(_STALE)
        return int(newest._storage_update_marker or 0)  # noqa: SLF001 - as above

    async def _read(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return a session without the state of its app and user."""
        stored = self._session(app_name, user_id, session_id)
        return await self._read_stored(stored, app_name, user_id, session_id.strip())

    async def _read_stored(self, stored: StoredSession, app_name: str, user_id: str, session_id: str) -> Session | None:
        session = Session(id=session_id, app_name=app_name, user_id=user_id)
        revision: int | None = None
        events, superseded = dict[object, Event](), dict[str | None, datetime]()
        try:
            reset_seq = (await stored.info()).reset_seq
        except SessionNotFound:
            return None
        for message in await messages_after(stored, 0, view="history"):
            item = stored_item(_NAME, message)
            if item is not None and (message.id or "").startswith(_REVISION):
                revision = int(str(message.id).removeprefix(_REVISION))
                session.id = str(item.get("session", session.id)) if isinstance(item, Mapping) else session.id
            if message.superseded_at is not None:
                superseded[message.id] = message.superseded_at
                continue
            if isinstance(item, Mapping) and "state" in item:
                session.state |= cast("dict[str, object]", item["state"])
                session.last_update_time = cast("float", item["created"])
            event = _event(message)
            # Skip an event that was taken back, unless it was appended again afterwards.
            gone = None if event is None else superseded.get(event.id)
            if event is not None and (gone is None or (message.created_at or gone) > gone):
                session.state |= _state_of_session(event.actions.state_delta)
                session.last_update_time = event.timestamp
                events.pop(event.id, None)
                events |= {message.id or message.seq: event} if (message.seq or 0) > reset_seq else {}
        if revision is None:
            return None
        session.events = list(events.values())
        session._storage_update_marker = str(revision)  # noqa: SLF001 - ADK keeps the revision there
        return session

    async def _shared_state(self, app_name: str, user_id: str) -> dict[str, object]:
        app = await self.memory.channels.state.values_of(_app_scope(app_name), "")
        user = await self.get_user_state(app_name=app_name, user_id=user_id)
        return {
            **{State.APP_PREFIX + key: json.loads(value) for key, value in app.items()},
            **{State.USER_PREFIX + key: value for key, value in user.items()},
        }

    def _session(self, app_name: str, user_id: str, session_id: str) -> StoredSession:
        return self.memory.session(_key(app_name, user_id, session_id.strip()), user_id=user_id)


@on_any_loop
class MemoryService(MemoryAdapter, BaseMemoryService):
    """A memory service of ADK that stores and searches messages in a Threadkeep memory.

    Adding a session twice changes nothing. The sessions of `SessionService` are searched without being added.
    """

    async def add_session_to_memory(self, session: Session) -> None:
        """Store the texts of a session that are not yet stored."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id, events=session.events
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store the texts of new events in a session of the user, by default in the session with the id `events`."""
        key = _key(app_name, user_id, session_id or "events")
        if messages := [message for event in events if (message := _message(event)) is not None]:
            await self.memory.session(key, user_id=user_id).append(messages)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to 20 messages of the user's sessions that contain the most words of the query.

        Among messages with the same number of these words, messages with rarer words come first. Only the first 12
        words of the query and the best 500 messages for each word are used.
        """
        prefix = _prefix(app_name)
        found: dict[tuple[str, int | None], SearchHit] = {}
        words_in: dict[tuple[str, int | None], float] = {}
        for word in dict.fromkeys(_WORD.findall(normalize("NFC", query))[:_MOST_WORDS]):
            hits: dict[tuple[str, int | None], SearchHit] = {}
            for form in dict.fromkeys((word, normalize("NFD", word))):
                some = await self.memory.search(form, user_id=user_id, limit=_MOST_OF_WORD)
                hits |= {(hit.session_id, hit.message.seq): hit for hit in some}
            for key, hit in hits.items():
                if hit.session_id.startswith(prefix) and _has_word(normalize("NFC", hit.message.content), word):
                    found.setdefault(key, hit)
                    words_in[key] = words_in.get(key, 0.0) + 1 + 1 / (_MOST_WORDS * len(hits))
        best = [found[key].message for key in sorted(words_in, key=words_in.__getitem__, reverse=True)[:_MOST_HITS]]
        entries: list[MemoryEntry] = []
        for message in best:
            content, moment = _content(message), message.sent_at or message.created_at
            timestamp, author = moment.isoformat() if moment else None, message.author or content.role
            entries.append(MemoryEntry(content=content, id=message.id, author=author, timestamp=timestamp))
        return SearchMemoryResponse(memories=entries)

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Take back a message in the user's sessions of the app, its answers, and all later messages of its run.

        An unknown id is ignored. Searches and sessions no longer return the message, and adding its session again
        does not store it again. The transcript keeps it in the `history` view until its session or its user is erased.
        """
        if not memory_id:
            return
        for info in [info async for info in self.memory.sessions(user_id, _prefix(app_name))]:
            session = self.memory.session(info.session_id, user_id=user_id)
            message = await session.find(memory_id)
            if message is not None and message.role != "system":
                await session.take_back_turn(memory_id)


def _has_word(text: str, word: str) -> bool:
    """Return True if `text`, found by a search, has `word` with its accents. A short `word` must be a whole word."""
    if len(word) > 2 or word >= "\u0e00":  # from here on, scripts may have no spaces between words
        return word.isascii() or word.lower() in text.lower()
    return word.lower() in _WORD.findall(text.lower())


def _prefix(app_name: str) -> str:
    return f"adk:{keys.escape_key(app_name)}:"


def _key(app_name: str, user_id: str, session_id: str) -> str:
    """Return the id of the Threadkeep session for an ADK session, with a digest if the id would be too long."""
    ids = (user_id, session_id)
    # If the id would be too long, do not escape printable characters beyond ASCII.
    unescaped = ["".join(c if c.isprintable() and not c.isascii() else keys.escape_key(c) for c in one) for one in ids]
    parts = [":".join(map(keys.escape_key, ids)), ":".join(unescaped)]
    longest = keys.MAX_KEY_CHARACTERS - len(_prefix(app_name))
    short = [part for part in parts if len(part) <= longest]
    return _prefix(app_name) + (short[0] if short else f"sha256-{sha256(parts[0].encode()).hexdigest()}")


def _long_id(stored: StoredSession, session_id: str) -> dict[str, Json]:
    """Return `{"session": session_id}` if the id of `stored` contains only a digest of `session_id`, else `{}`."""
    return {} if _adk_id(stored.session_id) else {"session": session_id}


def _adk_id(stored_id: str) -> str:
    """Return the ADK session id that the id of a stored session contains; "" if it contains only a digest."""
    escaped = "".join(one if one.isascii() else keys.escape_key(one) for one in stored_id)
    try:
        _, _, _, session_id = map(keys.unescape_key, escaped.split(":"))
    except (ValueError, InvalidKey):
        return ""
    return session_id


def _app_scope(app_name: str) -> str:
    return f"adk-app:{app_name}"


def _user_scope(user_id: str) -> str:
    """Return the scope (a part of the key) of a person's stored values. Erasing the person deletes these values."""
    return f"adk:{user_id}"


def _user_prefix(app_name: str) -> str:
    return f"{keys.escape_key(app_name)}:"


def _json_safe(state: Mapping[str, object] | None) -> dict[str, Json]:
    """Return a state as JSON, without its temporary (`temp:`) keys."""
    kept = {key: value for key, value in (state or {}).items() if not key.startswith(State.TEMP_PREFIX)}
    return cast("dict[str, Json]", to_jsonable_python(kept, fallback=str))


def _state_of_session(state: Mapping[str, object] | None) -> dict[str, Json]:
    shared = (State.APP_PREFIX, State.USER_PREFIX)
    return {key: value for key, value in _json_safe(state).items() if not key.startswith(shared)}


def _event(message: Message) -> Event | None:
    """Return the event that a message contains, or an event made of its text."""
    item = stored_item(_NAME, message)
    if isinstance(item, Mapping):
        return Event.model_validate(item["event"]) if "event" in item else None
    if message.role == "system":
        return None
    moment = message.sent_at or message.created_at or datetime.now(UTC)
    return Event(
        id=str(message.id),
        author=message.author or message.role,
        content=_content(message),
        timestamp=moment.timestamp(),
    )


def _content(message: Message) -> Content:
    return Content(role="user" if message.role == "user" else "model", parts=[Part(text=message.content)])


def _message(event: Event) -> Message | None:
    """Return a message with an event's text and marks for its media; None if the event is partial or has neither."""
    said = [part for part in event.content.parts or [] if not part.thought] if event.content else []
    media = [data for part in said if (data := part.inline_data or part.file_data) is not None]
    mark = media_mark([{"type": media_type(data.mime_type)} for data in media])
    text = "\n".join(filter(None, (*(part.text for part in said), mark)))
    if not text or event.partial:
        return None
    return Message(
        "user" if event.author == "user" else "assistant",
        text,
        id=event.id or None,
        author=None if event.author == "user" else event.author,
        sent_at=datetime.fromtimestamp(event.timestamp, UTC),
    )
