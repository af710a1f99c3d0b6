"""Tests of workflows that propose answers to events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.workflows.desk import Desk, spoken
from threadkeep.observe import ModelFailed
from threadkeep.records import Json
from threadkeep.testing import ScriptedModel

CANDIDATE = """
schema: 1
name: propose
nodes:
  ingest: {kind: ingest_prompt, next: ask}
  ask: {kind: model, system_prompt: Be brief., on_error: continue, next: build}
  build: {kind: build_candidate, next: end}
"""
EVENT: dict[str, Json] = {
    "message": {"id": "m1", "text": "The code is 4711."},
    "annotations": [{"kind": "prompt", "id": "a1", "value": "Confirm it.", "created_at": "2026-01-01T00:00:00Z"}],
}


async def test_a_candidate_is_proposed_to_an_event(desk: Desk) -> None:
    state = await desk.use(CANDIDATE).run("propose", inputs={"event": EVENT})
    result = state["results"]["build"]
    assert result["outcome"] == "OK"
    assert (result["candidate"]["kind"], result["candidate"]["status"]) == ("text", "proposed")
    assert result["candidate"]["text"] == result["llmText"] == "reply 1"
    assert result["combinedPrompt"] == "The code is 4711.\n\nConfirm it."
    assert spoken(desk.model.calls[0]) == [("system", "Be brief."), ("human", "The code is 4711.\n\nConfirm it.")]


@pytest.mark.parametrize(
    ("reply", "outcome", "errors"),
    [(ConnectionError("no route"), "ERROR", ["ConnectionError"]), ("", "OK", []), ("  ", "OK", [])],
)
async def test_a_model_without_an_answer_makes_no_candidate(
    desk: Desk, reply: str | BaseException, outcome: str, errors: Sequence[str]
) -> None:
    """A failed or empty model call gives no candidate, and the text of the error is not in the state."""
    desk.model = ScriptedModel([reply])
    state = await desk.use(CANDIDATE).run("propose", inputs=EVENT)
    result = state["results"]["build"]
    assert (result["outcome"], result["candidate"]) == (outcome, None)
    assert [(error["source"], error["error"]) for error in result["errors"]] == [("llm-bot", one) for one in errors]
    assert "no route" not in str(state)
    assert [event.error for event in desk.events.of(ModelFailed)] == list(errors)


async def test_an_event_without_text_makes_no_candidate(desk: Desk) -> None:
    state = await desk.use(CANDIDATE).run("propose", inputs={"event": {"message": {"text": " "}}})
    assert state["results"]["ingest"]["outcome"] == "SKIP"
    assert desk.model.calls == []
