"""Tests of `threadkeep persons export`: one archive, continued after an interruption."""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncIterator
from zipfile import ZipFile

import pytest

from tests.cli.running import CommandLine


def test_a_person_is_exported_into_one_archive(any_cli: CommandLine) -> None:
    """An interrupted export continues from its last position; an existing file is not replaced."""
    any_cli.store("room", "tell me about tea", "gladly", user_id="ann")
    target = any_cli.folder / "ann.zip"
    assert any_cli("persons", "export", "ann", "--output", str(target), "--json").json["file"] == str(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with ZipFile(target) as files:
        lines = files.read("person.jsonl").splitlines(keepends=True)
    for existing in (str(target), ".", "/"):
        refused = any_cli("persons", "export", "ann", "-o", existing)
        assert (refused.exit_code, refused.err) == (2, f"{existing} exists already; name another file.\n")
    positions = [number for number, line in enumerate(lines) if b'"position"' in line]
    partial = any_cli.folder / "again.zip.partial"
    partial.write_bytes(b"".join(lines[: positions[1] + 1]) + b'{"type": "mess')
    assert any_cli("persons", "export", "ann", "-o", str(any_cli.folder / "again.zip")).exit_code == 0
    with ZipFile(any_cli.folder / "again.zip") as files:
        assert files.read("person.jsonl").splitlines(keepends=True)[:-1] == lines[:-1]
    assert not partial.exists()


def test_a_partial_export_of_another_person_is_not_continued(any_cli: CommandLine) -> None:
    any_cli.store("room", "tell me about tea", "gladly", user_id="ann")
    any_cli.store("other", "tell me about coffee", "gladly", user_id="zoe")
    target, partial = any_cli.folder / "out.zip", any_cli.folder / "out.zip.partial"
    assert any_cli("persons", "export", "ann", "-o", str(target)).exit_code == 0
    with ZipFile(target) as files:
        lines = files.read("person.jsonl").splitlines(keepends=True)
    target.unlink()
    begun = b"".join(lines[: [number for number, line in enumerate(lines) if b'"position"' in line][1] + 1])
    partial.write_bytes(begun)
    refused = any_cli("persons", "export", "zoe", "-o", str(target))
    assert (refused.exit_code, target.exists(), partial.read_bytes()) == (2, False, begun)
    assert str(partial) in refused.err
    assert "another person" in refused.err


def test_an_unknown_person_is_not_exported(any_cli: CommandLine) -> None:
    """No file is written. A person without data is exported."""
    any_cli.store("room", "tell me about tea", "gladly", user_id="ann")
    any_cli.with_memory(lambda memory: memory.persons.resolve("zoe"))
    refused = any_cli("persons", "export", "anne", "-o", str(any_cli.folder / "out.zip"))
    assert (refused.exit_code, "persons list" in refused.err) == (1, True)
    assert list(any_cli.folder.glob("out.zip*")) == []
    assert any_cli("persons", "export", "zoe", "-o", str(any_cli.folder / "zoe.zip")).exit_code == 0


def test_an_export_that_cannot_begin_leaves_no_file(cli: CommandLine) -> None:
    """The database cannot be opened, or the id is not valid."""
    (cli.folder / "words.db").write_text("These words are not a database. " * 9)
    for person, database in (("ann", "missing.db"), ("ann", "words.db"), (" ", "new.db")):
        cli("migrate", "--database", "new.db")
        refused = cli("persons", "export", person, "-o", "ann.zip", "--database", database)
        assert refused.exit_code != 0
        assert list(cli.folder.glob("ann.zip*")) == []


def test_a_full_disk_leaves_no_archive(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.store("room", "tell me about tea", "gladly", user_id="ann")
    target = cli.folder / "ann.zip"

    async def full(*_: object) -> AsyncIterator[bytes]:
        yield b"PK"
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("threadkeep.memory.person_archive.archive", full)
        failed = cli("persons", "export", "ann", "-o", str(target))
    assert (failed.exit_code, "The disk is full" in failed.err) == (1, True)
    assert f"lines are in {target}.partial. Repeat the command to continue, or delete that file." in failed.err
    assert [path.name for path in cli.folder.glob("ann.zip*")] == ["ann.zip.partial"]
    assert cli("persons", "export", "ann", "-o", str(target)).exit_code == 0
    assert target.exists()
