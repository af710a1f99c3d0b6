"""Tests of reading WeCom AI bot callbacks, and of encrypting their responses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from wechatpy.enterprise.crypto import WeChatCrypto

from tests.channels.platforms import AES_KEY, WECOM_TOKEN, WeComAIBot
from threadkeep.channels.contract import CallbackResponse, ChatEntered, Ignored, IncomingMessage, StreamRefresh, Update
from threadkeep.channels.wecom_aibot import is_response_url

PLATFORM = WeComAIBot()
GROUP: dict[str, Any] = {"chattype": "group", "chatid": "wrGROUP-1"}


def received(text: str = "hi", options: dict[str, Any] | None = None, **changes: Any) -> Update:
    """Return the result of the channel for a message."""
    channel = PLATFORM.channel(**(options or {}))
    [update] = channel.receive(PLATFORM.callback(PLATFORM.body(text, **changes))).updates
    return update


def message(text: str = "hi", options: dict[str, Any] | None = None, **changes: Any) -> IncomingMessage:
    """Return the message of a callback."""
    update = received(text, options, **changes)
    assert isinstance(update, IncomingMessage), update
    return update


def test_the_session_id_has_the_group_or_the_person() -> None:
    assert message().session_id == "wecom_aibot:B1:single:U1"
    assert message(**GROUP).session_id == "wecom_aibot:B1:group:wrGROUP-1"
    assert message(**GROUP).user_id is None
    assert message().user_id == "wecom_aibot:B1:U1"


def test_the_session_id_has_the_corporation() -> None:
    """A bot of a third party serves several corporations, whose members may have equal ids."""
    members: list[dict[str, Any]] = [{"from": {"userid": "U1", "corpid": corp}} for corp in ("ww1", "ww2")]
    ours, theirs = (message(**member) for member in members)
    assert ours.session_id == "wecom_aibot:B1:single:ww1_3aU1"
    assert ours.session_id != theirs.session_id
    assert (ours.user_id, theirs.user_id) == ("wecom_aibot:B1:ww1:U1", "wecom_aibot:B1:ww2:U1")


def test_the_id_of_a_message_is_unchanged() -> None:
    assert message().message_id == "CAIQ/1="


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("@RobotA hello @all", {}, "hello @all"),
        ("@RobotA\u2005hello", {}, "hello"),
        ("hello @RobotA", {}, "hello @RobotA"),
        ("@Robot A hello", {"bot_name": "Robot A"}, "hello"),
        ("@Robot Arm hello", {"bot_name": "Robot A"}, "@Robot Arm hello"),
        ("@Anna hello", {"bot_name": "Robot A"}, "@Anna hello"),
    ],
)
def test_a_leading_mention_is_removed_in_a_group(text: str, options: dict[str, Any], expected: str) -> None:
    assert message(text, options, **GROUP).text == expected
    assert message(text, options).text == text


def test_a_mention_without_text_is_ignored() -> None:
    assert _ignored(received("@RobotA", **GROUP)).reason == "no_text"


def test_a_quote_is_separate_from_the_text() -> None:
    quote: dict[str, Any] = {"msgtype": "text", "text": {"content": "The parcel is late."}}
    found = message("why?", quote=quote)
    assert (found.text, found.quoted_text) == ("why?", "The parcel is late.")


def test_text_of_voice_and_mixed_messages_is_read() -> None:
    assert message(msgtype="voice", voice={"content": "hello there"}).text == "hello there"
    items = [
        {"msgtype": "text", "text": {"content": "@RobotA look:"}},
        {"msgtype": "image", "image": {"url": "https://x"}},
        {"msgtype": "text", "text": {"content": "and this"}},
    ]
    assert message(msgtype="mixed", mixed={"msg_item": items}, **GROUP).text == "look:\nand this"


def test_a_refresh_requests_a_stream() -> None:
    assert received(msgtype="stream", stream={"id": "run-1"}) == StreamRefresh("run-1")
    assert received(msgtype="stream") == Ignored("incomplete")


def test_opening_the_chat_is_reported() -> None:
    assert received(msgtype="event", event={"eventtype": "enter_chat"}) == ChatEntered("wecom_aibot:B1:single:U1")
    assert received(msgtype="event", event={"eventtype": "feedback_event"}) == Ignored("kind")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"msgtype": "image", "image": {"url": "https://x"}}, "no_text"),
        ({"msgtype": "file"}, "no_text"),
        ({"chattype": "channel"}, "chat_type"),
        ({"chattype": "group"}, "incomplete"),
        ({"from": {}}, "incomplete"),
        ({"msgid": ""}, "incomplete"),
        ({"aibotid": ""}, "incomplete"),
    ],
)
def test_an_incomplete_message_is_ignored(changes: dict[str, Any], reason: str) -> None:
    """A group message without the id of the group is not a message of a single chat."""
    assert _ignored(received(**changes)).reason == reason


def test_messages_for_another_bot_are_ignored() -> None:
    assert received(options={"bot_id": "B2"}) == Ignored("not_for_us")
    assert message(options={"bot_id": "B1"}).session_id == "wecom_aibot:B1:single:U1"


def test_a_reply_can_be_decrypted_by_the_platform() -> None:
    channel = PLATFORM.channel()
    response = channel.stream_response("run-1", "你好 <b>", datetime.fromtimestamp(1700000000, UTC), finished=False)
    assert _opened(response) == {"msgtype": "stream", "stream": {"id": "run-1", "finish": False, "content": "你好 <b>"}}
    assert response.media_type == "application/json"
    assert json.loads(response.body)["timestamp"] == 1700000000
    welcome = channel.welcome_response("Welcome!", datetime.fromtimestamp(1700000000, UTC))
    assert _opened(welcome) == {"msgtype": "text", "text": {"content": "Welcome!"}}


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("https://qyapi.weixin.qq.com/cgi-bin/aibot/response?response_code=X", True),
        ("https://qyapi.weixin.qq.com:443/x", True),
        ("http://qyapi.weixin.qq.com/x", False),
        ("https://qyapi.weixin.qq.com:8443/x", False),
        ("https://qyapi.weixin.qq.com.evil.example/x", False),
        ("https://evilweixin.qq.com/x", False),
        ("https://user@qyapi.weixin.qq.com/x", False),
        ("https://qyapi.weixin.qq.com@evil.example/x", False),
        ("https://127.0.0.1/x", False),
        ("https://[::1/x", False),
        ("https://qyapi.weixin.qq.com:99999/x", False),
        ("", False),
    ],
)
def test_only_response_urls_of_wecom_are_accepted(url: str, accepted: bool) -> None:
    """A response URL must use https. Another URL is not stored."""
    assert is_response_url(url) is accepted
    assert message(response_url=url).reply_to == ({"response_url": url} if accepted else {})


def _ignored(update: Update) -> Ignored:
    assert isinstance(update, Ignored)
    return update


def _opened(response: CallbackResponse) -> object:
    sent = json.loads(response.body)
    crypto = WeChatCrypto(WECOM_TOKEN, AES_KEY, "")
    return json.loads(
        crypto.check_signature(sent["msgsignature"], str(sent["timestamp"]), sent["nonce"], sent["encrypt"])
    )
