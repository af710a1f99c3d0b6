"""A bot on Telegram, from the webhook to the answer, against a platform in another process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage

from tests.channels.desk import SESSION, SOON, BotDesk, opened_bot, update
from tests.channels.fake_telegram import FakeTelegram
from tests.channels.platforms import SENT_AT, Telegram
from tests.web.services import until
from threadkeep import Message
from threadkeep.channels import intake, opening
from threadkeep.channels.bots import TEXTS
from threadkeep.channels.contract import IncomingMessage, stored_message
from threadkeep.channels.delivery import DeliveryOptions
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.errors import StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.observe import ChannelTrouble, Event
from threadkeep.records import Json
from threadkeep.records.messages import OutboxStatus
from threadkeep.records.runs import DELETE, RunQuery, deletion_key
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.service import RunService
from threadkeep.store.outbox import Outbox
from threadkeep.testing import Gate, ScriptedModel

TOO_FAST = "You are sending messages too fast. Please wait a minute."
GROUP = {"id": -100123, "type": "supergroup"}
ADDRESS: dict[str, Json] = {"chat_id": "7", "message_id": "101"}


class Troubles:
    """An observer that keeps the errors of channels."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def notify(self, event: Event, /) -> None:
        """Keep it."""
        if isinstance(event, ChannelTrouble):
            self.errors.append(event.error)


async def _has_tried(desk: BotDesk, count: int) -> bool:
    """Whether this many messages of the outbox are being sent or have been tried."""
    return sum(entry.tries > 0 for entry in await desk.memory.channels.outbox.entries()) >= count


async def _stand(desk: BotDesk, *statuses: OutboxStatus) -> bool:
    """Whether the messages of the outbox stand so, in order."""
    return await desk.statuses() == list(statuses)


def _stored(text: str, number: int) -> str:
    """A message as a row of the outbox keeps it."""
    message = Telegram().channel().read_update(update(text, number))
    assert isinstance(message, IncomingMessage)
    return stored_message(message)


async def test_a_message_is_answered(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """In the chat, as a reply; the person's words alone are the turn, with their time and who said them."""
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


async def test_the_platform_hears_at_once_whatever_the_model_does(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The answer comes when it is there."""
    gate = Gate()
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([[gate, "late"]])) as desk:
        async with asyncio.timeout(4):
            await desk.say("hello")
        await gate.reached()
        assert telegram.texts() == []
        gate.open()
        assert await desk.answered() == ["late"]


async def test_an_update_that_comes_many_times_is_one_turn(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """At one moment, while its answer is made, and afterwards; the same words again are another turn."""
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


async def test_a_callback_of_somebody_else_is_refused(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Without a word that helps; and there is no bot of another name."""
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
async def test_two_bots_have_two_histories_with_one_person(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """In the one private chat id that a person has with all bots; each model sees its own."""
    model = ScriptedModel(repeat("ok"))
    others = [{"name": "two", "token": "4343:AAother"}]
    async with opened_bot(shared_url, tmp_path, telegram, model, others=others) as desk:
        for number, (bot, text) in enumerate([("one", "a"), ("two", "b"), ("one", "c")], 1):
            assert await desk.send(update(text, number), bot=bot) == 200
            await desk.answered(number)
        assert [text for _, text in await desk.transcript("telegram:4242:7")] == ["a", "ok", "c", "ok"]
        assert [text for _, text in await desk.transcript("telegram:4343:7")] == ["b", "ok"]
    assert [str(message.content) for message in model.calls[1] if message.type != "system"] == ["b"]


async def test_callbacks_come_from_anywhere_without_a_key(tmp_path: Path, telegram: FakeTelegram) -> None:
    """By a name that is not loopback's; everything else still wants a key."""
    environment = {"api_keys": "ops:secret"}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hi"]), environment=environment) as desk:
        desk.client.headers["host"] = "bots.example.com"
        assert await desk.send(update("hi")) == 200
        assert (await desk.client.get("/api/v1/sessions")).status_code == 401
        await desk.answered()


async def test_a_long_answer_is_several_messages(tmp_path: Path, telegram: FakeTelegram) -> None:
    """In order; only the first one answers the person's."""
    text = "\n\n".join(f"{number:03d} " + "x" * 494 for number in range(20))
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([text])) as desk:
        await desk.say("Tell me all.")
        assert "\n\n".join(await desk.answered(3)) == text
    assert ["reply_parameters" in call for call in telegram.calls()] == [True, False, False]


async def test_a_topic_gets_its_answer_in_the_topic(tmp_path: Path, telegram: FakeTelegram) -> None:
    """And has a conversation of its own."""
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        await desk.say("/ask", chat=GROUP, is_topic_message=True, message_thread_id=5)
        await desk.answered()
        assert await desk.transcript("telegram:4242:-100123:5") == [("user", "/ask"), ("assistant", "ok")]
    [call] = telegram.calls()
    assert (call["chat_id"], call["message_thread_id"]) == (-100123, 5)


async def test_what_a_message_replies_to_is_shown_to_the_model(tmp_path: Path, telegram: FakeTelegram) -> None:
    """And is no part of the transcript, which has it already, or somebody else said it."""
    model = ScriptedModel(["Because of snow."])
    quoted = {"message_id": 41, "from": {"id": 9, "is_bot": False}, "text": "The parcel is late."}
    async with opened_bot("sqlite://", tmp_path, telegram, model) as desk:
        await desk.say("Why?", reply_to_message=quoted)
        await desk.answered()
        assert await desk.transcript() == [("user", "Why?"), ("assistant", "Because of snow.")]
    assert "The parcel is late." in str([message.content for message in model.calls[0]])


async def test_a_busy_platform_is_waited_for(tmp_path: Path, telegram: FakeTelegram) -> None:
    """For the second that it says, which is longer than other pauses; the answer is sent once."""
    telegram.refuse(429, retry_after=1)
    telegram.refuse(502)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        await until(lambda: _tried(desk))
        [entry] = await desk.memory.channels.outbox.entries()
        assert entry.next_try_at >= entry.created_at + timedelta(seconds=1)
        assert await desk.answered() == ["hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert entry.tries == 3
    assert not entry.uncertain


async def test_a_format_that_is_refused_is_sent_as_plain_text(tmp_path: Path, telegram: FakeTelegram) -> None:
    """With the marks that the model wrote."""
    telegram.refuse(400, "Bad Request: can't parse entities: a reason")
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["**hello**"])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["**hello**"]
    assert "parse_mode" not in telegram.calls()[0]


async def test_an_answer_that_may_have_arrived_is_sent_again_and_says_so(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Telegram took it, and the connection broke before it said so; it knows no id to drop a repeat by."""
    telegram.refuse(0)
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["hello"])) as desk:
        await desk.say("hi")
        assert await desk.answered(2) == ["hello", "hello"]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.uncertain, entry.tries) == ("delivered", True, 2)


@contextmanager
def _hanging_platform() -> Iterator[str]:
    """The address of a platform that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_platform_that_hangs_holds_up_no_other_bot(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bot of a process sends as many answers at once as the option says."""
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


async def test_a_part_that_takes_longer_than_its_claim_is_tried_again(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process could send it then, too."""
    monkeypatch.setattr(opening, "_FINISH_SECONDS", 0.05)
    with _hanging_platform() as hanging:
        settings = {"api": hanging, "options": replace(SOON, claim_seconds=0.2)}
        async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(), **settings) as desk:
            await desk.say("/help")
            await until(lambda: _tried(desk))
            [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.error, entry.uncertain) == ("TimeoutError", True)


async def test_an_answer_is_sent_once_though_the_database_is_away(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived is recorded when the database is back."""
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


async def test_a_refused_answer_stays_for_a_person(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The person blocked the bot; when they are back it is tried again. The next message is not held back."""
    telegram.refuse(403, "Forbidden: bot was blocked by the user")
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["one", "two"])) as desk:
        await desk.say("hi")
        await until(desk.nothing_waits)
        assert await desk.statuses() == ["failed"]
        await desk.say("hello?", 2)
        assert await desk.answered() == ["two"]
        [failed] = await desk.memory.channels.outbox.entries(status="failed")
        assert failed.error == "Forbidden"
        assert await desk.memory.channels.outbox.retry(failed.number)
        assert await desk.answered(2) == ["two", "one"]


async def test_a_group_that_becomes_a_supergroup_goes_on(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Its history is that of the old id; an answer that is on its way finds the new one."""
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


async def test_who_pressed_start_alone_owns_the_conversation(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """A message that is sent to them, which is no reply, begins their session; they are answered in it."""
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


async def test_a_session_without_an_owner_becomes_the_persons(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """If no person has said anything in it: an earlier version stored what the bot's side said without an owner."""
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
async def test_who_pressed_start_alone_is_forgotten_too(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, by_command: bool
) -> None:
    """By themselves or by an operator: the address of a chat that is no session."""
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


async def test_answers_that_were_not_delivered_are_erased_with_their_person(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Those in a group, which say who asked, and the confirmation of a deletion; nobody can be told them again."""
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


async def test_commands_are_answered_and_are_no_turns(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """A new conversation sees nothing of the one before, which stays in the transcript."""
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


async def test_a_person_has_their_conversation_deleted(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """After they were asked; in a group nobody deletes for the others."""
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
async def test_the_answer_of_a_run_that_asked_reaches_the_person(
    shared_url: str,
    tmp_path: Path,
    telegram: FakeTelegram,
    monkeypatch: pytest.MonkeyPatch,
    message_id: str | None,
) -> None:
    """The question at once, and the answer when somebody has answered the question."""
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
    url: str, folder: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch, question: str = "'Ship it?'"
) -> AsyncIterator[BotDesk]:
    """A bot whose workflow asks a person something."""
    name = f"asking_{uuid4().hex}"
    (folder / f"{name}.py").write_text(ASKING.replace("{'question': 'Ship it?'}", question))
    monkeypatch.syspath_prepend(str(folder))
    given: dict[str, Any] = {"environment": {"workflows": f"asking={name}:graph"}, "workflow": "asking"}
    given["group_messages"] = "all"
    async with opened_bot(url, folder, telegram, ScriptedModel([]), **given) as desk:
        yield desk


async def test_a_person_answers_the_question_of_a_run_in_the_chat(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however often the message is delivered; the commands work meanwhile."""
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


async def test_a_new_conversation_ends_the_wait(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message begins a run; a late repeat of the command ends no other wait."""
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


async def test_a_question_that_a_text_cannot_answer_is_said_to_be_answered_elsewhere(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation goes on; the run waits for an operator, whose answer reaches the person."""
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch, "{'approve': ['refund']}") as desk:
        await desk.say("Refund it.", 1)
        assert await desk.answered() == [TEXTS["en"].asked_elsewhere]
        await desk.say("Any news?", 2)
        await desk.answered(2)
        runs = await desk.app.runs.service()
        found, _ = await runs.list(RunQuery(status="waiting"))
        await runs.resume(found[-1].run_id, {"decision": "approve"})
        assert "approve" in (await desk.answered(3))[2]


async def test_several_questions_at_once_are_followed_by_what_the_person_can_do(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go on in the chat, as the next message does, or cancel the run with /new."""
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


async def test_a_persons_reply_reaches_the_tool_that_asks(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent goes on where it was, twice, and its next turn sees the whole conversation."""
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


async def test_in_a_group_the_person_who_was_asked_answers(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of somebody else begins a run."""
    other = {"id": 8, "is_bot": False, "first_name": "Ben"}
    async with asking_bot("sqlite://", tmp_path, telegram, monkeypatch) as desk:
        await desk.say("Order it.", 1, chat=GROUP)
        await desk.answered()
        await desk.say("Hello.", 2, chat=GROUP, **{"from": other})
        assert await desk.answered(2) == ["Ship it?", "Ship it?"]
        await desk.say("yes", 3, chat=GROUP)
        await desk.say("no", 4, chat=GROUP, **{"from": other})
        assert sorted((await desk.answered(4))[2:]) == ["You said no.", "You said yes."]


@pytest.mark.slow
async def test_a_deletion_that_comes_three_times_is_confirmed_once(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is requested once and stored before Telegram is answered; the conversation can go on."""
    submit = RunService.submit
    deletions: list[str | None] = []

    async def counted(runs: RunService, request: RunRequest, **options: Any) -> Submitted:
        if request.workflow == DELETE:
            deletions.append(request.session_id)
            await asyncio.sleep(0.1)  # other deliveries arrive in the meantime
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
    """The person reads that it failed and what to do; the same command deletes later."""
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


async def test_a_deletion_leaves_a_record_for_as_long_as_its_answer(tmp_path: Path, telegram: FakeTelegram) -> None:
    """It stops a repeated update, names nobody, and is removed with the confirmation."""
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
async def test_a_deletion_that_comes_to_two_services_deletes_once(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one requests it when the first one has deleted, and the person has written again."""
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
    """Telegram shows that a button waits until the bot answers the press, also where it is a command."""
    message = {"message_id": 9, "date": SENT_AT, "chat": {"id": 7, "type": "private"}}
    press = {"from": {"id": 7, "is_bot": False, "first_name": "Anna"}, "message": message}
    kinds = {"allowed_updates": ["message", "callback_query"]}
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["ok"]), **kinds) as desk:
        for number, data in ((1, "yes"), (2, "/help")):
            await desk.send({"update_id": number, "callback_query": {**press, "id": f"press-{number}", "data": data}})
        await desk.answered(2)
    acknowledged = {call["callback_query_id"] for call in telegram.calls("answerCallbackQuery")}
    assert acknowledged == {"press-1", "press-2"}


async def test_an_album_without_words_is_answered_with_one_sentence(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pictures come as messages of their own."""
    monkeypatch.setattr(intake, "_ALBUM_PAUSE", timedelta(seconds=0.05))
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel(["nice"])) as desk:
        for number in (1, 2, 3):
            await desk.say("", number, photo=[{"file_id": "f"}], media_group_id="album")
        assert await desk.answered() == ["I can only read text."]
        await desk.say("", 4, photo=[{"file_id": "f"}], media_group_id="other", caption="Look!")
        assert await desk.answered(2) == ["I can only read text.", "nice"]


async def test_the_other_pictures_of_an_album_with_a_caption_get_no_answer(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the caption is enough, wherever it comes. A second caption is a message of its own."""
    monkeypatch.setattr(intake, "_ALBUM_PAUSE", timedelta(seconds=60))
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(repeat("nice"))) as desk:
        for number, caption in ((1, {}), (2, {"caption": "Look!"}), (3, {}), (4, {"caption": "And this!"})):
            await desk.say("", number, photo=[{"file_id": "f"}], media_group_id="album", **caption)
        await desk.say("/help", 5)
        sent = await desk.answered(3)
    assert sent.count("nice") == 2
    assert "I can only read text." not in sent


async def test_texts_are_of_the_language_and_of_the_operator(tmp_path: Path, telegram: FakeTelegram) -> None:
    """A picture is answered politely, or not at all where the text is empty."""
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


async def test_messages_of_others_and_long_ones_start_nothing(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Of people who are not on the list, and beyond the limit."""
    model = ScriptedModel(["ok"])
    limits = {"allowed_users": ["7"], "max_characters": 10}
    async with opened_bot("sqlite://", tmp_path, telegram, model, **limits) as desk:
        await desk.say("hi", 1, **{"from": {"id": 8, "is_bot": False}})
        await desk.say("much too long", 2)
        await desk.say("hi", 3)
        sent = await desk.answered(2)
    assert sorted(sent) == ["That message is too long for me. Please send a shorter one.", "ok"]
    assert len(model.calls) == 1


async def test_who_writes_too_fast_is_told_once(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Another person goes on, and a message that Telegram repeats counts once. Pictures and stickers count too."""
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


async def test_a_bot_may_join_the_messages_that_come_during_a_turn(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Its policy goes before that of the workflow; the newest message gets the answer to all."""
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


async def test_a_model_that_fails_is_told_of_and_stored_as_nothing(tmp_path: Path, telegram: FakeTelegram) -> None:
    """The person hears that there is no answer; the transcript has no apology."""
    async with opened_bot("sqlite://", tmp_path, telegram, ScriptedModel([ValueError("no")])) as desk:
        await desk.say("hi")
        assert await desk.answered() == ["I could not answer that. Please try again later."]
        assert await desk.transcript() == [("user", "hi")]


async def test_what_a_dead_process_left_is_answered(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """It noted that an answer is owed, and died before the run; the platform sent the message again."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"])) as desk:
        outbox = desk.memory.channels.outbox
        await outbox.add("one", SESSION, "telegram:4242:1", address={"chat_id": "7", "message_id": "101"})
        await desk.say("hi")
        assert await desk.answered() == ["ok"]


async def test_a_row_that_cannot_be_read_stops_nothing(shared_url: str, tmp_path: Path, telegram: FakeTelegram) -> None:
    """Another version stored it: it is reported once and expires, and the rows behind it are taken."""
    options = DeliveryOptions(poll_seconds=0.05, take_again_seconds=0.1)
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"]), options=options) as desk:
        troubles = Troubles()
        desk.memory.observers.add(troubles)
        outbox = desk.memory.channels.outbox
        for number, stored in ((1, '{"words": "hi"}'), (2, "[]"), (3, _stored("hi", 3))):
            await outbox.add("one", SESSION, f"telegram:4242:{number}", address=ADDRESS, message=stored)
        await until(lambda: _stand(desk, "waiting", "waiting", "delivered"))
        assert telegram.texts() == ["ok"]
        assert sorted(troubles.errors) == ["KeyError", "TypeError"]
        assert await outbox.end_unasked(older_than=timedelta(0)) == 2
        assert await desk.statuses() == ["nothing", "nothing", "delivered"]


async def test_messages_of_a_dead_process_meet_no_limit_and_commands_are_not_executed_late(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """They were counted when they arrived; a late reset would concern what was said since."""
    options = DeliveryOptions(poll_seconds=0.05, take_again_seconds=0.1)
    model = ScriptedModel(["one", "two"])
    async with opened_bot(shared_url, tmp_path, telegram, model, options=options, messages_per_minute=1) as desk:
        await desk.say("hello")
        assert await desk.answered() == ["one"]
        outbox = desk.memory.channels.outbox
        for number, text in ((2, "/new"), (3, "hi")):
            await outbox.add("one", SESSION, f"telegram:4242:{number}", address=ADDRESS, message=_stored(text, number))
        await until(lambda: _stand(desk, "delivered", "waiting", "delivered"))
        assert telegram.texts() == ["one", "two"]
        assert (await desk.memory.session(SESSION).info()).reset_seq == 0


async def test_an_answer_that_nobody_sent_is_sent_at_the_next_start(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """The run ended, and its process before the platform took the answer."""
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel(["ok"]), options=DeliveryOptions()) as desk:
        telegram.refuse(500)
        await desk.say("hi")
        await until(lambda: _tried(desk))
    assert telegram.texts() == []
    async with opened_bot(shared_url, tmp_path, telegram, ScriptedModel()) as desk:
        assert await desk.answered() == ["ok"]


async def test_polling_takes_updates_in_order_and_goes_on_where_it_was(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Without a public address; a second start takes nothing twice."""
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


async def test_a_bot_that_was_quiet_for_a_week_goes_on(tmp_path: Path, telegram: FakeTelegram) -> None:
    """Telegram then chooses the id of the next update at random, which may be a lower one."""
    url = f"sqlite:///{tmp_path}/history.db"
    settings = {"receive": "polling", "secret": ""}
    async with opened_bot(url, tmp_path, telegram, ScriptedModel(["one", "two"]), **settings) as desk:
        telegram.push(update("a", 900))
        await desk.answered()
        await until(lambda: _has_offset(desk, "901"))
        telegram.push(update("b", 5))
        await until(lambda: _has_offset(desk, "6"))
        assert await desk.answered(2) == ["one", "two"]


@pytest.mark.slow
async def test_history_in_the_graphs_store_is_switched_off_and_on_again(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """The transcript of the bot has every turn; the conversation in the store goes on where it was."""
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
    """Without a configured name: a command that names it is its own, and people may talk to each other."""
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


async def _tried(desk: BotDesk) -> bool:
    [entry] = await desk.memory.channels.outbox.entries()
    return entry.error is not None


async def _has_offset(desk: BotDesk, offset: str) -> bool:
    return await desk.memory.channels.state.value("telegram:4242", "offset") == offset
