"""Tests of JavaScript chat clients against a service: LangGraph's SDK and React hook, the AI SDK, and AG-UI."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_SECONDS
from tests.web.services import listening, opened_app, settings_for
from tests.web.test_langgraph_protocol import ASKING
from threadkeep.agent.models import make_model

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".javascript"
ANSWER = "Noted. I see 1 message."

pytestmark = pytest.mark.foreign


@pytest.fixture
async def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the results of all clients, each with its own conversation and the demo model."""
    node = shutil.which("node")
    if node is None or not (CLIENTS / "ready").exists():
        pytest.skip("The JavaScript clients are not installed; `make foreign` installs them if npm exists.")
    script = CLIENTS / "clients.mjs"
    shutil.copyfile(ROOT / "tests/foreign/javascript/clients.mjs", script)
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = settings_for(tmp_path, workflows="asking=asking:graph")
    async with opened_app(make_model("demo"), settings) as app, listening(app) as client:
        process = await asyncio.create_subprocess_exec(
            node, str(script), str(client.base_url), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(HANG_SECONDS):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, errors.decode()
    results: dict[str, Any] = json.loads(output)
    return results


async def test_javascript_clients_are_answered(found: dict[str, Any]) -> None:
    """Each client gets the answer in chunks, and the transcript afterwards."""
    assert found["runs"] == {"pieces": ANSWER, "texts": ["first", ANSWER], "joined": 2, "named": True}
    assert found["react"] == ["first", ANSWER]
    assert found["ai"] == ANSWER
    assert found["edited"] == {"answer": ANSWER, "isNew": True, "once": True}
    assert found["resumed"] is None
    assert found["agUiAsks"] == {"asked": ["Ship it?"], "left": 0, "texts": ["Pay.", "You said yes."]}
    assert found["agUi"] == ["first", ANSWER, "second", "Noted. I see 3 messages."]
