"""`python -m bench channels`: people write to a bot while its two services are killed, for longer than in the tests.

It runs the test of `tests/channels/test_telegram_processes.py` with more messages, on SQLite and PostgreSQL.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_TEST = "tests/channels/test_telegram_processes.py"


def main(arguments: Sequence[str]) -> int:
    """Run the test; return 1 if a message was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(prog="python -m bench channels", description=__doc__)
    parser.add_argument("--messages", type=int, default=1000, help="messages in each of the two conversations")
    given = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", "--timeout", "0", _TEST]
    environment = {**os.environ, "CHANNEL_MESSAGES": str(given.messages)}
    return int(subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode != 0)
