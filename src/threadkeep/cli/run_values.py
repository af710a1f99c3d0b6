"""Runs as JSON values: the same members as over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from threadkeep.records import Json
from threadkeep.records.runs import Run, RunEvent, TokenUsage

_SUMMARY = (
    "run_id",
    "workflow",
    "version",
    "status",
    "error",
    "session_id",
    "message_id",
    "user_id",
    "parent_run_id",
    "root_run_id",
    "depth",
    "node_id",
    "trigger",
    "attempts",
    "set_aside",
    "created_at",
    "started_at",
    "ended_at",
    "deadline_at",
    "cancel_requested_at",
)


def summary_values(run: Run) -> dict[str, object]:
    """A run in a list or a tree."""
    return {**{name: _plain(getattr(run, name)) for name in _SUMMARY}, "budget": asdict(run.budget)}


def run_values(run: Run, usages: Sequence[TokenUsage]) -> dict[str, object]:
    """A run with what came out, what it asks and what it took."""
    result = run.result or {}
    return {
        **summary_values(run),
        "text": said_by(run),
        "output": result.get("output"),
        "answer_id": result.get("message_id"),
        "confidence": result.get("confidence"),
        "escalated": bool(result.get("escalated")),
        "questions": questions_of(run),
        "usage": usage_values(usages),
    }


def usage_values(usages: Sequence[TokenUsage]) -> dict[str, object]:
    """What a run took, together and by model."""
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return {
        "input_tokens": sum(usage.input_tokens for usage in usages),
        "output_tokens": sum(usage.output_tokens for usage in usages),
        "cost": sum(costs) if costs else None,
        "models": [asdict(usage) for usage in usages],
    }


def event_values(event: RunEvent) -> dict[str, object]:
    """An event of a trace."""
    return {
        "number": event.number,
        "kind": event.kind,
        "node": event.node,
        "data": dict(event.data),
        "created_at": event.created_at.isoformat(),
    }


def said_by(run: Run) -> str:
    """What a run that is done said; empty where there is nothing."""
    text = (run.result or {}).get("text")
    return text if isinstance(text, str) else ""


def questions_of(run: Run) -> list[Mapping[str, Json]]:
    """What a run that waits asks a person: the `id` and the `value` of each question."""
    asked = run.interrupt.get("interrupts") if isinstance(run.interrupt, Mapping) else None
    if run.status != "waiting" or not isinstance(asked, list):
        return []
    return [one for one in asked if isinstance(one, Mapping)]


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
