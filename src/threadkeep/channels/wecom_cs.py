"""WeCom customer service: a callback announces messages of a desk (a service account), which are then fetched."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from threadkeep.channels.bots import Bot, Receiver
from threadkeep.channels.contract import (
    AnswerFailed,
    DeskNotified,
    Ignored,
    IncomingMessage,
    MessageRecalled,
    Sender,
    Update,
    complete,
    id_in,
    list_in,
    message_in,
    number_in,
    object_in,
    read_json,
    text_in,
    time_in,
)
from threadkeep.channels.formatting import split_text, utf8_length
from threadkeep.channels.intake import Intake
from threadkeep.channels.wecom import MAX_MESSAGE_BYTES, WeComOptions, WeComXmlChannel
from threadkeep.channels.wecom_client import CUT, WeComServiceClient
from threadkeep.history.keys import KEY_CANDIDATES, resolve_key
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.store.codec import time_of

PARSER = "wecom_cs_sync"

_CUSTOMER, _SERVICER = 3, 5
_NOTICE = "kf_msg_or_event"
_TOKEN_SECONDS = 540
_UNKNOWN_AGE = timedelta(minutes=10)
_START_TIME = timedelta(hours=1)
"""The time after a start for which known desks are fetched. It is limited, because a deleted desk always fails."""
_NOTICE_PREFIX = "notice:"
_CURSOR_PREFIX = "cursor:"
_FAILURES: Mapping[int | None, str] = {4: "ReplyTimeOver", 5: "SessionState", 6: "ReplyLimit", 10: "Forbidden"}
"""Errors by WeCom's `fail_type`: too late (48 hours), session closed, more than five messages, rejected."""


@dataclass(frozen=True, kw_only=True)
class WeComServiceOptions(WeComOptions):
    """Options of a corporation's customer service. If `desks` is not empty, the bot serves only these desks."""

    desks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SyncPage:
    """A page of a desk's messages, ordered by time, and the cursor of the next page.

    Store the updates first and then the cursor, so that a crash loses no update. A page before the last can be empty.
    """

    updates: tuple[Update, ...]
    next_cursor: str = field(repr=False)
    has_more: bool


class WeComServiceChannel(WeComXmlChannel[WeComServiceOptions]):
    """The desks (accounts) of a WeCom customer service. A callback only names the desk that has new messages."""

    kind: Literal["wecom_cs"] = "wecom_cs"

    @property
    def scope(self) -> str:
        """The id of the corporation."""
        return f"wecom_cs:{self.options.corp_id}"

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer at paragraphs into parts that have room for the mark `CUT`."""
        return split_text(text, MAX_MESSAGE_BYTES - utf8_length(CUT), size=utf8_length)

    def read_page(self, page: Json) -> SyncPage:
        """Parse a successful response of `kf/sync_msg`."""
        fields = object_in(page)
        items = [object_in(item) for item in list_in(fields, "msg_list")]
        items.sort(key=lambda item: number_in(item, "send_time") or 0)
        updates = tuple(self._update(item) for item in items)
        return SyncPage(updates, text_in(fields, "next_cursor"), has_more=fields.get("has_more") in (1, True))

    def update_in(self, fields: Mapping[str, Json]) -> Update:
        """Return the desk that a callback names."""
        desk = id_in(fields, "OpenKfId")
        if text_in(fields, "MsgType") != "event" or text_in(fields, "Event") != _NOTICE:
            return Ignored("kind")
        if not desk:
            return Ignored("incomplete")
        return DeskNotified(desk, text_in(fields, "Token")) if self.serves(desk) else Ignored("not_for_us")

    def serves(self, desk: str) -> bool:
        """Return True if the option `desks` is empty or contains this desk."""
        return not self.options.desks or desk in self.options.desks

    def _update(self, item: Mapping[str, Json]) -> Update:
        # In an event, the ids of the desk and the customer are inside the `event` object.
        event = object_in(item, "event")
        desk = id_in(item, "open_kfid") or id_in(event, "open_kfid")
        customer = id_in(item, "external_userid") or id_in(event, "external_userid")
        if desk and not self.serves(desk):
            return Ignored("not_for_us")
        results: dict[str, Json] = {PARSER: {"open_kf_id": desk, "external_userid": customer}}
        if text_in(item, "msgtype") == "event":
            return _event(event, resolve_key(KEY_CANDIDATES, {"results": results}).key, customer)
        origin = number_in(item, "origin")
        if origin not in (_CUSTOMER, _SERVICER):
            return Ignored("kind")
        return self._message(
            item, results, reply_to={"open_kfid": desk, "touser": customer}, servicer=origin == _SERVICER
        )

    def _message(
        self, item: Mapping[str, Json], results: Mapping[str, Json], *, reply_to: Mapping[str, Json], servicer: bool
    ) -> IncomingMessage | Ignored:
        number = id_in(item, "msgid")
        if not number:
            return Ignored("incomplete")
        customer = Sender(f"wecom_cs:{reply_to['touser']}")
        said_by: dict[str, Json] = {"sender_id": customer.id}
        if servicer:
            said_by = {"servicer_id": id_in(item, "servicer_userid")}
        return complete(
            IncomingMessage(
                message_id=number,
                text=text_in(object_in(item, "text"), "content").strip() if text_in(item, "msgtype") == "text" else "",
                results=results,
                reply_to=reply_to,
                sender=customer,
                sent_at=time_in(item, "send_time"),
                metadata={"channel": self.name, "platform_message_id": number, **said_by},
                private=True,
                role="assistant" if servicer else "user",
                wants_answer=not servicer,
            )
        )


class DeskFetching(Receiver):
    """A worker that fetches the messages of one bot's desks.

    A callback's notice of new messages is stored before the callback is answered, and deleted after they are fetched.
    The cursor is stored after the messages of its page. A message that arrives twice is processed once.
    """

    _channel: WeComServiceChannel

    def __init__(
        self, memory: Memory, intake: Intake, bot: Bot, channel: WeComServiceChannel, client: WeComServiceClient
    ) -> None:
        super().__init__(memory, channel)
        self._intake = intake
        self._bot = bot
        self._client = client
        self._noticed = asyncio.Event()
        self._has_begun = False

    async def notice(self, notified: DeskNotified) -> None:
        """Store that a desk has new messages, and wake the fetching task."""
        value = json.dumps({"token": notified.token, "at": self._memory.clock().isoformat()})
        await self._state.keep(self._channel.scope, f"{_NOTICE_PREFIX}{notified.open_kf_id}", value)
        self._noticed.set()

    async def _notice_known_desks(self) -> None:
        """Store a notice for each known desk, because WeCom's own notices are lost while no process runs."""
        scope, now = self._channel.scope, self._memory.clock()
        value = json.dumps({"token": "", "at": now.isoformat()})
        for name in await self._state.values_of(scope, _CURSOR_PREFIX):
            if self._channel.serves(desk := name.removeprefix(_CURSOR_PREFIX)):
                await self._state.keep_first(scope, f"{_NOTICE_PREFIX}{desk}", value, expires_at=now + _START_TIME)

    async def keep_fetching(self) -> None:
        """Fetch the messages of desks that have a stored notice, until cancelled; after a failure, pause and retry."""
        await self._keep_trying(self._fetch_all)

    async def _fetch_all(self) -> str | None:
        if not self._has_begun:
            await self._notice_known_desks()
            self._has_begun = True
        error = None
        for name, value in (await self._state.values_of(self._channel.scope, _NOTICE_PREFIX)).items():
            # Skip desks that another bot of the corporation serves: it would never see messages that are fetched here.
            if self._channel.serves(desk := name.removeprefix(_NOTICE_PREFIX)) and not self._is_demanded:
                error = await self.fetch(desk, value) or error
        if error is None:
            await self._sleep(self.look_seconds)
        return error

    async def _sleep(self, seconds: float) -> None:
        if self._is_demanded:  # a new notice does not end the pause
            return await super()._sleep(seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._noticed.wait(), seconds)
        self._noticed.clear()

    async def fetch(self, desk: str, notice: str) -> str | None:
        """Fetch and store a desk's new messages, unless another process does; return the error's name, if any."""
        duty = f"fetch:{self._channel.scope}:{desk}"
        if not await self._claim(duty):
            return None
        try:
            error = await self._fetch_pages(desk, notice, duty)
            if error is None:
                # If a newer notice was stored, it has another value and is not deleted.
                await self._state.forget(self._channel.scope, f"{_NOTICE_PREFIX}{desk}", notice)
            return error
        finally:
            if not self._is_demanded:
                await asyncio.shield(self._release(duty))

    async def _fetch_pages(self, desk: str, notice: str, duty: str) -> str | None:
        scope, token = self._channel.scope, self._token_in(notice)
        position, beginning = f"{_CURSOR_PREFIX}{desk}", f"first_fetch:{desk}"
        cursor = await self._state.value(scope, position)
        if cursor is None:
            await self._state.keep_first(scope, beginning, self._memory.clock().isoformat())
        # A desk's first fetch may be interrupted and continued, so its start time is stored until all pages are read.
        began = await self._state.value(scope, beginning)
        while True:
            answer = await self._client.page(desk, cursor=cursor, token=token)
            if answer.error:
                return await self._refused(duty, answer)
            page = self._channel.read_page(dict(answer.fields))
            fresh = page.updates if began is None else _with_old_unanswered(page.updates, time_of(began))
            await self._intake.take_page(self._bot, fresh)
            if page.next_cursor and page.next_cursor != cursor:
                cursor = page.next_cursor
                if not await self._state.keep_for_duty(scope, position, cursor, duty=duty, owner=self._owner):
                    return "LostDuty"
            elif page.has_more:
                return "NoCursor"
            if not page.has_more:
                if began is not None:
                    await self._state.forget(scope, beginning, began)
                return None
            if not await self._claim(duty):
                return "LostDuty"

    def _token_in(self, notice: str) -> str | None:
        """Return the token of a notice, or None if it has expired. WeCom allows fewer calls without a token."""
        fields = object_in(read_json(notice))
        at = time_of(text_in(fields, "at"))
        is_valid = self._memory.clock() - at < timedelta(seconds=_TOKEN_SECONDS)
        return text_in(fields, "token") or None if is_valid else None


def _event(event: Mapping[str, Json], session_id: str | None, customer: str) -> Update:
    recalled, failed = id_in(event, "recall_msgid"), id_in(event, "fail_msgid")
    match text_in(event, "event_type"):
        case "user_recall_msg" | "servicer_recall_msg" if session_id and recalled:
            return MessageRecalled(session_id, recalled, f"wecom_cs:{customer}")
        case "msg_send_fail" if session_id and failed:
            error = _FAILURES.get(number_in(event, "fail_type"), "NotDelivered")
            address = {"open_kfid": id_in(event, "open_kfid"), "touser": id_in(event, "external_userid")}
            return AnswerFailed(session_id, failed, error, address)
        case "user_recall_msg" | "servicer_recall_msg" | "msg_send_fail":
            return Ignored("incomplete")
        case _:
            return Ignored("kind")


def _with_old_unanswered(updates: Iterable[Update], began: datetime) -> list[Update]:
    """Mark messages that were old when a desk's first fetch `began`, so that they are stored but not answered."""
    since = began - _UNKNOWN_AGE
    found: list[Update] = []
    for update in updates:
        message = message_in(update)
        if message is None or message.sent_at is None or message.sent_at >= since:
            found.append(update)
        elif message is update:
            found.append(replace(message, wants_answer=False))
    return found
