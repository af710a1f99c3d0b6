"""A ChatKit server that answers messages with runs of workflows. It imports the OpenAI Agents SDK."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from chatkit.errors import CustomStreamError
from chatkit.server import ChatKitServer, NonStreamingResult, StreamingResult
from chatkit.store import AttachmentStore, NotFoundError, StoreItemType
from chatkit.types import (
    AssistantMessageContent,
    AssistantMessageContentPartAdded,
    AssistantMessageContentPartDone,
    AssistantMessageContentPartTextDelta,
    AssistantMessageItem,
    ChatKitReq,
    FeedbackKind,
    StreamOptions,
    ThreadItem,
    ThreadItemAddedEvent,
    ThreadItemDoneEvent,
    ThreadItemRemovedEvent,
    ThreadItemUpdatedEvent,
    ThreadMetadata,
    ThreadsAddUserMessageReq,
    ThreadsCreateReq,
    ThreadsCustomActionReq,
    ThreadsRetryAfterItemReq,
    ThreadsSyncCustomActionReq,
    ThreadStreamEvent,
    ThreadsUpdateReq,
    UserMessageItem,
)
from fastapi import Request, Response
from pydantic import TypeAdapter, ValidationError

from threadkeep.adapters.chatkit import ThreadkeepStore, user_text
from threadkeep.app import App
from threadkeep.errors import ThreadkeepError
from threadkeep.history.session import Session
from threadkeep.runs.chat import RegenerationRequest
from threadkeep.runs.chat_turns import ChatAnswer, ChatEvent, ChatToken, ChatTurn
from threadkeep.runs.requests import RunRequest
from threadkeep.web.problems import ProblemRaised, log_failure, make_problem, problem_of
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS, MAX_TITLE_CHARACTERS
from threadkeep.web.streams import EventStream, begin_with, with_keepalives
from threadkeep.workflows.built_in import CHAT

_NOT_FOUND = "The thread, item or attachment does not exist, or it belongs to another user."
_INVALID = "This is not a ChatKit request; send what ChatKit's page sends, and name attachments by their ids only."
_ACTIONS = "The service offers no actions of widgets; for these, write your own ChatKit server with `ThreadkeepStore`."
_REQUEST: TypeAdapter[ChatKitReq] = TypeAdapter(ChatKitReq)


def _log_shortly(record: logging.LogRecord) -> bool:
    """Log errors by class and location only: tracebacks may quote texts. Skip errors about unknown threads or items."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and not isinstance(error, NotFoundError):
        log_failure("a request of ChatKit failed", error)
    return error is None


logging.getLogger("chatkit").addFilter(_log_shortly)


@dataclass(frozen=True)
class ChatKitRequest:
    """The context of a request. `repeat_id` comes from its idempotency key; `asks_again` requests a new answer."""

    http: Request
    user_id: str | None = None
    repeat_id: str | None = None
    asks_again: bool = False


class RunStore(ThreadkeepStore[ChatKitRequest]):
    """A ChatKit store that does not store answers, because each run stores its answer when it ends."""

    def __init__(self, app: App) -> None:
        super().__init__(app.memory, user_id=lambda request: request.user_id)

    def generate_thread_id(self, context: ChatKitRequest) -> str:
        """Return an id derived from the idempotency key or, without a key, a new id."""
        return f"thr_{context.repeat_id}" if context.repeat_id else super().generate_thread_id(context)

    def generate_item_id(self, item_type: StoreItemType, thread: ThreadMetadata, context: ChatKitRequest) -> str:
        """Return a new id. The id of a user message is derived from the idempotency key, if there is one."""
        if context.repeat_id and item_type == "message":
            return f"msg_{context.repeat_id}"
        return super().generate_item_id(item_type, thread, context)

    async def add_thread_item(self, thread_id: str, item: ThreadItem, context: ChatKitRequest) -> None:
        """Store an item. Answers are skipped, because their runs store them."""
        if not isinstance(item, AssistantMessageItem):
            await super().add_thread_item(thread_id, item, context)


class StoredElsewhere(AttachmentStore[ChatKitRequest]):
    """An attachment store without files, because the application stores the files of attachments itself."""

    async def delete_attachment(self, attachment_id: str, context: ChatKitRequest) -> None:
        """Do nothing, because this store has no files."""


class ChatServer(ChatKitServer[ChatKitRequest]):
    """A ChatKit server whose answers come from an `App`. A thread's metadata may name the workflow that answers."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = RunStore(app)
        super().__init__(self._store, StoredElsewhere())

    async def process(
        self, request: str | bytes | bytearray, context: ChatKitRequest
    ) -> StreamingResult | NonStreamingResult:
        """Process a request after checking that its attachments and items exist for this user.

        Raises:
            NotFoundError: an attachment or an item that the request names does not exist; nothing was stored.
            ProblemRaised: a message or a title is too long, or the request is an action of a widget.
        """
        match _REQUEST.validate_json(request):
            case ThreadsCreateReq() | ThreadsAddUserMessageReq() as message:
                text = "\n".join(part.text for part in message.params.input.content)
                _check_length("message", text, MAX_MESSAGE_CHARACTERS)
                for attachment_id in message.params.input.attachments:
                    await self._store.load_attachment(attachment_id, context)
            case ThreadsUpdateReq(params=named):
                _check_length("title", named.title, MAX_TITLE_CHARACTERS)
            case ThreadsRetryAfterItemReq(params=after):
                await self._store.load_item(after.thread_id, after.item_id, context)
                context = replace(context, asks_again=True)
            case ThreadsCustomActionReq(params=acted) | ThreadsSyncCustomActionReq(params=acted):
                await self._store.load_thread(acted.thread_id, context)
                raise ProblemRaised(make_problem(422, "invalid-request", _ACTIONS))
        return await super().process(request, context)

    def get_stream_options(self, thread: ThreadMetadata, context: ChatKitRequest) -> StreamOptions:
        """Return options that forbid cancelling, because a run continues without a reader."""
        return StreamOptions(allow_cancel=False)

    async def handle_stream_cancelled(
        self, thread: ThreadMetadata, pending_items: list[ThreadItem], context: ChatKitRequest
    ) -> None:
        """Store nothing, because the run stores the whole answer."""

    async def respond(
        self, thread: ThreadMetadata, input_user_message: UserMessageItem | None, context: ChatKitRequest
    ) -> AsyncIterator[ThreadStreamEvent]:
        """Stream the answer to a person's message; yield nothing if there is no message."""
        if input_user_message is None:
            return
        try:
            turn = await self._turn(thread, input_user_message, context)
            events = with_keepalives(turn.follow(), context.http)
            async for event in _converted(events, turn, self._store.session(thread.id, context)):
                yield event
        except (ProblemRaised, ThreadkeepError) as error:
            raise CustomStreamError(problem_of(error).detail, allow_retry=isinstance(error, ThreadkeepError)) from error
        thread.title = (await self._store.session(thread.id, context).info()).title

    async def add_feedback(
        self, thread_id: str, item_ids: list[str], feedback: FeedbackKind, context: ChatKitRequest
    ) -> None:
        """Store a person's feedback about items of a thread."""
        await self._store.add_feedback(thread_id, item_ids, feedback, context)

    async def _turn(self, thread: ThreadMetadata, message: UserMessageItem, context: ChatKitRequest) -> ChatTurn:
        app, named = self._app, thread.metadata.get("workflow")
        workflow = named if isinstance(named, str) else CHAT
        if context.asks_again:
            session = self._store.session(thread.id, context)
            asked = RegenerationRequest(message_id=message.id, workflow=workflow)
            request = await app.chat.supersede_answers(session, asked)
        else:
            request = RunRequest(
                text=user_text(message),
                session_id=thread.id,
                user_id=context.user_id,
                message_id=message.id,
                workflow=workflow,
            )
        quoted = {"quoted_text": message.quoted_text} if message.quoted_text else {}
        return app.chat.begin(replace(request, inputs=quoted))


def _check_length(kind: str, text: str, most: int) -> None:
    if len(text) > most:
        sentence = f"A {kind} has at most {most:,} characters; send a shorter one."
        raise ProblemRaised(make_problem(422, "invalid-request", sentence))


async def _converted(
    events: AsyncIterator[ChatEvent | None], turn: ChatTurn, session: Session
) -> AsyncIterator[ThreadStreamEvent]:
    """Yield ChatKit's events for a turn. At the end, remove streamed items whose messages were not stored."""
    items, thread_id = set[str](), session.session_id
    async for event in events:
        if isinstance(event, ChatToken) and event.text:
            item = _answer_item(event.message_id or turn.run_id, thread_id)
            if item.id not in items:
                items.add(item.id)
                for begun in _begun(item):
                    yield begun
            update = AssistantMessageContentPartTextDelta(content_index=0, delta=event.text)
            yield ThreadItemUpdatedEvent(item_id=item.id, update=update)
        elif isinstance(event, ChatAnswer):
            stored = _answer_item(event.answer_id or event.run_id, thread_id)
            for item_id in sorted(items - {stored.id}):
                # Complete a streamed item, or remove it if its message is not stored.
                message = await session.find(item_id)
                if message is None or message.superseded_at is not None:
                    yield ThreadItemRemovedEvent(item_id=item_id)
                    continue
                for ended in _ended(_answer_item(item_id, thread_id), message.content):
                    yield ended
            for last in (*(_begun(stored) if stored.id not in items else ()), *_ended(stored, event.response)):
                yield last


def _answer_item(message_id: str, thread_id: str) -> AssistantMessageItem:
    return AssistantMessageItem(id=message_id, thread_id=thread_id, created_at=datetime.now(UTC), content=[])


def _begun(item: AssistantMessageItem) -> Iterator[ThreadStreamEvent]:
    yield ThreadItemAddedEvent(item=item)
    added = AssistantMessageContentPartAdded(content_index=0, content=AssistantMessageContent(text=""))
    yield ThreadItemUpdatedEvent(item_id=item.id, update=added)


def _ended(item: AssistantMessageItem, text: str) -> Iterator[ThreadStreamEvent]:
    content = AssistantMessageContent(text=text)
    done = AssistantMessageContentPartDone(content_index=0, content=content)
    yield ThreadItemUpdatedEvent(item_id=item.id, update=done)
    yield ThreadItemDoneEvent(item=item.model_copy(update={"content": [content]}))


async def serve(app: App, body: bytes, context: ChatKitRequest) -> Response:
    """Return the response to a request from ChatKit's page.

    Raises:
        ProblemRaised: the body is not a ChatKit request, or its thread, item or attachment is not found.
    """
    try:
        result = await ChatServer(app).process(body, context)
        if isinstance(result, StreamingResult):
            pieces = (piece async for piece in result)
            return EventStream(begin_with(await anext(pieces, b""), pieces))
    except NotFoundError:
        raise ProblemRaised(make_problem(404, "thread-not-found", _NOT_FOUND)) from None
    except (ValidationError, ValueError, RuntimeError, NotImplementedError):
        # Raise from None, because the original errors quote the request.
        raise ProblemRaised(make_problem(422, "invalid-request", _INVALID)) from None
    return Response(result.json, media_type="application/json")
