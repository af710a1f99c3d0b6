"""Tests of `threadkeep sessions prune`, and of its dry run."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

from tests.cli.forked import ForkedCommand
from tests.cli.running import CommandLine
from tests.databases import execute
from threadkeep.cli import main
from threadkeep.errors import StoreUnavailable
from threadkeep.history.memory import Memory
from threadkeep.records import Message, Retention, SessionInfo
from threadkeep.store.archive import ArchivedPart
from threadkeep.store.retention import Removal, Removed, RetentionRows

_NOW = datetime.now(UTC)


def store_aged(cli: CommandLine, session_id: str, *days_ago: float, user_id: str | None = None) -> None:
    """Store messages that were created the given numbers of days ago."""
    times = [_NOW - timedelta(days=days) for days in days_ago]
    messages = [
        Message(role="assistant" if place % 2 else "user", content="Tea?", tokens=3, created_at=time)
        for place, time in enumerate(times)
    ]
    info = SessionInfo(session_id, user_id, "Tea", None, 0, 0, 0, True, (), {}, times[0], times[-1])

    async def restoring(memory: Memory) -> None:
        await memory.restore([ArchivedPart(info, tuple(messages))])

    cli.with_memory(restoring)


def count(cli: CommandLine, session_id: str) -> int:
    """Return the number of messages of a session."""

    async def counting(memory: Memory) -> int:
        return await memory.session(session_id).count()

    return cli.with_memory(counting)


def test_a_dry_run_lists_removals_and_changes_nothing(any_cli: CommandLine) -> None:
    store_aged(any_cli, "old", 400, 390, 10, 1)
    store_aged(any_cli, "young", 2, 1)
    limits = ("sessions", "prune", "--delete", "--max-age-days", "365", "--dry-run")
    said = any_cli(*limits, "--json").json
    assert said == {
        "dry_run": True,
        "archived": {"sessions": 0, "messages": 0, "tokens": 0},
        "deleted": {"sessions": 1, "messages": 2, "tokens": 6},
        "whole_sessions": 0,
        "busy": 0,
        "sessions": [
            {
                "session_id": "old",
                "action": "delete",
                "first_seq": 1,
                "last_seq": 2,
                "messages": 2,
                "tokens": 6,
                "whole_session": False,
            }
        ],
    }
    shown = any_cli(*limits)
    assert shown.exit_code == 0
    assert "1–2" in shown.out
    assert "Would be deleted 2 messages (6 tokens) of 1 session. Nothing was changed." in shown.out
    assert count(any_cli, "old") == 4


def test_prune_removes_messages_beyond_the_limits(any_cli: CommandLine) -> None:
    """Deleting needs a confirmation or `--yes`; archiving does not."""
    store_aged(any_cli, "old", 400, 390, 10, 1)
    limits = ("sessions", "prune", "--delete", "--max-age-days", "365")
    refused = any_cli(*limits)
    assert (refused.exit_code, count(any_cli, "old")) == (2, 4)
    assert "--yes" in refused.err
    done = any_cli(*limits, "--yes", "--json")
    assert done.exit_code == 0
    assert done.json == {
        "dry_run": False,
        "archived": {"sessions": 0, "messages": 0, "tokens": 0},
        "deleted": {"sessions": 1, "messages": 2, "tokens": 6},
        "whole_sessions": 0,
        "busy": 0,
        "vacuumed": False,
    }
    assert count(any_cli, "old") == 2
    assert any_cli(*limits, "--yes").out == "Nothing is beyond the limits.\n"
    archived = any_cli("sessions", "prune", "--archive", "--max-messages", "1")
    assert archived.out == "Nothing is beyond the limits.\n"  # the newest question and its answer stay
    store_aged(any_cli, "more", 3, 2, 1, 0.5)
    archived = any_cli("sessions", "prune", "--archive", "--max-messages", "2")
    assert (archived.exit_code, archived.out) == (0, "Archived 2 messages (6 tokens) of 1 session.\n")
    assert count(any_cli, "more") == 4


def test_a_session_with_damaged_limits_is_reported(cli: CommandLine) -> None:
    """The command prunes the others, counts the skipped session, and fails."""
    store_aged(cli, "bad", 400, 390, 10, 1)
    store_aged(cli, "old", 400, 390, 10, 1)
    execute(cli.url, "UPDATE chat_sessions SET retention = '{' WHERE session_id = 'bad'")
    done = cli("sessions", "prune", "--delete", "--max-age-days", "365", "--yes")
    assert (done.exit_code, done.out) == (1, "Deleted 2 messages (6 tokens) of 1 session.\n")
    assert "in use or damaged: 1 session" in done.err
    assert count(cli, "old") == 2


def test_idle_sessions_are_deleted_as_a_whole(cli: CommandLine) -> None:
    store_aged(cli, "idle", 100, 99)
    store_aged(cli, "busy", 100, 1)
    limits = ("sessions", "prune", "--delete", "--max-idle-days", "30")
    assert "delete the session" in cli(*limits, "--dry-run").out
    done = cli(*limits, "--yes")
    assert done.out == "Deleted 2 messages (6 tokens) of 1 session, 1 of them as a whole.\n"
    listed = cli("sessions", "list", "--json").json["sessions"]
    assert [session["session_id"] for session in listed] == ["busy"]


def test_the_limits_of_the_settings_are_the_default(cli: CommandLine) -> None:
    store_aged(cli, "a", 400, 390, 50, 40, 2, 1)
    assert cli("sessions", "prune").out == "Nothing is beyond the limits.\n"
    cli.set(THREADKEEP_RETENTION_DELETE_MAX_AGE_DAYS="365", THREADKEEP_RETENTION_ARCHIVE_MAX_AGE_DAYS="30")
    done = cli("sessions", "prune", "--yes")
    words = "Archived 2 messages (6 tokens) of 1 session; deleted 2 messages (6 tokens) of 1 session.\n"
    assert (done.exit_code, done.out) == (0, words)
    info = cli.info("a")
    assert (info.deleted_seq, info.archived_seq, info.message_count) == (2, 4, 4)


def test_an_invalid_limit_in_the_settings_is_refused(cli: CommandLine) -> None:
    cli.set(THREADKEEP_RETENTION_DELETE_MAX_MESSAGES="0")
    refused = cli("sessions", "prune")
    assert refused.exit_code == 1
    assert "THREADKEEP_RETENTION_DELETE_MAX_MESSAGES" in refused.err


def test_prune_can_be_restricted_to_sessions_or_a_user(cli: CommandLine) -> None:
    for name, user in (("a", "u1"), ("b", "u1"), ("c", "u2")):
        store_aged(cli, name, 4, 3, 2, 1, user_id=user)
    limits = ("--delete", "--max-messages", "2", "--yes")
    assert cli("sessions", "prune", "a", *limits).exit_code == 0
    assert [count(cli, name) for name in ("a", "b", "c")] == [2, 4, 4]
    planned = cli("sessions", "prune", "--user", "u1", *limits[:-1], "--dry-run", "--json").json
    assert [one["session_id"] for one in planned["sessions"]] == ["b"]
    assert cli("sessions", "prune", "--user", "u1", *limits).exit_code == 0
    assert [count(cli, name) for name in ("a", "b", "c")] == [2, 2, 4]
    missing = cli("sessions", "prune", "c", "nobody", *limits, "--json")
    assert (missing.exit_code, missing.problem["type"]) == (1, "urn:threadkeep:session-not-found")
    assert count(cli, "c") == 4


def test_limits_of_a_session_override_the_options(cli: CommandLine) -> None:
    store_aged(cli, "a", 4, 3, 2, 1)

    async def keeping(memory: Memory) -> None:
        await memory.retention.change("a", Retention())

    cli.with_memory(keeping)
    assert cli("sessions", "prune", "a", "--delete", "--max-messages", "2", "--yes").out == (
        "Nothing is beyond the limits.\n"
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--max-age-days", "3"),
        ("--delete",),
        ("--archive",),
        ("--delete", "--max-messages", "0"),
        ("--delete", "--max-age-days", "-1"),
        ("--delete", "--max-idle-days", "inf"),
        ("telegram:", "--delete", "--max-messages", "3"),
    ],
)
def test_invalid_combinations_of_options_are_refused(cli: CommandLine, options: tuple[str, ...]) -> None:
    refused = cli("sessions", "prune", *options, "--yes")
    assert refused.exit_code == 2
    assert refused.err.count("\n") == 1


def test_vacuum_returns_space_to_the_disk(any_cli: CommandLine) -> None:
    store_aged(any_cli, "a", *([3.0] * 100), 1)
    done = any_cli("sessions", "prune", "--delete", "--max-messages", "1", "--yes", "--vacuum")
    assert done.exit_code == 0
    told = done.out + done.err
    assert ("was returned to the disk" in told) == any_cli.url.startswith("sqlite")
    assert ("autovacuum" in told) == any_cli.url.startswith("postgresql")


def test_progress_is_in_lines_without_a_terminal(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.cli.terminal.LINE_SECONDS", 0.0)
    store_aged(cli, "a", *([3.0] * 500), 1)
    done = cli("sessions", "prune", "--delete", "--max-messages", "1", "--yes")
    assert re.search(r"Pruning: \d\d? % deleted \d+ messages", done.err)
    assert "Pruning: 100 % deleted 500 messages" in done.err
    assert done.out == "Deleted 500 messages (1,500 tokens) of 1 session.\n"


def test_an_interrupted_prune_shows_its_progress(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a database error in the second step, the first step is kept, and a second call does the rest."""
    store_aged(cli, "a", *([3.0] * 500), 1)
    command = ("sessions", "prune", "--delete", "--max-messages", "1", "--yes")
    step, steps = RetentionRows.step, itertools.count()

    async def failing(self: RetentionRows, removal: Removal, *, messages: int) -> Removed | None:
        if next(steps):
            raise StoreUnavailable("The disk is full.")
        return await step(self, removal, messages=messages)

    with monkeypatch.context() as broken:
        broken.setattr(RetentionRows, "step", failing)
        done = cli(*command)
    assert done.exit_code == 1
    sentence = r"Interrupted: deleted (\d+) messages .*\. Prune again to continue; no step was left half done\."
    found = re.search(sentence, done.err)
    assert found, done.err
    assert "The disk is full." in done.err
    assert count(cli, "a") == 501 - int(found[1])
    assert cli(*command).exit_code == 0
    assert count(cli, "a") == 1


def prune_and_be_killed(arguments: Sequence[str]) -> int:
    """Prune in a process that is killed in the middle of its second step."""
    step, steps = RetentionRows.step, itertools.count()

    async def killing(self: RetentionRows, removal: Removal, *, messages: int) -> Removed | None:
        if next(steps):
            asyncio.get_running_loop().call_later(random.random() / 100, os.kill, os.getpid(), signal.SIGKILL)
            await step(self, removal, messages=messages)
            await asyncio.Event().wait()
        return await step(self, removal, messages=messages)

    with patch.object(RetentionRows, "step", killing):
        return main(arguments)


@pytest.mark.process
def test_a_killed_prune_can_be_repeated(any_cli: CommandLine) -> None:
    store_aged(any_cli, "a", *([3.0] * 3_000), 1)
    limits = ("sessions", "prune", "--delete", "--max-messages", "1", "--yes", "--json")
    with ForkedCommand(prune_and_be_killed, limits, os.environ) as process:
        assert process.wait() == -signal.SIGKILL
    left = count(any_cli, "a")
    assert 1 < left < 3_001

    async def places(memory: Memory) -> list[int | None]:
        page = await memory.session("a").page(limit=10_000)
        return [message.seq for message in page.messages]

    assert any_cli.with_memory(places) == list(range(3_002 - left, 3_002))
    done = any_cli(*limits).json
    assert done["deleted"]["messages"] == left - 1
    assert any_cli.with_memory(places) == [3_001]
