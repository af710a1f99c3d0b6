"""Tests of moving summaries: they move together with their messages."""

from __future__ import annotations

import json

from tests.cli.running import CommandLine
from threadkeep.history.memory import Memory
from threadkeep.records import Summary


def test_summaries_keep_their_ranges_after_a_transfer(cli: CommandLine) -> None:
    """Summaries that were merged into another one are not exported."""
    cli.store("a", *(f"Word {number}." for number in range(10)))
    cli.with_memory(_summarise)
    lines = cli("sessions", "export", "a").out
    kinds = [json.loads(line)["type"] for line in lines.splitlines()]
    assert kinds == ["session", *["message"] * 10, "summary", "summary"]

    cli.url = f"sqlite:///{cli.folder}/other.db"
    cli.set(THREADKEEP_DATABASE_URL=cli.url)
    outcome = cli("sessions", "import", "-", given=lines)
    assert outcome.exit_code == 0
    assert "Summaries stored: 2." in outcome.out
    assert cli.with_memory(_ranges) == [(1, 6), (7, 8)]
    assert cli("sessions", "export", "a").out == lines


def test_an_export_without_summaries_is_imported(cli: CommandLine) -> None:
    """Exports of earlier versions have no summaries."""
    cli.store("a", "one", "two")
    old = cli("sessions", "export", "a").out
    cli.set(THREADKEEP_DATABASE_URL=f"sqlite:///{cli.folder}/other.db")
    assert cli("sessions", "import", "-", "--json", given=old).json["stored"] == 2


def test_summaries_of_missing_messages_are_skipped(cli: CommandLine) -> None:
    """A bad line leaves a gap in the messages; the summaries of that session are skipped and counted."""
    cli.store("a", *(f"Word {number}." for number in range(10)))
    cli.with_memory(_summarise)
    lines = cli("sessions", "export", "a").out.splitlines(keepends=True)
    lines[3] = "not json\n"
    cli.url = f"sqlite:///{cli.folder}/other.db"
    cli.set(THREADKEEP_DATABASE_URL=cli.url)
    outcome = cli("sessions", "import", "-", given="".join(lines))
    assert "stored differently here: 2." in outcome.out
    assert cli.info("a").message_count == 9
    assert cli.with_memory(_ranges) == []


def test_a_summary_must_follow_its_session(cli: CommandLine) -> None:
    """A summary without a session before it is a bad line; one of a refused session is skipped with it."""
    cli.store("a", "one", "two")
    cli.with_memory(_summarise_two)
    session, *messages, summary = cli("sessions", "export", "a").out.splitlines(keepends=True)
    cli.url = f"sqlite:///{cli.folder}/other.db"
    cli.set(THREADKEEP_DATABASE_URL=cli.url)
    told = cli("sessions", "import", "-", "--json", given=summary + session + "".join(messages)).json
    assert (told["stored"], told["summaries"], told["bad_lines"]) == (2, 0, 1)
    assert "must follow" in told["errors"][0]["detail"]
    bad = session.replace('"active":true', '"active":7') + "".join(messages) + summary
    told = cli("sessions", "import", "-", "--json", given=bad).json
    assert (told["bad_lines"], told["skipped"], told["summaries_left_out"]) == (1, 2, 0)


async def _summarise(memory: Memory) -> None:
    """Add three summaries, and merge the first two into one."""
    parts = [Summary("a", first, first + 2, f"From {first}.", "test-model", "1", 3) for first in (1, 4)]
    for part in parts:
        assert await memory.summaries.add(part)
    whole = Summary("a", 1, 6, "From the beginning.", "test-model", "1", 3, level=2)
    assert await memory.summaries.add(whole, replaces=[part.id for part in parts])
    assert await memory.summaries.add(Summary("a", 7, 8, "From 7.", "test-model", "1", 3))


async def _summarise_two(memory: Memory) -> None:
    assert await memory.summaries.add(Summary("a", 1, 2, "Two words.", "test-model", "1", 3))


async def _ranges(memory: Memory) -> list[tuple[int, int]]:
    return [(summary.first_seq, summary.last_seq) for summary in await memory.summaries.active("a")]
