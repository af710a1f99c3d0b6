"""WeCom direct messages: which callbacks are messages, and of whom."""

from __future__ import annotations

from typing import Any

import pytest

from tests.channels.platforms import CORP, SENT_AT, WeComDirect, xml
from threadkeep.channels.contract import CallbackResponse, Ignored, IncomingMessage, Update
from threadkeep.channels.wecom import WeComDirectOptions
from threadkeep.errors import InvalidInput

PLATFORM = WeComDirect()


def received(text: str = "hi", **changes: Any) -> Update:
    """What the channel makes of a message."""
    body = PLATFORM.body(text, **changes)
    [update] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    return update


def test_a_message_has_the_key_of_corporation_application_and_member() -> None:
    """Each part escaped; the id is the platform's, with the time of the person."""
    message = received()
    assert isinstance(message, IncomingMessage)
    assert message.session_id == f"wecom_dm:{CORP}:1:li_40corp"
    assert message.message_id == f"wecom:{CORP}:1:4363689963896700001"
    assert message.reply_to == {"touser": "li@corp"}
    assert message.sent_at is not None
    assert message.sent_at.timestamp() == SENT_AT


def test_the_platform_is_answered_at_once() -> None:
    """With a body that says success, whatever the callback is."""
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
def test_what_is_no_message_of_a_member_starts_nothing(changes: dict[str, Any], reason: str) -> None:
    """Events, pictures, groups, other applications, messages without a sender or an id."""
    update = received(**changes)
    assert isinstance(update, Ignored)
    assert update.reason == reason


@pytest.mark.parametrize("moment", ["soon", "9" * 5000])
def test_the_own_application_may_be_named(moment: str) -> None:
    """And a time that is no number, or none of a clock, is none."""
    message = received(AgentID="1", CreateTime=moment)
    assert isinstance(message, IncomingMessage)
    assert message.sent_at is None


def test_text_with_markup_stays_as_it_was_written() -> None:
    """It is data, not XML."""
    body = xml({"FromUserName": "li", "MsgType": "text", "MsgId": "1", "Content": "a <b> & c"})
    [message] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    assert isinstance(message, IncomingMessage)
    assert message.text == "a <b> & c"


def test_the_check_of_the_address_is_answered() -> None:
    """With the text alone."""
    received = PLATFORM.channel().receive(PLATFORM.url_check("1616140317555161061"))
    assert received.response.body == b"1616140317555161061"


@pytest.mark.parametrize("options", [{"corp_id": ""}, {"agent_id": ""}, {"agent_id": "one"}, {"name": "a b"}])
def test_options_without_a_place_are_refused(options: dict[str, str]) -> None:
    """An application without its corporation would share its history."""
    given = {"name": "one", "corp_id": CORP, "agent_id": "1", "token": "t", "encoding_aes_key": "a" * 43}
    with pytest.raises(InvalidInput):
        WeComDirectOptions(**{**given, **options})
