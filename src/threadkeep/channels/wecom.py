"""Shared parts of WeCom callbacks: signature, encryption, URL verification, and flat XML."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from threadkeep.channels.contract import Callback, CallbackResponse, Received
from threadkeep.errors import CallbackRefused, InvalidInput

MAX_AGE_SECONDS = 300
"""Allowed difference in seconds between the clock of a callback and the local clock."""

SUCCESS = CallbackResponse(b"success")

_PADDING_BITS = 32 * 8
_SALT_BYTES = 16


@dataclass(frozen=True)
class Sealed:
    """An encrypted text with its signature."""

    encrypted: str = field(repr=False)
    signature: str
    timestamp: str
    nonce: str


class WeComCrypto:
    """The keys of a callback URL.

    `receive_id` is the corporation's id for applications and customer service, and empty for a company's own AI bot.
    None accepts any receiver.
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

    def __repr__(self) -> str:
        """Hide the secrets."""
        return "WeComCrypto()"

    def sign(self, timestamp: str, nonce: str, encrypted: str) -> str:
        """Return the signature of an encrypted text."""
        parts = sorted(part.encode("utf-8", "surrogatepass") for part in (self._token, timestamp, nonce, encrypted))
        return hashlib.sha1(b"".join(parts)).hexdigest()  # noqa: S324 - the platform's algorithm

    def open(self, callback: Callback, encrypted: str) -> str:
        """Verify and decrypt the text of a callback: signature, clock, decryption and receiver, in this order.

        Raises:
            CallbackRefused: one of the checks failed.
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
        """Return the text and the receiver's id of an encrypted text whose signature was verified.

        Raises:
            CallbackRefused: it was not encrypted with this key.
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

    def seal(self, plain: str, *, timestamp: str, nonce: str, salt: bytes | None = None) -> Sealed:
        """Encrypt and sign a text for the platform. `salt` is 16 random bytes."""
        content = plain.encode()
        salt = os.urandom(_SALT_BYTES) if salt is None else salt
        whole = salt + len(content).to_bytes(4, "big") + content + (self._receive_id or "").encode()
        padder = PKCS7(_PADDING_BITS).padder()
        encryptor = self._cipher.encryptor()
        padded = padder.update(whole) + padder.finalize()
        encrypted = base64.b64encode(encryptor.update(padded) + encryptor.finalize()).decode()
        return Sealed(encrypted, self.sign(timestamp, nonce, encrypted), timestamp, nonce)

    def receive(self, callback: Callback, envelope: Callable[[bytes], str]) -> Received | str:
        """Return the decrypted text of a callback; for the URL verification, which is a GET, return the response.

        `envelope` returns the encrypted text in a body.
        """
        if callback.method == "GET":
            return Received(CallbackResponse(self.open(callback, callback.parameter("echostr")).encode()))
        return self.open(callback, envelope(callback.body))


def xml_envelope(body: bytes) -> str:
    """Return the encrypted text in an XML body; empty if it is missing."""
    return (read_xml(body) or {}).get("Encrypt", "")


def read_xml(text: str | bytes) -> dict[str, str] | None:
    """Return the fields directly below the root of an XML text; None if it is not XML or has a document type.

    Document types are rejected because they can define entities.
    """
    fields: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if len(path) == 2:
            fields[name] = ""

    def data(characters: str) -> None:
        if len(path) == 2:
            fields[path[1]] += characters

    def refuse(*_: object) -> None:
        raise ValueError("a document type")

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError):
        return None
    return fields


def _is_recent(timestamp: str, now: float) -> bool:
    return (
        timestamp.isascii()
        and timestamp.isdigit()
        and len(timestamp) < 12
        and abs(now - int(timestamp)) <= MAX_AGE_SECONDS
    )
