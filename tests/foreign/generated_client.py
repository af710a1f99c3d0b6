"""Calls of a client that was generated from the OpenAPI document; `test_generated_client.py` runs them.

The arguments are the address of the service and the folder of the client, whose package is `client`.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main(address: str, folder: str) -> dict[str, Any]:
    """Return the responses of the service, in the form of the client's models."""
    sys.path.insert(0, folder)
    models, client_module = importlib.import_module("client.models"), importlib.import_module("client.client")
    client = client_module.Client(base_url=address, raise_on_unexpected_status=True)

    def call(path: str, *arguments: object, **named: object) -> Any:
        return importlib.import_module(f"client.api.{path}").sync_detailed(*arguments, client=client, **named)

    told = []
    for number in range(3):
        body = models.ChatRequestBody(message=f"word {number}", session_id=f"s{number // 2}", user_id="ann")
        told.append(call("chat.chat", body=body).parsed)
    page = call("sessions.list_sessions", user_id="ann", limit=1).parsed
    rest = call("sessions.list_sessions", user_id="ann", limit=1, cursor=page.next_cursor).parsed
    newest = call("chat.history", "s0", limit=3).parsed
    older = call("chat.history", "s0", limit=3, before=newest.next_before).parsed
    missing = call("sessions.get_session", "nothing")
    refused = call("chat.chat", body=models.ChatRequestBody(message="", session_id="s0"))
    return {
        "answers": [
            [one.session_id, type(one).__name__, bool(one.response), one.usage.input_tokens > 0] for one in told
        ],
        "sessions": [one.session_id for listed in (page, rest) for one in listed.sessions],
        "end": rest.next_cursor,
        "texts": [[one.role.value, one.content] for found in (older, newest) for one in found.messages],
        "times": all(one.timestamp.tzinfo is not None for one in newest.messages),
        "missing": [missing.status_code, missing.parsed.type_],
        "refused": [refused.status_code, type(refused.parsed).__name__, refused.parsed.type_],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
