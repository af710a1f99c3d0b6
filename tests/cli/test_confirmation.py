"""Tests of the confirmation, at a terminal, of commands that delete something."""

from __future__ import annotations

import os
import pty
import signal
from multiprocessing.connection import Connection

import pytest

from tests.cli.forked import fork, until_it_reads
from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS
from threadkeep.cli import main


@pytest.mark.parametrize("command", ["channels outbox drop 1", "erase user ann", "pending drop all"])
def test_one_ctrl_c_at_a_confirmation_ends_the_command(cli: CommandLine, command: str) -> None:
    ours, theirs = pty.openpty()
    process = fork(main, command.split(), [Connection(os.dup(theirs)) for _ in range(3)], os.environ)
    os.close(theirs)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1_000)
        assert process.pid is not None
        until_it_reads(process.pid)
        os.kill(process.pid, signal.SIGINT)
        process.join(HANG_SECONDS)
        assert process.exitcode == 1
    finally:
        process.kill()
        os.close(ours)
