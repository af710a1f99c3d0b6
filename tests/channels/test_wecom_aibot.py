"""WeCom AI bots: messages, refreshes of answers, events, and the answers themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wechatpy.enterprise.crypto import WeChatCrypto

from tests.channels.platforms import AES_KEY, WECOM_TOKEN, WeComAIBot
from threadkeep.channels.contract import CallbackResponse, ChatEntered, Ignored, IncomingMessage, StreamRefresh, Update
from threadkeep.channels.wecom_aibot import is_response_url

PLATFORM = WeComAIBot()
GROUP: dict[str, Any] = {"chattype": "group", "chatid": "wrGROUP-1"}


def received(text: str = "hi", options: dict[str, Any] | None = None, **changes: Any) -> Update:
    """What the channel makes of a message."""
    channel = PLATFORM.channel(**(options or {}))
    [update] = channel.receive(PLATFORM.callback(PLATFORM.body(text, **changes))).updates
    return update


def message(text: str = "hi", options: dict[str, Any] | None = None, **changes: Any) -> IncomingMessage:
    """The message of a callback."""
    update = received(text, options, **changes)
    assert isinstance(update, IncomingMessage), update
    return update


def test_the_key_is_that_of_the_group_or_of_the_person() -> None:
    """All groups of one person are not one conversation."""
    assert message().session_id == "wecom_aibot:B1:single:U1"
    assert message(**GROUP).session_id == "wecom_aibot:B1:group:wrGROUP-1"
    assert message(**GROUP).user_id is None
    assert message().user_id == "wecom_aibot:B1:U1"


def test_members_of_two_corporations_with_one_id_have_two_conversations() -> None:
    """A bot of a third party serves several corporations."""
    members: list[dict[str, Any]] = [{"from": {"userid": "U1", "corpid": corp}} for corp in ("ww1", "ww2")]
    ours, theirs = (message(**member) for member in members)
    assert ours.session_id == "wecom_aibot:B1:single:ww1_3aU1"
    assert ours.session_id != theirs.session_id
    assert (ours.user_id, theirs.user_id) == ("wecom_aibot:B1:ww1:U1", "wecom_aibot:B1:ww2:U1")


def test_the_id_of_a_message_is_kept_as_it_is() -> None:
    """With its slashes and its equals signs."""
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
def test_the_mention_at_the_beginning_is_no_text_of_a_group(text: str, options: dict[str, Any], expected: str) -> None:
    """In a single chat it is."""
    assert message(text, options, **GROUP).text == expected
    assert message(text, options).text == text


def test_a_mention_alone_is_no_turn() -> None:
    """There is nothing to answer."""
    assert _ignored(received("@RobotA", **GROUP)).reason == "no_text"


def test_a_quote_is_beside_the_text() -> None:
    """It was said before, by somebody."""
    quote: dict[str, Any] = {"msgtype": "text", "text": {"content": "The parcel is late."}}
    found = message("why?", quote=quote)
    assert (found.text, found.quoted_text) == ("why?", "The parcel is late.")


def test_words_of_voice_and_of_mixed_messages_are_text() -> None:
    """Pictures among them are left out."""
    assert message(msgtype="voice", voice={"content": "hello there"}).text == "hello there"
    items = [
        {"msgtype": "text", "text": {"content": "@RobotA look:"}},
        {"msgtype": "image", "image": {"url": "https://x"}},
        {"msgtype": "text", "text": {"content": "and this"}},
    ]
    assert message(msgtype="mixed", mixed={"msg_item": items}, **GROUP).text == "look:\nand this"


def test_a_refresh_asks_for_an_answer() -> None:
    """It is no turn of a person."""
    assert received(msgtype="stream", stream={"id": "run-1"}) == StreamRefresh("run-1")
    assert received(msgtype="stream") == Ignored("incomplete")


def test_a_person_who_opens_the_chat_can_be_welcomed() -> None:
    """Other events start nothing."""
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
def test_a_message_without_its_parts_starts_nothing(changes: dict[str, Any], reason: str) -> None:
    """A group without its id is not the person's place."""
    assert _ignored(received(**changes)).reason == reason


def test_messages_for_another_bot_are_not_for_us() -> None:
    """Where the bot is named in the options."""
    assert received(options={"bot_id": "B2"}) == Ignored("not_for_us")
    assert message(options={"bot_id": "B1"}).session_id == "wecom_aibot:B1:single:U1"


def test_an_answer_is_encrypted_as_the_platform_reads_it() -> None:
    """The whole text so far, under its stream's id, with a signature over it."""
    channel = PLATFORM.channel()
    response = channel.stream_response("run-1", "你好 <b>", finished=False, timestamp="1700000000", nonce="n1")
    assert _opened(response) == {"msgtype": "stream", "stream": {"id": "run-1", "finish": False, "content": "你好 <b>"}}
    assert response.media_type == "application/json"
    assert json.loads(response.body)["timestamp"] == 1700000000
    welcome = channel.welcome_response("Welcome!", timestamp="1700000000", nonce="n1")
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
def test_answers_go_to_the_hosts_of_wecom_only(url: str, accepted: bool) -> None:
    """Over https; another address is not kept."""
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
