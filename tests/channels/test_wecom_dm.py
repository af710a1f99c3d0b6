"""Tests of reading WeCom direct messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.channels.platforms import CORP, SENT_AT, WeComDirect, xml
from threadkeep.channels.contract import CallbackResponse, Ignored, IncomingMessage, Update
from threadkeep.channels.wecom import WeComDirectOptions
from threadkeep.errors import InvalidInput

PLATFORM = WeComDirect()


def received(text: str = "hi", **changes: Any) -> Update:
    """Return the result of the channel for a message."""
    body = PLATFORM.body(text, **changes)
    [update] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    return update


def test_the_session_id_has_corporation_application_and_member() -> None:
    message = received()
    assert isinstance(message, IncomingMessage)
    assert message.session_id == f"wecom_dm:{CORP}:1:li_40corp"
    assert message.message_id == f"wecom:{CORP}:1:4363689963896700001"
    assert message.reply_to == {"touser": "li@corp"}
    assert message.sent_at is not None
    assert message.sent_at.timestamp() == SENT_AT


def test_every_callback_gets_the_same_response() -> None:
    for body in (PLATFORM.body("hi"), PLATFORM.body("hi", MsgType="event"), "no xml"):
        response = PLATFORM.channel().receive(PLATFORM.callback(body)).response
        assert response == CallbackResponse(b"success", "text/plain")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"MsgType": "event", "Event": "subscribe"}, "kind"),
        ({"MsgType": "image", "PicUrl": "https://x"}, "no_text"),
        ({"ChatId": "group1"}, "chat_type"),
        ({"AgentID": "2"}, "not_for_us"),
        ({"FromUserName": ""}, "incomplete"),
        ({"MsgId": ""}, "incomplete"),
    ],
)
def test_other_callbacks_are_ignored_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    update = received(**changes)
    assert isinstance(update, Ignored)
    assert update.reason == reason


@pytest.mark.parametrize("moment", ["soon", "9" * 5000])
def test_an_invalid_time_is_ignored(moment: str) -> None:
    message = received(AgentID="1", CreateTime=moment)
    assert isinstance(message, IncomingMessage)
    assert message.sent_at is None


def test_text_with_markup_is_unchanged() -> None:
    body = xml({"FromUserName": "li", "MsgType": "text", "MsgId": "1", "Content": "a <b> & c"})
    [message] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    assert isinstance(message, IncomingMessage)
    assert message.text == "a <b> & c"


def test_an_echo_request_is_answered_with_the_plain_text() -> None:
    received = PLATFORM.channel().receive(PLATFORM.url_check("1616140317555161061"))
    assert received.response.body == b"1616140317555161061"


@pytest.mark.parametrize("options", [{"corp_id": ""}, {"agent_id": ""}, {"agent_id": "one"}, {"name": "a b"}])
def test_options_with_missing_ids_are_refused(options: dict[str, str]) -> None:
    """Applications without the id of their corporation would share one history."""
    given = {"name": "one", "corp_id": CORP, "agent_id": "1", "token": "t", "encoding_aes_key": "a" * 43}
    with pytest.raises(InvalidInput):
        WeComDirectOptions(**{**given, **options})
