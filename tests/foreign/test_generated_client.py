"""Test of a client that `openapi-python-client` generates, against a served process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_SECONDS
from tests.web.processes import running

pytestmark = [pytest.mark.foreign, pytest.mark.process]

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-adapters" / "bin"
GENERATED = "GET /api/v1/users/{user_id}"
"""The only operation with a response that the generator skips, since it has two media types."""


async def output_of(*command: str | Path) -> tuple[str, str]:
    """Run a command that must succeed; return its output and its warnings."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(HANG_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode() + output.decode()
    return output.decode(), errors.decode()


async def test_a_generated_client_chats_lists_pages_and_reads_errors(tmp_path: Path) -> None:
    """The generator understands the whole document, and the client parses every response into its models."""
    if not (BIN / "openapi-python-client").exists():
        pytest.skip("The client generator needs a separate environment: run `make foreign`.")
    document, config = tmp_path / "openapi.json", tmp_path / "generator.yml"
    config.write_text("post_hooks: []\n")
    environment = {"THREADKEEP_MODEL": "demo", "THREADKEEP_DATABASE_URL": f"sqlite:///{tmp_path}/memory.db"}
    async with running(tmp_path / "service", environment) as (client, _):
        document.write_text((await client.get("/openapi.json")).text)
        _, said = await output_of(
            BIN / "openapi-python-client",
            "generate",
            *("--path", document, "--output-path", tmp_path / "client", "--config", config, "--meta", "none"),
        )
        warned = [line for line in said.splitlines() if line.startswith(("WARNING", "ERROR"))]
        script = Path(__file__).with_name("generated_client.py")
        output, _ = await output_of(BIN / "python", script, str(client.base_url), tmp_path)
        found: dict[str, Any] = json.loads(output)
    assert warned == [f"WARNING parsing {GENERATED} within users."]
    assert found == {
        "answers": [[name, "ChatResponseBody", True, True] for name in ("s0", "s0", "s1")],
        "sessions": ["s1", "s0"],
        "end": None,
        "texts": found["texts"],
        "times": True,
        "missing": [404, "urn:threadkeep:session-not-found"],
        "refused": [422, "Problem", "urn:threadkeep:invalid-request"],
    }
    assert [role for role, _ in found["texts"]] == ["user", "assistant", "user", "assistant"]
    assert [text for role, text in found["texts"] if role == "user"] == ["word 0", "word 1"]
