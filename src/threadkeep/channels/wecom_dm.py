"""WeCom direct messages from members of a corporation to one of its applications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.channels.contract import (
    Callback,
    Ignored,
    IncomingMessage,
    Received,
    Sender,
    check_name,
    complete,
    id_in,
    text_in,
    time_in,
)
from threadkeep.channels.formatting import split_text, utf8_length
from threadkeep.channels.wecom import SUCCESS, WeComCrypto, read_xml, xml_envelope
from threadkeep.errors import InvalidInput
from threadkeep.records import Json

MAX_MESSAGE_BYTES = 2048
PARSER = "wecom_events_parser"


@dataclass(frozen=True, kw_only=True)
class WeComDirectOptions:
    """Options of an application of a corporation."""

    name: str
    corp_id: str
    agent_id: str
    token: str = field(repr=False)
    encoding_aes_key: str = field(repr=False)

    def __post_init__(self) -> None:
        """Reject options from which no key can be derived.

        Raises:
            InvalidInput: the sentence names the option.
        """
        check_name(self.name)
        if not self.corp_id or not (self.agent_id.isascii() and self.agent_id.isdigit()):
            raise InvalidInput("A WeCom application needs its corp_id and the digits of its agent_id; set both.")


class WeComDirectChannel:
    """An application that members of the corporation write to."""

    kind: Literal["wecom_dm"] = "wecom_dm"

    def __init__(self, options: WeComDirectOptions) -> None:
        self.name = options.name
        self.options = options
        self._crypto = WeComCrypto(options.token, options.encoding_aes_key, options.corp_id)

    @property
    def scope(self) -> str:
        """The application of the corporation."""
        return f"wecom_dm:{self.options.corp_id}:{self.options.agent_id}"

    def receive(self, callback: Callback) -> Received:
        """Verify a callback, decrypt it and parse its message."""
        opened = self._crypto.receive(callback, xml_envelope)
        if isinstance(opened, Received):
            return opened
        fields = read_xml(opened)
        return Received(SUCCESS, (Ignored("malformed") if fields is None else self._message(fields),))

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer at paragraphs, by bytes."""
        return split_text(text, MAX_MESSAGE_BYTES, size=utf8_length)

    def _message(self, fields: Mapping[str, Json]) -> IncomingMessage | Ignored:
        options = self.options
        if text_in(fields, "AgentID") not in ("", options.agent_id):
            return Ignored("not_for_us")
        if text_in(fields, "MsgType") == "event":
            return Ignored("kind")
        if text_in(fields, "ChatId"):
            return Ignored("chat_type")
        user, number = id_in(fields, "FromUserName"), id_in(fields, "MsgId")
        if not user or not number:
            return Ignored("incomplete")
        text = text_in(fields, "Content").strip() if text_in(fields, "MsgType") == "text" else ""
        created = text_in(fields, "CreateTime")
        sender = Sender(f"wecom_dm:{options.corp_id}:{user}")
        found: dict[str, Json] = {
            "corp_id": options.corp_id,
            "agent_id": options.agent_id,
            "user": user,
            "target_user": user,
            "content": text,
            "event_type": text_in(fields, "MsgType"),
            "should_process": bool(text),
        }
        return complete(
            IncomingMessage(
                message_id=f"wecom:{options.corp_id}:{options.agent_id}:{number}",
                text=text,
                results={PARSER: found},
                reply_to={"touser": user},
                sender=sender,
                sent_at=time_in({"at": int(created)}, "at")
                if created.isascii() and created.isdigit() and len(created) < 19
                else None,
                metadata={"channel": self.name, "platform_message_id": number, "sender_id": sender.id},
                private=True,
            )
        )
