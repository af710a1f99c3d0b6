"""Rows of facts and procedures, and the records that they are."""

from __future__ import annotations

import json

from langchain_core.utils.uuid import uuid7

from threadkeep.records import dump_json
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import Fact, Procedure, Scope
from threadkeep.store.codec import clean_json, clean_text, time_of, time_text
from threadkeep.store.driver import Row

# In the order of every statement for procedures.
_COLUMNS = (
    "id",
    "scope",
    "owner",
    "name",
    "description",
    "goal_contains",
    "context_has",
    "content_type",
    "content",
    "source",
    "active",
    "used",
    "succeeded",
    "failed",
    "created_at",
    "updated_at",
)


def canonical(value: Json) -> str:
    """Return the JSON text of a value as it is stored: two values are the same if their texts are."""
    return json.dumps(clean_json(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fact_row(fact: Fact) -> dict[str, object]:
    """Return the columns of a fact, without those of its owner."""
    return {
        "fact_id": fact.id,
        "key": fact.key,
        "value": canonical(fact.value),
        "kind": fact.kind,
        "confidence": float(fact.confidence),
        "confirmed": fact.confirmed,
        "contradicted": fact.contradicted,
        "valid_from": time_text(fact.valid_from),
        "valid_to": None if fact.valid_to is None else time_text(fact.valid_to),
        "updated_at": time_text(fact.updated_at),
    }


def fact_of(row: Row) -> Fact:
    """Return the fact in a row of the columns that every statement for facts selects."""
    fact_id, scope, owner, key, value, kind, confidence, confirmed, contradicted, valid_from, valid_to, updated_at = row
    return Fact(
        id=fact_id,
        scope=Scope(scope, owner),
        key=key,
        value=json.loads(value),
        kind=kind,
        confidence=confidence,
        confirmed=confirmed,
        contradicted=contradicted,
        valid_from=time_of(valid_from),
        valid_to=time_of(valid_to),
        updated_at=time_of(updated_at),
    )


def procedure_row(procedure: Procedure) -> dict[str, object]:
    """Return the columns of a procedure, without those of its owner."""
    return {
        "procedure_id": str(uuid7()),
        "name": procedure.name,
        "description": clean_text(procedure.description),
        "goal_contains": dump_json(procedure.goal_contains),
        "context_has": dump_json(procedure.context_has),
        "content_type": procedure.content_type,
        "content": canonical(procedure.content),
        "source": procedure.source,
        "active": procedure.active,
        "used": procedure.used,
        "succeeded": procedure.succeeded,
        "failed": procedure.failed,
    }


def procedure_of(row: Row) -> Procedure:
    """Return the procedure in a row of the columns that every statement for procedures selects."""
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in ("goal_contains", "context_has", "content"):
        values[name] = json.loads(values[name])
    for name in ("created_at", "updated_at"):
        values[name] = time_of(values[name])
    scope = Scope(values.pop("scope"), values.pop("owner"))
    return Procedure(**{**values, "scope": scope, "active": bool(values["active"])})
