"""Tests of /api/v1/workflows: the list, a workflow, and the explanation of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import check_problem, client_of, opened_app, settings_for
from tests.workflows.test_agent_history import BOT, keys_in, telegram
from tests.workflows.test_registry import KEYED
from threadkeep.testing import ScriptedModel


async def test_workflows_are_listed_shown_and_explained(tmp_path: Path) -> None:
    """The list has the workflows of the settings and the built-in one."""
    path = tmp_path / "keyed.yaml"
    path.write_text(KEYED)
    async with (
        opened_app(ScriptedModel(), settings_for(tmp_path, workflows=[str(path)])) as app,
        client_of(app) as client,
    ):
        listed = (await client.get("/api/v1/workflows")).json()["workflows"]
        assert [(one["name"], one["source"]) for one in listed] == [("chat", "built-in"), ("keyed", "yaml")]
        shown = (await client.get("/api/v1/workflows/keyed")).json()
        assert [node["kind"] for node in shown["nodes"]].count("agent") == 2
        assert shown["definition"]["name"] == "keyed"
        assert "class answer,other agent" in shown["mermaid"]
        payload = {"results": {"telegram_events_parser": {"bot_id": "b", "chat_id": 12345}}}
        response = await client.post("/api/v1/workflows/keyed/explain-key", json={"payload": payload})
        answer, other = response.json()["agents"]
        assert (answer["key"], other["key"]) == ("telegram:b:12345", "telegram:12345")
        assert other["refused"] == [{"candidate": "{{results.none.x}}", "reason": "unresolved_template"}]


async def test_a_channel_payload_without_its_bot_gives_no_key(tmp_path: Path) -> None:
    """A payload of a channel without its bot gives no key, because its session is new in each run."""
    path = tmp_path / "bot.yaml"
    path.write_text(BOT % "")
    delivered: dict[str, Any] = {"message": "Hi", "results": telegram(bot_id="", chat_id=7)}
    async with (
        opened_app(ScriptedModel(["One.", "Two.", "Three."]), settings_for(tmp_path, workflows=[str(path)])) as app,
        client_of(app) as client,
    ):
        for given, keys in ((delivered, 0), ({"message": "Hi"}, 1), ({**delivered, "session_id": "mine"}, 2)):
            run = (await client.post("/api/v1/workflows/bot/runs", json=given)).json()
            assert run["trigger"] == ("http" if keys else "webhook")
            assert len(await keys_in(await app.memory.graph_store())) == keys


@pytest.mark.parametrize("path", ["workflows/nope", "workflows/nope/explain-key"])
async def test_an_unknown_workflow_is_a_problem(client: httpx2.AsyncClient, path: str) -> None:
    if path.endswith("explain-key"):
        response = await client.post(f"/api/v1/{path}", json={"payload": {}})
    else:
        response = await client.get(f"/api/v1/{path}")
    problem = check_problem(response, 404, "workflow-not-found")
    assert problem["available"] == ["chat"]
