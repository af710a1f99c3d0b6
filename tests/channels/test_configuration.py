"""Tests of the file of the channels: its fields, and the errors for mistakes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from threadkeep.channels.configuration import read_channels
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.errors import InvalidInput

BOT = """
channels:
  - kind: telegram
    name: support
    token: ${BOT_TOKEN}
"""
ENVIRONMENT = {"BOT_TOKEN": "1:canary-token"}


def written(folder: Path, text: str) -> Path:
    """Write a text to the file and return its path."""
    path = folder / "channels.yaml"
    path.write_text(dedent(text))
    return path


def test_a_bot_needs_three_fields(tmp_path: Path) -> None:
    """By default, a bot polls and uses the workflow `chat`.

    Secrets come from the environment and are hidden in `repr`.
    """
    file = read_channels(written(tmp_path, BOT), ENVIRONMENT)
    [bot] = file.channels
    assert (bot.name, bot.receive, bot.workflow) == ("support", "polling", "chat")
    channel = bot.channel()
    assert isinstance(channel, TelegramChannel)
    assert (channel.options.bot_id, channel.options.token) == ("1", "1:canary-token")
    assert "canary" not in repr(file)
    assert file.delivery.keep_seconds == 7 * 86_400


def test_optional_fields_are_read(tmp_path: Path) -> None:
    more = "    workflow: desk\n    language: zh\n    texts: {failed: ''}\n    allowed_users: ['7']\n"
    more += "delivery: {poll_seconds: 0.5}\n"
    file = read_channels(written(tmp_path, BOT + more), ENVIRONMENT)
    [bot] = file.channels
    assert (bot.workflow, bot.all_texts().failed, bot.all_texts().media[:2]) == ("desk", "", "我目")
    assert bot.allowed_users == {"7"}
    assert file.delivery.poll_seconds == 0.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("channels:\n  - [", "channels.yaml:2: this is not YAML"),
        ("", "the file: must be a map with the list `channels`; correct it"),
        ("channels: [support]", "channel 1: must be a map of fields; correct it"),
        ("bots: []", "channels: is missing; add it"),
        (BOT + "    tokn: x", "channel 1, tokn: is not a field of this kind; remove it"),
        (BOT + "    receive: mail", "channel 1, receive: input should be 'polling' or 'webhook'"),
        (BOT + "    receive: webhook", "channel 'support': A bot that receives by webhook needs a secret"),
        (BOT + "    secret: 2026-02-30", "a value looks like a date that does not exist; put the value in quotes"),
        (BOT + "    secret: a b", "channel 'support': A webhook's secret is 1 to 256"),
        (BOT + "    texts: {hello: x}", "channel 'support': There is no text 'hello'"),
        (BOT.replace("${BOT_TOKEN}", "canary"), "channel 'support': A Telegram token consists of digits"),
        (BOT.replace("BOT_TOKEN", "NOTHING"), "The variable NOTHING is not set"),
        (BOT + BOT.partition("channels:")[2], "two channels are called 'support'"),
        (
            BOT + BOT.partition("channels:")[2].replace("support", "sales"),
            "channels 'support' and 'sales' are the same bot; remove one",
        ),
        (
            "channels: [&a {kind: wecom_aibot, name: a, receive: connection, bot_id: x, secret: s}, {<<: *a, name: b}]",
            "channels 'a' and 'b' are the same bot; remove one",
        ),
        (
            "channels: [{kind: wecom_aibot, name: a, token: t, receive_id: x, allowed_users: [ww1:U1, canary]}]",
            "channel 'a': A third party's bot has users of several companies; allow them as <company>:<member>.",
        ),
        (BOT + "delivery: {poll_seconds: 0}", "delivery"),
        (BOT + "delivery: {claim_seconds: 1801}", "claim_seconds"),
    ],
)
def test_a_mistake_is_reported_without_its_value(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_channels(written(tmp_path, text), ENVIRONMENT)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))
    assert "canary" not in str(refused.value)


DESKS = """
channels:
  - &one {kind: wecom_cs, name: one, corp_id: c, secret: s, token: t, encoding_aes_key: %s, desks: [wk1]}
  - {<<: *one, name: two, corp_id: c, desks: [wk2]}
""" % ("a" * 43)


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ("two, corp_id: c, desks: [wk2]", False),
        ("two, corp_id: d, desks: [wk1]", False),
        ("two, corp_id: c, desks: [wk2, wk1]", True),
        ("two, corp_id: c, desks: []", True),
    ],
)
def test_a_desk_has_one_bot(tmp_path: Path, change: str, is_refused: bool) -> None:
    """A bot without `desks` serves all desks of its corporation."""
    path = written(tmp_path, DESKS.replace("two, corp_id: c, desks: [wk2]", change))
    if not is_refused:
        assert len(read_channels(path, {}).channels) == 2
        return
    with pytest.raises(InvalidInput, match="'one' and 'two' serve the same desk; list other `desks` in one of them"):
        read_channels(path, {})


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_reported(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "channels.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"cannot read the channels file \(\w+\); check that it exists"):
        read_channels(path, {})
