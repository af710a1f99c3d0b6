"""Tests of the contract that all channels fulfill."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.platforms import (
    AES_KEY,
    NOW,
    SENT_AT,
    TELEGRAM_SECRET,
    TELEGRAM_TOKEN,
    WECOM_TOKEN,
    Platform,
    Telegram,
    WeComAIBot,
    WeComDirect,
    WeComService,
)
from threadkeep.channels.contract import (
    Callback,
    Ignored,
    IncomingMessage,
    Received,
    restored_message,
    stored_message,
)
from threadkeep.channels.formatting import utf8_length, utf16_length
from threadkeep.errors import CallbackRefused
from threadkeep.history.keys import channel_of, check_key
from threadkeep.records import Message

PLATFORMS: dict[str, Platform] = {
    "telegram": Telegram(),
    "wecom_dm": WeComDirect(),
    "wecom_cs": WeComService(),
    "wecom_aibot": WeComAIBot(),
}
LIMITS = {"telegram": 4096, "wecom_dm": 2048, "wecom_cs": 2048, "wecom_aibot": 20_480}
METHODS: tuple[Literal["GET", "POST"], ...] = ("GET", "POST")
SECRETS = (TELEGRAM_TOKEN, TELEGRAM_SECRET, WECOM_TOKEN, AES_KEY, "SECRET1", "ENCsync")

any_text = st.text(st.characters())
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip)
each_platform = pytest.mark.parametrize("kind", PLATFORMS)


def message_in(received: Received) -> IncomingMessage:
    """Return the only message of a callback."""
    [update] = received.updates
    assert isinstance(update, IncomingMessage)
    return update


@each_platform
def test_a_message_has_all_fields_of_a_turn(kind: str) -> None:
    """A message has its stripped text, a valid session id, an id, the sender and the platform's time.

    It can be stored.
    """
    platform = PLATFORMS[kind]
    channel = platform.channel()
    message = message_in(platform.deliver(channel, " Where is my parcel?\n"))
    assert channel.kind == kind
    assert message.text == "Where is my parcel?"
    check_key(message.session_id)
    assert channel_of(message.session_id) == kind
    assert message.sender is not None
    assert message.user_id == message.sender.id
    assert message.sender.id.startswith(f"{kind}:")
    assert message.metadata["channel"] == "one"
    assert message.wants_answer
    stored = Message(role=message.role, content=message.text, id=message.message_id, metadata=message.metadata)
    assert Message.from_json(stored.to_json()) == stored
    assert restored_message(stored_message(message), message.reply_to) == message
    if kind != "wecom_aibot":  # its messages have no time
        assert message.sent_at is not None
        assert message.sent_at.timestamp() == SENT_AT


@each_platform
def test_only_a_repeated_message_has_the_same_id(kind: str) -> None:
    platform = PLATFORMS[kind]
    channel = platform.channel()
    first, again, other = (message_in(platform.deliver(channel, "ok", number)) for number in (1, 1, 2))
    assert first == again
    assert other.session_id == first.session_id
    assert other.message_id != first.message_id


@each_platform
def test_two_bots_have_separate_sessions_with_one_person(kind: str) -> None:
    """A session id contains the bot, the application or the desk."""
    platform = PLATFORMS[kind]
    one, two = (message_in(platform.deliver(platform.channel(bot), "hi")) for bot in ("one", "two"))
    assert one.session_id != two.session_id


@each_platform
def test_a_callback_without_credentials_is_refused(kind: str) -> None:
    channel = PLATFORMS[kind].channel()
    for method in METHODS:
        with pytest.raises(CallbackRefused, match="signature_missing"):
            channel.receive(Callback(method=method, received_at=NOW, body=b"\xff{"))


@each_platform
def test_errors_and_reprs_show_no_secret_and_no_text(kind: str) -> None:
    platform = PLATFORMS[kind]
    channel = platform.channel()
    shown = [repr(platform.deliver(channel, "my private words")), repr(channel), repr(platform.callback("words"))]
    shown.append(repr(channel.receive(platform.callback(platform.body("my private words")))))
    with pytest.raises(CallbackRefused) as refused:
        channel.receive(Callback(method="POST", received_at=NOW, body=b"my private words"))
    shown.append(str(refused.value))
    for text in shown:
        assert "words" not in text
        for secret in SECRETS:
            assert secret not in text


@each_platform
def test_a_message_without_text_is_ignored(kind: str) -> None:
    """An ignored message has the session for a reply. White space is not text."""
    platform = PLATFORMS[kind]
    [update] = platform.deliver(platform.channel(), " \n\t").updates
    assert isinstance(update, Ignored)
    assert update.reason == "no_text"
    assert update.message is not None
    assert update.message.session_id


@each_platform
@given(body=any_text | st.sampled_from(["", "{", "[]", "null", "<xml>", '"{}"', "[" * 100_000, "1e999", "NaN"]))
def test_an_authentic_callback_never_raises(kind: str, body: str) -> None:
    """The platform would repeat a callback that raises."""
    platform = PLATFORMS[kind]
    # The crypto of the platforms cannot encode lone surrogates.
    received = platform.channel().receive(platform.callback(body.encode("utf-8", "replace").decode()))
    [update] = received.updates
    assert isinstance(update, Ignored)
    assert update.reason == "malformed"


@each_platform
@given(text=st.lists(words, max_size=40).map(" ".join) | st.lists(words, max_size=40).map("\n\n".join))
def test_the_parts_of_a_reply_fit_and_lose_no_text(kind: str, text: str) -> None:
    size = utf16_length if kind == "telegram" else utf8_length
    whole = text * (1 + 3 * LIMITS[kind] // max(1, len(text))) if "`" not in text and "~" not in text else text
    parts = PLATFORMS[kind].channel().split(whole)
    assert all(part.strip() and size(part) <= LIMITS[kind] for part in parts)
    assert "".join("".join(parts).split()) == "".join(whole.split())


@each_platform
def test_a_blank_reply_has_no_parts(kind: str) -> None:
    channel = PLATFORMS[kind].channel()
    assert channel.split("") == ()
    assert channel.split(" \n" * 9000) == ()
