"""Tests of reading Telegram callbacks: the secret of the webhook, and each kind of update."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import telegram

from tests.channels.platforms import NOW, SENT_AT, Telegram, telegram_message
from threadkeep.channels.contract import Callback, ChatMigrated, Ignored, IncomingMessage, Sender, Update, object_in
from threadkeep.channels.telegram import PARSER, UPDATE_KINDS, TelegramChannel, TelegramOptions, in_chat
from threadkeep.errors import CallbackRefused, InvalidInput

PLATFORM = Telegram()
GROUP: dict[str, Any] = {"id": -100123, "type": "supergroup"}
KEEPBOT: dict[str, Any] = {"id": 4242, "is_bot": True, "first_name": "Keep", "username": "KeepBot"}


def update(kind: str = "message", /, channel: TelegramChannel | None = None, **fields: Any) -> Update:
    """Return the result of the channel for an update of a kind."""
    event = fields if kind == "inline_query" else telegram_message(**fields)
    return (channel or PLATFORM.channel()).read_update(json.loads(json.dumps({"update_id": 1, kind: event})))


def message(kind: str = "message", /, channel: TelegramChannel | None = None, **fields: Any) -> IncomingMessage:
    """Return the message of an update."""
    found = update(kind, channel, **fields)
    assert isinstance(found, IncomingMessage), found
    return found


def reason(found: Update) -> str:
    """Return why an update is ignored."""
    assert isinstance(found, Ignored)
    return found.reason


def mention(text: str, name: str = "@KeepBot") -> dict[str, Any]:
    """Return the entity of a name in a text, with offsets in UTF-16 as in Telegram."""
    before = text[: text.index(name)]
    return {"type": "mention", "offset": len(before.encode("utf-16-le")) // 2, "length": len(name)}


@pytest.mark.parametrize("secret", [None, "", "wrong", "webhook-secre", "webhook-secret2", "wébhook", "\ud800"])
def test_a_wrong_or_missing_secret_is_refused(secret: str | None) -> None:
    with pytest.raises(CallbackRefused):
        PLATFORM.channel().receive(PLATFORM.callback(PLATFORM.body("hi"), secret))


@pytest.mark.parametrize("secret", [None, "", "anything"])
def test_a_bot_without_a_secret_refuses_webhooks(secret: str | None) -> None:
    """An empty header does not match an empty secret."""
    with pytest.raises(CallbackRefused):
        PLATFORM.channel(secret="").receive(PLATFORM.callback(PLATFORM.body("hi"), secret))


def test_the_header_may_have_any_case() -> None:
    """HTTP proxies change the case of headers."""
    headers = {"X-TELEGRAM-bot-api-secret-TOKEN": "webhook-secret"}
    body = PLATFORM.body("hi").encode()
    received = PLATFORM.channel().receive(Callback(method="POST", received_at=NOW, headers=headers, body=body))
    assert isinstance(received.updates[0], IncomingMessage)


def test_the_session_id_has_the_bot_the_chat_and_the_topic() -> None:
    topic = message(text="/ask", chat=GROUP, is_topic_message=True, message_thread_id=5)
    assert topic.session_id == "telegram:4242:-100123:5"
    assert topic.reply_to == {"chat_id": "-100123", "message_id": "42", "message_thread_id": "5"}
    assert topic.message_id == "telegram:4242:1"


def test_a_thread_id_without_a_topic_is_ignored() -> None:
    """Replies in a group without topics have a thread id, too."""
    found = message(text="/ask", chat=GROUP, message_thread_id=41)
    assert found.session_id == "telegram:4242:-100123"
    assert "message_thread_id" not in found.reply_to


def test_a_private_chat_has_an_owner_and_a_group_has_none() -> None:
    assert message(text="hi").user_id == "telegram:7"
    in_group = message(text="/hi", chat=GROUP)
    assert in_group.user_id is None
    assert in_group.metadata["sender_id"] == "telegram:7"
    assert in_group.metadata["sender_name"] == "Anna"


def test_the_fields_for_templates_are_those_of_the_parser() -> None:
    found = message(text="/hi", chat={"id": -1, "type": "group"})
    assert found.results["telegram_events_parser"] == {
        "bot_id": "4242",
        "chat_id": "-1",
        "chat_type": "group",
        "user_id": "7",
        "username": "Anna",
        "text": "/hi",
        "message_id": "42",
        "update_type": "message",
        "should_process": True,
    }


def test_a_caption_is_the_text_of_a_photo() -> None:
    assert message(photo=[{"file_id": "f"}], caption="What is this?").text == "What is this?"
    text = "@KeepBot what is this?"
    assert message(photo=[{}], caption=text, caption_entities=[mention(text)], chat=GROUP).text == "what is this?"


@pytest.mark.parametrize("media", ["sticker", "photo", "voice", "document", "location", "rich_message"])
def test_media_without_a_caption_is_ignored(media: str) -> None:
    """Media get a reply that the bot reads text only. Service messages of a group get none."""
    fields: dict[str, Any] = {media: {"file_id": "f"}}
    found = update(**fields)
    assert reason(found) == "no_text"
    assert isinstance(found, Ignored)
    assert found.message is not None
    assert found.message.reply_to["chat_id"] == "7"
    assert reason(update(new_chat_members=[KEEPBOT])) == "kind"
    assert reason(update(pinned_message={"message_id": 1})) == "kind"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@KeepBot where is my parcel?", "where is my parcel?"),
        ("😀 hello @keepbot how are you", "😀 hello how are you"),
        ("thanks @KeepBot", "thanks"),
    ],
)
def test_a_mention_in_a_group_addresses_the_bot_and_is_no_text(text: str, expected: str) -> None:
    """A mention is found in any case and at any position, and is removed from the text."""
    name = "@keepbot" if "@keepbot" in text else "@KeepBot"
    assert message(text=text, entities=[mention(text, name)], chat=GROUP).text == expected


def test_a_mention_by_id_addresses_the_bot() -> None:
    """Telegram writes a mention by id for a name that is no username."""
    entity: dict[str, Any] = {"type": "text_mention", "offset": 0, "length": 4, "user": KEEPBOT}
    assert message(text="Keep hello", entities=[entity], chat=GROUP).text == "hello"


def test_a_reply_to_the_bot_addresses_it() -> None:
    answer = {"message_id": 41, "from": KEEPBOT, "text": "Which one?"}
    found = message(text="the red one", reply_to_message=answer, chat=GROUP)
    assert found.text == "the red one"
    assert found.quoted_text == "Which one?"
    other = {"message_id": 41, "from": {"id": 9, "is_bot": False}, "text": "Which one?"}
    assert reason(update(text="the red one", reply_to_message=other, chat=GROUP)) == "not_addressed"


def test_a_message_in_a_topic_that_the_bot_created_does_not_address_it() -> None:
    """Telegram marks each message of a topic as a reply to the service message that created the topic."""
    created = {"message_id": 5, "from": KEEPBOT, "forum_topic_created": {"name": "Parcels", "icon_color": 1}}
    topic: dict[str, Any] = {"is_topic_message": True, "message_thread_id": 5, "reply_to_message": created}
    assert reason(update(text="Who is at home?", chat=GROUP, **topic)) == "not_addressed"


def test_a_chosen_quote_replaces_the_whole_message() -> None:
    answer = {"message_id": 41, "from": KEEPBOT, "text": "One. Two."}
    assert message(text="why?", reply_to_message=answer, quote={"text": "Two."}).quoted_text == "Two."


def test_group_messages_between_people_are_ignored() -> None:
    """A group message is read only by a bot that takes all messages, or that does not know its name."""
    text = "@someone see you"
    fields: dict[str, Any] = {"text": text, "entities": [mention(text, "@someone")], "chat": GROUP}
    assert reason(update(**fields)) == "not_addressed"
    assert message(channel=PLATFORM.channel(group_messages="all"), **fields).text == text
    assert message(channel=PLATFORM.channel(username=""), **fields).text == text


@pytest.mark.parametrize("chat", [GROUP, {"id": 7, "type": "private"}])
def test_the_name_of_the_bot_is_removed_from_a_command(chat: dict[str, Any]) -> None:
    entity = {"type": "bot_command", "offset": 0, "length": len("/new@keepbot")}
    assert message(text="/new@keepbot now", entities=[entity], chat=chat).text == "/new now"


def test_a_command_for_another_bot_is_ignored() -> None:
    entity = {"type": "bot_command", "offset": 0, "length": len("/new@other")}
    channel = PLATFORM.channel(group_messages="all")
    assert reason(update(channel=channel, text="/new@other", entities=[entity], chat=GROUP)) == "not_addressed"


@pytest.mark.parametrize(
    "entities",
    [
        "x",
        [1],
        [{"type": "mention"}],
        [{"type": "mention", "offset": -1, "length": 3}],
        [{"type": "mention", "offset": 0, "length": 99}],
        [{"type": "mention", "offset": True, "length": 1.5}],
    ],
)
def test_invalid_entities_are_ignored(entities: object) -> None:
    assert message(text="/hello", entities=entities, chat=GROUP).text == "/hello"


def test_an_edit_is_ignored_unless_enabled() -> None:
    """If enabled, an edit is a new message at the time of the edit."""
    fields: dict[str, Any] = {"text": "I meant two", "edit_date": SENT_AT + 60}
    assert reason(update("edited_message", **fields)) == "kind"
    found = message("edited_message", PLATFORM.channel(allowed_updates=("message", "edited_message")), **fields)
    assert found.metadata["edited"] is True
    assert found.sent_at == datetime.fromtimestamp(SENT_AT + 60, UTC)


def test_updates_of_a_live_location_are_ignored() -> None:
    """Telegram sends each move of a live location as an edit, and a reply to each would flood the chat."""
    channel = PLATFORM.channel(allowed_updates=("message", "edited_message"))
    moved: dict[str, Any] = {"location": {"latitude": 1.5, "longitude": 2.5}, "edit_date": SENT_AT + 60}
    assert update("edited_message", channel, **moved) == Ignored("kind")


def test_a_pressed_button_is_a_message_with_its_data() -> None:
    """The sender is the person who pressed the button, not the bot that sent it."""
    channel = PLATFORM.channel(allowed_updates=("callback_query",))
    question = telegram_message(**{"from": KEEPBOT}, text="Yes or no?", chat=GROUP)
    found = channel.read_update(
        {"update_id": 3, "callback_query": {"id": "q1", "from": {"id": 7}, "data": "yes", "message": question}}  # type: ignore[dict-item]
    )
    assert isinstance(found, IncomingMessage)
    assert (found.text, found.session_id) == ("yes", "telegram:4242:-100123")
    assert found.sender is not None
    assert found.sender.id == "telegram:7"
    assert found.reply_to["callback_query_id"] == "q1"
    assert found.sent_at is None


def test_a_button_without_a_chat_is_ignored() -> None:
    """The button is in a message that was sent in inline mode."""
    channel = PLATFORM.channel(allowed_updates=UPDATE_KINDS)
    press: Any = {"id": "q1", "from": {"id": 7}, "data": "yes", "inline_message_id": "m"}
    assert reason(channel.read_update({"update_id": 3, "callback_query": press})) == "chat_type"


def test_a_channel_post_is_read_if_channels_are_allowed() -> None:
    """A channel post has no sender."""
    post: dict[str, Any] = {"text": "News", "chat": {"id": -5, "type": "channel"}, "from": None}
    assert reason(update("channel_post", PLATFORM.channel(allowed_updates=UPDATE_KINDS), **post)) == "chat_type"
    channel = PLATFORM.channel(allowed_updates=("channel_post",), chat_types=("channel",))
    found = message("channel_post", channel, **post)
    assert found.session_id == "telegram:4242:-5"
    assert found.sender is None


@pytest.mark.parametrize("kind", ["inline_query", "my_chat_member", "chat_member", "chat_join_request"])
def test_updates_without_a_message_are_ignored(kind: str) -> None:
    for channel in (PLATFORM.channel(), PLATFORM.channel(allowed_updates=UPDATE_KINDS)):
        assert reason(update(kind, channel)) in ("kind", "chat_type")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "malformed"),
        ("{", "malformed"),
        ("[]", "malformed"),
        ('{"update_id": 1}', "kind"),
        ('{"update_id": 1, "poll": {}}', "kind"),
        ('{"update_id": 1, "message": 5}', "kind"),
        ('{"update_id": true, "message": {"text": "a", "chat": {"id": 1, "type": "private"}}}', "incomplete"),
        ('{"message": {"text": "a", "chat": {"id": 1, "type": "private"}}}', "incomplete"),
        ('{"update_id": 1, "message": {"text": "a", "chat": {"type": "private"}}}', "incomplete"),
        ('{"update_id": 1, "message": {"text": "a", "chat": {"id": "", "type": "private"}}}', "incomplete"),
        ('{"update_id": 1, "message": {"text": 5, "chat": {"id": 1, "type": "private"}}}', "no_text"),
        ('{"update_id": 1, "message": {"text": "a"}}', "chat_type"),
        (f'{{"update_id": {"9" * 5000}, "message": {{"text": "a"}}}}', "malformed"),
    ],
)
def test_other_updates_are_ignored_with_a_reason(body: str, expected: str) -> None:
    """The callback succeeds, because Telegram would repeat a refused update."""
    [found] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    assert reason(found) == expected


@pytest.mark.parametrize("options", [{}, {"group_messages": "all"}])
def test_direct_messages_to_a_channel_are_ignored(options: dict[str, Any]) -> None:
    """All people who write to a channel share one chat, so they would share a session."""
    chat = {**GROUP, "is_direct_messages": True}
    fields = {"text": "/start", "chat": chat, "direct_messages_topic": {"topic_id": 7}}
    assert reason(update(channel=PLATFORM.channel(**options), **fields)) == "chat_type"


def test_messages_of_other_bots_are_ignored() -> None:
    """Two bots would reply to each other forever."""
    sender: dict[str, Any] = {"from": {"id": 9, "is_bot": True}}
    assert reason(update(text="hi", **sender)) == "from_bot"


def test_people_who_write_as_a_chat_are_read() -> None:
    """For anonymous administrators and channels, `from` is a bot of Telegram, so the sender is the chat."""
    anonymous: dict[str, Any] = {"from": {"id": 1087968824, "is_bot": True, "first_name": "Group"}}
    chat = GROUP | {"title": "Parcels"}
    found = message(text="/hi", chat=chat, sender_chat=chat, **anonymous)
    assert found.sender == Sender("telegram:-100123", "Parcels")
    fields = object_in(found.results, PARSER)
    assert (fields["user_id"], fields["username"]) == ("-100123", "Parcels")
    of_channels: dict[str, Any] = {"from": {"id": 136817688, "is_bot": True, "first_name": "Channel"}}
    channel: dict[str, Any] = {"id": -100777, "type": "channel", "title": "Anna's news", "username": "annas_news"}
    found = message(text="/hi", chat=chat, sender_chat=channel, **of_channels)
    assert found.sender == Sender("telegram:-100777", "Anna's news")


def test_both_updates_of_a_migrated_group_are_equal() -> None:
    """Telegram reports the change in the old and the new chat."""
    expected = ChatMigrated("-5", "-100123")
    assert update(chat={"id": -5, "type": "group"}, migrate_to_chat_id=-100123) == expected
    assert update(chat=GROUP, migrate_from_chat_id=-5) == expected


def test_a_session_keeps_its_id_when_its_chat_migrates() -> None:
    found = in_chat(message(text="/hi", chat=GROUP), "-5")
    assert found.session_id == "telegram:4242:-5"
    assert found.reply_to["chat_id"] == "-100123"


def test_updates_of_python_telegram_bot_are_read() -> None:
    """An independent library writes updates of the same form."""
    sender = telegram.User(7, "Anna", is_bot=False, username="anna")
    chat = telegram.Chat(-100123, "supergroup")
    text = "@KeepBot Tschüß 😀"
    written = telegram.Message(
        message_id=42,
        date=NOW,
        chat=chat,
        from_user=sender,
        text=text,
        entities=[telegram.MessageEntity("mention", 0, 8)],
        message_thread_id=5,
        is_topic_message=True,
    )
    body = telegram.Update(update_id=10**9, message=written).to_json()
    [found] = PLATFORM.channel().receive(PLATFORM.callback(body)).updates
    assert isinstance(found, IncomingMessage)
    assert (found.text, found.session_id) == ("Tschüß 😀", "telegram:4242:-100123:5")
    assert found.sent_at == NOW
    query = telegram.CallbackQuery("q1", sender, "instance", message=written, data="yes")
    pressed = PLATFORM.channel(allowed_updates=("callback_query",)).read_update(
        json.loads(telegram.Update(5, callback_query=query).to_json())
    )
    assert isinstance(pressed, IncomingMessage)
    assert pressed.text == "yes"


@pytest.mark.parametrize(
    "options",
    [
        {"token": "no-digits"},
        {"token": "1:a b"},
        {"secret": "a b"},
        {"secret": "x" * 257},
        {"username": "@KeepBot"},
        {"name": ""},
        {"name": "a/b"},
        {"name": "Support"},
        {"name": "a\n"},
    ],
)
def test_invalid_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        TelegramOptions(**{"name": "one", "token": "1:a", **options})  # type: ignore[arg-type]
    for value in options.values():
        assert not value or value not in str(refused.value)
