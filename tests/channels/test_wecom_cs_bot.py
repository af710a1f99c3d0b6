"""Tests of a WeCom customer service bot, from the notice to the replies, with a fake platform in another process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.channels.fake_wecom import FakeWeCom
from tests.channels.platforms import CORP, WeComService
from tests.channels.wecom_desk import WeComDesk, opened_wecom
from tests.databases import execute
from tests.graph_store.damaging import DAMAGES
from tests.web.services import until
from threadkeep.errors import StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.records import Message, Receipt
from threadkeep.testing import Gate, ScriptedModel

DESK = "wkAJ2GCAAASSm4_Fh"
FIRST, SECOND = "wecom_cs:wkAJ2GCAAASSm4_5fFh:wm1", "wecom_cs:wkAJ2GCAAASSm4_5fFh:wm2"
KIND, SCOPE = "wecom_cs", f"wecom_cs:{CORP}"


def item(text: str, number: int = 1, customer: str = "wm1", **changes: Any) -> dict[str, object]:
    """Return a message that a customer wrote now."""
    return WeComService().item(text, number, external_userid=customer, send_time=int(time.time()), **changes)


async def fetched(desk: WeComDesk) -> None:
    """Wait until no notice is left."""

    async def nothing_noticed() -> bool:
        return not await desk.memory.channels.state.values_of(SCOPE, "notice:")

    await until(nothing_noticed)


async def test_fetching_waits_as_long_as_wecom_demands(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """Neither a new notice nor another process ends the pause."""
    wecom.be_busy("kf/sync_msg", 2)
    wecom.write(item("a"))
    model = ScriptedModel(repeat("ok"))
    async with (
        opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk,
        opened_wecom(KIND, shared_url, tmp_path, wecom, model) as other,
    ):
        await desk.say("")
        await until(lambda: len(wecom.times()) == 1)
        await desk.say("")
        await other.say("")
        assert await desk.answered() == ["ok"]
    first, second = wecom.times()
    assert second - first >= 2


async def test_no_other_desk_is_fetched_in_a_pause_that_wecom_demands(tmp_path: Path, wecom: FakeWeCom) -> None:
    wecom.be_busy("kf/sync_msg", 2)
    wecom.write(item("a"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        state, notice = desk.memory.channels.state, json.dumps({"token": "", "at": desk.memory.clock().isoformat()})
        await state.keep(SCOPE, "notice:another", notice)
        await desk.say("")
        assert await desk.answered() == ["ok"]
        await fetched(desk)
    first, second = wecom.times()
    assert second - first >= 2


@pytest.mark.slow
async def test_each_customer_of_a_page_gets_a_reply(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """Several messages of one customer are one run, in their order, and all pages are read."""
    model = ScriptedModel(repeat("ok"))
    wecom.write(item("a", 1), item("x", 2, "wm2"), item("b", 3), item("c", 4), page=10)
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        assert (await desk.say("")).content == b"success"
        assert await desk.answered(2) == ["ok", "ok"]
        assert await desk.transcript(FIRST) == [("user", "a"), ("user", "b"), ("user", "c"), ("assistant", "ok")]
        assert await desk.transcript(SECOND) == [("user", "x"), ("assistant", "ok")]
    assert sorted(call["touser"] for call in wecom.sent()) == ["wm1", "wm2"]
    assert {call["open_kfid"] for call in wecom.sent()} == {DESK}
    assert len(model.calls) == 2


@pytest.mark.slow
async def test_pages_are_read_to_the_end_once(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The cursor is stored, so that another process continues from it. A repeated message is no turn."""
    wecom.write(*(item(f"message {number}", number) for number in range(5)), page=2)
    model = ScriptedModel(repeat("ok"))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        await desk.say("")
        await fetched(desk)
        await until(desk.outbox_is_idle)
    assert [page.get("cursor") for page in wecom.pages()] == [None, "2", "4"]
    assert {page["token"] for page in wecom.pages()} == {"ENCsync"}
    before = len(wecom.texts())
    wecom.write(item("message 4", 4), item("message 5", 5))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        await desk.say("")
        assert len(await desk.answered(before + 1)) == before + 1
        said = [content for role, content in await desk.transcript(FIRST) if role == "user"]
    assert said == [f"message {number}" for number in range(6)]
    assert wecom.pages()[3]["cursor"] == "5"


async def test_an_empty_page_is_not_the_end(tmp_path: Path, wecom: FakeWeCom) -> None:
    wecom.write({"open_kfid": DESK}, {"open_kfid": DESK}, item("hi"), page=1)
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["ok"]
    assert [page.get("cursor") for page in wecom.pages()] == [None, "1", "2"]


async def test_an_expired_token_is_not_sent(tmp_path: Path, wecom: FakeWeCom) -> None:
    """A token is valid for ten minutes. The notice stays valid without it."""
    wecom.write(item("hi"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        at = desk.memory.clock() - timedelta(minutes=10)
        notice = json.dumps({"token": "ENCold", "at": at.isoformat()})
        await desk.memory.channels.state.keep(SCOPE, f"notice:{DESK}", notice)
        await desk.post(desk.platform.body("", OpenKfId="wk2"))
        assert await desk.answered() == ["ok"]
    tokens = {page["open_kfid"]: page.get("token") for page in wecom.pages()}
    assert tokens == {DESK: None, "wk2": "ENCsync"}


async def test_a_refused_token_is_left_out(tmp_path: Path, wecom: FakeWeCom) -> None:
    wecom.refuse_pages(95007)
    wecom.write(item("hi"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["ok"]
    assert [page.get("token") for page in wecom.pages()] == ["ENCsync", None]


async def test_messages_of_a_lost_notice_are_answered_after_a_start(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom
) -> None:
    """WeCom sent the notice while no process ran. A desk of another bot is not fetched."""
    model = ScriptedModel(["one", "two"])
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        await desk.answered()
        await fetched(desk)
        await desk.memory.channels.state.keep(SCOPE, "cursor:wk2", "0")
    wecom.write(item("b", 2))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model, desks=[DESK]) as desk:
        assert await desk.answered(2) == ["one", "two"]
        await fetched(desk)
    assert {page["open_kfid"] for page in wecom.pages()} == {DESK}


@pytest.mark.slow
async def test_only_one_process_fetches_a_desk(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The second process still fetches other desks."""
    wecom.write(item("hi", 1))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(repeat("ok"))) as desk:
        duties, duty = desk.memory.channels.duties, f"fetch:{SCOPE}:{DESK}"
        assert await duties.claim(duty, "another process", seconds=60.0, every_seconds=0.0)
        await desk.say("")
        for number in (2, 3):  # the second message arrives after a whole poll
            wecom.write(item("hi", number, "wm2", open_kfid="wk2"))
            await desk.post(desk.platform.body("", OpenKfId="wk2"))
            await desk.answered(number - 1)
        assert {page["open_kfid"] for page in wecom.pages()} == {"wk2"}
        await duties.release(duty, "another process")
        await desk.say("")
        assert len(await desk.answered(3)) == 3
        await fetched(desk)


@pytest.mark.slow
async def test_a_notice_survives_its_process(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The first process could not reach the API of WeCom."""
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(), api="http://127.0.0.1:9") as desk:
        await desk.say("")
    wecom.write(item("hello?"))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(["yes"])) as desk:
        assert await desk.answered() == ["yes"]


@pytest.mark.slow
async def test_a_bot_skips_the_desks_of_another_bot(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The bot of the desk reads the notice and the messages later."""
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(), api="http://127.0.0.1:9") as desk:
        await desk.say("")
    wecom.write(item("hello?"), item("hi", 2, "wm2", open_kfid="wk2"))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(["two"]), desks=["wk2"]) as desk:
        await desk.post(desk.platform.body("", OpenKfId="wk2"))
        assert await desk.answered() == ["two"]
    assert {page["open_kfid"] for page in wecom.pages()} == {"wk2"}
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(["one"]), desks=[DESK]) as desk:
        assert await desk.answered(2) == ["two", "one"]


async def test_messages_from_before_the_start_get_no_reply(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The first read of a desk returns three days of messages. Texts are stored, pictures are not."""
    old, picture = item("two days ago", 1), item("", 3, msgtype="image")
    old["send_time"] = picture["send_time"] = int(time.time()) - 172_800
    wecom.write(old, picture, item("now", 2))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["ok"]
        assert await desk.transcript(FIRST) == [("user", "two days ago"), ("user", "now"), ("assistant", "ok")]


async def test_history_is_not_answered_after_an_interrupted_first_fetch(tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom refuses the second page of the history. A later fetch continues the history, not as new messages."""
    old = [{**item(f"old {number}", number), "send_time": int(time.time()) - 172_800} for number in (1, 2)]
    wecom.write(*old, item("now", 3), page=1)
    wecom.refuse_pages(0, 45009)
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["ok"]
        await fetched(desk)
        said = await desk.transcript(FIRST)
        assert said == [("user", "old 1"), ("user", "old 2"), ("user", "now"), ("assistant", "ok")]


async def test_messages_of_human_agents_are_stored(tmp_path: Path, wecom: FakeWeCom) -> None:
    wecom.write(
        item("I will look.", 1, origin=5, servicer_userid="zhang"),
        item("", 2, origin=5, servicer_userid="zhang", msgtype="image"),
    )
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel()) as desk:
        await desk.say("")
        await fetched(desk)
        [message] = await desk.memory.session(FIRST).tail(10)
        assert (message.role, message.content, message.metadata["servicer_id"]) == (
            "assistant",
            "I will look.",
            "zhang",
        )
        assert await desk.statuses() == []


async def test_a_recalled_message_is_noted_and_gets_no_reply(tmp_path: Path, wecom: FakeWeCom) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "one"]])
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, model) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        await gate.reached()
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m2"}
        event = {"msgid": "e1", "send_time": int(time.time()) + 1, "origin": 4, "msgtype": "event", "event": recall}
        wecom.write(item("b", 2), event)
        await desk.say("")
        await fetched(desk)
        gate.open()
        assert await desk.answered() == ["one"]
        assert ("system", "The person took a message back.") in await desk.transcript(FIRST)
        assert sorted(await desk.statuses()) == ["delivered", "nothing"]
    assert len(model.calls) == 1


@pytest.mark.parametrize("number", [2, 3])
async def test_a_recalled_message_is_left_out_of_a_common_reply(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom, number: int
) -> None:
    """Two messages wait for one run, and the customer takes one of them back. WeCom may repeat the event."""
    gate = Gate()
    model = ScriptedModel([[gate, "one"], "two"])
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        await gate.reached()
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1"}
        event = {"msgid": "e1", "send_time": int(time.time()) + 1, "origin": 4, "msgtype": "event"}
        event["event"] = recall | {"recall_msgid": f"m{number}"}
        wecom.write(item("the number 2", 2), item("the number 3", 3), event, event)
        await desk.say("")
        await fetched(desk)
        gate.open()
        assert await desk.answered(2) == ["one", "two"]
        said = await desk.transcript(FIRST)
        assert sorted(await desk.statuses()) == ["delivered", "delivered", "nothing"]
    asked = "".join(str(message.content) for message in model.calls[-1])
    assert (f"the number {number}" in asked, f"the number {5 - number}" in asked) == (False, True)
    assert {("user", "the number 2"), ("user", "the number 3")} <= set(said)
    assert said.count(("system", "The person took a message back.")) == 1


async def test_a_recalled_message_is_stored_after_an_outage(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database fails once while the message is taken back from a run that answers another one, too."""
    gate, append, failures = Gate(), Session.append, [StoreUnavailable("The database does not answer.")]

    async def failing(self: Session, messages: Sequence[Message]) -> Receipt:
        if failures and messages[0].status == "failed":
            raise failures.pop()
        return await append(self, messages)

    monkeypatch.setattr(Session, "append", failing)
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel([[gate, "one"], "two"])) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        await gate.reached()
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m2"}
        event = {"msgid": "e1", "send_time": int(time.time()) + 1, "origin": 4, "msgtype": "event", "event": recall}
        wecom.write(item("b", 2), item("c", 3), event)
        await desk.say("")
        await fetched(desk)
        gate.open()
        assert await desk.answered(2) == ["one", "two"]
        assert {("user", "b"), ("user", "c")} <= set(await desk.transcript(FIRST))
    assert not failures


async def test_a_recalled_picture_does_not_block_the_customer(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The recall of an unknown message is ignored, and the first text gets a reply."""
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["Hello."])) as desk:
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m0"}
        event = {"msgid": "e1", "send_time": int(time.time()), "origin": 4, "msgtype": "event", "event": recall}
        wecom.write(event)
        await desk.say("")
        await fetched(desk)
        wecom.write(item("a", 1))
        await desk.say("")
        assert await desk.answered() == ["Hello."]
        assert await desk.transcript(FIRST) == [("user", "a"), ("assistant", "Hello.")]


async def test_a_recall_from_a_damaged_run_does_not_stop_its_desk(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom
) -> None:
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(["one", "two"])) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        assert await desk.answered() == ["one"]
        damaged_bytes = "X'01ff'" if shared_url.startswith("sqlite") else "decode('01ff', 'hex')"
        await asyncio.to_thread(execute, shared_url, f"UPDATE chat_runs SET result = {damaged_bytes}")
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m1"}
        event = {"msgid": "e1", "send_time": int(time.time()), "origin": 4, "msgtype": "event", "event": recall}
        wecom.write(event, item("b", 2, "wm2"))
        await desk.say("")
        assert await desk.answered(2) == ["one", "two"]


async def test_a_damaged_session_does_not_stop_its_desk(tmp_path: Path, wecom: FakeWeCom) -> None:
    url, environment = f"sqlite:///{tmp_path}/history.db", {"transcripts": "graph_store"}
    model = ScriptedModel(repeat("Hello."))
    async with opened_wecom(KIND, url, tmp_path, wecom, model, environment=environment) as desk:
        wecom.write(item("a", 1))
        await desk.say("")
        await desk.answered()
        await asyncio.to_thread(DAMAGES["metadata is text"].do, url, FIRST)
        recall = {"event_type": "user_recall_msg", "open_kfid": DESK, "external_userid": "wm1", "recall_msgid": "m1"}
        event = {"msgid": "e1", "send_time": int(time.time()), "origin": 4, "msgtype": "event", "event": recall}
        wecom.write(event, item("b", 2, "wm2"))
        await desk.say("")
        assert await desk.answered(2) == ["Hello.", "Hello."]


def failures(desk: WeComDesk, reason: str) -> float | None:
    """Return the number of replies that were counted as refused for good."""
    labels = {"channel": KIND, "reason": reason}
    assert desk.app.metrics is not None
    return desk.app.metrics.registry.get_sample_value("threadkeep_channel_failures_total", labels)


def send_failed(sent_id: str, fail_type: int, number: int) -> dict[str, Any]:
    """Return the event of an accepted message that did not reach the customer."""
    event: dict[str, Any] = {"event_type": "msg_send_fail", "open_kfid": DESK, "external_userid": "wm1"}
    event |= {"fail_msgid": sent_id, "fail_type": fail_type}
    return {"msgid": f"e{number}", "send_time": int(time.time()), "origin": 4, "msgtype": "event", "event": event}


@pytest.mark.parametrize(("code", "error"), [(95001, "ReplyLimit"), (95002, "ReplyTimeOver")])
async def test_limits_of_the_platform_are_not_retried(tmp_path: Path, wecom: FakeWeCom, code: int, error: str) -> None:
    wecom.refuse(code)
    wecom.write(item("a", 1), item("x", 2, "wm2"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(repeat("ok"))) as desk:
        assert failures(desk, error) == 0
        await desk.say("")
        await desk.answered()
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert failures(desk, error) == 1
    assert (failed.error, failed.tries) == (error, 1)
    assert wecom.texts() == ["ok"]


@pytest.mark.slow
async def test_a_retry_sends_the_missing_parts_of_a_reply(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """Five of seven parts arrive, and the fifth says that it is cut. A retry sends only the other two."""
    answer = [f"{number} " + "a" * 1998 for number in range(7)]
    parts = [*answer[:4], f"{answer[4]}\n\n[…]", *answer[5:]]
    wecom.limit(5)
    wecom.write(item("Tell me all.", 1))
    model = ScriptedModel(["\n\n".join(answer), "ok"])
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        await desk.say("")
        assert await desk.answered(5) == parts[:5]
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert (failed.error, failed.parts_sent) == ("ReplyLimit", 5)
        wecom.write(item("And the rest?", 2))
        await desk.say("")
        assert await desk.answered(6) == [*parts[:5], "ok"]
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert await desk.answered(8) == [*parts[:5], "ok", *parts[5:]]
        assert await desk.statuses() == ["delivered", "delivered"]


async def test_a_retried_reply_is_marked_where_it_is_cut_again(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom
) -> None:
    """WeCom accepts four more parts after a retry, because the reply to the newest message was one of the five."""
    answer = [f"{number} " + "a" * 1998 for number in range(12)]
    wecom.limit(5)
    wecom.write(item("Tell me all.", 1))
    async with opened_wecom(
        KIND, shared_url, tmp_path, wecom, ScriptedModel(["\n\n".join(answer), "ok", "ok"])
    ) as desk:
        await desk.say("")
        await desk.answered(5)
        for number, sent in ((2, 9), (3, 12)):
            wecom.write(item("And the rest?", number))
            await desk.say("")
            await desk.answered(len(wecom.texts()) + 1)
            [failed] = await desk.memory.channels.outbox.entries(status="failed")
            assert await desk.memory.channels.outbox.retry(failed.number)
            await desk.answered(sent + number - 1)
    cut = [text for text in wecom.texts() if text.endswith("[…]")]
    assert cut == [f"{answer[4]}\n\n[…]", f"{answer[8]}\n\n[…]"]
    assert [text[:2].strip() for text in wecom.texts() if text != "ok"] == [str(number) for number in range(12)]


async def test_a_part_that_is_sent_again_has_no_mark_of_a_cut(tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom accepted all parts, and reported later that the fifth did not reach the customer. A retry sends it on."""
    answer = [f"{number} " + "a" * 1998 for number in range(6)]
    wecom.write(item("Tell me all.", 1))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["\n\n".join(answer)])) as desk:
        await desk.say("")
        await desk.answered(6)
        wecom.write(send_failed(wecom.sent()[4]["msgid"], 4, 1))
        await desk.say("")
        await fetched(desk)
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert (await desk.answered(8))[6:] == answer[4:]


async def test_a_late_delivery_failure_is_recorded(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """A repeated event counts once, and an unknown id is ignored. A retry sends the answer with another id."""
    wecom.write(item("hi", 1))
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, ScriptedModel(["one", "two"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["one"]
        [sent] = wecom.sent()
        wecom.write(send_failed("unknown", 4, 1), send_failed(sent["msgid"], 4, 2), send_failed(sent["msgid"], 4, 3))
        wecom.write(item("hello?", 2))
        await desk.say("")
        assert await desk.answered(2) == ["one", "two"]
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert (failed.error, failed.parts_sent) == ("ReplyTimeOver", 0)
        assert failed.address == {"open_kfid": DESK, "touser": "wm1"}
        assert failures(desk, "ReplyTimeOver") == 1
        assert await desk.transcript(FIRST) == [
            ("user", "hi"),
            ("assistant", "one"),
            ("user", "hello?"),
            ("assistant", "two"),
        ]
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert await desk.answered(3) == ["one", "two", "one"]


async def test_a_reply_is_sent_once_after_a_broken_connection(tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom detects the repeat by the id of the message."""
    wecom.refuse(0)
    wecom.write(item("a"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        await until(lambda: _delivered(desk))
    assert wecom.texts() == ["ok"]


async def test_a_failure_that_is_reported_before_a_repeat_is_recorded(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The connection broke after WeCom had accepted the only part, so the outbox does not know that it was sent."""
    wecom.refuse(0, *repeat(45009, 200))
    wecom.write(item("a"))
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        await until(lambda: len(wecom.sent()) == 1)
        wecom.write(send_failed(wecom.sent()[0]["msgid"], 4, 2))
        await desk.say("")
        await until(desk.outbox_is_idle)
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert (failed.error, failed.parts_sent) == ("ReplyTimeOver", 0)
        wecom.accept()
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert await desk.answered(2) == ["ok", "ok"]


async def test_a_refused_id_of_a_part_that_was_not_sent_is_no_arrival(tmp_path: Path, wecom: FakeWeCom) -> None:
    """An earlier version left the ids of an answer as they were when WeCom could not deliver it."""
    url = f"sqlite:///{tmp_path}/history.db"
    wecom.write(item("a"))
    async with opened_wecom(KIND, url, tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("")
        assert await desk.answered() == ["ok"]
        address = json.dumps({"open_kfid": DESK, "touser": "wm1"})
        failed = f"UPDATE chat_outbox SET status = 'failed', parts_sent = 0, address = '{address}'"
        await asyncio.to_thread(execute, url, failed)
        [entry] = await desk.memory.channels.outbox.entries()
        assert await desk.memory.channels.outbox.retry(entry.number)

        async def tried() -> bool:
            [entry] = await desk.memory.channels.outbox.entries()
            return entry.tries > 2 or entry.status != "ready"

        await until(tried)
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.error) == ("ready", "Code99999")


async def _delivered(desk: WeComDesk) -> bool:
    return await desk.statuses() == ["delivered"]
