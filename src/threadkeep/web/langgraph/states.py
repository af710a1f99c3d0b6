"""Threads and their states, built from sessions and runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages

from threadkeep.adapters.items import stored_item
from threadkeep.agent.conversion import as_data, id_of, to_langchain, transcript_text
from threadkeep.app import App
from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.session import Session
from threadkeep.records import Json, Message, SessionInfo
from threadkeep.records.runs import Run, RunQuery, RunResult, RunStatus, interrupts_of
from threadkeep.runs.service import RunService
from threadkeep.store.codec import clean_text
from threadkeep.web.langgraph.schemas import (
    CheckpointBody,
    InterruptBody,
    TaskBody,
    ThreadBody,
    ThreadStateBody,
    ThreadStatus,
)
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS

MESSAGES = "messages"


def message_json(message: Message) -> dict[str, Json]:
    """Return a stored message as LangGraph's server sends it."""
    found = to_langchain(message)
    if found.name is None and message.author is not None and message.role == "assistant":
        found = found.model_copy(update={"name": message.author})
    data = as_data(found)["data"]
    return {"type": found.type, **data} if isinstance(data, dict) else {}


def question_of(given: object) -> tuple[str, str | None, Mapping[str, Json]]:
    """Return the text of the question, the id of its last message, and the other inputs of the run.

    The question consists of the human messages at the end of the input.

    Raises:
        InvalidInput: the input is not an object, or its messages cannot be read.
    """
    if given is None:
        return "", None, {}
    if not isinstance(given, Mapping):
        raise InvalidInput('The input must be an object, such as {"messages": [{"role": "user", "content": "Hello"}]}.')
    asked = new_messages(messages_of(given.get(MESSAGES)))
    inputs = {str(name): value for name, value in given.items() if name != MESSAGES}
    return asked_text(asked), id_of(asked[-1]) if asked else None, inputs


def asked_text(asked: Sequence[BaseMessage]) -> str:
    """Join the texts of new messages.

    Raises:
        InvalidInput: the text is too long.
    """
    text = clean_text("\n".join(transcript_text(one) for one in asked))
    if len(text) > MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(f"A message has at most {MAX_MESSAGE_CHARACTERS:,} characters; send a shorter one.")
    return text


def messages_of(given: object) -> Sequence[BaseMessage]:
    """Convert an input to messages. The input may have any form that LangChain accepts.

    Raises:
        InvalidInput: a message has a form that LangChain does not accept.
    """
    if given is None:
        return []
    try:
        return convert_to_messages(given if isinstance(given, list) else [given])  # type: ignore[list-item]
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
        # Raise from None, because the original error quotes the message.
        sentence = (
            'Each message must be an object with role (or type) and content: {"role": "user", "content": "Hello"}.'
        )
        raise InvalidInput(sentence) from None


def new_messages(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return the human messages at the end of a list."""
    first = len(messages)
    while first and isinstance(messages[first - 1], HumanMessage):
        first -= 1
    return messages[first:]


MOST_MESSAGES = 1000
"""The maximum number of messages in the values of a thread."""

BEGINNING = 0
"""The checkpoint before the first message."""

CREATION = "langgraph"
"""The name of the transcript's note that stores a thread before its first run."""

ACTIVE: Final = ("queued", "running")
"""The statuses of runs that have not ended and do not wait for a person."""

_RUNS = 20


@dataclass(frozen=True)
class Thread:
    """A thread: its session and its runs (see `runs_of`). `info` is None before a message is stored.

    `created` is set only if a client has created the thread and it has had no run yet.
    """

    thread_id: str
    session: Session
    info: SessionInfo | None
    runs: Sequence[Run]
    created: ThreadBody | None = None

    @property
    def newest(self) -> Run | None:
        """The newest run, or None if the thread has no run."""
        return self.runs[0] if self.runs else None

    def waiting(self, ids: Collection[str] = ()) -> Run | None:
        """Return the newest run that asks a question in `ids`, else the newest waiting run, or None if none waits."""
        waiting = [run for run in self.runs if run.status == "waiting"]
        named = [run for run in waiting if any(one.id in ids for one in questions(run))]
        return next(iter(named + waiting), None)

    @property
    def status(self) -> ThreadStatus:
        """The status of the thread, derived from its newest runs."""
        if any(run.status in ACTIVE for run in self.runs):
            return "busy"
        if self.waiting() is not None:
            return "interrupted"
        return "error" if self.newest is not None and self.newest.status == "failed" else "idle"


async def find_thread(
    app: App, thread_id: str, *, user_id: str | None = None, runs: RunService | None = None
) -> Thread:
    """Return a thread. While the application is closing, pass `runs`, because `app.runs` then raises `StoreClosed`.

    Raises:
        SessionNotFound: the user has no session with this id, and no run was started for it.
        InvalidKey: the id is not valid for a session.
    """
    newest = await runs_of(runs or await app.runs.service(), thread_id, user_id=user_id)
    try:
        session, info = await AllSessions(app.memory).find(thread_id, user_id=user_id)
    except SessionNotFound:
        if not newest:
            raise
        return Thread(thread_id, app.memory.session(thread_id, user_id=user_id), None, newest)
    return Thread(thread_id, session, info, newest)


async def newest_runs(
    runs: RunService, thread_id: str, *, user_id: str | None = None, status: RunStatus | None = None, limit: int = _RUNS
) -> list[Run]:
    """Return a thread's newest runs, newest first. Child runs, resets and deletions of the thread are left out."""
    query = RunQuery(session_id=thread_id, user_id=user_id, status=status, turns=True, limit=limit)
    return list((await runs.list(query))[0])


async def runs_of(runs: RunService, thread_id: str, *, user_id: str | None = None) -> list[Run]:
    """Return a thread's newest 20 runs. If none of them waits for a person, add the newest run that does."""
    found = await newest_runs(runs, thread_id, user_id=user_id)
    if len(found) == _RUNS and not any(run.status == "waiting" for run in found):
        found += await newest_runs(runs, thread_id, user_id=user_id, status="waiting", limit=1)
    return found


async def values_of(session: Session) -> dict[str, Json]:
    """Return the values of a thread: its newest 1,000 messages."""
    return _values(await messages_in(session))


async def messages_in(session: Session, upto: int | None = None) -> list[Message]:
    """Return the newest 1,000 messages of a thread up to a `seq`, without the marker that `CreatedThread` stores."""
    page = await session.page(None if upto is None else upto + 1, MOST_MESSAGES)
    return [one for one in page.messages if not is_creation(one)]


def is_creation(message: Message) -> bool:
    """Return whether a message is the marker that `CreatedThread` stores for a thread that has no run yet."""
    return stored_item(CREATION, message) is not None


async def state_of(thread: Thread, *, at: int | None = None) -> ThreadStateBody:
    """Return the state of a thread after its newest message, or at the checkpoint `at`."""
    state = next(_states(thread, await messages_in(thread.session, at), newest=at is None))
    if at is None and not state.next:  # `useStream` of @langchain/react joins an active run only if `next` is not empty
        state.next = [run.workflow for run in thread.runs if run.status in ACTIVE][:1]
    return state


def state_of_stateless(run: Run) -> ThreadStateBody:
    """Return the state of a run without a thread: its question and its answer."""
    result, text = RunResult.of(run), run.input.get("text")
    messages = [Message(role="user", content=text, id=run.message_id)] if isinstance(text, str) and text else []
    if result.text:
        messages.append(Message(role="assistant", content=result.text, id=result.message_id))
    asked = questions(run) if run.status == "waiting" else []
    return ThreadStateBody(
        values=_values(messages),
        next=[run.workflow] if asked else [],
        interrupts=asked,
        checkpoint=checkpoint("", BEGINNING),
        parent_checkpoint=None,
        metadata={"source": "loop", "step": 0},
        created_at=run.created_at,
    )


async def values_of_run(app: App, run: Run) -> dict[str, Json]:
    """Return the values of a run's thread, or the run's own messages if it has no thread."""
    if run.session_id is None:
        return state_of_stateless(run).values
    return await values_of(app.memory.session(run.session_id, user_id=run.user_id))


async def history_of(
    thread: Thread, *, limit: int, before: int | None = None, at: int | None = None
) -> list[ThreadStateBody]:
    """Return up to `limit` states of a thread, newest first: at the ends of turns, and before the first turn.

    Only the newest 1,000 messages are read. `before` selects the states before a checkpoint, `at` a single state.
    """
    if at is not None:
        nearby = await messages_in(thread.session, at + MOST_MESSAGES // 2)
        exists = at in _turn_ends(nearby) and (before is None or at < before)
        return [await state_of(thread, at=at)] if exists else []
    states = _states(thread, await messages_in(thread.session, before), newest=True)
    earlier = (one for one in states if before is None or int(one.checkpoint.checkpoint_id) < before)
    return list(islice(earlier, limit))


def thread_body(thread: Thread, values: dict[str, Json] | None = None) -> ThreadBody:
    """Return a thread in the format of LangGraph's server."""
    info, newest = thread.info, thread.newest
    moments: list[datetime] = [info.updated_at] if info is not None else [run.created_at for run in thread.runs]
    metadata: dict[str, Json] = {}
    if info is not None:  # metadata of a client may replace the title, but not the user
        metadata = {"title": info.title, "tags": list(info.tags), **info.metadata, "user_id": info.user_id}
    if newest is not None:
        metadata |= {"graph_id": newest.workflow, "assistant_id": newest.workflow}
    return ThreadBody(
        thread_id=thread.thread_id,
        created_at=info.created_at if info is not None else min(moments),
        updated_at=max(moments),
        metadata=metadata,
        status=thread.status,
        values=values,
        interrupts={run.run_id: questions(run) for run in thread.runs if run.status == "waiting"},
    )


def questions(run: Run) -> list[InterruptBody]:
    """Return the questions that a waiting run asks a person."""
    return [InterruptBody(id=str(one.get("id")), value=one.get("value")) for one in interrupts_of(run)]


def checkpoint(thread_id: str, seq: int) -> CheckpointBody:
    """Return the checkpoint of a thread after the turn that ends with the message `seq` (0: before the first turn)."""
    return CheckpointBody(thread_id=thread_id, checkpoint_id=str(seq))


def seq_of(named: object) -> int | None:
    """Return the `seq` in a checkpoint's id, object or config, or None if there is none.

    Raises:
        InvalidInput: the id of the checkpoint is not a `seq`.
    """
    if isinstance(named, Mapping):
        inner = named.get("configurable")
        return seq_of(inner if isinstance(inner, Mapping) else named.get("checkpoint_id"))
    if named is None:
        return None
    text = str(named)
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInput("A checkpoint id must be the `seq` of a message; POST …/history lists checkpoints.")
    return int(text)


def _states(thread: Thread, messages: Sequence[Message], *, newest: bool) -> Iterator[ThreadStateBody]:
    """Yield the states at the ends of turns, newest first. If `newest`, the first has the waiting run's questions."""
    waiting = thread.waiting() if newest else None
    ends, shown = _turn_ends(messages), [message_json(one) for one in messages]
    for step in range(len(ends) - 1, -1, -1):
        seq, asked = ends[step], questions(waiting) if waiting is not None else []
        count = bisect_right(messages, seq, key=lambda one: one.seq or 0)
        yield ThreadStateBody(
            values={MESSAGES: shown[:count]},
            next=[] if waiting is None else [waiting.workflow],
            tasks=[] if waiting is None else [TaskBody(id=waiting.run_id, name=waiting.workflow, interrupts=asked)],
            interrupts=asked,
            checkpoint=checkpoint(thread.thread_id, seq),
            parent_checkpoint=checkpoint(thread.thread_id, ends[step - 1]) if step else None,
            metadata={"source": "loop" if seq else "input", "step": step, "thread_id": thread.thread_id},
            created_at=messages[count - 1].created_at if count else None,
        )
        waiting = None


def _values(messages: Sequence[Message]) -> dict[str, Json]:
    return {MESSAGES: [message_json(one) for one in messages]}


def _turn_ends(messages: Sequence[Message]) -> list[int]:
    """Return the ends of the turns: the `seq` before the first message, then the last `seq` of each turn.

    A turn begins with one or more user messages.
    """
    ends = [BEGINNING if len(messages) < MOST_MESSAGES else (messages[0].seq or 1) - 1]
    for position, message in enumerate(messages):
        following = messages[position + 1] if position + 1 < len(messages) else None
        if following is None or (following.role == "user" and message.role != "user"):
            ends.append(message.seq or 0)
    return ends
