"""Tests of `threadkeep channels`: bots, webhooks and the outbox."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.channels.fake_telegram import FakeTelegram, faking_telegram
from tests.channels.fake_wecom import SECRET, faking_wecom
from tests.channels.platforms import AES_KEY
from tests.children import run_together
from tests.cli.running import CommandLine
from threadkeep.cli import main
from threadkeep.memory import Memory

SESSION = "telegram:1:7"


@pytest.fixture
def telegram(cli: CommandLine) -> Iterator[FakeTelegram]:
    """Start a fake Telegram, and configure a bot for it."""
    with faking_telegram(cli.folder) as fake:
        path = cli.folder / "channels.yaml"
        path.write_text(
            f"channels: [{{kind: telegram, name: support, token: '1:canary', secret: shh, api: '{fake.address}'}}]"
        )
        cli.set(THREADKEEP_CHANNELS=str(path))
        yield fake


def fill(cli: CommandLine) -> None:
    """Add an outbox entry that waits, and one that has failed."""

    async def fill(memory: Memory) -> None:
        outbox = memory.channels.outbox
        address = {"chat_id": "7", "message_id": "1"}
        await outbox.add("support", SESSION, "m1", address=address, user_id="telegram:7")
        await outbox.add("support", "telegram:1:8", "m2", address={"chat_id": "8"}, content="canary words", waits=False)
        [number] = await outbox.due("support", limit=1)
        assert await outbox.claim(number, "a", seconds=60)
        assert await outbox.fail(number, "a", "Forbidden")

    cli.with_memory(fill)


def test_bots_are_listed_with_their_open_answers(cli: CommandLine, telegram: FakeTelegram) -> None:
    fill(cli)
    [row] = cli("channels", "list", "--json").json["channels"]
    assert row == {
        "name": "support",
        "kind": "telegram",
        "receive": "polling",
        "workflow": "chat",
        "waiting": 1,
        "ready": 0,
        "failed": 1,
    }
    shown = cli("channels", "list")
    assert "support" in shown.out
    assert "canary" not in shown.out
    assert telegram.texts() == []


def test_a_bot_is_tested_at_its_platform(cli: CommandLine, telegram: FakeTelegram) -> None:
    assert cli("channels", "test", "support", "--json").json["username"] == "FakeBot"
    assert "username: FakeBot" in cli("channels", "test", "support").out
    refused = cli("channels", "test", "other")
    assert (refused.exit_code, "existing channels: support" in refused.err) == (1, True)
    path = cli.folder / "channels.yaml"
    path.write_text(path.read_text().replace(telegram.address, "http://127.0.0.1:9"))
    unreachable = cli("channels", "test", "support")
    assert (unreachable.exit_code, "did not answer" in unreachable.err) == (1, True)


def test_a_secret_is_tested_although_another_one_has_a_token(cli: CommandLine) -> None:
    """The access token of the correct secret is stored in the database."""
    with faking_wecom(cli.folder) as wecom:
        path = cli.folder / "channels.yaml"
        cli.set(THREADKEEP_CHANNELS=str(path))
        bot = "kind: wecom_dm, name: desk, corp_id: ww1, agent_id: '1', token: t"
        bot = f"{bot}, encoding_aes_key: {AES_KEY}, api: '{wecom.address}'"
        path.write_text(f"channels: [{{{bot}, secret: {SECRET}}}]")
        assert "access_token: valid" in cli("channels", "test", "desk").out
        path.write_text(f"channels: [{{{bot}, secret: mistyped}}]")
        refused = cli("channels", "test", "desk")
    assert (refused.exit_code, "WeCom does not know" in refused.err) == (1, True)


def test_a_webhook_is_set_and_deleted(cli: CommandLine, telegram: FakeTelegram) -> None:
    """The webhook has the configured secret. `channels test` warns if a bot polls although it has a webhook."""
    url = "https://bots.example.com/channels/support"
    assert cli("channels", "webhook", "support", url).exit_code == 0
    [call] = telegram.calls("setWebhook")
    assert call == {"url": url, "secret_token": "shh", "allowed_updates": ["message"]}
    assert "channels webhook support --delete" in cli("channels", "test", "support").err
    assert cli("channels", "webhook", "support", "--delete").exit_code == 0
    assert "--delete" not in cli("channels", "test", "support").err
    assert len(telegram.calls("deleteWebhook")) == 1
    telegram.refuse(400, "Bad Request: bad webhook", method="setWebhook")
    refused = cli("channels", "webhook", "support", f"{url}:1234")
    assert (refused.exit_code, "port 443" in refused.err) == (1, True)
    assert cli("channels", "webhook", "support").exit_code == 2
    assert cli("channels", "webhook", "support", "http://bots.example.com/channels/support").exit_code == 2


def test_a_missing_webhook_is_reported(cli: CommandLine, telegram: FakeTelegram) -> None:
    """`channels test` shows the command that sets the webhook."""
    path = cli.folder / "channels.yaml"
    path.write_text(path.read_text().replace("secret: shh", "secret: shh, receive: webhook"))
    assert "channels webhook support https://" in cli("channels", "test", "support").err


@pytest.mark.parametrize("command", ["list", "status"])
def test_without_a_file_there_are_no_bots(cli: CommandLine, command: str) -> None:
    """A missing file of channels is no failure of `list` and `status`. The message names the variable."""
    listed = cli("channels", command)
    assert (listed.exit_code, listed.out, "THREADKEEP_CHANNELS" in listed.err) == (0, "", True)
    assert cli("channels", command, "--json").json == {"channels": []}
    refused = cli("channels", "test", "support")
    assert (refused.exit_code, "THREADKEEP_CHANNELS" in refused.err) == (1, True)


def test_the_outbox_is_listed_without_message_texts(cli: CommandLine) -> None:
    assert cli("channels", "outbox").err == "There are no undelivered answers.\n"
    fill(cli)
    waiting, failed = cli("channels", "outbox", "--json").json["entries"]
    assert (waiting["status"], failed["status"], failed["error"]) == ("waiting", "failed", "Forbidden")
    assert [entry["number"] for entry in cli("channels", "outbox", "--status", "failed", "--json").json["entries"]] == [
        2
    ]
    shown = cli("channels", "outbox")
    assert "Forbidden" in shown.out
    assert "canary" not in shown.out
    assert cli("channels", "outbox", "--status", "lost").exit_code == 2


def test_a_failed_answer_is_retried_or_dropped(cli: CommandLine) -> None:
    fill(cli)
    assert cli("channels", "outbox", "retry", "1").exit_code == 1
    assert cli("channels", "outbox", "retry", "9" * 30).exit_code == 2
    assert cli("channels", "outbox", "retry", "2").exit_code == 0
    assert cli("channels", "outbox", "drop", "2").exit_code == 2
    assert cli("channels", "outbox", "drop", "2", "--yes").exit_code == 0
    assert cli("channels", "outbox", "drop", "2", "--yes").exit_code == 1


@pytest.mark.usefixtures("telegram")
def test_an_unprompted_message_is_sent_and_stored(cli: CommandLine) -> None:
    """A message id is sent once, and only to a known person, who owns the new session."""
    assert cli("channels", "send", "support", SESSION, "News!").exit_code == 1
    assert "existing channels: support" in cli("channels", "send", "nope", SESSION, "News!").err
    fill(cli)
    assert cli("channels", "send", "support", SESSION, " ").exit_code == 2
    for _ in range(2):
        assert cli("channels", "send", "support", SESSION, "News!", "--id", "news-1").exit_code == 0

    async def look(memory: Memory) -> None:
        [message] = await memory.session(SESSION, user_id="telegram:7").tail(10)
        assert (await memory.session(SESSION).info()).user_id == "telegram:7"
        assert (message.role, message.content, message.id) == ("assistant", "News!", "news-1")
        ready = await memory.channels.outbox.entries(status="ready")
        assert [(entry.message_id, entry.content, entry.address) for entry in ready] == [
            ("news-1", "News!", {"chat_id": "7"})
        ]

    cli.with_memory(look)


def test_a_message_is_sent_by_the_bot_of_the_person(cli: CommandLine) -> None:
    fill(cli)
    refused = cli("channels", "send", "sales", SESSION, "News!")
    assert (refused.exit_code, "writes to 'support'" in refused.err) == (1, True)


def test_the_status_shows_the_oldest_open_answer(cli: CommandLine, telegram: FakeTelegram) -> None:
    fill(cli)
    [row] = cli("channels", "status", "--json").json["channels"]
    assert (row["name"], row["waiting"], row["failed"]) == ("support", 1, 1)
    assert row["oldest_open"] <= row["last_heard"]
    assert "support" in cli("channels", "status").out


def test_the_status_shows_the_answers_of_a_removed_bot(cli: CommandLine) -> None:
    """The note names the command that drops them. A bot without open answers is not shown."""
    fill(cli)
    [row] = cli("channels", "status", "--json").json["channels"]
    assert (row["name"], row["kind"], row["waiting"], row["failed"]) == ("support", None, 1, 1)
    shown = cli("channels", "status")
    assert "threadkeep channels outbox drop --bot support" in shown.err
    assert "support" in shown.out
    assert cli("channels", "outbox", "drop", "--bot", "support").exit_code == 2
    assert cli("channels", "outbox", "drop", "1", "--bot", "support", "--yes").exit_code == 2
    assert cli("channels", "outbox", "drop", "--yes").exit_code == 2
    assert cli("channels", "outbox", "drop", "--bot", "other", "--yes").exit_code == 1
    assert cli("channels", "outbox", "drop", "--bot", "support", "--yes", "--json").json == {"dropped": [1, 2]}
    assert cli("channels", "status", "--json").json == {"channels": []}


def test_a_bot_is_added_by_a_command(cli: CommandLine) -> None:
    """The file is in the data folder, readable only by its owner. Its comments stay. A secret may look like a date."""
    secret = ("--set", "secret=2026-02-30")
    assert cli("channels", "add", "telegram", "--name", "support", "--token", "1:canary", *secret).exit_code == 0
    path = cli.folder / "data" / "threadkeep" / "channels.yaml"
    assert path.stat().st_mode & 0o077 == 0
    path.write_text(f"# ours\n{path.read_text()}")
    more = ("--set", "receive=webhook", "--set", "secret=123", "--set", "allowed_users=['7']")
    assert cli("channels", "add", "telegram", "--name", "sales", "--token", "${SALES}", *more).exit_code == 2
    cli.set(SALES="2:canary")
    assert cli("channels", "add", "telegram", "--name", "sales", "--token", "${SALES}", *more).exit_code == 0
    rows = cli("channels", "list", "--json").json["channels"]
    assert [(row["name"], row["receive"]) for row in rows] == [("support", "polling"), ("sales", "webhook")]
    assert path.read_text().startswith("# ours")
    assert "2:canary" not in path.read_text()


@pytest.mark.process
def test_bots_that_are_added_at_once_are_all_kept(cli: CommandLine) -> None:
    file = cli.folder / "channels.yaml"
    names = [f"bot{number}" for number in range(6)]
    assert run_together(_add_bot, [(name, str(file)) for name in names]) == [0] * len(names)
    cli.set(THREADKEEP_CHANNELS=str(file))
    assert sorted(row["name"] for row in cli("channels", "list", "--json").json["channels"]) == names
    assert list(cli.folder.glob(".channels*")) == []


def _add_bot(name: str, file: str) -> int:
    os.environ["THREADKEEP_CHANNELS"] = file
    return main(["channels", "add", "telegram", "--name", name, "--token", f"{name[3:]}:canary"])


def test_an_invalid_bot_is_not_added(cli: CommandLine) -> None:
    assert cli("channels", "add", "telegram", "--name", "support", "--token", "1:canary").exit_code == 0
    path = cli.folder / "data" / "threadkeep" / "channels.yaml"
    before = path.read_text()
    for wrong in (("support", "3:x"), ("other", "canary"), ("No Name", "3:x")):
        refused = cli("channels", "add", "telegram", "--name", wrong[0], "--token", wrong[1])
        assert (refused.exit_code, "canary" in refused.err) == (2, False)
    assert cli("channels", "add", "pigeon", "--name", "x").exit_code == 2
    assert cli("channels", "add", "telegram", "--name", "x", "--set", "nothing").exit_code == 2
    assert path.read_text() == before
    path.write_bytes(before.encode("utf-16"))
    refused = cli("channels", "add", "telegram", "--name", "x", "--token", "3:x")
    assert (refused.exit_code, "UTF-8" in refused.err) == (2, True)
    path.write_text("channels: []\n")
    assert "by hand" in cli("channels", "add", "telegram", "--name", "x", "--token", "3:x").err
