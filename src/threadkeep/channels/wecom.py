"""WeCom callbacks: verification, encryption, and members' messages to an application."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from xml.etree.ElementTree import XML, ParseError, TreeBuilder, XMLParser

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from threadkeep.channels.contract import (
    Callback,
    CallbackResponse,
    Ignored,
    IncomingMessage,
    Received,
    Sender,
    Update,
    check_name,
    complete,
    id_in,
    text_in,
    time_in,
)
from threadkeep.channels.formatting import split_text, utf8_length
from threadkeep.errors import CallbackRefused, InvalidInput
from threadkeep.records import Json

MAX_AGE_SECONDS = 300
"""Allowed difference in seconds between the clock of a callback and the local clock."""

SUCCESS = CallbackResponse(b"success")

_PADDING_BITS = 32 * 8
_SALT_BYTES = 16
_ENCRYPTED = re.compile(rb"<Encrypt>\s*+(?:<!\[CDATA\[)?([A-Za-z0-9+/=]++)")


class WeComCrypto:
    """The keys of a callback URL, for verifying, decrypting and encrypting texts.

    `receive_id` is the corporation's id for applications and customer service, and empty for a company's own AI bot. If
    it is None, any receiver is accepted.
    """

    def __init__(self, token: str, encoding_aes_key: str, receive_id: str | None) -> None:
        if not token:
            raise InvalidInput("The token of a WeCom callback is missing; copy it from the page of the application.")
        try:
            key = base64.b64decode(encoding_aes_key + "=", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(encoding_aes_key) != 43 or len(key) != 32:
            raise InvalidInput("A WeCom EncodingAESKey has 43 letters and digits; copy it from the application's page.")
        self._token = token
        self._receive_id = receive_id
        self._cipher = Cipher(algorithms.AES(key), modes.CBC(key[:16]))

    def sign(self, timestamp: str, nonce: str, encrypted: str) -> str:
        """Return the signature of an encrypted text."""
        parts = sorted(part.encode("utf-8", "surrogatepass") for part in (self._token, timestamp, nonce, encrypted))
        return hashlib.sha1(b"".join(parts)).hexdigest()  # noqa: S324 - the platform's algorithm

    def open(self, callback: Callback, encrypted: str) -> str:
        """Verify a callback's signature and time, decrypt its text, and check the receiver.

        Raises:
            CallbackRefused: a check failed, or the text cannot be decrypted.
        """
        given = callback.parameter("msg_signature")
        timestamp = callback.parameter("timestamp")
        if not (given and timestamp and encrypted):
            raise CallbackRefused("signature_missing")
        expected = self.sign(timestamp, callback.parameter("nonce"), encrypted)
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode()):
            raise CallbackRefused("signature_wrong")
        if not _is_recent(timestamp, callback.received_at.timestamp()):
            raise CallbackRefused("stale")
        plain, receive_id = self.decrypt(encrypted)
        if self._receive_id is not None and receive_id != self._receive_id:
            raise CallbackRefused("receiver_wrong")
        return plain

    def decrypt(self, encrypted: str) -> tuple[str, str]:
        """Decrypt a text whose signature was verified, and return it with the receiver's id.

        Raises:
            CallbackRefused: the text was not encrypted with this key.
        """
        try:
            decryptor = self._cipher.decryptor()
            padded = decryptor.update(base64.b64decode(encrypted, validate=True)) + decryptor.finalize()
            unpadder = PKCS7(_PADDING_BITS).unpadder()
            plain = unpadder.update(padded) + unpadder.finalize()
            begin = _SALT_BYTES + 4
            end = begin + int.from_bytes(plain[_SALT_BYTES:begin], "big")
            if end > len(plain):
                raise ValueError("the length is beyond the end")
            return plain[begin:end].decode(), plain[end:].decode()
        except ValueError:
            raise CallbackRefused("unreadable") from None

    def encrypt(self, plain: str, *, salt: bytes | None = None) -> str:
        """Encrypt a text for WeCom. `salt` has 16 bytes, by default random ones."""
        content = plain.encode()
        salt = os.urandom(_SALT_BYTES) if salt is None else salt
        whole = salt + len(content).to_bytes(4, "big") + content + (self._receive_id or "").encode()
        padder = PKCS7(_PADDING_BITS).padder()
        encryptor = self._cipher.encryptor()
        padded = padder.update(whole) + padder.finalize()
        return base64.b64encode(encryptor.update(padded) + encryptor.finalize()).decode()

    def receive(self, callback: Callback, envelope: Callable[[bytes], str]) -> Received | str:
        """Return the decrypted text of a callback, or the response to a URL verification (a GET).

        `envelope` extracts the encrypted text from a body.
        """
        if callback.method == "GET":
            return Received(CallbackResponse(self.open(callback, callback.parameter("echostr")).encode()))
        return self.open(callback, envelope(callback.body))


def xml_envelope(body: bytes) -> str:
    """Return the encrypted text in an XML body, or an empty text.

    The body is not verified yet, so it is not parsed: a parser would spend a second on two megabytes of elements.
    """
    found = _ENCRYPTED.search(body)
    return found[1].decode() if found else ""


class _WithoutDoctype(TreeBuilder):
    """A builder that rejects a DOCTYPE, because it can define entities."""

    def doctype(self, *_: object) -> None:
        raise ValueError("a document type")


def read_xml(text: str | bytes) -> dict[str, str] | None:
    """Return the fields directly below the root of an XML text, if it can be read and has no DOCTYPE."""
    try:
        root = XML(text, XMLParser(target=_WithoutDoctype()))  # noqa: S314 - without a DOCTYPE there are no entities
    except (ParseError, ValueError):
        return None
    return {field.tag: "".join((field.text or "", *(inner.tail or "" for inner in field))) for field in root}


def _is_recent(timestamp: str, now: float) -> bool:
    is_number = timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 12
    return is_number and abs(now - int(timestamp)) <= MAX_AGE_SECONDS


MAX_MESSAGE_BYTES = 2048
PARSER = "wecom_events_parser"


@dataclass(frozen=True, kw_only=True)
class WeComOptions:
    """The options that the channels `wecom_dm` and `wecom_cs` of a corporation share."""

    name: str
    corp_id: str
    token: str = field(repr=False)
    encoding_aes_key: str = field(repr=False)

    def __post_init__(self) -> None:
        """Reject options that are not valid; `InvalidInput` names the option."""
        check_name(self.name)
        if not self.corp_id:
            raise InvalidInput("The corp_id is missing; copy it from WeCom's page of the company.")


@dataclass(frozen=True, kw_only=True)
class WeComDirectOptions(WeComOptions):
    """Options of a `wecom_dm` channel: a WeCom application to which members of the corporation write."""

    agent_id: str

    def __post_init__(self) -> None:
        """Reject options that are not valid; `InvalidInput` names the option."""
        super().__post_init__()
        if not (self.agent_id.isascii() and self.agent_id.isdigit()):
            raise InvalidInput("A WeCom application needs its agent_id, a number; copy it from the application's page.")


class WeComXmlChannel[O: WeComOptions](ABC):
    """The base class of `wecom_dm` and `wecom_cs` channels, which have XML callbacks."""

    def __init__(self, options: O) -> None:
        self.name = options.name
        self.options = options
        self._crypto = WeComCrypto(options.token, options.encoding_aes_key, options.corp_id)

    def receive(self, callback: Callback) -> Received:
        """Verify a callback, decrypt it and parse its update."""
        opened = self._crypto.receive(callback, xml_envelope)
        if isinstance(opened, Received):
            return opened
        fields = read_xml(opened)
        return Received(SUCCESS, (Ignored("malformed") if fields is None else self.update_in(fields),))

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer at paragraphs into parts of at most 2,048 bytes."""
        return split_text(text, MAX_MESSAGE_BYTES, size=utf8_length)

    @abstractmethod
    def update_in(self, fields: Mapping[str, Json]) -> Update:
        """Convert the decrypted fields of a callback to an update, such as a message."""


class WeComDirectChannel(WeComXmlChannel[WeComDirectOptions]):
    """The channel of a WeCom application, to which members of the corporation write."""

    kind: Literal["wecom_dm"] = "wecom_dm"

    @property
    def scope(self) -> str:
        """The ids of the corporation and the application."""
        return f"wecom_dm:{self.options.corp_id}:{self.options.agent_id}"

    def update_in(self, fields: Mapping[str, Json]) -> IncomingMessage | Ignored:
        """Return the message in the fields of a callback."""
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
                sent_at=time_in(fields, "CreateTime"),
                metadata={"channel": self.name, "platform_message_id": number, "sender_id": sender.id},
                private=True,
            )
        )
