"""Problem documents (RFC 9457) for all errors. They never quote people's messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from threadkeep.boundary import location_of
from threadkeep.errors import (
    BudgetTooSmall,
    ChannelNotFound,
    DatabaseFileReplaced,
    GraphitiClosed,
    GraphitiError,
    Interrupted,
    InvalidInput,
    InvalidKey,
    KnowledgeNotFound,
    MessageNotFound,
    MessageSuperseded,
    ModelCallFailed,
    RecordUnreadable,
    RunBusy,
    RunFailed,
    RunNotFound,
    RunWaits,
    SessionBusy,
    SessionDamaged,
    SessionNotFound,
    StoreError,
    ThreadkeepError,
    WorkflowNotFound,
    WrongUser,
)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of every response against caching, content sniffing and framing."""

_OPENAI = "/v1/"
_WITH_STORED_MESSAGE = frozenset(
    f"urn:threadkeep:{kind}" for kind in ("model-failed", "run-failed", "run-waits", "interrupted")
)

_logger = logging.getLogger("threadkeep.web")

_NOT_AS_IT_IS = "The request is not valid; `errors` lists the faults."
_LISTED = "/docs lists the known ones"
_FLAT = "a JSON object whose lists and objects are at most 100 levels deep"
_WANTED = "a JSON object with Content-Type: application/json"
# Maps paths of LangGraph's or OpenAI's API that this service does not offer to a sentence that names the alternative.
_NOT_OFFERED: Mapping[str, str] = {
    r"/(threads/.+/)?runs/crons(/.+)?": "Crons are not offered; start runs from a scheduler of your own.",
    r"/runs/(batch|cancel)": "Start or cancel each run by itself; calls for several runs are not offered.",
    r"/threads/(count|prune)": "List threads with POST /threads/search, and delete each with DELETE /threads/{id}.",
    r"/threads/.+/runs/[^/]+": "Runs are deleted with their thread, or some days after their end, but not one by one.",
    r"/assistants(/.+)?": "Assistants are workflows: they have no versions, and the service's settings define them.",
    r"/v1/(?!(chat/completions|models)$).+": "Of OpenAI's API, the service offers /v1/chat/completions and /v1/models.",
}
# Maps a status to a pair: the last part of the problem's `type`, and its sentence (None: the text of the error).
_STATUSES: Mapping[int, tuple[str, str | None]] = {
    400: ("unreadable-body", f"The body is not JSON in UTF-8; send {_WANTED}."),
    404: ("not-found", "There is nothing at this address; /docs lists all addresses."),
    405: ("method-not-allowed", "This address does not support this method; see the Allow header for others."),
    413: ("body-too-large", None),
    500: ("internal-error", "The service failed to process this request; its log shows where."),
}
_DOCUMENTED: Mapping[int, str] = {
    400: "The body is not JSON.",
    401: "The request has no valid key or token.",
    403: "The key lacks the scope for this, or it is limited to one user and may not use this address.",
    404: "It does not exist, or it belongs to another user.",
    409: "Another turn of the session is running and the workflow accepts no message meanwhile; or the run waits for a "
    "person; or the message was already superseded; or an item of the session in the graph store is damaged.",
    413: "The body is too large.",
    422: "The request is not valid.",
    429: "The key, or the user, sent too many requests; `Retry-After` says how many seconds to wait.",
    502: "The model did not answer, or the workflow failed; the message is stored.",
    503: "The database is unavailable, locked, full or read-only, or the service is stopping; try again.",
}
# Maps a class of errors to a pair: the status, and the last part of the `type`. Subclasses precede base classes.
_KINDS: Mapping[type[ThreadkeepError], tuple[int, str]] = {
    InvalidKey: (422, "invalid-session-id"),
    InvalidInput: (422, "invalid-request"),
    SessionNotFound: (404, "session-not-found"),
    WrongUser: (404, "session-not-found"),
    WorkflowNotFound: (404, "workflow-not-found"),
    RunNotFound: (404, "run-not-found"),
    ChannelNotFound: (404, "channel-not-found"),
    KnowledgeNotFound: (404, "knowledge-not-found"),
    SessionBusy: (409, "session-busy"),
    MessageNotFound: (404, "message-not-found"),
    MessageSuperseded: (409, "message-superseded"),
    GraphitiError: (502, "graphiti-failed"),
    GraphitiClosed: (409, "graphiti-closed"),
    ModelCallFailed: (502, "model-failed"),
    RunFailed: (502, "run-failed"),
    RunWaits: (409, "run-waits"),
    RunBusy: (409, "run-busy"),
    Interrupted: (503, "interrupted"),
    BudgetTooSmall: (500, "context-too-small"),
    SessionDamaged: (409, "session-damaged"),
    RecordUnreadable: (500, "record-unreadable"),
    StoreError: (503, "database-unavailable"),
}
# Maps the last part of a `type` to the sentence of the problem, which replaces the message of the error.
_SENTENCES: Mapping[str, str] = {
    "session-not-found": "This session does not exist, or it belongs to another user; GET /api/v1/sessions lists "
    "sessions.",
    "workflow-not-found": "This workflow does not exist; `available` lists the existing ones.",
    "run-not-found": "This run does not exist, or it belongs to another user; GET /api/v1/runs lists runs.",
    "channel-not-found": "There is no channel of that name.",
    "knowledge-not-found": "It does not exist, or it belongs to another user.",
    "session-busy": "Another turn of the session is running, and the workflow accepts no message meanwhile; send it "
    "when the turn has ended.",
    "message-not-found": "The session has no such message; read the ids in its history.",
    "message-superseded": "The message was already taken back or replaced; read the session again, and change an "
    "active message.",
    "context-too-small": "The message and the system prompt together exceed the context; the operator must raise "
    "THREADKEEP_HISTORY_MAX_TOKENS or shorten THREADKEEP_SYSTEM_PROMPT.",
    "session-damaged": "An item of this session in the graph store cannot be read; other sessions are not affected. "
    "Repair the item, or DELETE the session.",
    "database-unavailable": "The database is unavailable, locked, full or read-only; try again. See GET /readyz.",
}


class FieldProblem(BaseModel):
    """A single problem with a request."""

    detail: str = Field(description="The fault, and the expected value.")
    pointer: str | None = Field(None, description="The location in the body, as a JSON pointer.")
    parameter: str | None = Field(None, description="The parameter of the path or the query.")

    @property
    def sentence(self) -> str:
        """The location and the fault in one sentence."""
        return f"{self.pointer or self.parameter or 'body'}: {self.detail.removesuffix('.')}."


class Problem(
    BaseModel,
    json_schema_extra={
        "example": {
            "type": "urn:threadkeep:run-not-found",
            "title": "Run not found",
            "status": 404,
            "detail": "This run does not exist, or it belongs to another user; GET /api/v1/runs lists runs.",
        }
    },
):
    """A problem document (RFC 9457). Members beyond the first four depend on the type."""

    type: str = Field(description="The kind of problem; stable, for programs.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The problem, and its cure.")
    reason: str | None = Field(None, description="The reason why a session id or an item is not valid.")
    item: str | None = Field(None, description="The item of a session in the graph store that cannot be read.")
    errors: list[FieldProblem] | None = Field(None, description="All faults of the request.")
    available: list[str] | None = Field(None, description="The existing workflows.")
    session_id: str | None = Field(None, description="The session of the turn that failed, or is running.")
    run_id: str | None = Field(None, description="The run of the turn that failed, or is running.")
    message_id: str | None = Field(None, description="The id with which the message can be sent again.")
    ready: bool | None = Field(None, description="True if the service can work.")
    backend: str | None = Field(None, description="The database engine.")
    schema_version: int | None = Field(None, description="The schema that the service works with.")
    pending_writes: int | None = Field(None, description="Turns that wait to be written.")
    unreadable_writes: int | None = Field(None, description="Lines of pending files that cannot be read.")


class ProblemRaised(Exception):
    """An HTTP error that carries its own problem document."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.title)
        self.problem = problem
        self.headers = headers


def make_problem(status: int, kind: str, detail: str) -> Problem:
    """Return a problem document whose `type` ends with `kind`, such as `session-not-found`."""
    title = kind.replace("-", " ").capitalize().replace("Api ", "API ")
    return Problem(type=f"urn:threadkeep:{kind}", title=title, status=status, detail=detail)


def problem_of(error: Exception, request: Request | None = None) -> Problem:
    """Return the problem document of any error; an unexpected error reveals no details.

    If `request` is given, the problem for an unknown field names the known fields. If the request's path belongs to
    LangGraph's or OpenAI's API but is not offered here, the problem names the alternative.
    """
    if isinstance(error, ProblemRaised):
        return error.problem
    if isinstance(error, RequestValidationError):
        known = _LISTED if request is None else _known_fields(request)
        faults = [_field_problem(each, known) for each in error.errors()]
        sentence = faults[0].sentence if len(faults) == 1 else _NOT_AS_IT_IS
        return make_problem(422, "invalid-request", sentence).model_copy(update={"errors": faults})
    if isinstance(error, HTTPException):
        problem = _http_problem(error)
        if request is not None and problem.status in (404, 405):
            paths = (each for each in _NOT_OFFERED if re.fullmatch(each, request.url.path))
            problem.detail = _NOT_OFFERED.get(next(paths, ""), problem.detail)
        return problem
    for kind_of_error, (status, kind) in _KINDS.items():
        if isinstance(error, kind_of_error):
            sentence = error.CURE if isinstance(error, DatabaseFileReplaced) else _SENTENCES.get(kind, str(error))
            return make_problem(status, kind, sentence).model_copy(update=_members(error))
    # If the client disconnected early, use 400, because a 500 would be logged as an error.
    return _http_problem(HTTPException(400 if isinstance(error, ClientDisconnect) else 500))


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None, *, path: str = "") -> JSONResponse:
    """Return the response for a problem.

    Under `/v1/`, it also has the `error` object that OpenAI's clients expect. These clients repeat a failed request
    without a message id. If the message is already stored, a header forbids this, so that it is not stored twice.
    """
    more = {**SAFE_HEADERS, **(headers or {})}
    if problem.status == 503:
        more["Retry-After"] = str(RETRY_SECONDS)
    body = problem.model_dump(exclude_none=True)
    if path.startswith(_OPENAI):
        message = " ".join(error.sentence for error in problem.errors or ()) or problem.detail
        if problem.available:  # add it to the message, because the clients show nothing else
            message = f"{message.removesuffix('.')}: {', '.join(problem.available)}."
        if problem.type in _WITH_STORED_MESSAGE:
            more["X-Should-Retry"] = "false"
        body["error"] = {"message": message, "type": problem.type, "param": None, "code": problem.type}
    return JSONResponse(body, status_code=problem.status, headers=more, media_type=MEDIA_TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an operation's error statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _DOCUMENTED[status], "content": content} for status in statuses}


TURN_FAILURES = documented(400, 404, 409, 413, 422, 502, 503)
"""The OpenAPI description of the errors of a request that starts a turn."""


def answer_errors_with_problems(service: FastAPI) -> None:
    """Respond to every error of the service with its problem document."""
    for kind in (ProblemRaised, RequestValidationError, HTTPException, ClientDisconnect, ThreadkeepError, Exception):
        service.add_exception_handler(kind, respond)


def log_failure(what: str, error: Exception) -> None:
    """Log an error by its class and location, without its message, which may quote people."""
    _logger.error("%s: %s at %s", what, type(error).__name__, location_of(error))


async def respond(request: Request, error: Exception) -> JSONResponse:
    """Respond to an error with its problem document."""
    problem = problem_of(error, request)
    if problem.status == 500:
        log_failure("a request failed", error)
    return problem_response(problem, headers_of(request, error), path=request.url.path)


def headers_of(request: Request, error: Exception) -> Mapping[str, str]:
    """Return the headers of the response to an error, such as `Allow` with 405."""
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        matching = [route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
        # Mounted folders match every method, but accept only GET and HEAD.
        methods = {method for route in matching for method in route.methods} or {"GET"}
        return {"Allow": ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))}
    return (error.headers or {}) if isinstance(error, HTTPException | ProblemRaised) else {}


def _members(error: ThreadkeepError) -> dict[str, object]:
    """Return the extra members of an error's problem document, such as `session_id`."""
    if isinstance(error, InvalidKey):
        return {"reason": error.reason}
    if isinstance(error, SessionBusy):
        return {"session_id": error.session_id, "run_id": error.run_id}
    if isinstance(error, SessionDamaged):
        return {"session_id": error.session_id, "item": error.item, "reason": error.problem}
    return {"available": list(error.available)} if isinstance(error, WorkflowNotFound) else {}


def _http_problem(error: HTTPException) -> Problem:
    if isinstance(error.__cause__, RecursionError):
        return make_problem(400, "unreadable-body", f"The body is nested too deeply; send {_FLAT}.")
    if type(error.__cause__) is ValueError:  # raised by `int` for too many digits
        fault = "The body has an integer of more than 4,300 digits; send a smaller number."
        return make_problem(400, "unreadable-body", fault)
    phrase = HTTPStatus(error.status_code).phrase
    kind, sentence = _STATUSES.get(error.status_code, (phrase.lower().replace(" ", "-"), f"{phrase}."))
    return make_problem(error.status_code, kind, sentence or error.detail)


def _known_fields(request: Request) -> str:
    """Return the fields that the body of a request may have, as the end of a sentence."""
    body = getattr(request.scope.get("route"), "body_field", None)
    accepted = body.field_info.annotation if body is not None else None
    for model in (accepted, *get_args(accepted)):
        if isinstance(model, type) and issubclass(model, BaseModel):
            return f"the known ones are {', '.join(model.model_fields)}"
    return _LISTED


def _field_problem(error: Mapping[str, Any], known: str) -> FieldProblem:
    """Convert a pydantic error to a problem, without the values of the input and the names of unknown fields."""
    where, *path = error["loc"]
    kind = str(error["type"])
    if kind == "extra_forbidden":
        listed = known if where == "body" and len(path) == 1 else _LISTED
        return FieldProblem(detail=f"The request has an unknown field; {listed}.", pointer="")
    if kind == "json_invalid":
        return FieldProblem(detail="This is not JSON.", pointer="")
    if where == "body" and not path:
        why = {"missing": "The body is missing", "model_attributes_type": "The body is not a JSON object"}.get(kind)
        if why is not None:
            return FieldProblem(detail=f"{why}; send {_WANTED}.", pointer="")
    sentence = str(error["msg"]).removeprefix("Value error, ")
    if where == "body":
        return FieldProblem(detail=sentence, pointer="".join(f"/{step}" for step in path))
    return FieldProblem(detail=sentence, parameter=str(path[0]) if path else None)
