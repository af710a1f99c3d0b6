"""Tests of a bot for members of a corporation, with a fake WeCom in another process."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path
from time import time
from urllib.parse import quote

import httpx2
import pytest

from tests.channels.fake_wecom import FakeWeCom
from tests.channels.platforms import CORP
from tests.channels.wecom_desk import opened_wecom
from tests.web.services import until
from threadkeep import open_memory
from threadkeep.channels.wecom_client import WeComApi
from threadkeep.testing import Gate, ScriptedModel

SESSION = f"wecom_dm:{CORP}:1:li_40corp"


async def test_a_member_gets_a_reply(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """The response to the callback does not wait for the model, and the reply is a separate call."""
    gate = Gate()
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, ScriptedModel([[gate, "你好"]])) as desk:
        async with asyncio.timeout(30):
            assert (await desk.say("hi")).content == b"success"
        await gate.reached()
        assert wecom.texts() == []
        gate.open()
        assert await desk.answered() == ["你好"]
        assert await desk.transcript(SESSION) == [("user", "hi"), ("assistant", "你好")]
    [call] = wecom.sent()
    assert (call["touser"], call["agentid"], call["msgtype"], call["safe"]) == ("li@corp", 1, "text", 0)


async def test_an_echo_request_is_answered(tmp_path: Path, wecom: FakeWeCom) -> None:
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel()) as desk:
        encrypted, query = desk.platform.sealed("1616140317555161061", at=int(time()))
        response = await desk.client.get(f"/channels/one?{query}&echostr={quote(encrypted, safe='')}")
        assert (response.status_code, response.content) == (200, b"1616140317555161061")
        encrypted, query = desk.platform.sealed("1", at=int(time()), token="other")
        assert (await desk.client.get(f"/channels/one?{query}&echostr={quote(encrypted, safe='')}")).status_code == 403


async def test_a_repeated_message_is_one_turn(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    model = ScriptedModel(repeat("ok"))
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, model) as desk:
        await asyncio.gather(*(desk.say("hi") for _ in range(3)))
        await desk.answered()
        await desk.say("hi")
        assert await desk.answered() == ["ok"]
        assert len(await desk.transcript(SESSION)) == 2


@pytest.mark.slow
async def test_an_access_token_is_reused_until_it_is_refused(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    model = ScriptedModel(repeat("ok"))
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, model) as desk:
        await desk.say("a", 1)
        await desk.answered(1)
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, model) as desk:
        await desk.say("b", 2)
        await desk.answered(2)
        assert wecom.tokens() == 1
        wecom.expire()
        await desk.say("c", 3)
        await desk.answered(3)
    assert wecom.tokens() == 2


async def test_a_reply_without_a_token_is_not_uncertain(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The connection broke while a token was requested, so no message was sent."""
    wecom.break_tokens(1)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["ok"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.tries, entry.uncertain) == (2, False)


async def test_calls_that_wait_for_a_token_share_its_failure() -> None:
    """The request for a token hangs. One by one, each waiting reply would need as long, and its claim would end."""
    reached, released, requests = asyncio.Event(), asyncio.Event(), list[str]()

    async def hang(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.url.path)
        reached.set()
        await released.wait()
        raise httpx2.ReadTimeout("too late")

    async with open_memory("sqlite://") as memory, httpx2.AsyncClient(transport=httpx2.MockTransport(hang)) as http:
        api = WeComApi(memory, http, scope="s", corp_id="c", secret="canary")
        calls = [asyncio.create_task(api.call("message/send", {})) for _ in range(3)]
        await reached.wait()
        await asyncio.sleep(0)
        released.set()
        found = await asyncio.gather(*calls)
        assert [(one.error, one.uncertain) for one in found] == [("ReadTimeout", False)] * 3
        assert len(requests) == 1
        await api.call("message/send", {})
        assert len(requests) == 2


@pytest.mark.parametrize("method", ["message/send", "gettoken"])
async def test_the_wait_that_wecom_demands_is_kept(tmp_path: Path, wecom: FakeWeCom, method: str) -> None:
    """The reply is sent once, after the seconds of `Retry-After`, and without doubt. 0 is no pause without an end."""
    wecom.be_busy(method, 1, 0)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["ok"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["ok"]
        [entry] = await desk.memory.channels.outbox.entries()
    first, second, third = wecom.times()
    assert (second - first >= 1, third - second >= 1) == (True, True)
    assert (entry.tries, entry.uncertain) == (3, False)


async def test_a_long_reply_is_split_by_bytes(tmp_path: Path, wecom: FakeWeCom) -> None:
    answer = "\n\n".join(f"{number} " + "字" * 500 for number in range(3))
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel([answer])) as desk:
        await desk.say("hi")
        assert "\n\n".join(await desk.answered(3)) == answer


async def test_a_reply_is_sent_once_after_a_broken_connection(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The retry enables WeCom's duplicate check for the text. The same text of a later reply is sent."""
    wecom.refuse(0)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["ok", "ok"])) as desk:
        await desk.say("a", 1)
        await until(desk.outbox_is_idle)
        assert wecom.texts() == ["ok"]
        await desk.say("b", 2)
        assert await desk.answered(2) == ["ok", "ok"]


async def test_permanent_errors_of_wecom_are_not_retried(tmp_path: Path, wecom: FakeWeCom) -> None:
    """A rate limit is retried, and an invalid user is not. Both responses have HTTP status 200."""
    wecom.refuse(45009, 60111)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["one"])) as desk:
        await desk.say("hi")
        await until(desk.outbox_is_idle)
        [entry] = await desk.memory.channels.outbox.entries()
        assert (entry.status, entry.error, entry.tries) == ("failed", "InvalidUser", 2)
    assert wecom.texts() == []


@pytest.mark.parametrize(("member", "error"), [("invalid", "InvalidUser"), ("unlicensed", "UnlicensedUser")])
async def test_an_invalid_recipient_is_a_failure(tmp_path: Path, wecom: FakeWeCom, member: str, error: str) -> None:
    """WeCom's response is a success that lists the member as invalid or without a license."""
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["one"])) as desk:
        await desk.say("hi", FromUserName=member)
        await until(desk.outbox_is_idle)
        [entry] = await desk.memory.channels.outbox.entries()
        assert (entry.status, entry.error, entry.tries) == ("failed", error, 1)
    assert wecom.texts() == []


async def test_only_listed_members_get_replies(tmp_path: Path, wecom: FakeWeCom) -> None:
    model = ScriptedModel(["ok"])
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, model, allowed_users=["li@corp"]) as desk:
        assert (await desk.say("hi", 1, FromUserName="wang")).content == b"success"
        await desk.say("hi", 2)
        assert await desk.answered() == ["ok"]
        assert await desk.statuses() == ["delivered"]
    assert len(model.calls) == 1
