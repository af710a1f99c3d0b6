"""Callbacks in the form of the platforms, made without the code under test.

WeCom's callbacks are encrypted by wechatpy. A platform delivers messages through a given channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote

from wechatpy.crypto import _get_signature
from wechatpy.enterprise.crypto import PrpCrypto, WeChatCrypto

from threadkeep.channels.contract import Callback, Channel, Received
from threadkeep.channels.telegram import TelegramChannel, TelegramOptions
from threadkeep.channels.wecom import WeComDirectChannel, WeComDirectOptions
from threadkeep.channels.wecom_aibot import WeComAIBotChannel, WeComAIBotOptions
from threadkeep.channels.wecom_cs import WeComServiceChannel, WeComServiceOptions

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
SENT_AT = int(NOW.timestamp()) - 2
TELEGRAM_TOKEN = "4242:AAtelegram-token"
TELEGRAM_SECRET = "webhook-secret"
WECOM_TOKEN = "pamtest"
AES_KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
CORP = "wxb11529c136998cb6"


class Platform(Protocol):
    """A platform that sends callbacks to one bot."""

    def channel(self, bot: str = "one") -> Channel:
        """Return the channel of one of two bots, `one` or `two`."""

    def callback(self, body: str) -> Callback:
        """Return an authentic callback with this body, encrypted if the platform encrypts."""

    def body(self, text: str, number: int = 1) -> str:
        """Return the body of a message of the same person in the same chat."""

    def deliver(self, channel: Channel, text: str, number: int = 1) -> Received:
        """Deliver a message with the calls of the platform."""


class Telegram:
    """Telegram: JSON with a secret in a header."""

    def channel(self, bot: str = "one", **options: object) -> TelegramChannel:
        """Return a bot with a webhook."""
        token = TELEGRAM_TOKEN if bot == "one" else "4343:AAother"
        given: dict[str, object] = {"name": bot, "token": token, "secret": TELEGRAM_SECRET, "username": "KeepBot"}
        return TelegramChannel(TelegramOptions(**{**given, **options}))  # type: ignore[arg-type]

    def callback(self, body: str, secret: str | None = TELEGRAM_SECRET) -> Callback:
        """Return a request to the webhook."""
        headers = {} if secret is None else {"x-telegram-bot-api-secret-token": secret}
        return Callback(method="POST", received_at=NOW, headers=headers, body=body.encode("utf-8", "surrogatepass"))

    def body(self, text: str, number: int = 1) -> str:
        """Return an update of a private chat."""
        return json.dumps({"update_id": number, "message": telegram_message(text=text)})

    def deliver(self, channel: Channel, text: str, number: int = 1) -> Received:
        """Call the webhook."""
        return channel.receive(self.callback(self.body(text, number)))


class WeCom:
    """The common parts of WeCom's three platforms."""

    receive_id = CORP

    def callback(self, body: str, *, at: int = SENT_AT, token: str = WECOM_TOKEN) -> Callback:
        """Return an encrypted request in XML."""
        encrypted, query = self.sealed(body, at=at, token=token)
        envelope = f"<xml><ToUserName><![CDATA[{CORP}]]></ToUserName><Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>"
        return Callback(method="POST", received_at=NOW, query=query, body=envelope.encode())

    def url_check(self, echo: str) -> Callback:
        """Return the request that checks the callback URL."""
        encrypted, query = self.sealed(echo)
        return Callback(method="GET", received_at=NOW, query=f"{query}&echostr={quote(encrypted, safe='')}")

    def sealed(self, plain: str, *, at: int = SENT_AT, token: str = WECOM_TOKEN) -> tuple[str, str]:
        """Return a text that wechatpy encrypted, and the query of its request."""
        crypto = WeChatCrypto(token, AES_KEY, self.receive_id)
        encrypted = PrpCrypto(crypto.key).encrypt(plain, self.receive_id).decode()
        signature = _get_signature(token, str(at), "nonce1", encrypted)
        return encrypted, f"msg_signature={signature}&timestamp={at}&nonce=nonce1"


class WeComDirect(WeCom):
    """WeCom messages of a member to an application."""

    def channel(self, bot: str = "one", **options: object) -> WeComDirectChannel:
        """Return the channel of an application."""
        given: dict[str, object] = {"name": bot, "corp_id": CORP, "agent_id": "1" if bot == "one" else "2"}
        given |= {"token": WECOM_TOKEN, "encoding_aes_key": AES_KEY}
        return WeComDirectChannel(WeComDirectOptions(**{**given, **options}))  # type: ignore[arg-type]

    def body(self, text: str, number: int = 1, **changes: Any) -> str:
        """Return a text message."""
        fields = {"ToUserName": CORP, "FromUserName": "li@corp", "CreateTime": str(SENT_AT), "MsgType": "text"}
        fields |= {"Content": text, "MsgId": str(4363689963896700000 + number)} | changes
        return xml(fields)

    def deliver(self, channel: Channel, text: str, number: int = 1) -> Received:
        """Call the callback URL."""
        return channel.receive(self.callback(self.body(text, number)))


class WeComService(WeCom):
    """WeCom customer service: a notice to the bot, which then fetches a page of messages."""

    def channel(self, bot: str = "one", **options: object) -> WeComServiceChannel:
        """Return the channel of a customer service."""
        given: dict[str, object] = {"name": bot, "corp_id": CORP, "token": WECOM_TOKEN, "encoding_aes_key": AES_KEY}
        return WeComServiceChannel(WeComServiceOptions(**{**given, **options}))  # type: ignore[arg-type]

    def body(self, text: str, number: int = 1, **changes: Any) -> str:
        """Return a notice, which has neither the text nor a number."""
        fields = {"ToUserName": CORP, "CreateTime": str(SENT_AT), "MsgType": "event", "Event": "kf_msg_or_event"}
        return xml(fields | {"Token": "ENCsync", "OpenKfId": "wkAJ2GCAAASSm4_Fh"} | changes)

    def item(self, text: str, number: int = 1, **changes: Any) -> dict[str, object]:
        """Return a message of a page."""
        item: dict[str, object] = {"msgid": f"m{number}", "open_kfid": "wkAJ2GCAAASSm4_Fh", "external_userid": "wm1"}
        item |= {"send_time": SENT_AT, "origin": 3, "msgtype": "text", "text": {"content": text}}
        return item | changes

    def deliver(self, channel: Channel, text: str, number: int = 1) -> Received:
        """Read a page with the message, of a desk of the bot."""
        assert isinstance(channel, WeComServiceChannel)
        desk = "wkAJ2GCAAASSm4_Fh" if channel.name == "one" else "wk2"
        page = {"errcode": 0, "has_more": 0, "msg_list": [self.item(text, number, open_kfid=desk)]}
        return Received(updates=channel.read_page(json.loads(json.dumps(page))).updates)


class WeComAIBot(WeCom):
    """WeCom messages of a person to an AI bot."""

    receive_id = ""

    def channel(self, bot: str = "one", **options: object) -> WeComAIBotChannel:
        """Return the channel of an AI bot."""
        given: dict[str, object] = {"name": bot, "token": WECOM_TOKEN, "encoding_aes_key": AES_KEY}
        return WeComAIBotChannel(WeComAIBotOptions(**{**given, **options}))  # type: ignore[arg-type]

    def callback(self, body: str, *, at: int = SENT_AT, token: str = WECOM_TOKEN) -> Callback:
        """Return an encrypted request in JSON."""
        encrypted, query = self.sealed(body, at=at, token=token)
        return Callback(method="POST", received_at=NOW, query=query, body=json.dumps({"encrypt": encrypted}).encode())

    def body(self, text: str, number: int = 1, **changes: Any) -> str:
        """Return a text message of a single chat."""
        return json.dumps(aibot_message(text, number) | changes)

    def deliver(self, channel: Channel, text: str, number: int = 1) -> Received:
        """Call the callback URL."""
        bot = "B1" if channel.name == "one" else "B2"
        return channel.receive(self.callback(self.body(text, number, aibotid=bot)))


def telegram_message(**changes: object) -> dict[str, object]:
    """Return a message of a private chat with Telegram's fields."""
    sender = {"id": 7, "is_bot": False, "first_name": "Anna", "username": "anna"}
    return {"message_id": 42, "date": SENT_AT, "from": sender, "chat": {"id": 7, "type": "private"}} | changes


def aibot_message(text: str, number: int = 1) -> dict[str, object]:
    """Return a message of a single chat with the fields of WeCom's AI bot."""
    address = f"https://qyapi.weixin.qq.com/cgi-bin/aibot/response?response_code=SECRET{number}"
    ids = {"msgid": f"CAIQ/{number}=", "aibotid": "B1", "chattype": "single", "from": {"userid": "U1"}}
    return {**ids, "response_url": address, "msgtype": "text", "text": {"content": text}}


def xml(fields: Mapping[str, str]) -> str:
    """Return fields as WeCom's XML."""
    return f"<xml>{''.join(f'<{name}><![CDATA[{value}]]></{name}>' for name, value in fields.items())}</xml>"
