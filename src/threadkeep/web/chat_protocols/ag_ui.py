"""AG-UI, the protocol of CopilotKit and others: a request has all messages, the response is a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, JsonValue

from threadkeep.agent.conversion import id_of
from threadkeep.agent.counting import media_type
from threadkeep.app import App
from threadkeep.errors import Interrupted, InvalidInput, RunWaits
from threadkeep.records import Message
from threadkeep.records.json_values import example
from threadkeep.records.runs import Run
from threadkeep.runs.chat_turns import ChatAnswer, ChatEvent, ChatStarted, ChatTurn
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import CallerInUse
from threadkeep.web.chat_protocols.sent import Sent, join_run
from threadkeep.web.langgraph.states import find_thread, messages_of, new_messages, questions
from threadkeep.web.problems import TURN_FAILURES, Problem
from threadkeep.web.streams import EventStream, StreamParts, json_event, open_stream, streamed
from threadkeep.workflows.built_in import CHAT

router = APIRouter(prefix="/api/v1/ag-ui", tags=["ag-ui"])

_MOST = 200
_EXAMPLE = (
    'data: {"type": "RUN_STARTED", "threadId": "session-123", "runId": "r1"}\n\n'
    'data: {"type": "TEXT_MESSAGE_CONTENT", "messageId": "0199…", "delta": "Hello"}\n\n'
    'data: {"type": "RUN_FINISHED", "threadId": "session-123", "runId": "r1"}\n\n'
)
_STREAM: dict[int | str, Any] = {200: streamed(_EXAMPLE, "The events of the run."), **TURN_FAILURES}


class ResumeEntry(BaseModel):
    """An answer to a question (an interrupt) that ended an earlier run."""

    interrupt_id: str = Field(max_length=512, alias="interruptId")
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class RunAgentBody(
    BaseModel,
    json_schema_extra=example(
        threadId="session-123", runId="r1", messages=[{"id": "m1", "role": "user", "content": "Hello"}]
    ),
):
    """A request for a run. `state`, `tools` and `context` are accepted and have no effect."""

    thread_id: str = Field(min_length=1, max_length=256, alias="threadId", description="The session.")
    run_id: str = Field(
        min_length=1, max_length=512, alias="runId", description="The client's name for the run; events repeat it."
    )
    messages: Annotated[list[JsonValue], Field(max_length=2000)] = Field(
        description="The conversation, each message with its id. Only the user's messages at its end are new."
    )
    forwarded_props: dict[str, JsonValue] | None = Field(
        None, alias="forwardedProps", description="`workflow` and `user_id`, if any."
    )
    resume: Annotated[list[ResumeEntry], Field(max_length=100)] | None = Field(
        None, description="The answers to all questions of a waiting run. `cancelled` cancels the run."
    )

    def prop(self, name: str) -> str | None:
        """Return the value of a property in `forwardedProps`, or None if it is not a string or is empty."""
        value = (self.forwarded_props or {}).get(name)
        return value if isinstance(value, str) and value else None


class _Events(StreamParts):
    """An encoder of the events of a turn for AG-UI.

    It sends a snapshot of the newest 200 messages after the first event and, if the turn succeeds, before the last one.
    A message with images or files keeps the content that the client sent. If the run asks a person, the last snapshot
    also has the streamed messages that are not stored, so that the person sees what the question is about.
    """

    def __init__(self, app: App, body: RunAgentBody, user_id: str | None) -> None:
        super().__init__()
        self._app = app
        self._session = app.memory.session(body.thread_id, user_id=user_id)
        self._names = {"threadId": body.thread_id, "runId": body.run_id}
        sent = [one for one in body.messages if isinstance(one, dict) and isinstance(one.get("content"), list)]
        self._sent = {str(one.get("id")): one["content"] for one in sent}
        self._before: list[dict[str, Any]] = []
        self._streamed: dict[str, str] = {}

    async def events(self, turn: ChatTurn) -> AsyncGenerator[ChatEvent | Run]:
        """Yield the events of the turn, and its run if it waits for a person or was cancelled."""
        try:
            async for event in turn.follow():
                yield event
        except (RunWaits, Interrupted):
            run = await self._app.memory.runs.run(turn.run_id)
            if run is None or run.status not in ("waiting", "cancelled"):
                raise
            yield run

    async def of(self, event: ChatEvent | Run | None, turn: ChatTurn) -> AsyncIterator[bytes]:
        if event is not None and self._begun is None:  # the turn begins now, so earlier turns have ended
            rows, answer_id = await self._session.tail(_MOST), getattr(event, "answer_id", None)
            while rows and rows[-1].answers == turn.message_id and answer_id in (None, rows[-1].id):
                rows.pop()  # its text follows, and a client would append this text to the message
            # Do not send the text of an older answer: a client would append it to the message in the snapshot.
            self._has_spoken = answer_id is not None and any(one.id == answer_id for one in rows)
            self._before = self._snapshot(rows)
            if turn.message_id not in [one["id"] for one in self._before]:
                # Add the question, because a client drops messages that the snapshot lacks.
                self._before.append(self._message(turn.message_id, "user", turn.request.text))
        async for part in super().of(event, turn):
            yield part
        if isinstance(event, Run):
            for part in self._closed(*self._open):
                yield part
            asked = [
                {
                    "id": one.id,
                    "reason": "input_required",
                    "message": one.value if isinstance(one.value, str) else json.dumps(one.value, ensure_ascii=False),
                    "metadata": {"value": one.value},
                }
                for one in questions(event)
            ]
            outcome = {"type": "interrupt", "interrupts": asked} if event.status == "waiting" else {"type": "cancelled"}
            async for part in self._finished(outcome):
                yield part

    def started(self, event: ChatStarted) -> Iterator[bytes]:
        yield json_event({"type": "RUN_STARTED", **self._names})
        yield json_event({"type": "MESSAGES_SNAPSHOT", "messages": self._before})

    def opened(self, message_id: str) -> Iterator[bytes]:
        yield json_event({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})

    def piece(self, text: str, message_id: str) -> bytes:
        self._streamed[message_id] = self._streamed.get(message_id, "") + text
        return json_event({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text})

    def ended_message(self, message_id: str) -> Iterator[bytes]:
        yield json_event({"type": "TEXT_MESSAGE_END", "messageId": message_id})

    def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        return self._finished({"type": "success"})

    async def _finished(self, outcome: Mapping[str, object]) -> AsyncIterator[bytes]:
        shown = self._snapshot(await self._session.tail(_MOST))
        if outcome["type"] == "interrupt":
            unstored = self._streamed.keys() - {one["id"] for one in shown}
            shown += [self._message(one, "assistant", self._streamed[one]) for one in self._streamed if one in unstored]
        yield json_event({"type": "MESSAGES_SNAPSHOT", "messages": shown})
        yield json_event({"type": "RUN_FINISHED", **self._names, "outcome": outcome})

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield json_event({"type": "RUN_ERROR", "message": problem.detail, "code": problem.type})

    def _snapshot(self, rows: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._message(one.id, one.role, one.content) for one in rows]

    def _message(self, message_id: str | None, role: str, text: str) -> dict[str, Any]:
        return {"id": message_id, "role": role, "content": self._sent.get(str(message_id), text)}


@router.post("", summary="Answer an AG-UI thread", response_class=Response, responses=_STREAM)
async def run_agent(body: RunAgentBody, app: AppInUse, caller: CallerInUse, request: Request) -> EventStream:
    """Answer the new messages of a thread. Messages with a stored id are not stored again.

    If the run asks a person, the last event has the outcome `interrupt`; a request with `resume` answers the questions.
    """
    user_id = caller.user(body.prop("user_id"))
    # Messages of other roles are ignored.
    spoken = [one for one in body.messages if isinstance(one, dict) and one.get("role") in ("user", "assistant")]
    rows = [{**{name: one.get(name) or "" for name in ("role", "id")}, "content": _content(one)} for one in spoken]
    sent = Sent(messages_of(rows), body.thread_id, user_id, body.prop("workflow") or CHAT)
    resumed = await _resumed(app, body.resume, sent) if body.resume else None
    sent = sent if resumed is not None else await _up_to_question(app, sent)
    turn = await sent.begin(app, stream=True) if resumed is None else join_run(app, resumed)
    return await open_stream(turn, _Events(app, body, user_id), request)


async def _resumed(app: App, answers: Sequence[ResumeEntry], sent: Sent) -> Run | None:
    """Answer or cancel the run that waits for a person, and return it. Return None if no run waits.

    Raises:
        InvalidInput: the run asks other or more questions, or the request has a message that the run does not answer.
    """
    values = {one.interrupt_id: one.payload for one in answers}
    waiting = (await find_thread(app, str(sent.session_id), user_id=sent.user_id)).waiting(values)
    if waiting is None:
        return None
    asked, names = new_messages(sent.messages), {one.message_id for one in waiting.inputs}
    if not names or None in names or (asked and id_of(asked[-1]) not in names):
        raise InvalidInput("`resume` needs a run whose messages have ids, and no new message; send that afterwards.")
    if not values.keys() <= {one.id for one in questions(waiting)}:
        raise InvalidInput("The run does not ask this any more; send its message again to see what it asks now.")
    runs = await app.runs.service()
    if any(one.status == "cancelled" for one in answers):
        await runs.cancel(waiting.run_id, user_id=sent.user_id)
    else:
        await runs.resume(waiting.run_id, values, user_id=sent.user_id, questions=values.keys())
    return waiting


async def _up_to_question(app: App, sent: Sent) -> Sent:
    """Return the request without the texts after its last user message, if that message is stored.

    The last snapshot of a run that asks a person may end with such texts. A repeated request contains them.
    """
    end = max((count for count, one in enumerate(sent.messages, 1) if one.type == "human"), default=0)
    asked = id_of(sent.messages[end - 1]) if 0 < end < len(sent.messages) else None
    known = asked and await app.memory.session(str(sent.session_id), user_id=sent.user_id).find(asked)
    return replace(sent, messages=sent.messages[:end]) if known else sent


def _content(message: Mapping[str, JsonValue]) -> JsonValue:
    """Return the content of a message. For a `binary` part, return only the type of its media."""
    content = message.get("content") or ""
    if not isinstance(content, list):
        return content
    return [
        {"type": media_type(part.get("mimeType"))} if isinstance(part, dict) and part.get("type") == "binary" else part
        for part in content
    ]
