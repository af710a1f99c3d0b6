"""Tests of a bot on Telegram, from the webhook to the reply, with a fake platform in another process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import httpx2
import pytest
from langchain_core.messages import AIMessage

from tests.channels.desk import SESSION, SOON, BotDesk, opened_bot, update
from tests.channels.fake_telegram import FakeTelegram
from tests.channels.platforms import SENT_AT, Telegram
from tests.databases import execute
from tests.web.services import until
from threadkeep import Memory, Message
from threadkeep.channels import delivery, intake, opening, wecom_client
from threadkeep.channels.bots import TEXTS, Bot
from threadkeep.channels.contract import IncomingMessage, stored_message
from threadkeep.channels.delivery import DeliveryOptions, answer_text
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.channels.telegram_client import TelegramClient, TelegramPolling
from threadkeep.errors import StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.observe import ChannelTrouble, Event
from threadkeep.records import Json
from threadkeep.records.messages import OutboxStatus
from threadkeep.records.runs import DELETE, RunQuery, deletion_key
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.service import RunService
from threadkeep.store.duties import Duties
from threadkeep.store.outbox import OrphanedMessage, Outbox, Outgoing
from threadkeep.testing import Gate, ScriptedModel

TOO_FAST = "You are sending messages too fast. Please wait a minute."
GROUP = {"id": -100123, "type": "supergroup"}
ADDRESS: dict[str, Json] = {"chat_id": "7", "message_id": "101"}


class RecordedErrors:
    """An observer that collects the errors of channels."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def notify(self, event: Event, /) -> None:
        """Record the error of an event."""
        if isinstance(event, ChannelTrouble):
            self.errors.append(event.error)


async def _has_tried(desk: BotDesk, count: int) -> bool:
    """Return whether this many messages of the outbox are being sent or have been tried."""
    return sum(entry.tries > 0 for entry in await desk.memory.channels.outbox.entries()) >= count


async def _has_statuses(desk: BotDesk, *statuses: OutboxStatus) -> bool:
    """Return whether the messages of the outbox have these statuses, in order."""
    return await desk.statuses() == list(statuses)


def _stored(text: str, number: int) -> str:
    """Return a message in the form in which a row of the outbox stores it."""
    message = Telegram().channel().read_update(update(text, number))
    assert isinstance(message, IncomingMessage)
    return stored_message(message)


async def test_a_message_gets_a_reply(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """The stored turn has the text, the time and the sender of the message."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["Hello **Anna**."])) as desk:
        await desk.say("Hi, I am Anna.")
        assert await desk.answered() == ["Hello Anna."]
        assert await desk.transcript() == [("user", "Hi, I am Anna."), ("assistant", "Hello **Anna**.")]
        [question, _] = await desk.memory.session(SESSION).tail(2)
        info = await desk.memory.session(SESSION).info()
        [person] = await desk.memory.persons.all()
        assert (person.id, person.names) == ("telegram:7", ("Anna",))
    [call] = telegram.calls()
    assert call["chat_id"] == 7
    assert call["reply_parameters"] == {"message_id": 101, "allow_sending_without_reply": True}
    assert question.id == "telegram:4242:1"
    assert question.sent_at is not None
    assert question.sent_at.timestamp() == SENT_AT
    assert question.metadata["sender_name"] == "Anna"
    assert info.user_id == "telegram:7"
    assert telegram.calls("sendChatAction")[0] == {"action": "typing", "chat_id": 7}


async def test_the_webhook_does_not_wait_for_the_model(tmp_path: Path, telegram: FakeTelegram) -> None:
    gate = Gate()
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([[gate, "late"]])) as desk:
        async with asyncio.timeout(30):
            await desk.say("hello")
        await gate.reached()
        assert telegram.texts() == []
        gate.open()
        assert await desk.answered() == ["late"]


async def test_a_repeated_update_is_one_turn(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """A repeat is recognized during the turn and after it. The same text with another update id is a new turn."""
    gate = Gate()
    model = ScriptedModel([[gate, "one"], "two"])
    async with opened_bot(shared_url, tmp_path, telegram, model) as desk:
        assert await asyncio.gather(*(desk.send(update("ok")) for _ in range(5))) == [200] * 5
        await gate.reached()
        await desk.say("ok")
        gate.open()
        assert await desk.answered() == ["one"]
        await desk.say("ok")
        await desk.say("ok", 2)
        assert await desk.answered(2) == ["one", "two"]
        assert len(await desk.transcript()) == 4
    assert len(model.calls) == 2


async def test_a_callback_without_the_secret_is_refused(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel()) as desk:
        response = await desk.client.post("/channels/one", json=update("hi"))
        assert (response.status_code, response.content) == (403, b"")
        assert await desk.send(update("hi"), secret="wrong") == 403
        assert (await desk.client.post("/channels/two", json=update("hi"))).status_code == 404
        assert (await desk.client.get("/channels/one")).status_code == 403
        assert await desk.statuses() == []
        assert await desk.memory.session(SESSION).count() == 0
        metrics = (await desk.client.get("/metrics")).text
    refusals = 'threadkeep_channel_refusals_total{channel="telegram",reason='
    assert f'{refusals}"signature_wrong"}} 1.0' in metrics
    assert f'{refusals}"signature_missing"}} 2.0' in metrics


@pytest.mark.slow
async def test_two_bots_have_separate_histories_with_one_person(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    model = ScriptedModel(repeat("ok"))
    others = [{"name": "two", "token": "4343:AAother"}]
    async with opened_bot(shared_url, tmp_path, telegram, model, others=others) as desk:
        for number, (bot, text) in enumerate([("one", "a"), ("two", "b"), ("one", "c")], 1):
            assert await desk.send(update(text, number), bot=bot) == 200
            await desk.answered(number)
        assert [text for _, text in await desk.transcript("telegram:4242:7")] == ["a", "ok", "c", "ok"]
        assert [text for _, text in await desk.transcript("telegram:4343:7")] == ["b", "ok"]
    assert [str(message.content) for message in model.calls[1] if message.type != "system"] == ["b"]


async def test_callbacks_need_no_api_key(tmp_path: Path, telegram: FakeTelegram) -> None:
    environment = {"api_keys": "ops:secret"}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hi"]), environment=environment) as desk:
        desk.client.headers["host"] = "bots.example.com"
        assert await desk.send(update("hi")) == 200
        assert (await desk.client.get("/api/v1/sessions")).status_code == 401
        await desk.answered()


async def test_a_long_reply_is_split_into_messages(tmp_path: Path, telegram: FakeTelegram) -> None:
    text = "\n\n".join(f"{number:03d} " + "x" * 494 for number in range(20))
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([text])) as desk:
        await desk.say("Tell me all.")
        assert "\n\n".join(await desk.answered(3)) == text
    assert ["reply_parameters" in call for call in telegram.calls()] == [True, False, False]


async def test_a_topic_gets_its_reply_in_the_topic(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        await desk.say("/ask", chat=GROUP, is_topic_message=True, message_thread_id=5)
        await desk.answered()
        assert await desk.transcript("telegram:4242:-100123:5") == [("user", "/ask"), ("assistant", "ok")]
    [call] = telegram.calls()
    assert (call["chat_id"], call["message_thread_id"]) == (-100123, 5)


async def test_a_reply_to_a_deleted_topic_of_a_private_chat_arrives_in_the_chat(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.refuse(400, "Bad Request: message thread not found", times=2)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["**ok**"])) as desk:
        await desk.say("Hi.", is_topic_message=True, message_thread_id=5)
        assert await desk.answered() == ["ok"]
        assert await desk.statuses() == ["delivered"]
    [call] = telegram.calls()
    assert (call["chat_id"], "message_thread_id" in call) == (7, False)


async def test_a_reply_to_a_deleted_topic_of_a_group_fails(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The answer is not sent to another topic of the group, which other people read."""
    telegram.refuse(400, "Bad Request: message thread not found", times=3)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        await desk.say("/ask", chat=GROUP, is_topic_message=True, message_thread_id=5)
        await until(lambda: _has_statuses(desk, "failed"))
    assert telegram.calls() == []


async def test_a_quoted_message_is_shown_to_the_model(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The quoted message is not stored in the transcript."""
    model = ScriptedModel(["Because of snow."])
    quoted = {"message_id": 41, "from": {"id": 9, "is_bot": False}, "text": "The parcel is late."}
    async with opened_bot("sqlite://", tmp_path, telegram, model) as desk:
        await desk.say("Why?", reply_to_message=quoted)
        await desk.answered()
        assert await desk.transcript() == [("user", "Why?"), ("assistant", "Because of snow.")]
    assert "The parcel is late." in str([message.content for message in model.calls[0]])


async def test_the_wait_of_a_busy_platform_is_kept(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The bot waits for the seconds of `retry_after`, and sends the reply once."""
    telegram.refuse(429, retry_after=1)
    telegram.refuse(502)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        await until(lambda: _has_failed_try(desk))
        [entry] = await desk.memory.channels.outbox.entries()
        assert entry.next_try_at >= entry.created_at + timedelta(seconds=1)
        assert await desk.answered() == ["hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert entry.tries == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_a_proxy_demands_is_kept(tmp_path: Path, telegram: FakeTelegram, status: int) -> None:
    """A proxy names the seconds in the header `Retry-After`, without Telegram's fields."""
    telegram.refuse(status, page="<html>Busy</html>", headers={"Retry-After": "1"})
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        await until(lambda: _has_failed_try(desk))
        [entry] = await desk.memory.channels.outbox.entries()
        assert entry.next_try_at >= entry.created_at + timedelta(seconds=1)
        assert await desk.answered() == ["hello"]


@pytest.mark.parametrize(("status", "uncertain"), [(403, False), (400, False), (502, True), (200, True)])
async def test_a_page_of_a_proxy_is_no_refusal(
    tmp_path: Path, telegram: FakeTelegram, status: int, uncertain: bool
) -> None:
    """The reply is sent again; after a 5xx or an unreadable response it may have arrived before."""
    telegram.refuse(status, page="<html>Blocked</html>")
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.uncertain, entry.tries) == ("delivered", uncertain, 2)


async def test_a_reply_with_a_refused_format_is_sent_as_plain_text(tmp_path: Path, telegram: FakeTelegram) -> None:
    telegram.refuse(400, "Bad Request: can't parse entities: a reason")
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["**hello**"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["**hello**"]
    assert "parse_mode" not in telegram.calls()[0]


async def test_a_reply_that_may_have_arrived_is_sent_again(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Telegram has no id to detect repeats. The entry is marked uncertain."""
    telegram.refuse(0)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        assert await desk.answered(2) == ["hello", "hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.uncertain, entry.tries) == ("delivered", True, 2)


@contextmanager
def _hanging_platform() -> Iterator[str]:
    """Accept connections and never respond; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def _drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond with a byte now and then, without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("platform", ["telegram", "wecom"])
async def test_a_response_that_never_ends_is_given_up(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wecom_client, "_CALL_SECONDS", 0.6)
    server = await asyncio.start_server(_drip, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx2.AsyncClient(trust_env=False) as http:
        if platform == "telegram":
            answer = await TelegramClient("4242:key", http, api=address).call("getUpdates", seconds=0.6)
        else:
            answer = await wecom_client.ask(http, "GET", address)
    server.close()
    await server.wait_closed()
    assert (answer.error, answer.uncertain) == ("TimeoutError", True)


async def test_no_library_logs_a_secret_of_a_platform(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """URLs contain the secrets. Requests of the program's own clients are logged as before."""
    monkeypatch.setattr(wecom_client, "_CALL_SECONDS", 0.6)
    caplog.set_level(logging.DEBUG)
    server = await asyncio.start_server(_drip, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx2.AsyncClient(trust_env=False) as http:
        await TelegramClient("4242:canary", http, api=address).call("getUpdates", seconds=0.6)
        await wecom_client.ask(http, "GET", address, query={"corpsecret": "canary"})
        async with http.stream("GET", f"{address}/own"):
            pass
    server.close()
    await server.wait_closed()
    assert ("canary" in caplog.text, f"{address}/own" in caplog.text) == (False, True)


@pytest.mark.parametrize("platform", ["telegram", "wecom"])
async def test_a_missing_connection_is_noticed_before_the_time_of_the_call_is_over(platform: str) -> None:
    """At the end of that time it would be unknown whether the platform has executed the call."""
    limits: list[dict[str, float]] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        limits.append(request.extensions["timeout"])
        return httpx2.Response(200, json={"ok": True, "errcode": 0})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as http:
        if platform == "telegram":
            await TelegramClient("4242:key", http).call("getUpdates", seconds=35)
        else:
            await wecom_client.ask(http, "GET", wecom_client.API)
    [limit] = limits
    assert limit["pool"] + limit["connect"] <= limit["read"]


async def test_a_hanging_platform_does_not_block_other_bots(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_FINISH_SECONDS", 0.05)
    other = {"name": "two", "token": "4343:AAother"}
    with _hanging_platform() as hanging:
        settings = {"api": hanging, "options": replace(SOON, concurrency=2), "others": [other]}
        async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), **settings) as desk:
            for number in (1, 2, 3):
                await desk.say("/help", number, chat={"id": number, "type": "private"})
            await until(lambda: _has_tried(desk, 2))
            await desk.send(update("/help"), bot="two")
            await until(lambda: len(telegram.texts()) == 1)


async def test_a_part_that_exceeds_its_claim_is_retried(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may send a part after its claim has expired, so the try ends then."""
    monkeypatch.setattr(opening, "_FINISH_SECONDS", 0.05)
    with _hanging_platform() as hanging:
        settings = {"api": hanging, "options": replace(SOON, claim_seconds=0.2)}
        async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), **settings) as desk:
            await desk.say("/help")
            await until(lambda: _has_failed_try(desk))
            [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.error, entry.uncertain) == ("TimeoutError", True)


async def test_a_reply_is_sent_once_during_a_database_outage(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is recorded when the database is available again."""
    note_part, failures = Outbox.note_part, iter(range(5))

    async def away(*args: Any, **named: Any) -> bool:
        if next(failures, None) is not None:
            raise StoreUnavailable("no database")
        return await note_part(*args, **named)

    monkeypatch.setattr(Outbox, "note_part", away)
    options = replace(SOON, claim_seconds=0.2)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["hello"]), options=options) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.tries, entry.uncertain) == ("delivered", 1, False)


async def test_an_empty_answer_of_the_model_is_replaced(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The person learns that there is no answer, and can send the message again."""
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["", "hello"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["I could not answer that. Please try again later."]
        await desk.say("hi", 2)
        assert (await desk.answered(2))[1] == "hello"


async def test_a_reply_is_retried_although_the_bot_was_off_for_days(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    telegram.refuse(502)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel()) as desk:
        outbox = desk.memory.channels.outbox
        with monkeypatch.context() as earlier:
            earlier.setattr(outbox, "_clock", lambda: desk.memory.clock() - timedelta(days=2))
            await outbox.add("one", SESSION, "telegram:4242:1", address=ADDRESS, content="late", waits=False)
        await until(desk.outbox_is_idle)
        [entry] = await outbox.entries()
    assert (entry.status, entry.tries, telegram.texts()) == ("delivered", 2, ["late"])


async def test_a_reply_fails_after_the_time_of_attempts(tmp_path: Path, telegram: FakeTelegram) -> None:
    for _ in range(6):
        telegram.refuse(502)
    options = replace(SOON, first_pause_seconds=0.02, give_up_seconds=0.05)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"]), options=options) as desk:
        await desk.say("hi")
        await until(desk.outbox_is_idle)
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.error) == ("failed", "Status502")


async def test_a_reply_fails_after_the_pauses_that_the_platform_demands(tmp_path: Path, telegram: FakeTelegram) -> None:
    telegram.refuse(429, "Too Many Requests", retry_after=1, times=3)
    options = replace(SOON, first_pause_seconds=0.01, longest_pause_seconds=0.01, give_up_seconds=0.5)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"]), options=options) as desk:
        await desk.say("hi")
        await until(desk.outbox_is_idle)
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.tries) == ("failed", 2)


async def test_a_refused_reply_is_kept_as_failed(tmp_path: Path, telegram: FakeTelegram) -> None:
    """A reply to a person who has blocked the bot fails.

    A later reply is still sent, and the failed one can be retried.
    """
    telegram.refuse(403, "Forbidden: bot was blocked by the user")
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["one", "two"])) as desk:
        await desk.say("hi")
        await until(desk.outbox_is_idle)
        assert await desk.statuses() == ["failed"]
        await desk.say("hello?", 2)
        assert await desk.answered() == ["two"]
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert failed.error == "Forbidden"
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert await desk.answered(2) == ["two", "one"]


async def test_a_chat_that_moves_at_each_attempt_is_tried_with_pauses(tmp_path: Path, telegram: FakeTelegram) -> None:
    telegram.refuse(400, migrate_to_chat_id=-100123, times=3)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.tries) == ("delivered", 4)


async def test_a_renamed_bot_answers_although_the_old_name_has_an_unsent_reply(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.refuse(429, retry_after=60)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["one"])) as desk:
        await desk.say("hi")
        await until(lambda: _has_failed_try(desk))
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["two"]), name="renamed") as desk:
        await desk.send(update("and now?", 2), bot="renamed")
        await until(lambda: telegram.texts() == ["two"])


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_damaged_run_does_not_block_its_chat(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, *, is_stored: bool
) -> None:
    """The person gets the stored answer or, if there is none, the sentence for a failed run."""
    telegram.refuse(429, retry_after=1)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["one", "two"])) as desk:
        await desk.say("hi")
        await until(lambda: _has_failed_try(desk))
        damaged_bytes = "X'01ff'" if shared_url.startswith("sqlite") else "decode('01ff', 'hex')"
        await asyncio.to_thread(execute, shared_url, f"UPDATE chat_runs SET result = {damaged_bytes}")
        if not is_stored:
            await asyncio.to_thread(execute, shared_url, "DELETE FROM chat_messages WHERE role = 'assistant'")
        await desk.say("and now?", 2)
        assert await desk.answered(2) == ["one" if is_stored else TEXTS["en"].failed, "two"]


async def test_a_group_that_becomes_a_supergroup_keeps_its_session(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The session keeps the old id, and a pending reply is sent to the new id."""
    group, moved = {"id": -5, "type": "group"}, {"id": -100123, "type": "supergroup"}
    gate = Gate()
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([[gate, "one"], "two"])) as desk:
        await desk.say("/one", chat=group)
        await gate.reached()
        telegram.refuse(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-100123)
        gate.open()
        await desk.answered()
        for number, event in (
            (2, {"chat": group, "migrate_to_chat_id": -100123}),
            (3, {"chat": moved, "migrate_from_chat_id": -5}),
        ):
            body = update("", number, **event)
            del body["message"]["text"]
            assert await desk.send(body) == 200
        await desk.say("/two", 4, chat=moved)
        await desk.answered(2)
        words = [content for _, content in await desk.transcript("telegram:4242:-5")]
        assert words == ["/one", "one", "/two", "two"]
    assert [call["chat_id"] for call in telegram.calls()] == [-100123, -100123]


async def test_a_person_who_only_pressed_start_can_be_messaged(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """An unprompted message starts the session of the person, who owns it and gets replies in it."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["Fine."])) as desk:
        await desk.say("/start", 1)
        await desk.answered(1)
        recipient = await desk.memory.channels.outbox.recipient(SESSION)
        assert recipient is not None
        assert (recipient.user_id, recipient.address["chat_id"]) == ("telegram:7", "7")
        session = desk.memory.session(SESSION, user_id=recipient.user_id)
        await session.append([Message(role="assistant", content="News!", id="news")])
        await desk.memory.channels.outbox.send(SESSION, "news", "News!")
        await desk.answered(2)
        await desk.say("How are you?", 2)
        assert (await desk.answered(3))[1:] == ["News!", "Fine."]
    assert ["reply_parameters" in call for call in telegram.calls()] == [True, False, True]


async def test_a_session_without_an_owner_gets_the_person_as_owner(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """An earlier version stored sent messages without an owner.

    A session with messages of a user keeps its state.
    """
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["Fine.", "Hi."])) as desk:
        await desk.memory.session(SESSION).append([Message(role="assistant", content="News!", id="news")])
        await desk.say("How are you?", 1)
        assert await desk.answered(1) == ["Fine."]
        assert (await desk.memory.session(SESSION).info()).user_id == "telegram:7"
        other = {"chat": {"id": 8, "type": "private"}, "from": {"id": 8, "is_bot": False, "first_name": "Ben"}}
        await desk.memory.session("telegram:4242:8").append([Message(role="user", content="Mine.")])
        await desk.say("Whose is it?", 2, **other)
        assert (await desk.answered(2))[1] == "I could not answer that. Please try again later."
        assert await desk.transcript("telegram:4242:8") == [("user", "Mine.")]


@pytest.mark.parametrize("by_command", [True, False])
async def test_the_address_of_a_person_without_a_session_is_erased(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, by_command: bool
) -> None:
    """The person (`/forget`) or an operator can erase the address of a chat without a session."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel([])) as desk:
        await desk.say("/start", 1)
        await desk.answered(1)
        if by_command:
            await desk.say("/forget yes", 2)
            await desk.answered(2)
        else:
            await desk.memory.erase(user_id="telegram:7")
            assert await desk.statuses() == []
        assert await desk.memory.channels.outbox.recipient(SESSION) is None


async def test_undelivered_replies_are_erased_with_their_person(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Undelivered replies in a group name the person who asked.

    They and the confirmation of a deletion are erased.
    """
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"]), group_messages="all") as desk:
        await desk.say("hello", 1, chat=GROUP)
        await desk.answered(1)
        telegram.refuse(403, "Forbidden: bot was blocked by the user", times=20)
        await desk.say("/whoami", 2, chat=GROUP)
        await desk.say("/forget yes", 3)
        outbox = desk.memory.channels.outbox

        async def both_failed() -> bool:
            return [one.status for one in await outbox.entries(limit=9)].count("failed") == 2

        await until(both_failed)
        assert not [one for one in await outbox.entries(limit=9) if ":7" in one.session_id]
        await desk.memory.erase(user_id="telegram:7")
        assert await outbox.entries(limit=9) == []


async def test_commands_get_a_reply_and_are_not_stored(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """After `/new`, the model sees no earlier messages, which stay in the transcript."""
    model = ScriptedModel(repeat("ok"))
    async with opened_bot(shared_url, tmp_path, telegram, model) as desk:
        await desk.say("My cat is Miso.", 1)
        await desk.answered(1)
        for number, command in enumerate(["/start", "/HELP", "/whoami", "/new"], 2):
            await desk.say(command, number)
            await desk.answered(number)
        await desk.say("/new", 5)
        await desk.say("What is my cat called?", 6)
        sent = await desk.answered(6)
        assert [content for _, content in await desk.transcript()] == [
            "My cat is Miso.",
            "ok",
            "What is my cat called?",
            "ok",
        ]
    assert "/help" in sent[1]
    assert "/whoami" in sent[2]
    assert sent[3] == f"Your id: telegram:7\nThis conversation: {SESSION}"
    assert sent[4] == "This is a new conversation."
    assert all("Miso" not in str(message.content) for message in model.calls[-1])


async def test_a_person_can_delete_their_conversation(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(repeat("ok"))) as desk:
        await desk.say("My cat is Miso.", 1)
        await desk.answered(1)
        await desk.say("/forget", 2)
        assert "/forget yes" in (await desk.answered(2))[1]
        assert len(await desk.transcript()) == 2
        assert [person.names for person in await desk.memory.persons.all()] == [("Anna",)]
        await desk.say("/forget yes", 3)
        assert (await desk.answered(3))[2] == "Our conversation is deleted."
        assert await desk.transcript() == []
        assert await desk.memory.persons.all() == []
        await desk.say("/forget yes", 4, chat=GROUP)
        assert "group" in (await desk.answered(4))[3]


ASKING = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

graph = StateGraph(MessagesState)
graph.add_node("ask", lambda state: {"messages": [AIMessage(f"You said {interrupt({'question': 'Ship it?'})}.")]})
graph.add_edge(START, "ask")
"""
ASKING_TWICE = """
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

graph = StateGraph(MessagesState)
for question in ("Which size?", "Which colour?"):
    graph.add_node(question, lambda state, question=question: {"messages": [("ai", interrupt(question))]})
    graph.add_edge(START, question)
"""


@pytest.mark.parametrize("message_id", [None, "elsewhere:1"])
async def test_the_reply_of_a_resumed_run_is_delivered(
    shared_url: str,
    tmp_path: Path,
    telegram: FakeTelegram,
    monkeypatch: pytest.MonkeyPatch,
    message_id: str | None,
) -> None:
    """The bot sends the question at once, and the reply after an operator has resumed the run."""
    (tmp_path / "form_asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {"environment": {"workflows": "asking=form_asking:graph"}, "workflow": "asking"}
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel([]), **given) as desk:
        await desk.say("Order it.")
        assert await desk.answered() == ["Ship it?"]
        runs = await desk.app.runs.service()
        [waiting], _ = await runs.list(RunQuery(status="waiting"))
        await runs.resume_once(waiting.run_id, "yes", message_id=message_id)
        assert await desk.answered(2) == ["Ship it?", "You said yes."]


@asynccontextmanager
async def asking_bot(
    url: str,
    folder: Path,
    telegram: FakeTelegram,
    monkeypatch: pytest.MonkeyPatch,
    question: str = "'Ship it?'",
    **settings: Any,
) -> AsyncIterator[BotDesk]:
    """Open a bot whose workflow asks a person a question."""
    name = f"asking_{uuid4().hex}"
    (folder / f"{name}.py").write_text(ASKING.replace("{'question': 'Ship it?'}", question))
    monkeypatch.syspath_prepend(str(folder))
    given: dict[str, Any] = {"environment": {"workflows": f"asking={name}:graph"}, "workflow": "asking"}
    given["group_messages"] = "all"
    async with opened_bot(url, folder, telegram, ScriptedModel([]), **given, **settings) as desk:
        yield desk


async def test_a_message_in_the_chat_resumes_a_waiting_run(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated answer resumes the run once. Commands work while the run waits."""
    async with asking_bot(shared_url, tmp_path, telegram, monkeypatch) as desk:
        await desk.say("Order it.", 1)
        assert await desk.answered() == ["Ship it?"]
        await desk.say("/whoami", 2)
        await desk.answered(2)
        assert await asyncio.gather(*(desk.send(update("yes", 3)) for _ in range(3))) == [200] * 3
        assert (await desk.answered(3))[2:] == ["You said yes."]
        await desk.say("yes", 3)
        await desk.say("Order it.", 1)
        assert len(await desk.answered(3)) == 3
        assert await desk.transcript() == [("user", "Order it."), ("user", "yes"), ("assistant", "You said yes.")]
        found, _ = await (await desk.app.runs.service()).list(RunQuery())
        assert [run.status for run in found] == ["done"]
        await desk.say("Another one.", 4)
        assert (await desk.answered(4))[3] == "Ship it?"
    assert telegram.calls()[2]["reply_parameters"]["message_id"] == 103


async def test_a_message_before_the_question_is_sent_does_not_answer_it(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question waits behind an earlier reply, so the person has not seen it."""
    telegram.refuse(429, retry_after=3600)
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch) as desk:
        await desk.say("/whoami", 1)
        await until(lambda: _has_failed_try(desk))
        await desk.say("Order it.", 2)
        await until(lambda: _has_statuses(desk, "ready", "ready"))
        await desk.say("Two of them.", 3)
        runs = await desk.app.runs.service()

        async def asks_twice() -> bool:
            found, _ = await runs.list(RunQuery())
            return [run.status for run in found] == ["waiting", "waiting"]

        await until(asks_twice)
    assert telegram.texts() == []


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_an_answer_to_a_damaged_run_does_not_stop_the_bot(
    database_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer begins a new run, /new works, and the messages of other people are polled."""
    other = {"from": {"id": 8, "is_bot": False, "first_name": "Ben"}, "chat": {"id": 8, "type": "private"}}
    polling: dict[str, Any] = {"receive": "polling", "secret": ""}
    async with asking_bot(database_url, tmp_path, telegram, monkeypatch, **polling) as desk:
        telegram.push(update("Order it.", 1))
        await desk.answered()
        damaged_bytes = "X'01ff'" if database_url.startswith("sqlite") else "decode('01ff', 'hex')"
        await asyncio.to_thread(execute, database_url, f"UPDATE chat_runs SET result = {damaged_bytes}")
        telegram.push(update("yes", 2), update("Order one for me.", 3, **other))
        assert await desk.answered(3) == ["Ship it?"] * 3
        await asyncio.to_thread(execute, database_url, f"UPDATE chat_runs SET result = {damaged_bytes}")
        telegram.push(update("/new", 4))
        assert await desk.answered(4) == ["Ship it?"] * 3 + [TEXTS["en"].new]
    assert sorted(call["chat_id"] for call in telegram.calls()) == [7, 7, 7, 8]


_NEWER, _DAMAGED = "28b52ffd22429c00", "01ff"
"""A compressed record of a newer version, and a damaged one."""


@asynccontextmanager
async def _unreadable_inputs(url: str, record: str) -> AsyncIterator[None]:
    """Replace the inputs of all runs inside the block."""
    blob = f"X'{record}'" if url.startswith("sqlite") else f"decode('{record}', 'hex')"
    for statement in (
        "CREATE TABLE readable AS SELECT run_id, input FROM chat_runs",
        f"UPDATE chat_runs SET input = {blob}",
    ):
        await asyncio.to_thread(execute, url, statement)
    yield
    restore = "UPDATE chat_runs SET input = (SELECT input FROM readable r WHERE r.run_id = chat_runs.run_id)"
    await asyncio.to_thread(execute, url, f"{restore} WHERE run_id IN (SELECT run_id FROM readable)")


@pytest.mark.parametrize(("record", "status"), [(_NEWER, 500), (_DAMAGED, 200)])
async def test_a_repeat_does_not_replace_the_answer_of_an_unreadable_run(
    tmp_path: Path, telegram: FakeTelegram, record: str, status: int
) -> None:
    url, gate = f"sqlite:///{tmp_path}/history.db", Gate()
    async with opened_bot(url, tmp_path, telegram, ScriptedModel([[gate, "one"]])) as desk:
        await desk.say("ok")
        await gate.reached()
        async with _unreadable_inputs(url, record):
            assert await desk.send(update("ok")) == status
        gate.open()
        assert await desk.answered() == ["one"]


async def test_an_answer_to_a_run_of_a_newer_version_is_left_to_its_processes(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telegram sends it again. Another message whose process has died is answered."""
    url = f"sqlite:///{tmp_path}/history.db"
    other = {"from": {"id": 8, "is_bot": False, "first_name": "Ben"}, "chat": {"id": 8, "type": "private"}}
    options = replace(SOON, take_again_seconds=0.01)
    async with asking_bot(url, tmp_path, telegram, monkeypatch, options=options) as desk:
        await desk.say("Order it.", 1)
        assert await desk.answered() == ["Ship it?"]
        async with _unreadable_inputs(url, _NEWER):
            assert await desk.send(update("yes", 2)) == 500
            left = Telegram().channel().read_update(update("Order one for me.", 3, **other))
            assert isinstance(left, IncomingMessage)
            key = ("one", left.session_id or "", left.message_id)
            await desk.memory.channels.outbox.add(*key, address=left.reply_to, message=stored_message(left))
            await until(lambda: telegram.texts() == ["Ship it?"] * 2)
        await desk.say("yes", 2)
        assert await desk.answered(3) == ["Ship it?", "Ship it?", "You said yes."]


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_polling_is_not_blocked_by_a_run_of_a_newer_version(
    database_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of other people are answered. The next process that can read the run takes the answer to it."""
    other = {"from": {"id": 8, "is_bot": False, "first_name": "Ben"}, "chat": {"id": 8, "type": "private"}}
    given: dict[str, Any] = {"receive": "polling", "secret": "", "options": replace(SOON, take_again_seconds=0.01)}
    async with AsyncExitStack() as newer:
        async with asking_bot(database_url, tmp_path, telegram, monkeypatch, **given) as desk:
            telegram.push(update("Order it.", 1))
            assert await desk.answered() == ["Ship it?"]
            await newer.enter_async_context(_unreadable_inputs(database_url, _NEWER))
            telegram.push(update("yes", 2), update("Order one for me.", 3, **other))
            await until(lambda: telegram.texts() == ["Ship it?"] * 2)
            await until(lambda: _has_offset(desk, "4"))
        await newer.aclose()
        async with asking_bot(database_url, tmp_path, telegram, monkeypatch, **given) as desk:
            assert await desk.answered(3) == ["Ship it?", "Ship it?", "You said yes."]


async def test_new_cancels_the_waiting_run(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message starts a new run. A late repeat of the command does not cancel that run."""
    async with asking_bot(shared_url, tmp_path, telegram, monkeypatch) as desk:
        await desk.say("Order it.", 1)
        await desk.answered()
        await desk.say("/new", 2)
        await desk.answered(2)
        await desk.say("Order two.", 3)
        assert (await desk.answered(3))[2] == "Ship it?"
        await desk.say("/new", 2)
        await desk.say("no", 4)
        assert (await desk.answered(4))[3] == "You said no."
        found, _ = await (await desk.app.runs.service()).list(RunQuery(workflow="asking"))
        assert [run.status for run in found] == ["done", "cancelled"]


async def test_a_question_without_a_text_answer_is_for_an_operator(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person can continue the conversation, and gets the reply after an operator has resumed the run."""
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch, "{'approve': ['refund']}") as desk:
        await desk.say("Refund it.", 1)
        assert await desk.answered() == [TEXTS["en"].asked_elsewhere]
        await desk.say("Any news?", 2)
        await desk.answered(2)
        runs = await desk.app.runs.service()
        found, _ = await runs.list(RunQuery(status="waiting"))
        await runs.resume(found[-1].run_id, {"decision": "approve"})
        assert "approve" in (await desk.answered(3))[2]


async def test_several_questions_are_followed_by_a_hint(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking_twice.py").write_text(ASKING_TWICE)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {"environment": {"workflows": "asking=asking_twice:graph"}, "workflow": "asking"}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([]), **given) as desk:
        await desk.say("Order it.", 1)
        [asked] = await desk.answered()
        assert set(asked.splitlines()[:2]) == {"Which size?", "Which colour?"}
        assert "/new to cancel it" in asked.splitlines()[2]
        await desk.say("/new", 2)
        await desk.answered(2)
        found, _ = await (await desk.app.runs.service()).list(RunQuery(workflow="asking"))
        assert [run.status for run in found] == ["cancelled"]


async def test_a_message_answers_the_question_of_a_tool(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent continues after each of two answers, and its next turn sees the whole conversation."""
    workflow = tmp_path / "asker.yaml"
    tools = "tools: ['tests.workflows.tools:ask_person'], next: end"
    workflow.write_text(f"schema: 1\nname: asker\nnodes:\n  answer: {{kind: agent, {tools}}}")
    asks = [
        AIMessage("", tool_calls=[{"name": "ask_person", "args": {"question": question}, "id": question}])
        for question in ("Which size?", "Which colour?")
    ]
    model = ScriptedModel([*asks, "Thank you.", "You are welcome."])
    given: dict[str, Any] = {"environment": {"workflows": str(workflow)}, "workflow": "asker"}
    async with opened_bot(shared_url, tmp_path, telegram, model, **given) as desk:
        for number, text in enumerate(["Order it.", "M", "red", "Thanks."], 1):
            await desk.say(text, number)
            await desk.answered(number)
        assert telegram.texts() == ["Which size?", "Which colour?", "Thank you.", "You are welcome."]
        said = [text for _, text in await desk.transcript()]
        assert said == ["Order it.", "M", "red", "Thank you.", "Thanks.", "You are welcome."]
    assert [str(one.content) for one in model.calls[2]][-1:] == ["The person says red."]
    shown = [str(one.content) for one in model.calls[3]]
    assert {"Order it.", "M", "red", "Thank you.", "Thanks."} <= set(shown)
    assert [call["reply_parameters"]["message_id"] for call in telegram.calls()] == [101, 102, 103, 104]


async def test_in_a_group_only_the_asked_person_resumes_a_run(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"id": 8, "is_bot": False, "first_name": "Ben"}
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch) as desk:
        await desk.say("Order it.", 1, chat=GROUP)
        await desk.answered()
        await desk.say("Hello.", 2, chat=GROUP, **{"from": other})
        assert await desk.answered(2) == ["Ship it?", "Ship it?"]
        await desk.say("yes", 3, chat=GROUP)
        await desk.say("no", 4, chat=GROUP, **{"from": other})
        assert sorted((await desk.answered(4))[2:]) == ["You said no.", "You said yes."]


async def test_a_question_in_a_busy_group_can_still_be_answered(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question may be older than many runs of other people, whether these have ended or wait for answers."""
    monkeypatch.setattr("threadkeep.channels.bots._NEWEST", 2)
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch) as desk:
        await desk.say("Order it.", 1, chat=GROUP)
        await desk.answered()
        for number in (2, 3, 4):
            other = {"id": number, "is_bot": False, "first_name": "Ben"}
            await desk.say("Hello.", number, chat=GROUP, **{"from": other})
            await desk.answered(number)
        await desk.say("yes", 5, chat=GROUP)
        assert (await desk.answered(5))[4:] == ["You said yes."]
        for number in (2, 3):
            other = {"id": number, "is_bot": False, "first_name": "Ben"}
            await desk.say("no", number + 4, chat=GROUP, **{"from": other})
            assert (await desk.answered(number + 4))[number + 3 :] == ["You said no."]


@pytest.mark.slow
async def test_a_repeated_deletion_is_confirmed_once(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion is stored before Telegram gets its response. The person can write again after it."""
    submit = RunService.submit
    deletions: list[str | None] = []

    async def counted(runs: RunService, request: RunRequest, **options: Any) -> Submitted:
        if request.workflow == DELETE:
            deletions.append(request.session_id)
            await asyncio.sleep(0.1)  # other deliveries arrive meanwhile
        return await submit(runs, request, **options)

    monkeypatch.setattr(RunService, "submit", counted)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(repeat("ok"))) as desk:
        await desk.say("My cat is Miso.", 1)
        await desk.answered(1)
        assert await asyncio.gather(*(desk.send(update("/forget yes", 2)) for _ in range(3))) == [200] * 3
        await desk.answered(2)
        assert await desk.memory.channels.outbox.recipient(SESSION) is None
        await desk.say("Hello again.", 3)
        assert await desk.answered(3) == ["ok", "Our conversation is deleted.", "ok"]
        assert await desk.transcript() == [("user", "Hello again."), ("assistant", "ok")]
    assert deletions == [SESSION]


async def test_a_deletion_that_fails_is_not_confirmed(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, failures = Session.delete, [RuntimeError("broken")]

    async def failing(session: Session, **options: Any) -> bool:
        if failures:
            raise failures.pop()
        return await delete(session, **options)

    monkeypatch.setattr(Session, "delete", failing)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        await desk.say("My cat is Miso.", 1)
        await desk.answered(1)
        await desk.say("/forget yes", 2)
        told = await desk.answered(2)
        kept = await desk.transcript()
        await desk.say("/forget yes", 3)
        deleted = await desk.answered(3)
    assert told[1:] == ["I could not delete our conversation. Please send /forget yes again later."]
    assert kept == [("user", "My cat is Miso."), ("assistant", "ok")]
    assert deleted[2:] == ["Our conversation is deleted."]


async def test_the_record_of_a_deletion_is_removed_with_its_reply(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The record detects a repeated update and has no id of a person."""
    options = replace(SOON, keep_seconds=1)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"]), options=options) as desk:
        await desk.say("My cat is Miso.", 1)
        await desk.answered(1)
        await desk.say("/forget yes", 2)
        await desk.answered(2)
        outbox, place = desk.memory.channels.outbox, (deletion_key(SESSION), "telegram:4242:2")
        assert await outbox.run_of(*place) is not None

        async def is_removed() -> bool:
            return await outbox.run_of(*place) is None and await desk.statuses() == []

        await until(is_removed)


@pytest.mark.slow
async def test_a_deletion_sent_to_two_services_deletes_once(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second service handles the update after the first has deleted the session and got a new message."""
    submit, gate, requests = RunService.submit, Gate(), list[RunRequest]()

    async def late(runs: RunService, request: RunRequest, **options: Any) -> Submitted:
        if request.workflow == DELETE:
            requests.append(request)
            if len(requests) == 1:
                await gate.pass_through()
        return await submit(runs, request, **options)

    monkeypatch.setattr(RunService, "submit", late)
    async with (
        opened_bot(shared_url, tmp_path / "a", telegram, ScriptedModel(repeat("ok"))) as first,
        opened_bot(shared_url, tmp_path / "b", telegram, ScriptedModel(repeat("ok"))) as second,
    ):
        await first.say("My cat is Miso.", 1)
        await first.answered(1)
        sending = asyncio.create_task(second.send(update("/forget yes", 2)))
        await gate.reached()
        await first.say("/forget yes", 2)
        await first.answered(2)
        await first.say("Hello again.", 3)
        await first.answered(3)
        gate.open()
        assert await sending == 200
        await first.say("And again.", 4)
        assert await first.answered(4) == ["ok", "Our conversation is deleted.", "ok", "ok"]
        assert [text for _, text in await first.transcript()] == ["Hello again.", "ok", "And again.", "ok"]
    assert len(requests) == 2


async def test_a_pressed_button_is_acknowledged(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Telegram shows a button as pending until the bot acknowledges the press, even for a command."""
    message = {"message_id": 9, "date": SENT_AT, "chat": {"id": 7, "type": "private"}}
    press = {"from": {"id": 7, "is_bot": False, "first_name": "Anna"}, "message": message}
    kinds = {"allowed_updates": ["message", "callback_query"]}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"]), **kinds) as desk:
        for number, data in ((1, "yes"), (2, "/help")):
            await desk.send({"update_id": number, "callback_query": {**press, "id": f"press-{number}", "data": data}})
        await desk.answered(2)
    acknowledged = {call["callback_query_id"] for call in telegram.calls("answerCallbackQuery")}
    assert acknowledged == {"press-1", "press-2"}


async def test_an_album_without_a_caption_gets_one_reply(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telegram sends each picture of an album as a separate message."""
    monkeypatch.setattr(intake, "_ALBUM_PAUSE", timedelta(seconds=0.05))
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["nice"])) as desk:
        for number in (1, 2, 3):
            await desk.say("", number, photo=[{"file_id": "f"}], media_group_id="album")
        assert await desk.answered() == ["I can only read text."]
        await desk.say("", 4, photo=[{"file_id": "f"}], media_group_id="other", caption="Look!")
        assert await desk.answered(2) == ["I can only read text.", "nice"]


async def test_other_pictures_of_a_captioned_album_get_no_reply(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any picture may have the caption. A second caption is a turn of its own."""
    monkeypatch.setattr(intake, "_ALBUM_PAUSE", timedelta(seconds=60))
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(repeat("nice"))) as desk:
        for number, caption in ((1, {}), (2, {"caption": "Look!"}), (3, {}), (4, {"caption": "And this!"})):
            await desk.say("", number, photo=[{"file_id": "f"}], media_group_id="album", **caption)
        await desk.say("/help", 5)
        sent = await desk.answered(3)
    assert sent.count("nice") == 2
    assert "I can only read text." not in sent


async def test_texts_depend_on_the_language_and_the_settings(tmp_path: Path, telegram: FakeTelegram) -> None:
    """A reply with an empty text is not sent."""
    photo = update("", 1, photo=[{"file_id": "f"}])
    del photo["message"]["text"]
    settings = {"language": "zh", "texts": {"help": "自助"}}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), **settings) as desk:
        assert await desk.send(photo) == 200
        await desk.say("/help", 2)
        assert await desk.answered(2) == ["我目前只能阅读文字消息。", "自助"]
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), texts={"media": ""}) as desk:
        assert await desk.send(photo) == 200
        await desk.say("/help", 2)
        await desk.answered(3)
        assert len(telegram.texts()) == 3


async def test_unlisted_persons_and_long_messages_start_no_run(tmp_path: Path, telegram: FakeTelegram) -> None:
    model = ScriptedModel(["ok"])
    limits = {"allowed_users": ["7"], "max_characters": 10}
    async with opened_bot("sqlite://", tmp_path, telegram, model, **limits) as desk:
        await desk.say("hi", 1, **{"from": {"id": 8, "is_bot": False}})
        await desk.say("much too long", 2)
        await desk.say("hi", 3)
        sent = await desk.answered(2)
    assert sorted(sent) == ["That message is too long for me. Please send a shorter one.", "ok"]
    assert len(model.calls) == 1


async def test_a_person_over_the_rate_limit_gets_one_warning(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The limit is for each person. A repeated update counts once, and stickers count too."""
    model = ScriptedModel(repeat("ok"))
    async with opened_bot("sqlite://", tmp_path, telegram, model, messages_per_minute=2) as desk:
        for number in (1, 1, 1, 2, 3, 4):
            await desk.say("hi", number)
        await desk.say("hi", 5, chat={"id": 8, "type": "private"}, **{"from": {"id": 8, "is_bot": False}})
        assert sorted(await desk.answered(4)) == [TOO_FAST, "ok", "ok", "ok"]
        for number in (6, 7, 8, 9):
            person = {"chat": {"id": 9, "type": "private"}, "from": {"id": 9, "is_bot": False}}
            await desk.say("", number, sticker={"file_id": "s"}, **person)
        sent = await desk.answered(7)
    assert sorted(sent[4:]) == ["I can only read text.", "I can only read text.", TOO_FAST]
    assert len(model.calls) == 3


async def test_a_bot_can_coalesce_messages_during_a_turn(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The policy of the bot overrides that of the workflow. One reply refers to the newest message."""
    gate = Gate()
    model = ScriptedModel([[gate, "one"], "all"])
    async with opened_bot("sqlite://", tmp_path, telegram, model, double_texting="coalesce") as desk:
        await desk.say("a", 1)
        await gate.reached()
        await desk.say("b", 2)
        await desk.say("c", 3)
        gate.open()
        assert await desk.answered(2) == ["one", "all"]
        assert [content for _, content in await desk.transcript()] == ["a", "one", "b", "c", "all"]
    assert telegram.calls()[1]["reply_parameters"]["message_id"] == 103


async def test_a_failed_model_call_is_reported_but_not_stored(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([ValueError("no")])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["I could not answer that. Please try again later."]
        assert await desk.transcript() == [("user", "hi")]


async def test_a_repeated_update_completes_a_lost_turn(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """A process has recorded the message and died before the run. Telegram repeats the update."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        outbox = desk.memory.channels.outbox
        await outbox.add("one", SESSION, "telegram:4242:1", address={"chat_id": "7", "message_id": "101"})
        await desk.say("hi")
        assert await desk.answered() == ["ok"]


async def test_a_lost_turn_is_completed_after_a_long_stop(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process died before the run, and no other process ran for two hours. The next one takes the message."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        outbox = desk.memory.channels.outbox
        with monkeypatch.context() as earlier:
            earlier.setattr(outbox, "_clock", lambda: desk.memory.clock() - timedelta(hours=2))
            await outbox.add("one", SESSION, "telegram:4242:1", address=ADDRESS, message=_stored("hi", 1))
        await until(desk.outbox_is_idle)
        assert await desk.statuses() == ["delivered"]
        assert telegram.texts() == ["ok"]


async def test_a_busy_bot_takes_the_messages_of_a_dead_process(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Answers to other people wake the delivery more often than it polls."""
    options = DeliveryOptions(poll_seconds=3, take_again_seconds=0.001)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"]), options=options) as desk:
        await desk.memory.channels.outbox.add(
            "one", SESSION, "telegram:4242:999", address=ADDRESS, message=_stored("lost", 999)
        )
        number = 0

        async def taken() -> bool:
            nonlocal number
            number += 1
            await desk.say("/help", number, chat={"id": 1000 + number, "type": "private"})
            return ("user", "lost") in await desk.transcript()

        await until(taken)


async def test_an_unreadable_row_does_not_block_other_rows(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """A row of another version is reported once and expires. The rows behind it are processed."""
    options = DeliveryOptions(poll_seconds=0.05, take_again_seconds=0.1)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"]), options=options) as desk:
        troubles = RecordedErrors()
        desk.memory.observers.add(troubles)
        outbox = desk.memory.channels.outbox
        for number, stored in ((1, '{"words": "hi"}'), (2, "[]"), (3, _stored("hi", 3))):
            await outbox.add("one", SESSION, f"telegram:4242:{number}", address=ADDRESS, message=stored)
        await until(lambda: _has_statuses(desk, "waiting", "waiting", "delivered"))
        assert telegram.texts() == ["ok"]
        assert sorted(troubles.errors) == ["KeyError", "TypeError"]
        assert await outbox.end_without_run(older_than=timedelta(0)) == 2
        assert await desk.statuses() == ["nothing", "nothing", "delivered"]


async def test_a_new_message_does_not_expire_if_the_clock_of_its_process_is_behind(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process stores a message just before this process ends old ones, and has not begun its run."""
    orphaned, arrivals, stored_late = Outbox.orphaned, ["late"], asyncio.Event()

    async def then_another_arrives(outbox: Outbox, *, older_than: timedelta) -> list[OrphanedMessage]:
        found = await orphaned(outbox, older_than=older_than)
        if arrivals:
            behind = Outbox(outbox._driver, clock=lambda: outbox._clock() - timedelta(hours=2))  # noqa: SLF001
            stored = _stored(arrivals.pop(), 1)
            assert await behind.add("one", SESSION, "telegram:4242:1", address=ADDRESS, message=stored)
            stored_late.set()
        return found

    monkeypatch.setattr(Outbox, "orphaned", then_another_arrives)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await stored_late.wait()
        await until(desk.outbox_is_idle)
        assert telegram.texts() == ["hello"]


async def test_recovered_messages_skip_the_limit_and_recovered_commands_expire(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """A recovered message was counted on its arrival. A late `/new` would affect later messages."""
    options = DeliveryOptions(poll_seconds=0.05, take_again_seconds=0.1)
    model = ScriptedModel(["one", "two"])
    async with opened_bot(shared_url, tmp_path, telegram, model, options=options, messages_per_minute=1) as desk:
        await desk.say("hello")
        assert await desk.answered() == ["one"]
        outbox = desk.memory.channels.outbox
        for number, text in ((2, "/new"), (3, "hi")):
            await outbox.add("one", SESSION, f"telegram:4242:{number}", address=ADDRESS, message=_stored(text, number))
        await until(lambda: _has_statuses(desk, "delivered", "waiting", "delivered"))
        assert telegram.texts() == ["one", "two"]
        assert (await desk.memory.session(SESSION).info()).reset_seq == 0


async def test_a_process_that_was_paused_beyond_its_claim_sends_nothing(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process claims the reply to the first message in the meantime, and sends it."""
    url, options = f"sqlite:///{tmp_path}/history.db", replace(SOON, claim_seconds=0.5)

    async def text_after_a_pause(memory: Memory, bot: Bot, message: Outgoing) -> str:
        text = await answer_text(memory, bot, message)
        outbox = memory.channels.outbox

        async def is_claimed() -> bool:
            return await outbox.claim(message.number, "another", seconds=60) is not None

        if message.number == 1:
            await until(is_claimed)
            assert await outbox.end(message.number, "another", "delivered")
        return text

    monkeypatch.setattr(delivery, "answer_text", text_after_a_pause)
    async with opened_bot(url, tmp_path, telegram, ScriptedModel(["one", "two"]), options=options) as desk:
        await desk.say("a", 1)
        await until(lambda: _has_statuses(desk, "delivered"))
        await desk.say("b", 2)
        assert await desk.answered() == ["two"]


async def test_an_unsent_reply_is_sent_at_the_next_start(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"]), options=DeliveryOptions()) as desk:
        telegram.refuse(500)
        await desk.say("hi")
        await until(lambda: _has_failed_try(desk))
    assert telegram.texts() == []
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel()) as desk:
        assert await desk.answered() == ["ok"]


async def test_polling_takes_updates_in_order_and_continues_later(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.push(*(update(f"message {number}", number) for number in (1, 2, 3)))
    model = ScriptedModel(f"answer {number}" for number in range(1, 100))
    async with opened_bot(shared_url, tmp_path, telegram, model, receive="polling", secret="") as desk:
        assert await desk.answered(3) == ["answer 1", "answer 2", "answer 3"]
        await until(lambda: _has_offset(desk, "4"))
    telegram.push(update("message 3", 3), update("message 4", 4))
    async with opened_bot(shared_url, tmp_path, telegram, model, receive="polling", secret="") as desk:
        assert await desk.answered(4) == ["answer 1", "answer 2", "answer 3", "answer 4"]
        said = [content for role, content in await desk.transcript() if role == "user"]
    assert said == ["message 1", "message 2", "message 3", "message 4"]


async def test_polling_continues_after_a_quiet_week(tmp_path: Path, telegram: FakeTelegram) -> None:
    """After a week, Telegram chooses the next update id at random, and it may be lower."""
    url = f"sqlite:///{tmp_path}/history.db"
    settings = {"receive": "polling", "secret": ""}
    async with opened_bot(url, tmp_path, telegram, ScriptedModel(["one", "two"]), **settings) as desk:
        telegram.push(update("a", 900))
        await desk.answered()
        await until(lambda: _has_offset(desk, "901"))
        telegram.push(update("b", 5))
        await until(lambda: _has_offset(desk, "6"))
        assert await desk.answered(2) == ["one", "two"]


async def test_polling_pauses_for_the_seconds_that_telegram_demands(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process polls the bot within the first quarter of an hour, also if its clock is a minute behind.

    A response without a list of updates is an error, after which the bot pauses, too.
    """
    pauses: list[tuple[float, bool]] = []

    async def pause(polling: TelegramPolling, seconds: float) -> None:
        memory, duty = polling._memory, f"poll:{polling._channel.scope}"  # noqa: SLF001
        claimed = False
        for shift in (timedelta(minutes=-1), timedelta(seconds=min(seconds, 900.0))):
            other = Duties(memory._driver, clock=Mock(return_value=memory.clock() + shift))  # noqa: SLF001
            claimed |= await other.claim(duty, "other", seconds=60.0, every_seconds=0.0)
            await memory.channels.duties.release(duty, "other")
        pauses.append((seconds, claimed))

    monkeypatch.setattr(TelegramPolling, "_sleep", pause)
    telegram.refuse(429, "Too Many Requests", method="getMe", retry_after=40)
    for seconds in (300, 7_200, 0):
        telegram.refuse(429, "Too Many Requests", method="getUpdates", retry_after=seconds)
    telegram.refuse(502, method="getUpdates")
    telegram.refuse(200, page={"ok": True}, method="getUpdates")
    telegram.push(update("hi"))
    settings = {"receive": "polling", "secret": "", "username": ""}
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["hello"]), **settings) as desk:
        assert await desk.answered() == ["hello"]
    assert pauses == [(seconds, False) for seconds in (40.0, 300.0, 7_200.0, 1.0, 2.0, 4.0)]


async def test_polling_pauses_if_a_poll_ends_at_once_without_a_new_update(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy responds with no updates, or repeats its last response, instead of waiting for updates."""
    pauses: list[float] = []

    async def pause(_: TelegramPolling, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(TelegramPolling, "_sleep", pause)
    telegram.refuse(200, page={"ok": True, "result": []}, method="getUpdates", times=2)
    telegram.refuse(200, page={"ok": True, "result": [update("one", 1)]}, method="getUpdates", times=2)
    telegram.push(update("two", 2))
    settings = {"receive": "polling", "secret": ""}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["a", "b"]), **settings) as desk:
        assert await desk.answered(2) == ["a", "b"]
    assert [0 < seconds <= 1 for seconds in pauses] == [True] * 3


async def test_a_wrong_token_of_a_webhook_bot_is_reported(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The bot asks for its name at its start, so the log shows the error before a person writes."""
    telegram.refuse(401, "Unauthorized", method="getMe", times=100)
    errors = RecordedErrors()
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), username="") as desk:
        desk.memory.observers.add(errors)
        await until(lambda: "Unauthorized" in errors.errors)


@pytest.mark.slow
async def test_graph_chat_history_can_be_switched_off_and_on(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """The transcript has all turns. The conversation in the store lacks the turn in between."""
    file = tmp_path / "bot.yaml"
    model = ScriptedModel(f"a{number}" for number in range(1, 9))
    seen: list[list[str]] = []
    said: list[str] = []
    for number, switch in enumerate(("true", "false", "true"), 1):
        node = f"{{kind: agent, use_graph_chat_history: {switch}, next: end}}"
        file.write_text(f"{{schema: 1, name: bot, nodes: {{answer: {node}}}}}")
        settings = {"workflow": "bot", "environment": {"workflows": [str(file)]}}
        async with opened_bot(shared_url, tmp_path, telegram, model, **settings) as desk:
            await desk.say(f"q{number}", number)
            await desk.answered(number)
            seen.append([str(message.content) for message in model.calls[-1]])
            said = [content for _, content in await desk.transcript()]
    assert seen == [["q1"], ["q1", "a1", "q2"], ["q1", "a1", "q3"]]
    assert said == ["q1", "a1", "q2", "a2", "q3", "a3"]


async def test_a_bot_learns_its_name(tmp_path: Path, telegram: FakeTelegram) -> None:
    """A bot without a configured name asks Telegram for its name.

    It then replies to commands with that name only.
    """
    group = {"chat": {"id": -5, "type": "group"}}
    named = {"entities": [{"type": "bot_command", "offset": 0, "length": 13}]}
    telegram.push(update("How are you?", 1, **group), update("/help@FakeBot", 2, **group, **named))
    settings = {"receive": "polling", "secret": "", "username": ""}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(repeat("ok")), **settings) as desk:
        [answer] = await desk.answered()
        assert "/whoami" in answer
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(repeat("ok")), username="") as desk:
        await until(lambda: _knows_its_name(desk))
        await desk.say("How are you?", 3, **group)
        await desk.say("/help@FakeBot", 4, **group, **named)
        assert await desk.answered(2) == [answer, answer]


def _knows_its_name(desk: BotDesk) -> bool:
    assert desk.app.channels is not None
    channel = desk.app.channels._bots["one"].channel  # noqa: SLF001
    return isinstance(channel, TelegramChannel) and channel.username == "FakeBot"


async def _has_failed_try(desk: BotDesk) -> bool:
    [entry] = await desk.memory.channels.outbox.entries()
    return entry.error is not None


async def _has_offset(desk: BotDesk, offset: str) -> bool:
    return await desk.memory.channels.state.value("telegram:4242", "offset") == offset
