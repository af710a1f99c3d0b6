"""Tests of a WeCom AI bot whose replies the platform fetches, with a fake platform in another process."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from wechatpy.enterprise.crypto import WeChatCrypto

from tests.channels.fake_wecom import FakeWeCom
from tests.channels.platforms import AES_KEY, WECOM_TOKEN, aibot_message
from tests.channels.wecom_desk import WeComDesk, opened_wecom
from tests.web.services import until
from threadkeep.channels import intake, wecom_aibot
from threadkeep.testing import Gate, ScriptedModel

KIND = "wecom_aibot"
SESSION = "wecom_aibot:B1:single:U1"


def opened(response: httpx2.Response) -> dict[str, Any]:
    """Return the decrypted body of a response."""
    sent = response.json()
    crypto = WeChatCrypto(WECOM_TOKEN, AES_KEY, "")
    text = crypto.check_signature(sent["msgsignature"], str(sent["timestamp"]), sent["nonce"], sent["encrypt"])
    body: dict[str, Any] = json.loads(text)
    return body


async def say(desk: WeComDesk, text: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """Send a message; return the stream of its reply."""
    url = f"{desk.wecom.address}/cgi-bin/aibot/response?response_code=CODE{number}"
    stream: dict[str, Any] = opened(
        await desk.post(json.dumps(aibot_message(text, number) | {"response_url": url} | changes))
    )
    assert stream["msgtype"] == "stream"
    return dict(stream["stream"])


async def refresh(desk: WeComDesk, stream_id: str) -> dict[str, Any]:
    """Request the reply so far."""
    body = json.dumps({"aibotid": "B1", "msgtype": "stream", "stream": {"id": stream_id}})
    return dict(opened(await desk.post(body))["stream"])


async def finished(desk: WeComDesk, stream: dict[str, Any]) -> str:
    """Refresh until the reply is finished, as the platform does; return its text."""
    found = stream

    async def is_finished() -> bool:
        nonlocal found
        found = await refresh(desk, stream["id"])
        return bool(found["finish"])

    await until(is_finished)
    return str(found["content"])


@pytest.mark.parametrize(
    ("allowed", "company", "is_answered"),
    [("ww1:U1", "ww1", True), ("U1", "ww1", False), ("ww2:U1", "ww1", False), ("U1", "", True), ("ww1:U1", "", False)],
)
async def test_an_allowed_user_of_a_company_is_not_one_of_another(
    tmp_path: Path, wecom: FakeWeCom, allowed: str, company: str, is_answered: bool
) -> None:
    """WeCom names the company only to a third party's bot, so a company's own bot is configured with plain ids."""
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(["ok"]), allowed_users=[allowed]) as desk:
        member = {"from": {"userid": "U1", "corpid": company}}
        response = await desk.post(json.dumps(aibot_message("hi") | member))
        assert bool(response.content) == is_answered


async def test_a_reply_is_streamed_through_refreshes(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The first response does not wait for the model. A refresh returns the whole text so far."""
    gate = Gate()
    model = ScriptedModel([["Your parcel ", gate, "is on its way."]])
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        stream = await say(desk, "Where is it?")
        assert (stream["finish"], stream["content"]) == (False, "")
        await gate.reached()

        async def has_begun() -> bool:
            return await refresh(desk, stream["id"]) == {**stream, "content": "Your parcel"}

        await until(has_begun)
        [entry] = await desk.memory.channels.outbox.entries()
        assert str(entry.number) == stream["id"]
        gate.open()
        assert await finished(desk, stream) == "Your parcel is on its way."
        assert await finished(desk, stream) == "Your parcel is on its way."
        assert await desk.statuses() == ["delivered"]
        assert await desk.transcript(SESSION) == [("user", "Where is it?"), ("assistant", "Your parcel is on its way.")]
    assert wecom.texts() == []


async def test_a_repeated_message_has_the_same_stream(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "ok"]])
    async with opened_wecom(KIND, shared_url, tmp_path, wecom, model) as desk:
        stream = await say(desk, "hi")
        await gate.reached()
        assert (await say(desk, "hi"))["id"] == stream["id"]
        gate.open()
        assert await finished(desk, stream) == "ok"
        assert await say(desk, "hi") == {"id": stream["id"], "finish": True, "content": "ok"}
        assert len(await desk.transcript(SESSION)) == 2


async def test_a_late_reply_is_sent_to_the_response_url(
    tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends with a notice, and the reply is sent once."""
    for module in (intake, wecom_aibot):
        monkeypatch.setattr(module, "STREAM_TIME", timedelta(0))
    gate = Gate()
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([[gate, "late"]])) as desk:
        stream = await say(desk, "hi")
        assert (stream["finish"], stream["content"]) == (True, "This takes longer. The answer follows.")
        await gate.reached()
        gate.open()
        assert await desk.answered() == ["late"]
        assert (await refresh(desk, stream["id"]))["content"] == "This takes longer. The answer follows."
        assert await desk.answered() == ["late"]


async def test_the_wait_that_wecom_demands_for_a_late_reply_is_kept(
    tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (intake, wecom_aibot):
        monkeypatch.setattr(module, "STREAM_TIME", timedelta(0))
    wecom.be_busy("aibot/response", 1)
    gate = Gate()
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([[gate, "late"]])) as desk:
        await say(desk, "hi")
        await gate.reached()
        gate.open()
        assert await desk.answered() == ["late"]
    first, second = wecom.times()
    assert second - first >= 1


async def test_a_reply_that_is_not_fetched_is_sent(
    tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is sent after the time in which the platform may fetch it."""
    monkeypatch.setattr(intake, "STREAM_TIME", timedelta(seconds=1))
    gate = Gate()
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([[gate, "ok"]])) as desk:
        await say(desk, "hi")
        await gate.reached()
        gate.open()
        await until(lambda: _status(desk, "ready"))
        assert wecom.texts() == []
        assert await desk.answered() == ["ok"]
    assert wecom.sent() == [{"msgtype": "markdown", "markdown": {"content": "ok"}}]


async def test_the_rest_of_a_long_reply_is_sent(tmp_path: Path, wecom: FakeWeCom) -> None:
    """A stream has at most 20,480 bytes, so the rest of a longer reply is a message."""
    answer = "a" * 15_000 + "\n\n" + "b" * 15_000
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([answer])) as desk:
        stream = await say(desk, "hi")
        assert await finished(desk, stream) == "a" * 15_000
        assert await desk.answered() == ["b" * 15_000]
        assert await finished(desk, stream) == "a" * 15_000


async def test_a_reply_that_is_too_long_for_its_messages_ends_with_a_mark(
    tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WeCom accepts one message besides the stream. A stream that nobody fetches leaves only this message."""
    answer = "\n\n".join(letter * 15_000 for letter in "abc")
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([answer])) as desk:
        assert await finished(desk, await say(desk, "hi")) == "a" * 15_000
        assert await desk.answered() == ["b" * 15_000 + "\n\n[…]"]
        assert await desk.statuses() == ["delivered"]
    monkeypatch.setattr(intake, "STREAM_TIME", timedelta(seconds=0))
    gate = Gate()  # the answer must not be ready for the first response, which would stream its first part
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([[gate, "界" * 15_000]])) as desk:
        stream = await say(desk, "hi", 2)
        gate.open()
        [_, text] = await desk.answered(2)
        assert (text.strip("界"), len(text) > 6_700) == ("\n\n[…]", True)
        assert await desk.statuses() == ["delivered"]
        # A late refresh does not show the text again.
        assert (await refresh(desk, stream["id"]))["content"] == "This takes longer. The answer follows."


async def test_commands_and_pictures_get_their_reply_in_the_response(tmp_path: Path, wecom: FakeWeCom) -> None:
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel(repeat("ok")), language="zh") as desk:
        for _ in range(2):
            help_text = await say(desk, "/help", 1)
            assert (help_text["finish"], "/new" in help_text["content"]) == (True, True)
        picture = await say(desk, "", 2, msgtype="image", image={"url": "https://x"})
        assert (picture["finish"], picture["content"]) == (True, "我目前只能阅读文字消息。")
        assert await finished(desk, await say(desk, "/new", 3)) == "已开始新的对话。"
        body = json.dumps(aibot_message("", 4) | {"msgtype": "event", "event": {"eventtype": "enter_chat"}})
        welcome = opened(await desk.post(body))
        assert welcome["msgtype"] == "text"
        assert welcome["text"]["content"].startswith("你好")
        assert await desk.transcript(SESSION) == []
    assert wecom.texts() == []


async def test_an_unknown_stream_is_finished(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The stream was deleted, or is of another bot."""
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel()) as desk:
        for stream_id in ("7", "x", "²"):
            assert (await refresh(desk, stream_id))["finish"] is True


async def test_a_response_url_of_another_host_is_refused(
    tmp_path: Path, wecom: FakeWeCom, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (intake, wecom_aibot):
        monkeypatch.setattr(module, "STREAM_TIME", timedelta(0))
    gate = Gate()
    async with opened_wecom(KIND, "sqlite://", tmp_path, wecom, ScriptedModel([[gate, "ok"]])) as desk:
        await say(desk, "hi", response_url="http://127.0.0.1:9/cgi-bin/aibot/response?response_code=x")
        await gate.reached()
        gate.open()
        await until(lambda: _status(desk, "failed"))
        [entry] = await desk.memory.channels.outbox.entries()
    assert entry.error == "NoResponseAddress"
    assert "response_url" not in entry.address


async def _status(desk: WeComDesk, status: str) -> bool:
    return status in await desk.statuses()
