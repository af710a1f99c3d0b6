"""WeCom customer service: a callback announces messages of a desk, and pages of them are fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.channels.answers import split_text, utf8_length
from threadkeep.channels.contract import (
    Callback,
    DeskNotified,
    Ignored,
    IncomingMessage,
    MessageRecalled,
    Received,
    Sender,
    Update,
    check_name,
    complete,
)
from threadkeep.channels.payloads import id_in, list_in, number_in, object_in, text_in, time_in
from threadkeep.channels.wecom import SUCCESS, WeComCrypto, read_xml, xml_envelope
from threadkeep.errors import InvalidInput
from threadkeep.history.keys import KEY_CANDIDATES, resolve_key
from threadkeep.records import Json

MAX_MESSAGE_BYTES = 2048
MAX_CURSOR_BYTES = 64
PARSER = "wecom_cs_sync"

_CUSTOMER, _SERVICER = 3, 5
_NOTICE = "kf_msg_or_event"


@dataclass(frozen=True, kw_only=True)
class WeComServiceOptions:
    """Options of a corporation's customer service, with all of its desks, or only those in `desks`."""

    name: str
    corp_id: str
    token: str = field(repr=False)
    encoding_aes_key: str = field(repr=False)
    desks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Reject options without a corporation.

        Raises:
            InvalidInput: the sentence names the option.
        """
        check_name(self.name)
        if not self.corp_id:
            raise InvalidInput("A WeCom customer service needs its corp_id; set it.")


@dataclass(frozen=True)
class SyncPage:
    """A page of a desk: its updates by time, and the cursor of the next page.

    Store the updates before the cursor. A page can be empty although there are more.
    """

    updates: tuple[Update, ...]
    next_cursor: str = field(repr=False)
    has_more: bool


class WeComServiceChannel:
    """The desks of a customer service."""

    kind: Literal["wecom_cs"] = "wecom_cs"

    def __init__(self, options: WeComServiceOptions) -> None:
        self.name = options.name
        self.options = options
        self._crypto = WeComCrypto(options.token, options.encoding_aes_key, options.corp_id)

    @property
    def scope(self) -> str:
        """The customer service of the corporation."""
        return f"wecom_cs:{self.options.corp_id}"

    def receive(self, callback: Callback) -> Received:
        """Verify a callback, decrypt it and return the desk that has messages."""
        opened = self._crypto.receive(callback, xml_envelope)
        if isinstance(opened, Received):
            return opened
        fields = read_xml(opened)
        return Received(SUCCESS, (Ignored("malformed") if fields is None else self._notice(fields),))

    def read_page(self, page: Json) -> SyncPage:
        """Parse a successful response of `kf/sync_msg`."""
        fields = object_in(page)
        items = [object_in(item) for item in list_in(fields, "msg_list")]
        items.sort(key=lambda item: number_in(item, "send_time") or 0)
        updates = tuple(self._update(item) for item in items)
        return SyncPage(updates, text_in(fields, "next_cursor"), has_more=fields.get("has_more") in (1, True))

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer at paragraphs, by bytes."""
        return split_text(text, MAX_MESSAGE_BYTES, size=utf8_length)

    def _notice(self, fields: Mapping[str, Json]) -> Update:
        desk = id_in(fields, "OpenKfId")
        if text_in(fields, "MsgType") != "event" or text_in(fields, "Event") != _NOTICE:
            return Ignored("kind")
        if not desk:
            return Ignored("incomplete")
        return DeskNotified(desk, text_in(fields, "Token")) if self._serves(desk) else Ignored("not_for_us")

    def _serves(self, desk: str) -> bool:
        return not self.options.desks or desk in self.options.desks

    def _update(self, item: Mapping[str, Json]) -> Update:
        # The ids of the desk and the customer are inside the event.
        event = object_in(item, "event")
        desk = id_in(item, "open_kfid") or id_in(event, "open_kfid")
        customer = id_in(item, "external_userid") or id_in(event, "external_userid")
        if desk and not self._serves(desk):
            return Ignored("not_for_us")
        results: dict[str, Json] = {PARSER: {"open_kf_id": desk, "external_userid": customer}}
        if text_in(item, "msgtype") == "event":
            return _event(event, resolve_key(KEY_CANDIDATES, {"results": results}).key)
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


def _event(event: Mapping[str, Json], session_id: str | None) -> Update:
    recalled = id_in(event, "recall_msgid")
    if text_in(event, "event_type") not in ("user_recall_msg", "servicer_recall_msg"):
        return Ignored("kind")
    return MessageRecalled(session_id, recalled) if session_id and recalled else Ignored("incomplete")
