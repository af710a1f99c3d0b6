"""The protocol of transcripts, and lists of sessions. It imports little, so that commands with lists start fast."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from threadkeep.errors import InvalidInput
from threadkeep.records import Json, Message, Page, Receipt, SessionInfo, Turn, View
from threadkeep.records.sessions import check_argument, check_cursor, check_user_id
from threadkeep.store.codec import clean_text, cursor_parameters, json_text, session_of
from threadkeep.store.driver import Driver, Statement
from threadkeep.store.statements import load_statements, text_filter

if TYPE_CHECKING:
    from threadkeep.observe import Backend

type Cursor = tuple[datetime, str]


@dataclass(frozen=True)
class SessionQuery:
    """A filter for the list of sessions, and a page of that list (`cursor` and `limit`), newest activity first.

    `query` must be part of the title, the last message or the id; case is ignored. A session belongs to the channel
    `telegram` if its id begins with `telegram:`.
    """

    user_id: str | None = None
    query: str | None = None
    active: bool | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None
    tag: str | None = None
    channel: str | None = None

    def __post_init__(self) -> None:
        """Reject arguments of a wrong type, and a `user_id` that no session can have."""
        check_user_id(self.user_id)
        check_argument("query", self.query, str)
        check_argument("active", self.active, bool)
        check_cursor("cursor", self.cursor, datetime, str)
        check_argument("The limit of a page of sessions", self.limit, int, required=True)

    @property
    def prefix(self) -> str | None:
        """The text with which the ids of the channel's sessions begin."""
        return None if self.channel is None else clean_text(f"{self.channel}:")


class Sessions(Protocol):
    """An interface that lists the sessions in Threadkeep's own tables or in a LangGraph store."""

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of the sessions that match a query, newest activity first."""


class TableSessions:
    """The sessions in the table `chat_sessions`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of the sessions that match a query, newest activity first."""
        parameters = {
            **cursor_parameters(query.cursor, "updated_at", "session_id"),
            "user_id": query.user_id,
            "active": query.active,
            **text_filter(query.query),
            "prefix": query.prefix,
            "limit": query.limit,
            # The statement searches for the JSON of this tag in the JSON of all tags.
            "tag": None if query.tag is None else json_text(query.tag),
        }
        name = "sessions" if query.tag is None else "tagged_sessions"
        sql = load_statements("transcripts.sql")[name if query.user_id is None else "sessions_of_user"]
        rows = await self._driver.fetch(sql, parameters)
        return [session_of(row, damaged=True) for row in rows]

    async def are_all(self) -> bool:
        """Return True if all conversations are in the tables, and none in a graph store."""
        return not await self._driver.fetch(load_statements("conversation_layouts.sql")["layouts"], {})


async def sessions_page(sessions: Sessions, query: SessionQuery) -> tuple[list[SessionInfo], Cursor | None]:
    """Return one page of sessions, and the cursor of the next page (None at the end).

    Raises:
        InvalidInput: the limit is below 1.
    """
    if query.limit < 1:
        raise InvalidInput("The limit of a page of sessions must be at least 1.")
    found = await sessions.sessions(replace(query, limit=query.limit + 1))
    if len(found) <= query.limit:
        return found, None
    last = found[query.limit - 1]
    return found[: query.limit], (last.updated_at, last.session_id)


END = 2**62
"""A value for `before` that is higher than the `seq` of any message."""


class Marks(NamedTuple):
    """Fields of a session that show whether stored messages have changed.

    Each change of stored messages alters at least one of these fields; appending messages alters none. `created_at`
    shows that a session was deleted and created again; `restored` changes when any session is restored.
    """

    reset_seq: int
    archived_seq: int
    deleted_seq: int
    revision: int
    created_at: object
    restored: str | None


@dataclass(frozen=True)
class Recent:
    """The newest active user and assistant messages since the last reset that are not archived, newest first.

    `newest_user` is set if the newest user message is older than all of `messages`; every window includes it. Messages
    up to `archived_seq` are archived, and those up to `deleted_seq` are deleted. `revision` grows when stored messages
    change. `marks` is None if the store has no marks or there are no messages.
    """

    messages: tuple[Message, ...]
    reset_seq: int = 0
    newest_user: Message | None = None
    archived_seq: int = 0
    deleted_seq: int = 0
    revision: int = 0
    marks: Marks | None = None


type Scope = Literal["message", "from", "after", "run"]
"""The messages to supersede: the named message (`message`), the named and all later ones (`from`), only the later ones
(`after`), or the named, the answers to it, and the later ones of its run (`run`)."""


@dataclass(frozen=True)
class Superseding:
    """A request to supersede active messages: the `newest` ones, or those that `message_id` and `scope` select.

    `by` is stored as the new version of the message `message_id`. Messages after the `seq` in `upto` stay unchanged.
    """

    session_id: str
    newest: int = 0
    message_id: str | None = None
    scope: Scope = "from"
    by: Message | None = None
    user_id: str | None = None
    upto: int = END


@dataclass(frozen=True)
class Superseded:
    """The number of superseded messages, and their first and last `seq` (0 if there are none).

    `messages` contains the messages, oldest first, if `newest` was requested. `by` is the new version as stored.
    """

    count: int = 0
    first_seq: int = 0
    last_seq: int = 0
    messages: tuple[Message, ...] = ()
    by: Message | None = None


@dataclass(frozen=True)
class Branching:
    """A request to copy a session's messages to a new session: all, or those up to the message whose `seq` is `at`."""

    session_id: str
    branch_id: str
    at: int | None = None
    user_id: str | None = None


@dataclass(frozen=True)
class SessionChanges:
    """A request to change fields of a session; None leaves a field unchanged."""

    title: str | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Json] | None = None
    active: bool | None = None

    def __post_init__(self) -> None:
        """Reject values of a wrong type; SQLite would store them, and an export could not be imported."""
        check_argument("title", self.title, str)
        check_argument("metadata", self.metadata, Mapping)
        check_argument("active", self.active, bool)
        tags = () if self.tags is None else self.tags
        if isinstance(tags, str) or not isinstance(tags, Sequence) or not all(isinstance(tag, str) for tag in tags):
            raise InvalidInput("tags are a list of texts, or None.")

    def statements(self, session_id: str) -> list[Statement]:
        """Return the statements that make the changes in the tables."""
        values = {
            "set_title": None if self.title is None else clean_text(self.title),
            "set_tags": None if self.tags is None else json_text(list(self.tags)),
            "set_metadata": None if self.metadata is None else json_text(dict(self.metadata)),
            "set_active": self.active,
        }
        sql = load_statements("transcripts.sql")
        changed = {name: value for name, value in values.items() if value is not None}
        return [(sql[name], {"session_id": session_id, "value": value}) for name, value in changed.items()]


class Transcripts(Protocol):
    """A store of transcripts: the messages of each session, numbered in order (`seq`).

    Guarantees of every implementation:

    - A turn is stored atomically, and is durable when `append` returns.
    - `seq` is 1, 2, 3 … without gaps in each session, for any number of writers; it is assigned in the transaction that
      stores the turn.
    - A message whose id the session already has is not stored again.
    - Messages are never rewritten; an erasure empties them. When the oldest are deleted, the others keep their `seq`.
    - With a `user_id`, only that user's sessions can be read, and appending to another session raises `WrongUser`.
    - A turn that answers a missing message raises `QuestionGone` and does not create a session.
    - `append` may be called by many tasks at once.
    - A superseded message is marked, and keeps its `seq` and its id. It is not in the `active` view, in `recent`, in
      searches or in `message_count`. Concurrent calls supersede different messages. An answer to a superseded question
      is stored as superseded.
    - An answer to a question before a reset also counts as before the reset. If another message already follows the
      reset, the answer counts as after it.
    """

    @property
    def backend(self) -> Backend:
        """The name of the store in metrics."""

    async def append(self, turn: Turn) -> Receipt:
        """Store the messages of a turn. Raises `WrongUser`, `QuestionGone`, `InvalidMessage`, `StoreUnavailable`."""

    async def append_instead(self, turn: Turn, seq: int, seen: tuple[int, int]) -> None:
        """Supersede the messages after `seq`, and store a turn instead of them, in one transaction.

        Raises:
            TurnRefused: the session no longer has the `last_seq` and the `revision` in `seen`, or a message is stored
                already; nothing was stored.
        """

    async def newest(
        self,
        session_id: str,
        *,
        limit: int,
        before: int = END,
        user_id: str | None = None,
        view: View = "active",
    ) -> Page:
        """Return the newest `limit` messages whose `seq` is below `before`, oldest first."""

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """Return the newest messages with a `seq` between `after` and `before`, both excluded, for a model call."""

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """Return the message with this id, even if it is superseded; None if it is missing."""

    async def with_ids(self, session_id: str, message_ids: Collection[str]) -> list[Message]:
        """Return the existing messages with these ids, including superseded ones, in order."""

    async def at(self, session_id: str, seqs: Collection[int]) -> list[Message]:
        """Return the existing messages with these `seq` values, including superseded ones, in order."""

    async def answers_to(self, session_id: str, question: Message) -> list[Message]:
        """Return the complete answers to a question, in order; superseded ones only if the question is superseded."""

    async def tell(self, session_id: str, message_id: str) -> Message | None:
        """Mark an answer, or the answer that superseded it, as delivered to a caller, and return it.

        Return None if no message has this id.
        """

    async def supersede(self, superseding: Superseding) -> Superseded:
        """Supersede messages in one transaction. If `newest` is set and the session is missing, do nothing.

        Raises:
            WrongUser: the session is another user's.
            MessageNotFound: the request names a message id, and the message or its session does not exist.
            MessageSuperseded: the message was superseded before, and not by the given version.
            InvalidMessage: the new version cannot be stored, or its id belongs to another message.
        """

    async def superseded(self, session_id: str, *, after: int = 0, before: int = END) -> list[tuple[int, int]]:
        """Return the `seq` ranges of superseded messages between `after` and `before`, both excluded, in order."""

    async def branch(self, branching: Branching) -> None:
        """Create a session with copies of another session's messages, numbered from 1, in one transaction.

        Active messages up to `at` are copied with their ids, times and tokens. If the message at `at` is superseded,
        the messages that were active just before it was superseded are copied. An existing branch stays unchanged.

        Raises:
            SessionNotFound: there is no such session.
            WrongUser: the session is another user's.
            InvalidInput: the session has no message with this `seq`, or another session has the branch's id.
        """

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """Return the metadata of a session, or None if it does not exist or belongs to another user."""

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of the sessions that match a query, newest activity first."""

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change fields of a session; do nothing if it does not exist."""

    async def reset(self, session_id: str, *, user_id: str | None = None, run_id: str | None = None) -> int | None:
        """Let later model calls omit all stored messages. Return the last `seq`, or None if nothing was reset.

        If `run_id` is given, but that run is not being executed, nothing is reset.
        """

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool | None:
        """Delete a session, its messages and all derived data; return False if it did not exist.

        With a `run_id`, return None and do nothing if that run is not being executed, or if the message that it answers
        has deleted the session before: a paused process must not delete a session that was created since.
        """
