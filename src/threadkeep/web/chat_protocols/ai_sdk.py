"""The UI message stream of Vercel's AI SDK, for `useChat` and libraries on top of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Annotated, Literal
from uuid import NAMESPACE_OID, uuid5

from fastapi import APIRouter, Path, Request, Response
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import BaseModel, Field, JsonValue

from threadkeep.agent.conversion import id_of
from threadkeep.agent.counting import media_mark, media_type
from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.records.json_values import example
from threadkeep.records.runs import Run
from threadkeep.runs.chat import RegenerationRequest
from threadkeep.runs.chat_turns import ChatAnswer, ChatStarted, ChatTurn
from threadkeep.runs.requests import text_of_input
from threadkeep.store.codec import clean_text
from threadkeep.web.api.parameters import AppInUse, EncodedPathRoute, UserId
from threadkeep.web.callers import CallerInUse
from threadkeep.web.chat_protocols.sent import Sent, join_run
from threadkeep.web.langgraph.states import ACTIVE, newest_runs
from threadkeep.web.problems import TURN_FAILURES, Problem, documented
from threadkeep.web.schemas import GivenId
from threadkeep.web.streams import DONE, EventStream, StreamParts, json_event, open_stream, streamed
from threadkeep.workflows.built_in import CHAT

router = APIRouter(prefix="/api/v1/ai-sdk/chat", tags=["ai-sdk"], route_class=EncodedPathRoute)

PROTOCOL_HEADER = "x-vercel-ai-ui-message-stream"
_MOST = 200
_EXAMPLE = (
    'data: {"type": "start", "messageId": "0199…"}\n\ndata: {"type": "text-start", "id": "0199…"}\n\n'
    'data: {"type": "text-delta", "id": "0199…", "delta": "Hello"}\n\ndata: [DONE]\n\n'
)
_STREAM = streamed(_EXAMPLE, "The parts of the answer.")

type ChatId = Annotated[str, Path(description="The chat, which is a session. Encode a slash as %2F.")]


class UIMessage(BaseModel):
    """A message of the AI SDK. Parts other than text and files are ignored."""

    id: str | None = Field(None, max_length=512)
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, JsonValue]], Field(max_length=500)] = []

    def text(self) -> str:
        """Return the text of the message, with marks for images and files (`[image]`)."""
        texts = [part.get("text") for part in self.parts if part.get("type") == "text"]
        files = [{"type": media_type(part.get("mediaType"))} for part in self.parts if part.get("type") == "file"]
        return clean_text("\n".join(text for text in (*texts, media_mark(files)) if isinstance(text, str) and text))

    @classmethod
    def of(cls, message: Message) -> UIMessage:
        """Return the UI message for a stored message."""
        return cls(id=message.id, role=message.role, parts=[{"type": "text", "text": message.content}])


class UIMessages(BaseModel):
    """The messages of a chat."""

    messages: list[UIMessage]


class ChatBody(
    BaseModel,
    json_schema_extra=example(
        id="session-123",
        messages=[{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
        trigger="submit-message",
    ),
):
    """A request from `useChat`: all messages of the chat, or the last one as `message`."""

    id: str = Field(min_length=1, max_length=256, description="The chat: a session.")
    messages: Annotated[list[UIMessage], Field(max_length=2000)] = []
    message: UIMessage | None = None
    trigger: str | None = Field(None, description="`submit-message` or `regenerate-message`.")
    message_id: str | None = Field(
        None, alias="messageId", max_length=512, description="The id of the last message, if its text was edited."
    )
    user_id: GivenId | None = Field(None, description="The user, for keys that may act for several users.")
    workflow: Annotated[str, Field(max_length=200)] | None = Field(None, description="The workflow; by default `chat`.")


class _Parts(StreamParts):
    """An encoder of the events of a turn as a UI message stream. The whole turn is one message of the stream."""

    def started(self, event: ChatStarted) -> Iterator[bytes]:
        self._names = asdict(event)
        self._has_message = False
        yield from ()

    def opened(self, message_id: str) -> Iterator[bytes]:
        yield from self._message(message_id)
        yield json_event({"type": "text-start", "id": message_id})

    def piece(self, text: str, message_id: str) -> bytes:
        return json_event({"type": "text-delta", "id": message_id, "delta": text})

    def ended_message(self, message_id: str) -> Iterator[bytes]:
        yield json_event({"type": "text-end", "id": message_id})

    async def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        for part in self._message(answer.answer_id or answer.run_id):
            yield part
        if answer.replaced:
            # Another process answered first, so send its text instead of the streamed one.
            yield json_event({"type": "data-replaced", "data": {"text": answer.response}})
        metadata = {"answer_id": answer.answer_id, "usage": answer.usage.to_dict()}
        yield json_event({"type": "finish-step"})
        yield json_event({"type": "finish", "messageMetadata": metadata})
        yield DONE

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield json_event({"type": "error", "errorText": problem.detail})
        yield DONE

    def _message(self, message_id: str) -> Iterator[bytes]:
        if not self._has_message:
            self._has_message = True
            yield json_event({"type": "start", "messageId": message_id, "messageMetadata": self._names})
            yield json_event({"type": "start-step"})


@router.post(
    "",
    summary="Answer an AI SDK chat",
    operation_id="ai_sdk_chat",
    response_class=Response,
    responses={200: _STREAM, **TURN_FAILURES},
)
async def chat(body: ChatBody, app: AppInUse, caller: CallerInUse, request: Request) -> EventStream:
    """Stream an answer to new messages or to an edited message, or answer the last question again.

    A user message is edited if it is the last one, `messageId` is its id, and its stored text differs. The new version
    has its own id, and all later messages are superseded.
    """
    user_id = caller.user(body.user_id)
    sent, kinds = [*body.messages, *filter(None, [body.message])], {"user": HumanMessage, "assistant": AIMessage}
    messages: list[BaseMessage] = [kinds[one.role](one.text(), id=one.id) for one in sent if one.role in kinds]
    if body.trigger == "regenerate-message":
        asked = next((one for one in reversed(messages) if one.type == "human"), None)
        if asked is None:
            raise InvalidInput("There is no question to answer again; send it in `messages`.")
        session, _ = await AllSessions(app.memory).find(body.id, user_id=user_id)
        newest, _ = await _versions(session, id_of(asked))
        question = asked.id if newest is None else newest.id
        turn = await app.chat.regenerate(session, RegenerationRequest(message_id=question, workflow=body.workflow))
    else:
        if messages and messages[-1].id == body.message_id:
            messages[-1] = await _edited(app.memory.session(body.id, user_id=user_id), messages[-1])
        turn = await Sent(messages, body.id, user_id, body.workflow or CHAT).begin(app, stream=True)
    return await _streamed(turn, request)


@router.get("/{chat_id}", summary="Read a chat as UI messages", responses=documented(404, 409, 422, 503))
async def read_chat(chat_id: ChatId, app: AppInUse, user_id: UserId = None) -> UIMessages:
    """Return the newest 200 messages of a chat, oldest first, in the format of `useChat`.

    After them come the messages that wait for a running turn.
    """
    session, _ = await AllSessions(app.memory).find(chat_id, user_id=user_id)
    active = await _active(app, chat_id, user_id)  # before the transcript, which gets a message when its turn begins
    sent = [one for run in reversed(active) for one in run.inputs if one.message_id]
    new = [one for one in sent if await session.find(str(one.message_id)) is None]  # finds superseded messages too
    shown = await session.tail(_MOST)
    waiting = [one for one in new if one.message_id not in {message.id for message in shown}]
    queued = [Message(role="user", content=text_of_input(one), id=one.message_id) for one in waiting]
    return UIMessages(messages=[UIMessage.of(message) for message in (*shown, *queued)])


@router.get(
    "/{chat_id}/stream",
    summary="Resume the stream of an answer",
    response_class=Response,
    responses={200: _STREAM, 204: {"description": "No turn of the chat is running."}, **documented(404, 422, 503)},
)
async def resume_chat(chat_id: ChatId, app: AppInUse, request: Request, user_id: UserId = None) -> Response:
    """Stream the chat's newest turn from its beginning, for a reloaded page. If no turn is running, return 204."""
    active = await _active(app, chat_id, user_id)
    return await _streamed(join_run(app, active[0]), request) if active else Response(status_code=204)


async def _active(app: App, chat_id: str, user_id: str | None) -> list[Run]:
    """Return a chat's running and queued runs, newest first, without runs whose newest message has no id."""
    found = await newest_runs(await app.runs.service(), chat_id, user_id=user_id)
    return [run for run in found if run.status in ACTIVE and run.inputs and run.inputs[-1].message_id]


async def _streamed(turn: ChatTurn, request: Request) -> EventStream:
    stream = await open_stream(turn, _Parts(), request)
    stream.headers[PROTOCOL_HEADER] = "v1"
    return stream


async def _edited(session: Session, message: BaseMessage) -> BaseMessage:
    """Store a new version of a message if its text was edited. Return the message with the id of the newest version."""
    newest, previous = await _versions(session, id_of(message))
    if newest is None or newest.role != "user":
        return message
    text = str(message.text)
    is_stored = newest.content == text or (previous is not None and newest.id == _version_id(previous, text))
    if not is_stored:
        newest = await session.edit(str(newest.id), text, new_id=_version_id(newest, text))
    return HumanMessage(text, id=newest.id)


async def _versions(session: Session, message_id: str | None) -> tuple[Message | None, Message | None]:
    """Return the newest version of a message and the version before it; None for a version that does not exist."""
    newest, previous = None, None
    while message_id is not None and (version := await session.find(message_id)) is not None:
        newest, previous, message_id = version, newest, version.superseded_by
    return newest, previous


def _version_id(replaced: Message, text: str) -> str:
    """Return the id for a new version of a message. A repeated request gets the same id."""
    return str(uuid5(NAMESPACE_OID, f"{replaced.id}\n{text}"))
