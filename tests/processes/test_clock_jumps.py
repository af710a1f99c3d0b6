"""Tests of a process whose clock jumps by hours or days, set by libfaketime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.slow]

# Not with `**`: each process that collects the tests would search all of /usr/lib.
_PLACES = ("faketime", "*/faketime")
LIBRARY = next((path for place in _PLACES for path in Path("/usr/lib").glob(f"{place}/libfaketimeMT.so.1")), None)
_TALK = """
import asyncio, json, pathlib, sys
from threadkeep.app import open_app
from threadkeep.runs.requests import RunRequest
from threadkeep.settings import load_settings

async def main():
    async with open_app(load_settings()) as app:
        for number, jump in enumerate(["+0", "+3h", "-3h", "+2d", "-1d", "+0"]):
            pathlib.Path(sys.argv[1]).write_text(jump)
            request = RunRequest(workflow="chat", text=f"hi {number}", session_id="room")
            answer = await app.chat.begin(request, stream=False).answer()
            assert answer.response
        session = app.memory.session("room")
        print(json.dumps([(one.seq, one.role, one.status) for one in await session.tail(99)]))
        assert not app.memory.pending.entries
        window = await session.window(max_messages=20, max_tokens=4000)
        assert len(window.messages) == 12

asyncio.run(main())
"""


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed: apt-get install faketime")
def test_clock_jumps_do_not_affect_turns(tmp_path: Path, shared_url: str) -> None:
    """Each turn has one reply, turns are in the order of the database, and no turn is pending."""
    rate = tmp_path / "faketimerc"
    rate.write_text("+0")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(rate),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "THREADKEEP_DATABASE_URL": shared_url,
        "THREADKEEP_PENDING_DIR": str(tmp_path / "pending"),
    }
    run = subprocess.run(
        [sys.executable, "-c", _TALK, str(rate)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert [seq for seq, *_ in found] == list(range(1, 13))
    assert {(role, status) for _, role, status in found} == {("user", "complete"), ("assistant", "complete")}
