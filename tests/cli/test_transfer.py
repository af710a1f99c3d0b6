"""Tests of `threadkeep sessions export` and `import`: a round trip loses nothing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.forked import until_it_reads
from tests.cli.running import CommandLine, default_handler, start
from threadkeep.cli.terminal import terminal
from threadkeep.errors import StoreUnavailable, WrongUser
from threadkeep.history.memory import Memory
from threadkeep.records import Message, Retention, RetentionLimits, Summary
from threadkeep.store.address import TranscriptLocation
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.private_files import lock_at_once

_SENT = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)


def _lines(count: int, session_id: str = "a") -> str:
    """Return an export of one session as a person would write it, without times."""
    lines: list[dict[str, object]] = [{"type": "session", "session_id": session_id, "title": "By hand"}]
    lines += [
        {"type": "message", "session_id": session_id, "id": f"m{number}", "role": "user", "content": f"Word {number}."}
        for number in range(1, count + 1)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


async def _write_everything(memory: Memory) -> None:
    """Store sessions that use every field of messages, sessions and summaries."""
    full = memory.session("telegram:1", user_id="u1")
    await full.append(
        [
            Message(role="system", content="A note", metadata={"b": 1, "a": [1.5, None]}),
            Message(
                role="user",
                content="你好\n“quotes”\u2028 \\ 👩‍👩‍👧",
                id="telegram:42",
                sent_at=_SENT,
                tokens=77,
                run_id="run-1",
                original={"z": 1, "a": "b"},
            ),
            Message(role="assistant", content="", status="interrupted", confidence=0.123456789, escalated=True),
        ]
    )
    await full.reset()
    await full.append([Message(role="user", content="After the reset.", sent_at=_SENT + timedelta(microseconds=1))])
    await full.update(title="Its own title", tags=["x", "ü"], metadata={"z": {"b": 1, "a": 2}}, active=False)
    for place in range(3):
        await memory.session("long").append([Message(role="user", content=f"{place}-{n}") for n in range(400)])
    for first, last in ((1, 500), (501, 1_000)):
        made = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=first)
        summary = Summary("long", first, last, f"Numbers up to {last}: 数字.", "test-model", "1", 9, created_at=made)
        assert await memory.summaries.add(summary)
    await memory.session("nobody:s").append([Message(role="assistant", content="An announcement.")])


def _use_empty_database(cli: CommandLine, name: str = "other.db") -> None:
    """Switch the command line to an empty database."""
    cli.url = f"sqlite:///{cli.folder}/{name}"
    cli.set(THREADKEEP_DATABASE_URL=cli.url)


def test_an_export_comes_back_byte_for_byte(any_cli: CommandLine, postgres_url: str) -> None:
    any_cli.with_memory(_write_everything)
    exported = any_cli("sessions", "export", "--all").out

    for url in (f"sqlite:///{any_cli.folder}/other.db", _other_url(postgres_url, any_cli)):
        any_cli.url = url
        any_cli.set(THREADKEEP_DATABASE_URL=url)
        imported = any_cli("sessions", "import", "-", "--json", given=exported)
        assert imported.exit_code == 0
        assert imported.json["stored"] == 1205
        assert imported.json["moved"] == 0
        assert (imported.json["summaries"], imported.json["summaries_left_out"]) == (2, 0)
        assert any_cli("sessions", "export", "--all").out == exported


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
def test_a_second_import_supersedes_what_was_superseded_since(
    cli: CommandLine, postgres_url: str, transcripts: TranscriptLocation
) -> None:
    """Two imports move a database while its service runs, even if answers are regenerated between them."""

    async def begin(memory: Memory) -> None:
        for number in (1, 2):
            question = Message(role="user", content=f"Question {number}", id=f"q{number}")
            answer = Message(role="assistant", content="Answer", id=f"a{number}", answers=f"q{number}")
            await memory.session("s").append([question, answer])

    async def change(memory: Memory) -> None:
        await memory.session("s").take_back(2)
        await memory.session("s").regenerate()
        await memory.session("s").append([Message(role="assistant", content="Again", id="a3", answers="q1")])

    source, targets = cli.url, (f"sqlite:///{cli.folder}/other.db", postgres_url)
    for work, known in ((begin, 0), (change, 4)):
        cli.url = source
        cli.with_memory(work)
        cli.set(THREADKEEP_DATABASE_URL=source, THREADKEEP_TRANSCRIPTS="tables")
        exported = cli("sessions", "export", "--all", "--view", "history").out
        for url in targets:
            cli.set(THREADKEEP_DATABASE_URL=url, THREADKEEP_TRANSCRIPTS=transcripts)
            for count in (known, exported.count('"type":"message"')):
                assert cli("sessions", "import", "-", "--json", given=exported).json["known"] == count
            assert cli("sessions", "export", "--all", "--view", "history").out == exported


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
def test_a_second_answer_to_a_question_is_imported_as_superseded(
    cli: CommandLine, postgres_url: str, transcripts: TranscriptLocation
) -> None:
    """A session has one active complete answer to a question. The other one can be read in the view `history`."""
    cli.set(THREADKEEP_TRANSCRIPTS=transcripts)
    line = {"type": "message", "session_id": "s", "role": "assistant", "content": "hi", "answers": "q"}
    lines = [json.dumps({**line, "id": f"a{number}"}) + "\n" for number in range(4)]
    for url in (f"sqlite:///{cli.folder}/other.db", postgres_url):
        cli.set(THREADKEEP_DATABASE_URL=url)
        for given in (lines[0], "".join(lines), "".join(lines)):
            assert cli("sessions", "import", "-", given=given).exit_code == 0
        rows = cli("sessions", "export", "s", "--view", "history").out.splitlines()[1:]
        assert [json.loads(row)["superseded_by"] for row in rows] == [None, "a0", "a0", "a0"]
        assert cli("sessions", "export", "s").out.count('"type":"message"') == 1


def test_archived_and_deleted_messages_survive_a_transfer(any_cli: CommandLine, postgres_url: str) -> None:
    """An import restores sequence numbers, the archive, a reset and the limits of a session."""

    async def prune(memory: Memory) -> None:
        for place in range(3):
            await memory.session("long").append([Message(role="user", content=f"{place}-{n}") for n in range(400)])
        await memory.session("long").reset()
        await memory.session("long").append([Message(role="user", content="After the reset.")])
        assert await memory.summaries.add(Summary("long", 1201, 1201, "A reset.", "test-model", "1", 9))
        await memory.session("kept").append([Message(role="user", content="For long.")])
        own = Retention(delete=RetentionLimits(max_age_days=1000))
        await memory.retention.change("kept", own)
        await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=700)))
        await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=100)))

    any_cli.with_memory(prune)
    exported = any_cli("sessions", "export", "--all").out
    info = any_cli.info("long")
    assert (info.deleted_seq, info.archived_seq, info.reset_seq, info.last_seq) == (501, 1101, 1200, 1201)

    for url in (f"sqlite:///{any_cli.folder}/other.db", _other_url(postgres_url, any_cli)):
        any_cli.url = url
        any_cli.set(THREADKEEP_DATABASE_URL=url)
        imported = any_cli("sessions", "import", "-", "--json", given=exported).json
        assert (imported["stored"], imported["moved"], imported["summaries"]) == (701, 0, 1)
        assert any_cli("sessions", "export", "--all").out == exported
        assert any_cli.info("long") == info
        assert any_cli.info("kept").retention == Retention(delete=RetentionLimits(max_age_days=1000))
        assert any_cli("sessions", "search", "1-0").err == "No message contains all these words.\n"


def test_an_import_into_a_graph_store_counts_unsupported_data(
    any_cli: CommandLine, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archived messages and session limits are counted once, however many batches a session has."""
    monkeypatch.setattr("threadkeep.history.importing.BATCH_MESSAGES", 50)

    async def prune(memory: Memory) -> None:
        for _ in range(3):
            for session_id in ("long", "kept"):
                await memory.session(session_id).append([Message(role="user", content=f"{n}") for n in range(40)])
        await memory.retention.change("kept", Retention(delete=RetentionLimits(max_age_days=1000)))
        await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=10)))

    any_cli.with_memory(prune)
    exported = any_cli("sessions", "export", "--all").out
    any_cli.set(THREADKEEP_TRANSCRIPTS="graph_store")
    for url in (f"sqlite:///{any_cli.folder}/other.db", _other_url(postgres_url, any_cli)):
        any_cli.set(THREADKEEP_DATABASE_URL=url)
        told = any_cli("sessions", "import", "-", "--json", given=exported).json
        assert (told["stored"], told["unarchived"], told["limits_left_out"]) == (240, 110, 1)
        again = any_cli("sessions", "import", "-", "--json", given=exported).json
        assert (again["known"], again["unarchived"], again["limits_left_out"]) == (240, 0, 0)
    any_cli.set(THREADKEEP_DATABASE_URL=f"sqlite:///{any_cli.folder}/fourth.db")
    words = any_cli("sessions", "import", "-", given=exported).out
    assert "no archive: 110." in words
    assert "does not keep: 1." in words


def _other_url(postgres_url: str, cli: CommandLine) -> str:
    """Return the URL of a database that the command line does not use."""
    return f"sqlite:///{cli.folder}/third.db" if cli.url == postgres_url else postgres_url


def test_a_summary_of_superseded_messages_stops_no_export(any_cli: CommandLine) -> None:
    """The view `history` has the messages, and their summary."""

    async def work(memory: Memory) -> None:
        session = memory.session("s")
        await session.append([Message(role="user", content="q"), Message(role="user", content="wrong")])
        await session.take_back(1)
        for seq in (1, 2):
            assert await memory.summaries.add(Summary("s", seq, seq, f"summary {seq}", "m", "1", 1))

    any_cli.with_memory(work)
    for view, count in (("active", 1), ("history", 2)):
        exported = any_cli("sessions", "export", "--all", "--view", view)
        assert (exported.exit_code, exported.out.count('"type":"summary"')) == (0, count)


def test_importing_twice_changes_nothing(any_cli: CommandLine) -> None:
    any_cli.with_memory(_write_everything)
    exported = any_cli("sessions", "export", "--all").out
    again = any_cli("sessions", "import", "-", "--json", given=exported)
    assert (again.json["stored"], again.json["known"]) == (0, 1205)
    assert (again.json["summaries"], again.json["summaries_left_out"]) == (0, 0)
    assert any_cli("sessions", "export", "--all").out == exported


def test_an_export_has_a_line_for_each_session_and_message(cli: CommandLine) -> None:
    cli.store("a", "one", "two", user_id="u1")
    cli.store("b", "three")
    session, one, two = [json.loads(line) for line in cli("sessions", "export", "a").out.splitlines()]
    assert (session["type"], session["session_id"], session["user_id"]) == ("session", "a", "u1")
    assert [(m["type"], m["session_id"], m["seq"], m["content"]) for m in (one, two)] == [
        ("message", "a", 1, "one"),
        ("message", "a", 2, "two"),
    ]


def test_sessions_can_be_selected_for_an_export(cli: CommandLine) -> None:
    for key, user in (("a", "u1"), ("b", "u2"), ("c", "u1")):
        cli.store(key, "hi", user_id=user)

    def exported(*arguments: str) -> list[str]:
        lines = [json.loads(line) for line in cli("sessions", "export", *arguments).out.splitlines()]
        return [line["session_id"] for line in lines if line["type"] == "session"]

    assert exported("--all") == ["c", "b", "a"]
    assert exported("b", "a", "b") == ["b", "a"]
    assert exported("--all", "--user", "u1") == ["c", "a"]
    outcome = cli("sessions", "export", "a", "nowhere")
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert cli("sessions", "export", "b", "--user", "u1").exit_code == 1


def test_an_export_file_is_replaced_only_when_complete(cli: CommandLine, tmp_path: Path) -> None:
    """Only the owner may read the file; a failed export keeps the previous file."""
    cli.store("a", "hi")
    file = tmp_path / "export.jsonl"
    outcome = cli("sessions", "export", "--all", "-o", str(file), "--json")
    assert outcome.json == {"sessions": 1, "messages": 1, "summaries": 0, "file": str(file)}
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()

    assert cli("sessions", "export", "nowhere", "-o", str(file)).exit_code == 1
    assert file.read_text() == before
    assert list(tmp_path.glob("*.part")) == []
    assert "Check the path" in cli("sessions", "export", "--all", "-o", str(tmp_path / "no" / "f")).err


def test_an_export_to_a_pipe_does_not_replace_the_pipe(cli: CommandLine, tmp_path: Path) -> None:
    """A shell names such a pipe for `-o >(gzip > FILE)`; for root, a rename would replace even `/dev/null`."""
    cli.store("a", "hi")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert cli("sessions", "export", "--all", "-o", str(pipe)).exit_code == 0
    assert os.read(reader, 100_000).decode() == cli("sessions", "export", "--all").out
    os.close(reader)
    assert pipe.is_fifo()
    refused = cli("backup", str(pipe), "--replace")
    assert (refused.exit_code, "folder or a device" in refused.err, pipe.is_fifo()) == (2, True, True)


def test_an_export_to_an_open_descriptor_is_appended(cli: CommandLine, tmp_path: Path) -> None:
    """A shell opens the file for `-o /dev/stdout >> FILE`; a rename would replace what is in it."""
    cli.store("a", "hi")
    file = tmp_path / "file"
    file.write_text("kept\n")
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    assert cli("sessions", "export", "--all", "-o", f"/dev/fd/{descriptor}").exit_code == 0
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert file.read_text() == "kept\n" + cli("sessions", "export", "--all").out + "after\n"


def test_a_link_to_itself_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    cli.store("a", "hi")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    exported = cli("sessions", "export", "--all", "-o", str(loop))
    assert exported.exit_code in (0, 2)  # from Python 3.13 on, the link is replaced
    assert "bug" not in exported.err


def test_an_export_of_chatgpt_is_not_read_from_a_pipe(cli: CommandLine) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"[]")
    os.close(writer)
    refused = cli("import", "chatgpt", f"/dev/fd/{reader}")
    os.close(reader)
    assert (refused.exit_code, "to a file" in refused.err) == (2, True)


def test_an_import_from_a_pipe_reads_it_from_the_beginning(cli: CommandLine) -> None:
    """A shell names such a pipe for `sessions import <(zcat FILE)`."""
    reader, writer = os.pipe()
    os.write(writer, _lines(4).encode())
    os.close(writer)
    assert cli("sessions", "import", f"/dev/fd/{reader}", "--json").json["stored"] == 4
    os.close(reader)


def test_an_export_replaces_the_target_of_a_link(cli: CommandLine, tmp_path: Path) -> None:
    """With `-o /dev/stdout > FILE`, the link leads to the file."""
    cli.store("a", "hi")
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    for _ in range(2):
        assert cli("sessions", "export", "--all", "-o", str(link)).exit_code == 0
        assert (link.is_symlink(), target.read_text()) == (True, cli("sessions", "export", "--all").out)


def test_a_folder_is_refused_before_the_export_begins(cli: CommandLine, tmp_path: Path) -> None:
    refused = cli("sessions", "export", "nowhere", "-o", str(tmp_path))
    assert (refused.exit_code, "is a folder" in refused.err) == (2, True)
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.part")) == []


def test_an_export_takes_over_the_file_of_a_killed_one_but_not_of_a_running_one(cli: CommandLine) -> None:
    """Two processes that write to one file would replace it with an incomplete one."""
    cli.store("a", "hi", user_id="ann")
    commands = (
        (["sessions", "export", "--all", "-o"], "export.jsonl", ".part"),
        (["persons", "export", "ann", "-o"], "ann.zip", ".partial"),
        (["backup"], "copy", ".partial"),
    )
    for command, name, ending in commands:
        file, part = cli.folder / name, cli.folder / f"{name}{ending}"
        with part.open("wb") as running:
            running.write(b"{" * 100_000)
            running.flush()
            assert lock_at_once(running.fileno())
            refused = cli(*command, str(file))
            assert (refused.exit_code, file.exists(), part.stat().st_size) == (2, False, 100_000)
            assert f"Another process writes {part}" in refused.err
        assert cli(*command, str(file)).exit_code == 0
        assert b"{{{" not in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        assert not part.exists()


def test_bad_lines_are_named_and_the_rest_is_stored(cli: CommandLine) -> None:
    lines = _lines(4).splitlines()
    lines[2] = '{"type":"message","session_id":"a","role":"user"}'
    lines[3] = "not json"
    outcome = cli("sessions", "import", "-", given="\n".join(lines))
    assert outcome.exit_code == 1
    assert outcome.err.splitlines()[:2] == [
        "Line 3: A message needs the field 'content'.",
        "Line 4: This is not JSON in UTF-8.",
    ]
    assert cli.info("a").message_count == 2
    assert "A corrected message follows those that are stored; to keep the order," in outcome.out

    told = cli("sessions", "import", "-", "--json", given="\n".join(lines)).json
    assert told["bad_lines"] == 2
    assert [error["line"] for error in told["errors"]] == [3, 4]


def test_strict_stops_at_the_first_bad_line(cli: CommandLine) -> None:
    lines = _lines(4).splitlines()
    lines[3] = "not json"
    outcome = cli("sessions", "import", "-", "--strict", given="\n".join(lines))
    assert outcome.exit_code == 1
    assert "to keep the order" not in outcome.out
    assert cli.info("a").message_count == 2


def test_messages_of_a_refused_session_are_skipped(cli: CommandLine) -> None:
    """The messages would have no owner without their session line."""
    bad = '{"type":"session","session_id":"a","owner":"u1"}\n'
    outcome = cli("sessions", "import", "-", "--json", given=bad + "".join(_lines(3).splitlines(keepends=True)[1:]))
    assert outcome.exit_code == 1
    assert (outcome.json["stored"], outcome.json["skipped"], outcome.json["bad_lines"]) == (0, 3, 1)
    assert "The messages of this session are skipped." in outcome.json["errors"][0]["detail"]
    assert cli("sessions", "list", "--json").json["sessions"] == []


def test_a_session_of_another_user_is_skipped(cli: CommandLine) -> None:
    cli.store("a", "Mine.", user_id="u1")
    mixed = '{"type":"session","session_id":"a","user_id":"u2"}\n' + _lines(600).partition("\n")[2] + _lines(2, "b")
    outcome = cli("sessions", "import", "-", "--json", given=mixed)
    assert outcome.exit_code == 1
    assert (outcome.json["stored"], outcome.json["skipped"], outcome.json["bad_lines"]) == (2, 600, 1)
    assert cli.info("a").message_count == 1


def test_imported_messages_follow_the_stored_ones(cli: CommandLine) -> None:
    cli.store("a", "Already here.")
    exported = _lines(2).replace('"id": "m1"', '"id": "m1", "seq": 1').replace('"id": "m2"', '"id": "m2", "seq": 2')
    outcome = cli("sessions", "import", "-", given=exported)
    assert outcome.exit_code == 0
    assert "Stored at other positions, because their sessions had messages or lines were skipped: 2." in outcome.out
    contents = [message["content"] for message in cli("sessions", "show", "a", "--json").json["messages"]]
    assert contents == ["Already here.", "Word 1.", "Word 2."]


def test_a_handwritten_file_is_imported(cli: CommandLine) -> None:
    """Missing session lines, ids and times, a byte order mark and blank lines are accepted.

    A second import adds nothing.
    """
    line = '{"type":"message","session_id":"a","role":"user","content":"ok"}\r\n'
    data = b"\xef\xbb\xbf" + (line + "\n" + line).encode()
    assert cli("sessions", "import", "-", "--json", given=data).json["stored"] == 2
    assert cli("sessions", "import", "-", "--json", given=data).json["known"] == 2
    info = cli.info("a")
    assert (info.title, info.message_count) == ("ok", 2)


@pytest.mark.parametrize(
    ("content", "cure"),
    [
        (gzip.compress(_lines(2).encode()), "`gzip -d`"),
        (b"\x28\xb5\x2f\xfd\x24\n\0\n", "`zstd -d`"),
        (_lines(2).encode("utf-16"), "`iconv -f UTF-16 -t UTF-8`"),
        (_lines(2).encode("utf-16-le"), "`iconv -f UTF-16 -t UTF-8`"),
        (b"PGDMP\1\n\0\n", "name a file that `threadkeep sessions export` wrote"),
    ],
)
def test_a_file_without_lines_of_json_is_refused_once(cli: CommandLine, content: bytes, cure: str) -> None:
    (cli.folder / "file").write_bytes(content)
    for outcome in (cli("import", "jsonl", str(cli.folder / "file")), cli("import", "jsonl", "-", given=content)):
        assert (outcome.exit_code, outcome.out, outcome.err.count("\n"), cure in outcome.err) == (2, "", 1, True)


def test_a_cut_off_first_line_is_reported_and_the_others_are_imported(cli: CommandLine) -> None:
    (cli.folder / "file").write_text('"content": "cut"}\n' + _lines(2))
    outcome = cli("import", "jsonl", str(cli.folder / "file"))
    assert (outcome.exit_code, "Stored 2 messages" in outcome.out, "line 1" in outcome.err.lower()) == (1, True, True)


def test_nul_characters_are_replaced(cli: CommandLine) -> None:
    lines = _lines(2).replace("Word 1.", "Nul \\u0000.")
    assert "databases reject: 1." in cli("sessions", "import", "-", given=lines).out


def test_a_missing_file_is_a_failure(cli: CommandLine) -> None:
    outcome = cli("sessions", "import", "nowhere.jsonl")
    assert outcome.exit_code == 1
    assert outcome.err == "nowhere.jsonl: No such file or directory. Check the path, its permissions and the disk.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the file is Linux's")
def test_a_read_error_is_reported_as_file_trouble(cli: CommandLine) -> None:
    """/proc/self/mem has the input/output error of a bad disk."""
    outcome = cli("sessions", "import", "/proc/self/mem", "--json")
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.problem["type"] == "urn:threadkeep:file-trouble"


def test_progress_is_shown_on_stderr(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(_lines(1200))
    assert "Importing: 100 %" in cli("sessions", "import", str(file)).err
    outcome = cli("sessions", "export", "--all")
    assert "Exporting: 100 % 1,200 messages of 1 session" in outcome.err
    assert outcome.out.count("\n") == 1201
    assert cli("sessions", "export", "--all", "--json").err == ""


def test_an_interrupted_import_shows_its_progress(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated import stores only the rest."""
    real_restore, batches = Memory.restore, iter([True])

    async def fail_later(memory: Memory, parts: list[ArchivedPart]) -> list[Restored | WrongUser]:
        if next(batches, False):
            return await real_restore(memory, parts)
        raise StoreUnavailable("The disk is full; make room.")

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "restore", fail_later)
        outcome = cli("sessions", "import", "-", given=_lines(1200))
    assert outcome.exit_code == 1
    assert "Interrupted: 500 messages stored" in outcome.err
    assert outcome.err.splitlines()[-1] == "The disk is full; make room."
    again = cli("sessions", "import", "-", "--json", given=_lines(1200)).json
    assert (again["known"], again["stored"]) == (500, 700)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_export_without_a_file(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Of a person's export, the lines so far stay, so that it can be continued."""
    for session in range(20):  # the event loop must run again before the export ends
        cli.store(f"a{session}", "hi", "hello", user_id="ann")
    monkeypatch.setattr("threadkeep.cli.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr(type(terminal), "note", lambda _, text: signal.raise_signal(number))
    for command, left in ((["sessions", "export", "--all"], []), (["persons", "export", "ann"], ["out.partial"])):
        with default_handler(number):
            outcome = cli(*command, "-o", str(cli.folder / "out"))
        assert (outcome.exit_code, "Stopped before the command was done." in outcome.err) == (1, True)
        assert [file.name for file in cli.folder.glob("out*")] == left


@pytest.mark.process
@pytest.mark.parametrize("noun", ["sessions", "facts"])
def test_one_ctrl_c_ends_an_import_that_waits_for_its_input(cli: CommandLine, noun: str) -> None:
    cli("migrate")
    with cli.fork(noun, "import", "-") as process:
        process.stdin.write("\n")
        process.stdin.flush()
        until_it_reads(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 1
        assert process.stderr.read().endswith("Stopped before the command was done.\n")


@pytest.mark.parametrize(
    "command",
    [
        "sessions export --all --output",
        "facts export --output",
        "workflows graph chat --format mermaid --output",
        "erase user ann --yes --receipt",
    ],
)
def test_an_output_does_not_replace_the_database(cli: CommandLine, command: str) -> None:
    cli.store("a", "hi")
    (cli.folder / "link").symlink_to("threadkeep.db")
    for name in ("threadkeep.db", "link", "threadkeep.db-wal", "threadkeep.db-journal"):
        outcome = cli(*command.split(), name)
        assert (outcome.exit_code, "is the database itself" in outcome.err) == (2, True)
    assert cli.info("a").message_count == 1


@pytest.mark.process
def test_a_killed_import_can_be_repeated(cli: CommandLine) -> None:
    cli.with_memory(_write_everything)
    exported = cli("sessions", "export", "--all").out
    _use_empty_database(cli)
    lines = exported.splitlines(keepends=True)
    with cli.fork("sessions", "import", "-") as process:
        process.stdin.write("".join(lines[: len(lines) * 3 // 4]))
        process.stdin.flush()
        _wait_for_messages(cli)
        process.send_signal(signal.SIGKILL)
        process.wait()
    partly = cli("sessions", "export", "--all").out.count('"type":"message"')
    assert 0 < partly < 1205
    assert cli("sessions", "import", "-", "--json", given=exported).json["stored"] == 1205 - partly
    assert cli("sessions", "export", "--all").out == exported


def _wait_for_messages(cli: CommandLine) -> None:
    """Wait until another process has stored a message."""

    async def stored(memory: Memory) -> int:
        return sum([info.message_count async for info in memory.sessions()])

    while not cli.with_memory(stored):
        pass


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured from /proc")
def test_transfers_take_no_more_memory_for_more_messages(cli: CommandLine) -> None:
    """Imports and exports work in pages."""
    code = (
        "import pathlib, sys\n"
        "from threadkeep.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "status = dict(line.split(':') for line in pathlib.Path('/proc/self/status').read_text().splitlines())\n"
        "print(status['VmHWM'].split()[0], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )

    def peak(*arguments: str) -> int:
        with start([sys.executable, "-c", code, *arguments], {}) as process:
            _, err = process.communicate()
        assert process.returncode == 0
        return int(err.splitlines()[-1])

    peaks = []
    for count in (1_000, 12_000):
        _use_empty_database(cli, f"{count}.db")
        file = cli.folder / f"{count}.jsonl"
        file.write_text(_lines(count).replace("Word", "Word " * 300))
        peaks.append((peak("sessions", "import", str(file)), peak("sessions", "export", "--all", "-o", "out.jsonl")))
    (import_less, export_less), (import_more, export_more) = peaks
    # In KB; the longer file has 16 MB more of text.
    assert import_more - import_less < 6_000
    assert export_more - export_less < 6_000
