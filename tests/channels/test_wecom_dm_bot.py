"""A bot for members of a corporation, from the callback to the answer, against a platform in another process."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path
from time import time
from urllib.parse import quote

import pytest

from tests.channels.fake_wecom import FakeWeCom
from tests.channels.platforms import CORP
from tests.channels.wecom_desk import opened_wecom
from tests.web.services import until
from threadkeep.testing import Gate, ScriptedModel

SESSION = f"wecom_dm:{CORP}:1:li_40corp"


async def test_a_member_is_answered(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom hears success at once; the answer is a call of its own."""
    gate = Gate()
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, ScriptedModel([[gate, "你好"]])) as desk:
        async with asyncio.timeout(4):
            assert (await desk.say("hi")).content == b"success"
        await gate.reached()
        assert wecom.texts() == []
        gate.open()
        assert await desk.answered() == ["你好"]
        assert await desk.transcript(SESSION) == [("user", "hi"), ("assistant", "你好")]
    [call] = wecom.sent()
    assert (call["touser"], call["agentid"], call["msgtype"], call["safe"]) == ("li@corp", 1, "text", 0)


async def test_the_address_is_checked_by_a_get(tmp_path: Path, wecom: FakeWeCom) -> None:
    """With the plain text and nothing around it; somebody else is refused."""
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel()) as desk:
        encrypted, query = desk.platform.sealed("1616140317555161061", at=int(time()))
        response = await desk.client.get(f"/channels/one?{query}&echostr={quote(encrypted, safe='')}")
        assert (response.status_code, response.content) == (200, b"1616140317555161061")
        encrypted, query = desk.platform.sealed("1", at=int(time()), token="other")
        assert (await desk.client.get(f"/channels/one?{query}&echostr={quote(encrypted, safe='')}")).status_code == 403


async def test_a_message_that_comes_three_times_is_one_turn(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """At one moment and afterwards."""
    model = ScriptedModel(repeat("ok"))
    async with opened_wecom("wecom_dm", shared_url, tmp_path, wecom, model) as desk:
        await asyncio.gather(*(desk.say("hi") for _ in range(3)))
        await desk.answered()
        await desk.say("hi")
        assert await desk.answered() == ["ok"]
        assert len(await desk.transcript(SESSION)) == 2


@pytest.mark.slow
async def test_one_token_serves_all_calls_until_wecom_refuses_it(
    shared_url: str, tmp_path: Path, wecom: FakeWeCom
) -> None:
    """It is in the database, where a process that starts later finds it."""
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


async def test_a_long_answer_is_cut_by_bytes_and_sent_in_order(tmp_path: Path, wecom: FakeWeCom) -> None:
    """No part has more than 2,048 bytes, which the platform holds."""
    answer = "\n\n".join(f"{number} " + "字" * 500 for number in range(3))
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel([answer])) as desk:
        await desk.say("hi")
        assert "\n\n".join(await desk.answered(3)) == answer


async def test_a_broken_connection_does_not_double_a_message(tmp_path: Path, wecom: FakeWeCom) -> None:
    """The repeat asks WeCom to look for the same text; the same words in another answer are sent."""
    wecom.refuse(0)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["ok", "ok"])) as desk:
        await desk.say("a", 1)
        await until(desk.nothing_waits)
        assert wecom.texts() == ["ok"]
        await desk.say("b", 2)
        assert await desk.answered(2) == ["ok", "ok"]


async def test_what_wecom_refuses_for_good_stays_and_the_rest_is_tried_again(tmp_path: Path, wecom: FakeWeCom) -> None:
    """HTTP says 200 to both."""
    wecom.refuse(45009, 60111)
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["one"])) as desk:
        await desk.say("hi")
        await until(desk.nothing_waits)
        [entry] = await desk.memory.channels.outbox.entries()
        assert (entry.status, entry.error, entry.tries) == ("failed", "InvalidUser", 2)
    assert wecom.texts() == []


async def test_a_member_who_did_not_get_the_answer_is_told(tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom says success, and names them."""
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, ScriptedModel(["one"])) as desk:
        await desk.say("hi", FromUserName="gone")
        await until(desk.nothing_waits)
        [entry] = await desk.memory.channels.outbox.entries()
        assert (entry.status, entry.error, entry.tries) == ("failed", "InvalidUser", 1)
    assert wecom.texts() == []


async def test_only_members_of_the_list_are_answered(tmp_path: Path, wecom: FakeWeCom) -> None:
    """WeCom hears success for the others too."""
    model = ScriptedModel(["ok"])
    async with opened_wecom("wecom_dm", "sqlite://", tmp_path, wecom, model, allowed_users=["li@corp"]) as desk:
        assert (await desk.say("hi", 1, FromUserName="wang")).content == b"success"
        await desk.say("hi", 2)
        assert await desk.answered() == ["ok"]
        assert await desk.statuses() == ["delivered"]
    assert len(model.calls) == 1
