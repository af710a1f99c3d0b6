"""Tests of reading WeCom customer service: notices, pages of a desk, customers, human agents and recalls."""

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
    """Return the result of the channel for a page."""
    return PLATFORM.channel(desks=desks).read_page(json.loads(json.dumps({"msg_list": items, **fields})))


def test_a_notice_names_the_desk_and_the_token() -> None:
    received = PLATFORM.channel().receive(PLATFORM.callback(PLATFORM.body("")))
    assert received.updates == (DeskNotified(DESK, "ENCsync"),)
    assert received.response.body == b"success"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"Event": "subscribe"}, "kind"), ({"MsgType": "text"}, "kind"), ({"OpenKfId": ""}, "incomplete")],
)
def test_other_events_and_incomplete_notices_are_ignored(changes: dict[str, Any], reason: str) -> None:
    received = PLATFORM.channel().receive(PLATFORM.callback(PLATFORM.body("", **changes)))
    assert received.updates == (Ignored(reason),)  # type: ignore[arg-type]


def test_a_bot_can_be_restricted_to_some_desks() -> None:
    channel = PLATFORM.channel(desks=frozenset({"wk2"}))
    assert channel.receive(PLATFORM.callback(PLATFORM.body(""))).updates == (Ignored("not_for_us"),)
    assert page(PLATFORM.item("hi"), desks=frozenset({"wk2"})).updates == (Ignored("not_for_us"),)


def test_a_page_may_have_several_customers_with_several_messages() -> None:
    items = [
        PLATFORM.item("third", 3, send_time=SENT_AT + 2),
        PLATFORM.item("first", 1),
        PLATFORM.item("other", 2, external_userid="wm2"),
    ]
    updates = page(*items).updates
    assert all(isinstance(update, IncomingMessage) for update in updates)
    found = [(update.session_id, update.text) for update in updates if isinstance(update, IncomingMessage)]
    assert found == [(KEY, "first"), ("wecom_cs:wkAJ2GCAAASSm4_5fFh:wm2", "other"), (KEY, "third")]


def test_a_page_has_the_cursor_of_the_next() -> None:
    """An empty page can have a successor."""
    assert page(next_cursor="c2", has_more=1) == SyncPage((), "c2", has_more=True)
    assert page(next_cursor="c3", has_more=0) == SyncPage((), "c3", has_more=False)
    assert page() == SyncPage((), "", has_more=False)


def test_a_reply_has_the_customer_and_the_desk() -> None:
    [message] = page(PLATFORM.item("hi")).updates
    assert isinstance(message, IncomingMessage)
    assert message.reply_to == {"open_kfid": DESK, "touser": "wm1"}
    assert message.message_id == "m1"


def test_a_message_of_a_human_agent_is_stored_as_assistant() -> None:
    [message] = page(PLATFORM.item("I refund it.", origin=5, servicer_userid="zhang")).updates
    assert isinstance(message, IncomingMessage)
    assert (message.role, message.wants_answer, message.session_id) == ("assistant", False, KEY)
    assert message.metadata["servicer_id"] == "zhang"
    assert message.user_id == "wecom_cs:wm1"


@pytest.mark.parametrize("kind", ["user_recall_msg", "servicer_recall_msg"])
def test_a_recall_has_the_id_of_its_message(kind: str) -> None:
    event = {"event_type": kind, "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m1"}
    item = {"msgid": "e1", "send_time": SENT_AT, "origin": 4, "msgtype": "event", "event": event}
    assert page(item).updates == (MessageRecalled(KEY, "m1", "wecom_cs:wm1"),)
    del event["external_userid"]
    assert page(item).updates == (Ignored("incomplete"),)


@pytest.mark.parametrize(
    ("fail_type", "error"),
    [(4, "ReplyTimeOver"), (5, "SessionState"), (6, "ReplyLimit"), (10, "Forbidden"), (0, "NotDelivered")],
)
def test_a_failed_delivery_has_the_id_of_its_message(fail_type: int, error: str) -> None:
    event = {"event_type": "msg_send_fail", "open_kfid": DESK, "external_userid": "wm1", "fail_msgid": "s1"}
    item = {"msgid": "e1", "origin": 4, "msgtype": "event", "event": {**event, "fail_type": fail_type}}
    assert page(item).updates == (AnswerFailed(KEY, "s1", error, {"open_kfid": DESK, "touser": "wm1"}),)
    item["event"] = {**event, "fail_msgid": ""}
    assert page(item).updates == (Ignored("incomplete"),)


def test_other_events_of_a_desk_are_ignored() -> None:
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
def test_an_incomplete_message_is_ignored(changes: dict[str, Any], reason: str) -> None:
    [update] = page(PLATFORM.item("hi", **changes)).updates
    assert isinstance(update, Ignored)
    assert update.reason == reason


@given(json_values)
def test_a_page_of_any_shape_is_read(value: Any) -> None:
    assert all(isinstance(update, Ignored) for update in PLATFORM.channel().read_page(value).updates)
