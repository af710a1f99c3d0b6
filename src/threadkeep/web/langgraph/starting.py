"""Starting and answering of runs, as clients of LangGraph's server ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.history.session import Session
from threadkeep.records import Json
from threadkeep.records.runs import DOUBLE_TEXTING, DoubleTexting
from threadkeep.runs.chat import Again, RegenerationRequest
from threadkeep.runs.intake import Mode
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.web.langgraph.messages import Question, question_of
from threadkeep.web.langgraph.states import seq_of

USER_ID = "user_id"
_MOST = 1000


@dataclass(frozen=True)
class Start:
    """A request to run an assistant in a thread.

    `fork` is the `seq` of the checkpoint to go on from; later messages are superseded. Without a new message the
    question that followed the checkpoint is answered again.
    """

    assistant_id: str
    question: Question
    user_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    user_context: Mapping[str, Json] = field(default_factory=dict)
    fork: int | None = None
    policy: DoubleTexting | None = None

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Start:
        """Return the request in the parameters of `run.start`, or in the body of a request for a run.

        Raises:
            InvalidInput: the message says what is missing.
        """
        assistant = given.get("assistant_id")
        if not isinstance(assistant, str) or not assistant:
            raise InvalidInput("assistant_id names a workflow; POST /assistants/search lists them.")
        config = _map(given.get("config"))
        configurable = _map(config.get("configurable"))
        user = configurable.get(USER_ID)
        if user is not None and not isinstance(user, str):
            raise InvalidInput("config.configurable.user_id is text.")
        policy = given.get("multitask_strategy") or given.get("multitaskStrategy")
        if policy is not None and policy not in DOUBLE_TEXTING:
            raise InvalidInput(f"multitask_strategy is one of {', '.join(DOUBLE_TEXTING)}.")
        named = seq_of(given.get("checkpoint")) or seq_of(given.get("checkpoint_id"))
        return cls(
            assistant,
            question_of(given.get("input")),
            user_id=user,
            metadata=_map(given.get("metadata")),
            user_context=_map(given.get("context")),
            fork=seq_of(configurable.get("checkpoint_id")) if named is None else named,
            policy=policy,
        )


async def start_run(app: App, thread_id: str | None, start: Start, *, mode: Mode = "wait") -> Submitted:
    """Start a run in a thread, or one without a thread.

    Raises:
        InvalidInput: there is nothing to answer.
        WorkflowNotFound, SessionBusy, WrongUser, StoreUnavailable: as for any run.
    """
    app.workflows.get(start.assistant_id)
    runs = await app.runs.service()
    if thread_id is None:
        return await runs.submit(_request(start, None, start.question.message_id), mode=mode)
    session = app.memory.session(thread_id, user_id=start.user_id)
    if start.fork is not None:
        forked = await _forked(app, session, start)
        if forked is not None:
            return await runs.submit(forked, mode=mode)
    return await runs.submit(_request(start, thread_id, start.question.message_id), mode=mode)


async def _forked(app: App, session: Session, start: Start) -> RunRequest | None:
    """Supersede what follows a checkpoint, and return the request that goes on from it; None if nothing follows."""
    page = await session.page(limit=_MOST)
    later = [one for one in page.messages if (one.seq or 0) > (start.fork or 0)]
    asked = next((one for one in later if one.role == "user" and one.id), None)
    if asked is None or asked.id is None:
        return None
    question_id, text = asked.id, start.question.text
    if text and (start.question.message_id, text) != (asked.id, asked.content):
        new_id = start.question.message_id
        question_id = str((await session.edit(asked.id, text, new_id=new_id if new_id != asked.id else None)).id)
    again = Again(app.chat, app.memory, app.workflows)
    chat = await again.release(session, RegenerationRequest(message_id=question_id, workflow=start.assistant_id))
    return RunRequest(
        workflow=chat.workflow,
        text=chat.message,
        session_id=chat.session_id,
        user_id=chat.user_id,
        message_id=chat.message_id,
        inputs=start.question.inputs,
        user_context=start.user_context,
        metadata=chat.metadata,
        stream=True,
        double_texting=start.policy,
    )


def _request(start: Start, thread_id: str | None, message_id: str | None) -> RunRequest:
    return RunRequest(
        workflow=start.assistant_id,
        text=start.question.text,
        session_id=thread_id,
        user_id=start.user_id,
        message_id=None if thread_id is None else message_id,
        inputs=start.question.inputs,
        user_context=start.user_context,
        metadata=start.metadata,
        sessionless=thread_id is None,
        stream=True,
        double_texting=start.policy,
    )


def _map(value: object) -> dict[str, Json]:
    return {str(name): inner for name, inner in value.items()} if isinstance(value, Mapping) else {}
