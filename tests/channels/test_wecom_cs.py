"""WeCom customer service: notices, pages of a desk, customers, servicers and recalls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.platforms import SENT_AT, WeComService
from threadkeep.channels.contract import AnswerFailed, DeskNotified, Ignored, IncomingMessage, MessageRecalled
from threadkeep.channels.wecom_cs import SyncPage

PLATFORM = WeComService()
DESK = "wkAJ2GCAAASSm4_Fh"
KEY = "wecom_cs:wkAJ2GCAAASSm4_5fFh:wm1"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["msg_list", "msgid", "event"]), inner),
    max_leaves=8,
)


def page(*items: dict[str, Any], desks: frozenset[str] = frozenset(), **fields: Any) -> SyncPage:
    """What the channel reads in a page."""
    return PLATFORM.channel(desks=desks).read_page(json.loads(json.dumps({"msg_list": items, **fields})))


def test_a_notice_names_the_desk_and_the_token() -> None:
    """Nothing is in it to answer."""
    received = PLATFORM.channel().receive(PLATFORM.callback(PLATFORM.body("")))
    assert received.updates == (DeskNotified(DESK, "ENCsync"),)
    assert received.response.body == b"success"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"Event": "subscribe"}, "kind"), ({"MsgType": "text"}, "kind"), ({"OpenKfId": ""}, "incomplete")],
)
def test_other_events_start_nothing(changes: dict[str, Any], reason: str) -> None:
    """And a notice without a desk."""
    received = PLATFORM.channel().receive(PLATFORM.callback(PLATFORM.body("", **changes)))
    assert received.updates == (Ignored(reason),)  # type: ignore[arg-type]


def test_a_service_can_be_bound_to_some_desks() -> None:
    """Notices and messages of others are not for it."""
    channel = PLATFORM.channel(desks=frozenset({"wk2"}))
    assert channel.receive(PLATFORM.callback(PLATFORM.body(""))).updates == (Ignored("not_for_us"),)
    assert page(PLATFORM.item("hi"), desks=frozenset({"wk2"})).updates == (Ignored("not_for_us"),)


def test_a_page_may_have_several_customers_with_several_messages() -> None:
    """In the order of their times, each with the key of its customer."""
    items = [
        PLATFORM.item("third", 3, send_time=SENT_AT + 2),
        PLATFORM.item("first", 1),
        PLATFORM.item("other", 2, external_userid="wm2"),
    ]
    updates = page(*items).updates
    assert all(isinstance(update, IncomingMessage) for update in updates)
    found = [(update.session_id, update.text) for update in updates if isinstance(update, IncomingMessage)]
    assert found == [(KEY, "first"), ("wecom_cs:wkAJ2GCAAASSm4_5fFh:wm2", "other"), (KEY, "third")]


def test_the_next_page_begins_at_the_cursor() -> None:
    """A page can be empty although there are more."""
    assert page(next_cursor="c2", has_more=1) == SyncPage((), "c2", has_more=True)
    assert page(next_cursor="c3", has_more=0) == SyncPage((), "c3", has_more=False)
    assert page() == SyncPage((), "", has_more=False)


def test_an_answer_goes_to_the_customer_at_the_desk() -> None:
    """From which the message came."""
    [message] = page(PLATFORM.item("hi")).updates
    assert isinstance(message, IncomingMessage)
    assert message.reply_to == {"open_kfid": DESK, "touser": "wm1"}
    assert message.message_id == "m1"


def test_a_servicer_speaks_for_the_desk() -> None:
    """In the transcript, without an answer."""
    [message] = page(PLATFORM.item("I refund it.", origin=5, servicer_userid="zhang")).updates
    assert isinstance(message, IncomingMessage)
    assert (message.role, message.wants_answer, message.session_id) == ("assistant", False, KEY)
    assert message.metadata["servicer_id"] == "zhang"
    assert message.user_id == "wecom_cs:wm1"


@pytest.mark.parametrize("kind", ["user_recall_msg", "servicer_recall_msg"])
def test_a_message_that_was_taken_back_is_named(kind: str) -> None:
    """The ids of an event are inside of it."""
    event = {"event_type": kind, "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m1"}
    item = {"msgid": "e1", "send_time": SENT_AT, "origin": 4, "msgtype": "event", "event": event}
    assert page(item).updates == (MessageRecalled(KEY, "m1", "wecom_cs:wm1"),)
    del event["external_userid"]
    assert page(item).updates == (Ignored("incomplete"),)


@pytest.mark.parametrize(
    ("fail_type", "error"),
    [(4, "ReplyTimeOver"), (5, "SessionState"), (6, "ReplyLimit"), (10, "Forbidden"), (0, "NotDelivered")],
)
def test_a_message_that_did_not_arrive_is_named(fail_type: int, error: str) -> None:
    """With the reason, and where the answer can be sent again."""
    event = {"event_type": "msg_send_fail", "open_kfid": DESK, "external_userid": "wm1", "fail_msgid": "s1"}
    item = {"msgid": "e1", "origin": 4, "msgtype": "event", "event": {**event, "fail_type": fail_type}}
    assert page(item).updates == (AnswerFailed(KEY, "s1", error, {"open_kfid": DESK, "touser": "wm1"}),)
    item["event"] = {**event, "fail_msgid": ""}
    assert page(item).updates == (Ignored("incomplete"),)


def test_other_events_of_a_desk_are_ignored() -> None:
    """Such as a customer who opens the chat."""
    event = {"event_type": "enter_session", "open_kfid": DESK, "external_userid": "wm1", "welcome_code": "w"}
    assert page({"msgid": "e1", "origin": 4, "msgtype": "event", "event": event}).updates == (Ignored("kind"),)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"origin": 4}, "kind"),
        ({"origin": None}, "kind"),
        ({"msgid": ""}, "incomplete"),
        ({"external_userid": ""}, "incomplete"),
        ({"open_kfid": ""}, "incomplete"),
        ({"msgtype": "image"}, "no_text"),
    ],
)
def test_a_message_without_its_parts_starts_nothing(changes: dict[str, Any], reason: str) -> None:
    """There is no bucket for all of them."""
    [update] = page(PLATFORM.item("hi", **changes)).updates
    assert isinstance(update, Ignored)
    assert update.reason == reason


@given(json_values)
def test_a_page_of_any_shape_is_read(value: Any) -> None:
    """What is no message starts nothing."""
    assert all(isinstance(update, Ignored) for update in PLATFORM.channel().read_page(value).updates)
