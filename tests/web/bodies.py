"""Valid request bodies, made from the OpenAPI document of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAID = {"role": "user", "content": "hi"}
# The schemas of these bodies do not describe all that is required.
_BODIES: Mapping[str, object] = {
    "/api/v1/facts/forget": {"scope": "user", "owner": "ann"},
    "/threads/{thread_id}/state": {"values": {"messages": [_SAID]}},
    "/api/v1/ai-sdk/chat": {
        "id": "room",
        "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
    },
    "/api/v1/ag-ui": {"threadId": "room", "runId": "r", "messages": [{"id": "m", **_SAID}]},
    "/chatkit": {"type": "threads.get_by_id", "params": {"thread_id": "room"}},
}


def body_of(document: Mapping[str, Any], path: str, method: str, known: Mapping[str, str]) -> object:
    """Return a body with the required fields and the known values, or None if the operation takes none."""
    if path in _BODIES:
        return _BODIES[path]
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    for kind in operation.get("requestBody", {}).get("content", {}).values():
        return _value(document, kind["schema"], "", known)
    return None


def _value(document: Mapping[str, Any], schema: Mapping[str, Any], name: str, known: Mapping[str, str]) -> object:
    if "$ref" in schema:
        return _value(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name, known)
    for choice in schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or ():
        if choice.get("type") != "null":
            return _value(document, choice, name, known)
    if "const" in schema or "enum" in schema:
        return schema.get("const") or schema["enum"][0]
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        wanted = {*schema.get("required", ()), *(fields.keys() & known.keys())}
        return {key: _value(document, fields[key], key, known) for key in fields if key in wanted}
    if schema.get("type") == "array":
        return [_value(document, schema.get("items", {}), name, known)]
    text = known.get(name) or next(iter(schema.get("examples", ())), "hi")
    return {"boolean": False, "integer": schema.get("minimum", 1)}.get(schema.get("type", ""), text)
