"""Test that each way to start a run over HTTP gives its graph a store and a checkpointer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import client_of, opened_app, settings_for, until
from tests.wired import BOTH, NAMED, PARENT
from threadkeep.testing import ScriptedModel


class Asking:
    """A client that starts runs over HTTP in different ways."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def waited(self, workflow: str = "wired", message: str = "go") -> dict[str, Any]:
        """Start a run and wait for it, and answer its question in the same way."""
        run = await self._post(f"workflows/{workflow}/runs", {"message": message})
        return await self._post(f"runs/{run['run_id']}/resume", {"value": "yes"})

    async def streamed(self) -> dict[str, Any]:
        """Stream a run up to its question, and answer it."""
        body = {"message": "go", "mode": "stream"}
        text = (await self._client.post("/api/v1/workflows/wired/runs", json=body)).text
        last = [line for line in text.splitlines() if line.startswith("data: ")][-1]
        run_id = json.loads(last.removeprefix("data: "))["run_id"]
        return await self._post(f"runs/{run_id}/resume", {"value": "yes"})

    async def queued(self) -> dict[str, Any]:
        """Have a worker execute a run, and have it resumed by a worker."""
        run_id = (await self._post("workflows/wired/runs", {"message": "go", "mode": "background"}))["run_id"]
        await self._reached(run_id, "waiting")
        await self._post(f"runs/{run_id}/resume", {"value": "yes", "mode": "background"})
        return await self._reached(run_id, "done")

    async def child(self) -> dict[str, Any]:
        """Start a run whose child asks a question."""
        return await self.waited("above")

    async def retried(self) -> dict[str, Any]:
        """Retry a run that failed after its first step."""
        failed = await self._post("workflows/wired/runs", {"message": "break"})
        assert failed["status"] == "failed"
        run = await self._post(f"runs/{failed['run_id']}/retry", {})
        return await self._post(f"runs/{run['run_id']}/resume", {"value": "yes"})

    async def _reached(self, run_id: str, status: str) -> dict[str, Any]:
        async def there() -> bool:
            return bool((await self._get(run_id))["status"] == status)

        await until(there)
        return await self._get(run_id)

    async def _get(self, run_id: str) -> dict[str, Any]:
        return dict((await self._client.get(f"/api/v1/runs/{run_id}")).json())

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._client.post(f"/api/v1/{path}", json=body)
        assert response.status_code < 300 or response.json().get("run_id"), response.text
        return dict(response.json())


@pytest.mark.slow
async def test_over_http(shared_url: str, tmp_path: Path) -> None:
    (tmp_path / "above.yaml").write_text(PARENT)
    names = [NAMED, str(tmp_path / "above.yaml")]
    settings = settings_for(tmp_path, database_url=shared_url, workflows=names)
    async with opened_app(ScriptedModel([]), settings) as app, client_of(app) as client:
        asking = Asking(client)
        ways = (asking.waited, asking.streamed, asking.queued, asking.child, asking.retried)
        assert {way.__name__: (await way())["text"] for way in ways} == {way.__name__: BOTH for way in ways}
