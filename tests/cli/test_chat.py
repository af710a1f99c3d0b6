"""Tests of `threadkeep chat` in a terminal and by a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import termios
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import pytest

from tests.cli.forked import ForkedCommand, Program, fork
from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS
from threadkeep import app
from threadkeep.cli import main
from threadkeep.history.memory import Memory
from threadkeep.records.runs import NewRun
from threadkeep.runs.chat import Chat
from threadkeep.testing import Gate, ScriptedModel

pytestmark = pytest.mark.process


def scripted_chat(_: Sequence[str] = ()) -> int:
    """Chat with a model that stops in the middle of its first reply; make the terminal, if any, the controlling one."""
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    model = ScriptedModel([["Slowly, ", Gate(), "never said"], "Quick as ever.", "Done."])
    app.make_model = lambda *_, **__: model  # type: ignore[attr-defined]
    return main(["chat", "--session", "a"])


def impatient_chat(_: Sequence[str] = ()) -> int:
    """Chat, and wait only briefly for a turn of another process."""
    (Chat.__init__.__kwdefaults__ or {})["elsewhere_seconds"] = 0.1
    return main(["chat", "--session", "a"])


class Screen:
    """A process in a pseudo-terminal, and the text that it shows."""

    def __init__(self, program: Program) -> None:
        self._shown = b""
        self._terminal, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "100"}
        ends = [Connection(os.dup(theirs)) for _ in range(3)]
        os.close(theirs)
        self.process = fork(program, (), ends, environment)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> str:
        """Return the output up to a text; the next call starts after it."""
        deadline = time.monotonic() + HANG_SECONDS
        while text.encode() not in self._shown:
            ready, _, _ = select.select([self._terminal], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} was never shown, but {self._shown!r}"
            try:
                self._shown += os.read(self._terminal, 65_536)
            except OSError:
                raise AssertionError(f"the process ended before {text!r}: {self._shown!r}") from None
        before, found, self._shown = self._shown.partition(text.encode())
        return (before + found).decode(errors="replace")

    def end(self) -> int | None:
        """Discard the remaining output and return the exit code of the process."""
        with contextlib.suppress(OSError):
            while os.read(self._terminal, 65_536):
                pass
        self.process.join(HANG_SECONDS)
        os.close(self._terminal)
        return self.process.exitcode


@pytest.fixture
def screen(cli: CommandLine) -> Iterator[Screen]:
    """Run the scripted chat in a terminal."""
    screen = Screen(scripted_chat)
    yield screen
    screen.process.kill()
    screen.process.join()


def _stored(cli: CommandLine, session_id: str = "a") -> list[tuple[str, str, str]]:
    async def reading(memory: Memory) -> list[tuple[str, str, str]]:
        return [(m.role, m.content, m.status) for m in await memory.session(session_id).tail(50)]

    return cli.with_memory(reading)


def test_a_person_chats_in_a_terminal(cli: CommandLine, screen: Screen) -> None:
    """Ctrl-C stops a reply, Up recalls an earlier line, and Ctrl-D ends the chat."""
    screen.wait_for("you ")
    screen.type("hello\r")
    screen.wait_for("Slowly, ")
    screen.type("\x03")
    screen.wait_for("stored as interrupted")
    screen.wait_for("you ")
    screen.type("again\r")
    screen.wait_for("Quick as ever.")
    screen.wait_for("you ")
    screen.type("\x1b[A\x1b[A")
    screen.wait_for("hello")
    screen.type("\r")
    screen.wait_for("Done.")
    screen.wait_for("you ")
    screen.type("\x04")
    screen.wait_for("threadkeep chat --session a")
    assert screen.end() == 0

    assert _stored(cli) == [
        ("user", "hello", "complete"),
        ("assistant", "Slowly, ", "interrupted"),
        ("user", "again", "complete"),
        ("assistant", "Quick as ever.", "complete"),
        ("user", "hello", "complete"),
        ("assistant", "Done.", "complete"),
    ]
    history = cli.folder / "state" / "threadkeep" / "chat_history"
    assert "+again" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o777 == 0o600


def test_permissions_of_an_old_input_history_are_restricted(cli: CommandLine) -> None:
    """A history from an earlier version was readable by others."""
    history = cli.folder / "state" / "threadkeep" / "chat_history"
    history.parent.mkdir(parents=True)
    history.write_text("\n+hello\n")
    history.chmod(0o644)
    screen = Screen(scripted_chat)
    try:
        screen.wait_for("you ")
        screen.type("\x04")
        assert screen.end() == 0
    finally:
        screen.process.kill()
        screen.process.join()
    assert history.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_at_the_prompt_ends_the_chat(screen: Screen) -> None:
    screen.wait_for("you ")
    screen.type("\x03")
    assert "Traceback" not in screen.wait_for("threadkeep chat --session a")
    assert screen.end() == 0


def test_a_pipe_gets_plain_replies_and_the_memory_persists(cli: CommandLine) -> None:
    """Each line is one turn, and a second process continues the session, but not for another user."""
    first = cli.process("chat", "--session", "a", "--user", "ada", given="Hello!\nMy name is Ada.\n")
    assert (first.exit_code, first.err) == (0, "")
    assert len(first.out.splitlines()) == 2
    assert "\x1b" not in first.out

    stranger = cli.process("chat", "--session", "a", "--user", "bob", "--json", given="/reset\nWho is this?\n")
    reset, refused = [json.loads(line) for line in stranger.out.splitlines()]
    assert (stranger.exit_code, reset) == (1, {"session_id": "a"})
    assert refused["type"] == "urn:threadkeep:session-not-found"
    second = cli.process("chat", "--session", "a", "--json", given="What is my name?\n/stats")
    answer, stats = [json.loads(line) for line in second.out.splitlines()]
    assert (second.exit_code, second.err) == (0, "")
    assert answer["context"]["messages"] == 5
    assert "Ada" in answer["response"]
    assert (stats["messages"], stats["turns"]) == (6, 1)


def test_options_override_the_model_and_the_system_message(cli: CommandLine) -> None:
    cli.set(THREADKEEP_MODEL="nobody:x", THREADKEEP_SYSTEM_PROMPT="Be a sailor.")
    outcome = cli.process("chat", "--session", "a", "-m", "demo", "-s", "Be a pirate.", given="hello\n")
    assert outcome.exit_code == 0, outcome.err
    cli.set(THREADKEEP_MODEL="demo")
    shown = cli("context", "show", "--session", "a", "--call", "1").out
    assert "Be a pirate." in shown
    assert "sailor" not in shown


def test_sigterm_ends_a_chat_and_stores_the_partial_reply(cli: CommandLine) -> None:
    with ForkedCommand(scripted_chat, (), os.environ) as process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.read(8) == "Slowly, "
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == "Stopped before the command was done.\n"
    assert _stored(cli) == [("user", "hello", "complete"), ("assistant", "Slowly, ", "interrupted")]


def test_ctrl_c_ends_a_chat_that_waits_for_its_pipe(cli: CommandLine) -> None:
    with cli.fork("chat") as process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 1
        assert "Traceback" not in process.stderr.read()


def test_a_chat_with_an_unknown_model_is_refused(cli: CommandLine) -> None:
    cli.set(THREADKEEP_MODEL="nobody:x")
    outcome = cli("chat", "--json", given="hello\n")
    assert outcome.exit_code == 1
    assert outcome.problem["type"] == "urn:threadkeep:invalid-settings"
    assert "THREADKEEP_MODEL" in outcome.problem["detail"]


def test_a_turn_that_waits_for_a_dead_process_fails(cli: CommandLine) -> None:
    """As after a restore: a chat executes no run of another process. It says what to do, and exits with 1."""

    async def begin(memory: Memory) -> None:
        await memory.runs.order.add(
            NewRun(run_id="r1", workflow="chat", input={"text": "hi"}, session_id="a"), owner="x"
        )
        assert await memory.runs.disown("x")

    cli.with_memory(begin)
    with ForkedCommand(impatient_chat, (), os.environ) as process:
        out, err = process.communicate("hello\n")
    assert "No process executes an earlier run of this session; start `threadkeep serve`" in err.replace("\n", " ")
    assert "threadkeep runs cancel r1" in err.replace("\n", " ")
    assert "stored as interrupted" not in out + err
    assert process.returncode == 1
