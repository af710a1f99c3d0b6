"""Tests of the fields of a node for its model: its name, its context window, and its compression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.workflows.desk import Desk
from threadkeep import InvalidWorkflow, TurnOptions
from threadkeep.history.compression import Compression
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.resources import RunContext

TWO = """\
schema: 1
name: two
nodes:
  draft: {kind: agent, model: small, %s next: answer}
  answer: {kind: model, next: end}
"""


def run_of(desk: Desk, models: Mapping[str | None, ScriptedModel], **options: Any) -> RunContext:
    """Return a run whose nodes find their models by name, with the options of a service."""
    resources = replace(desk.resources, model=lambda name: models[name], turn_options=TurnOptions(**options))
    return desk.context("two", session_id="room", resources=resources)


async def budgets(desk: Desk, run_id: str) -> dict[str | None, int]:
    """Return the budget of each node's call."""
    await desk.memory.manifests.flush()
    calls = [stored.manifest for stored in await desk.memory.manifests.of_run(run_id)]
    return {str(call["node"]): int(str(call["budget"])) for call in calls}


async def test_each_node_has_a_model_and_a_window_of_its_own(desk: Desk) -> None:
    """The context window of the service applies to its own model only."""
    models = {"small": ScriptedModel(["draft"]), None: ScriptedModel(["done"])}
    desk.use(TWO % "context_window: 8192,")
    context = run_of(desk, models, context_window=16_384, max_tokens=None)
    await desk.run("two", "Hi", context=context)
    assert [len(model.calls) for model in models.values()] == [1, 1]
    assert await budgets(desk, context.run_id) == {"draft": 5632, "answer": 11_776}

    models = {"small": ScriptedModel(["draft"]), None: ScriptedModel(["done"])}
    desk.use(TWO % "")
    context = run_of(desk, models, context_window=16_384, max_tokens=None)
    await desk.run("two", "Hi", context=context)
    assert (await budgets(desk, context.run_id))["draft"] > 100_000


@pytest.mark.parametrize(
    ("fields", "service", "summarised"),
    [
        ("compression: {trigger: 'messages:4', keep: 'messages:2', model: short},", None, "short"),
        ("compression: {trigger: 'messages:4', keep: 'messages:2'},", None, "small"),
        ("", Compression(("messages", 4), ("messages", 2)), "small"),
        ("compression: false,", Compression(("messages", 4), ("messages", 2)), None),
        ("", None, None),
    ],
)
async def test_each_node_configures_the_compression_of_its_session(
    desk: Desk, fields: str, service: Compression | None, summarised: str | None
) -> None:
    """The summary is written by the named model or the node's own. `false` disables compression."""
    summaries = ScriptedModel([f"summary {n}" for n in range(9)])
    answers = ScriptedModel([f"answer {n}" for n in range(4)])
    small = ScriptedModel(lambda messages: "summary" if "<record>" in str(messages) else "yes" for _ in range(99))
    models = {"small": small, "short": summaries, None: answers}
    desk.use(f"schema: 1\nname: two\nnodes:\n  answer: {{kind: agent, model: small, {fields} next: end}}")
    for n in range(4):
        await desk.run("two", f"question {n}", context=run_of(desk, models, compression=service))
        await desk.memory.compressor.idle()
    written = await desk.memory.summaries.active("room")
    assert bool(written) is (summarised is not None)
    assert bool(summaries.calls) is (summarised == "short")
    assert any("<record>" in str(call) for call in small.calls) is (summarised == "small")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ("context_window: 0", "context_window"),
        ("context_window: 4000, max_output_tokens: 3600", r"4,?000.*3,?600"),
        ("context_window: 500", "500"),
        ("compression: {trigger: many}", "tokens:20000"),
        ("compression: {trigger: 'messages:4', keep: 'messages:9'}", "lower keep"),
        ("compression: true", "compression"),
        ("compression: {max_summary_tokens: 5}", "max_summary_tokens"),
    ],
)
def test_invalid_model_fields_are_refused_when_the_workflow_is_read(fields: str, match: str) -> None:
    """The error names the field or the numbers."""
    with pytest.raises(InvalidWorkflow, match=match):
        read_workflow(f"schema: 1\nname: one\nnodes:\n  answer: {{kind: agent, {fields}, next: end}}")
