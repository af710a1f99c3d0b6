"""OpenAI's chat completions, for clients with a configurable base URL: `{address}/v1`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from langchain_core.utils.uuid import uuid7
from pydantic import BaseModel, Field, JsonValue

from threadkeep.records.json_values import example
from threadkeep.runs.chat_turns import ChatAnswer, ChatStarted, ChatUsage
from threadkeep.runs.views import ESTIMATED
from threadkeep.web.api.chat import answer_of
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import PUBLIC, CallerInUse
from threadkeep.web.chat_protocols.sent import Sent
from threadkeep.web.langgraph.states import messages_of
from threadkeep.web.problems import TURN_FAILURES, Problem, documented
from threadkeep.web.schemas import EMPTY, GivenId, Unsupported, Usage, unsupported
from threadkeep.web.streams import DONE, EventStream, StreamParts, json_event, open_stream, streamed

router = APIRouter(prefix="/v1", tags=["openai"])

SESSION_HEADER = "X-Session-Id"
_TextOnly = Annotated[JsonValue, unsupported("leave it out", [*EMPTY, {"type": "text"}, ["text"]])]
_EXAMPLE = (
    'data: {"id": "0199…", "object": "chat.completion.chunk", '
    '"choices": [{"index": 0, "delta": {"content": "Hello"}}]}\n\n'
    "data: [DONE]\n\n"
)
_ANSWERS: dict[int | str, Any] = {200: streamed(_EXAMPLE, "Successful Response"), **TURN_FAILURES}


class CompletionBody(
    BaseModel, json_schema_extra=example(model="chat", user="user-456", messages=[{"role": "user", "content": "Hello"}])
):
    """A request for a completion. Other fields, such as `temperature`, have no effect."""

    model: str = Field(min_length=1, max_length=200, description="A workflow; `chat` is the built-in one.")
    messages: Annotated[list[JsonValue], Field(min_length=1, max_length=2000)] = Field(
        description="The conversation. Only the user's messages at its end are new."
    )
    stream: bool = Field(False, description="True to stream the answer.")
    stream_options: dict[str, JsonValue] | None = Field(
        None, description="With `include_usage`, the last chunk has the token usage."
    )
    user: GivenId | None = Field(None, description="The user. Without a session, the user's last session continues.")
    n: Annotated[JsonValue, unsupported("a turn has one answer", [None, 1])] = Field(None, description="Must be 1.")
    tools: Unsupported = Field(None, description="Not supported: workflows have their own tools.")
    functions: Unsupported = Field(None, description="Not supported.")
    audio: Unsupported = Field(None, description="Not supported.")
    modalities: _TextOnly = Field(None, description="Not supported.")
    response_format: _TextOnly = Field(None, description="Not supported.")
    logprobs: Unsupported = Field(None, description="Not supported.")


class CompletionMessage(BaseModel, json_schema_serialization_defaults_required=True):
    """The assistant's answer as a message."""

    role: str = "assistant"
    content: str
    refusal: str | None = None


class CompletionChoice(BaseModel, json_schema_serialization_defaults_required=True):
    """The only item in the `choices` of a completion."""

    index: int = 0
    message: CompletionMessage
    finish_reason: str = "stop"
    logprobs: None = None


class CompletionUsage(BaseModel):
    """The tokens of all model calls of the turn that gave the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    estimated: bool = ESTIMATED


class Completion(BaseModel, json_schema_serialization_defaults_required=True):
    """A completion. `id` is the id of the run; the header `X-Session-Id` names the session."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class ModelBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A workflow in the format of an OpenAI model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "threadkeep"


class ModelsBody(BaseModel, json_schema_serialization_defaults_required=True):
    """The list of workflows, each in the format of an OpenAI model."""

    object: str = "list"
    data: list[ModelBody]


class _Chunks(StreamParts):
    """An encoder of the events of a turn as chunks of a streamed completion."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        super().__init__()
        self._model = model
        self._include_usage = include_usage
        self._id = ""

    def started(self, event: ChatStarted) -> Iterator[bytes]:
        self._id = event.run_id
        yield self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str, message_id: str) -> bytes:
        return self._chunk({"content": text})

    async def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        # If another process answered first, its answer replaces the streamed text; send it last.
        replaced = {"threadkeep": {"replaced": True, "response": answer.response}} if answer.replaced else {}
        yield self._chunk({}, finish_reason="stop", **replaced)
        if self._include_usage:
            yield self._event(choices=[], usage=_usage(answer.usage).model_dump())
        yield DONE

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield json_event({"error": {"message": problem.detail, "type": problem.type, "code": problem.status}})

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        return self._event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more)

    def _event(self, **fields: Any) -> bytes:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": int(time.time()), "model": self._model}
        return json_event({**head, **fields})


@router.get("/models", summary="List workflows as models", openapi_extra=PUBLIC)
async def list_models(app: AppInUse) -> ModelsBody:
    """List the workflows, which clients use as models. The built-in workflow comes first."""
    return ModelsBody(data=[ModelBody(id=workflow.name) for workflow in app.workflows.all()])


@router.get(
    "/models/{model}", summary="See a workflow as a model", responses=documented(404, 422), openapi_extra=PUBLIC
)
async def get_model(model: Annotated[str, Path(max_length=200, description="A workflow.")], app: AppInUse) -> ModelBody:
    """Return a workflow in the format of an OpenAI model."""
    return ModelBody(id=app.workflows.get(model).name)


@router.post("/chat/completions", summary="Answer a conversation", response_model=Completion, responses=_ANSWERS)
async def complete(
    body: CompletionBody,
    app: AppInUse,
    caller: CallerInUse,
    *,
    request: Request,
    response: Response,
    session: Annotated[
        str | None, Header(alias=SESSION_HEADER, max_length=1024, description="The session, in UTF-8.")
    ] = None,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="A repeated key gets the stored answer.")
    ] = None,
) -> Completion | EventStream:
    """Answer the new messages of a conversation with the memory of its session.

    The header `X-Session-Id` names the session. Without it, the last session of `user` continues. Without a `user`, a
    new session begins with the request's earlier messages. The response has the same header. A request with a repeated
    `Idempotency-Key` gets the stored answer. System messages are ignored.
    """
    user_id = caller.user(body.user)
    repeat = caller.repeat_id(user_id, idempotency_key)
    new = None if user_id is not None else f"session_{repeat}" if repeat else str(uuid7())
    named = new if session is None else session
    with suppress(UnicodeDecodeError):  # clients send UTF-8, which servers decode as Latin-1
        named = named and named.encode("latin-1").decode()
    known = None if repeat is None else f"msg_{repeat}"
    sent = Sent(
        messages_of([_without_calls(one) for one in body.messages]), named, user_id, body.model, message_id=known
    )
    turn = await sent.begin(app, stream=body.stream)
    if body.stream:
        usage = bool((body.stream_options or {}).get("include_usage"))
        stream = await open_stream(turn, _Chunks(body.model, include_usage=usage), request)
        stream.headers[SESSION_HEADER] = _as_header(turn.session_id)
        return stream
    answer = await answer_of(turn)
    response.headers[SESSION_HEADER] = _as_header(answer.session_id)
    return Completion(
        id=answer.run_id,
        created=int(time.time()),
        model=body.model,
        choices=[CompletionChoice(message=CompletionMessage(content=answer.response))],
        usage=_usage(answer.usage),
    )


def _without_calls(message: JsonValue) -> JsonValue:
    """Return an assistant's message without tool calls; return any other message unchanged.

    Transcripts have no tool calls, and the arguments of a call are not always JSON.
    """
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    return {"content": None, **{name: value for name, value in message.items() if name != "tool_calls"}}


def _as_header(session_id: str) -> str:
    """Return a session id as a header value. Servers encode headers as Latin-1, so the client receives UTF-8."""
    return session_id.encode().decode("latin-1")


def _usage(usage: ChatUsage | Usage) -> CompletionUsage:
    taken, given = usage.input_tokens, usage.output_tokens
    return CompletionUsage(
        prompt_tokens=taken, completion_tokens=given, total_tokens=taken + given, estimated=usage.estimated
    )
