"""A deterministic model and embedder for Graphiti's servers on a loopback port, without a network.

Runs in the environment of `make foreign`: `python graphiti_model.py PORT`. Entities are the speaker and capitalised
words; a sentence with two of them is a fact. `POST /_control` sets `latency_ms`, and `fail`: the number of failures.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import sys
import time
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

_DIMENSIONS = 384
_WORD = re.compile(r"[a-z0-9_]+")
_NAME = re.compile(r"\b[A-Z][A-Za-z0-9]+(?:\s+[A-Z][A-Za-z0-9]+)*")
_SPEAKER = re.compile(r"^\s*([^\n(:]{1,60})\((?:user|assistant|system)\):\s*")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_CHANGED = re.compile(r"no longer|instead of|switched|replaced|moved", re.IGNORECASE)
_COMMON = {"the", "and", "for", "with", "that", "this", "are", "was", "what", "which", "who", "how", "does", "user"}

control: dict[str, int] = {"latency_ms": 0, "fail": 0}
calls: dict[str, int] = {"model": 0, "embedder": 0}


def words(text: str) -> set[str]:
    """Return the informative words of a text."""
    return {word for word in _WORD.findall(text.lower()) if len(word) > 2 and word not in _COMMON}


def vector(text: str) -> list[float]:
    """Return a hash of the words of a text and of their parts, as a unit vector."""
    values = np.zeros(_DIMENSIONS)
    for word in _WORD.findall(text.lower()):
        for part in (f"w:{word}", *(f"g:{word[at : at + 3]}" for at in range(max(1, len(word) - 2)))):
            number = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
            values[number % _DIMENSIONS] += (1.0 if part[0] == "w" else 0.35) * (1 if number >> 63 else -1)
    norm = float(np.linalg.norm(values)) or 1.0
    return [float(value) for value in values / norm] if values.any() else [1.0] + [0.0] * (_DIMENSIONS - 1)


def section(prompt: str, *names: str) -> str:
    """Return the last block of a prompt with one of these tags."""
    for name in names:
        if found := re.findall(rf"<{re.escape(name)}>\s*\n?(.*?)\n?\s*</{re.escape(name)}>", prompt, re.DOTALL):
            return str(found[-1]).strip()
    return ""


def parsed(text: str) -> Any:
    """Return the list in a block of a prompt, or an empty list."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            import ast

            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return []


def names_in(text: str) -> list[str]:
    """Return the speaker of a message, and the names in it."""
    speaker = _SPEAKER.match(text)
    body = text[speaker.end() :] if speaker else text
    found = ([speaker[1].strip()] if speaker else []) + [name for name in _NAME.findall(body) if words(name)]
    return list(dict.fromkeys(found))[:12] or ["user"]


def facts_in(text: str, names: list[str], prompt: str) -> list[dict[str, Any]]:
    """Return a fact per sentence: about two names in it, or about the speaker and a name."""
    speaker = _SPEAKER.match(text)
    body = text[speaker.end() :] if speaker else text
    reference = _TIME.search(section(prompt, "REFERENCE_TIME", "REFERENCE TIME"))
    facts = []
    for sentence in filter(None, (part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", body))):
        found = [name for name in names if name in sentence]
        if speaker and speaker[1].strip() not in found:
            found.append(speaker[1].strip())
        if len(found) > 1:
            facts.append(
                {
                    "source_entity_name": found[0],
                    "target_entity_name": found[1],
                    "relation_type": "SAYS",
                    "fact": sentence,
                    "valid_at": reference[0].replace(" ", "T") + "Z" if reference else None,
                    "invalid_at": None,
                    "episode_indices": [0],
                }
            )
    return facts


def answer(name: str, schema: dict[str, Any], prompt: str) -> Any:
    """Return the model's answer in the requested schema."""
    text = section(prompt, "CURRENT MESSAGE", "CURRENT_MESSAGE", "CURRENT MESSAGES", "TEXT", "EPISODES", "MESSAGES")
    if name == "ExtractedEntities":
        entities = [{"name": one, "entity_type_id": 0, "episode_indices": [0]} for one in names_in(text)]
        return {"extracted_entities": entities}
    if name == "ExtractedEdges":
        entities = parsed(section(prompt, "ENTITIES"))
        names = [one["name"] if isinstance(one, dict) else str(one) for one in entities]
        return {"edges": facts_in(text, names, prompt)}
    if name == "NodeResolutions":
        return {"entity_resolutions": resolutions(prompt)}
    if name == "EdgeDuplicate":
        return duplicates(prompt, schema)
    if name == "SummarizedEntities":
        return {"summaries": []}
    return filled(schema, schema.get("$defs", {}))


def resolutions(prompt: str) -> list[dict[str, Any]]:
    """Return the entities with the same name as a known one."""
    known = {
        str(one.get("name", "")).lower(): (one.get("candidate_id", one.get("idx", at)), one.get("name"))
        for at, one in enumerate(parsed(section(prompt, "EXISTING ENTITIES")))
    }
    found = []
    for entity in parsed(section(prompt, "ENTITIES")):
        candidate, name = known.get(str(entity.get("name", "")).lower(), (-1, entity.get("name")))
        found.append({"id": entity.get("id", 0), "name": name, "duplicate_candidate_id": candidate})
    return found


def duplicates(prompt: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the known facts with the same words, and those that a changed fact contradicts."""
    new = section(prompt, "NEW FACT", "NEW EDGE")
    known = parsed(section(prompt, "EXISTING FACTS", "EXISTING EDGES"))
    candidates = parsed(section(prompt, "FACT INVALIDATION CANDIDATES"))
    same = [one.get("idx", 0) for one in known if words(one.get("fact", "")) == words(new)]
    against = [
        one.get("idx", 0)
        for one in [*known, *candidates]
        if _CHANGED.search(new) and one.get("idx") not in same and len(words(one.get("fact", "")) & words(new)) >= 2
    ]
    found: dict[str, Any] = {"duplicate_facts": same, "contradicted_facts": against}
    return found | ({"fact_type": "DEFAULT"} if "fact_type" in schema.get("properties", {}) else {})


def filled(schema: dict[str, Any], known: dict[str, Any]) -> Any:
    """Return the emptiest value of a schema."""
    if "$ref" in schema:
        return filled(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        return None
    if "enum" in schema:
        return schema["enum"][0]
    kinds: dict[str, Any] = {"array": [], "string": "", "integer": 0, "number": 0, "boolean": False}
    if schema.get("type") == "object":
        return {name: filled(inner, known) for name, inner in schema.get("properties", {}).items()}
    return kinds.get(str(schema.get("type")))


def text_of(messages: Any) -> str:
    """Return the text of a prompt."""
    if isinstance(messages, str):
        return messages
    parts = []
    for message in messages:
        content = message.get("content", "")
        parts.append(content if isinstance(content, str) else "\n".join(one.get("text", "") for one in content))
    return "\n".join(parts)


async def trouble() -> JSONResponse | None:
    """Wait or fail as the control request demanded."""
    await asyncio.sleep(control["latency_ms"] / 1000)
    if control["fail"] > 0:
        control["fail"] -= 1
        return JSONResponse({"error": {"message": "asked for", "type": "server_error", "code": None}}, 500)
    return None


async def responses(request: Request) -> JSONResponse:
    """Answer OpenAI's responses API with structured output."""
    body = await request.json()
    calls["model"] += 1
    if (failed := await trouble()) is not None:
        return failed
    form = (body.get("text") or {}).get("format") or {}
    said = json.dumps(answer(form.get("name", ""), form.get("schema", {}), text_of(body.get("input", ""))))
    content = [{"type": "output_text", "text": said, "annotations": []}]
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return JSONResponse(
        {
            "id": "r",
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "model": "stub",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "usage": {**usage, **details},
        }
    )


async def completions(request: Request) -> JSONResponse:
    """Answer OpenAI's chat completions API with structured output."""
    body = await request.json()
    calls["model"] += 1
    if (failed := await trouble()) is not None:
        return failed
    form = (body.get("response_format") or {}).get("json_schema") or {}
    said = json.dumps(answer(form.get("name", ""), form.get("schema", {}), text_of(body.get("messages", []))))
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "c", "object": "chat.completion", "created": int(time.time()), "model": "stub"}
    return JSONResponse({**head, "choices": [choice], "usage": usage})


async def embeddings(request: Request) -> JSONResponse:
    """Answer OpenAI's embeddings API."""
    body = await request.json()
    calls["embedder"] += 1
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    coded = body.get("encoding_format") == "base64"
    data = []
    for at, text in enumerate(texts):
        values = vector(str(text))
        embedded = base64.b64encode(np.array(values, dtype="<f4").tobytes()).decode() if coded else values
        data.append({"object": "embedding", "index": at, "embedding": embedded})
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return JSONResponse({"object": "list", "model": "stub", "data": data, "usage": usage})


async def set_control(request: Request) -> JSONResponse:
    """Change how the model behaves."""
    control.update(await request.json())
    return JSONResponse(control)


async def health(_: Request) -> JSONResponse:
    """Return how often the model was called."""
    return JSONResponse(calls)


app = Starlette(
    routes=[
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/_control", set_control, methods=["POST"]),
        Route("/health", health),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
