"""`python -m bench channels`: people write to a bot whose two services are killed, for longer than in the tests.

It runs a test of `tests/channels/test_telegram_processes.py` with more messages, on SQLite and PostgreSQL, and prints
how long it took, how many services were killed, and how many answers were sent twice: Telegram has no id by which it
could drop a repeated answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).parent.parent
_TEST = "tests/channels/test_telegram_processes.py::test_every_message_gets_one_reply_despite_kills"


def main(arguments: Sequence[str]) -> int:
    """Run the test; return 1 if a message was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(prog="python -m bench channels", description=__doc__)
    parser.add_argument("--messages", type=int, default=200, help="messages in each of the two conversations")
    given = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", "--timeout", "0", _TEST]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "figures"
        environment = {**os.environ, "CHANNEL_MESSAGES": str(given.messages), "CHANNEL_FIGURES": str(file)}
        failed = subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode != 0
        lines = file.read_text().splitlines() if file.exists() else []
    Console().print(_table(2 * given.messages, [json.loads(line) for line in lines]))
    return int(failed)


def _table(messages: int, rows: Sequence[dict[str, object]]) -> Table:
    table = Table("Database", "Messages", "Services killed", "Answers sent twice", "Seconds")
    for row in rows:
        figures = (row["kills"], row["repeats"], f"{row['seconds']:.0f}")
        table.add_row(str(row["database"]), str(messages), *map(str, figures))
    return table
