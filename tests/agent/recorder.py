"""A model provider on the loopback interface that records request bodies and sends scripted replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

type Reply = str | Sequence[Mapping[str, Any]]
"""A text, or the arguments of calls of one tool."""


class Recorder:
    """The request bodies received so far, and the scripted replies; without replies it sends `ok`."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.bodies: list[bytes] = []
        self.replies: list[Reply] = []
        self.address = ""

    @property
    def messages(self) -> list[bytes]:
        """Return the messages of each request as bytes, with the order of the keys unchanged."""
        return [json.dumps(json.loads(body)["messages"], ensure_ascii=False).encode() for body in self.bodies]

    def answer(self) -> dict[str, Any]:
        """Return the next reply in OpenAI's format."""
        reply = self.replies.pop(0) if self.replies else "ok"
        number = len(self.bodies)
        message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
        if not isinstance(reply, str):
            message["tool_calls"] = [
                {
                    "id": f"call-{number}-{place}",
                    "type": "function",
                    "function": {"name": self.tool, "arguments": json.dumps(arguments)},
                }
                for place, arguments in enumerate(reply)
            ]
        usage = {"prompt_tokens": 1_000, "completion_tokens": 5, "total_tokens": 1_005}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(reply, str) else "tool_calls"}
        frame = {"id": f"chatcmpl-{number}", "created": 1, "model": "gpt-test", "object": "chat.completion"}
        return {**frame, "choices": [choice], "usage": usage}


@contextmanager
def recording(tool: str) -> Iterator[Recorder]:
    """Start a recorder whose scripted tool calls name the given tool, and stop it after the block."""
    recorder = Recorder(tool)

    class Handler(_Handler):
        told = recorder

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recorder.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: Recorder

    def do_POST(self) -> None:
        """Record a request and send the next reply."""
        self.told.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        content = json.dumps(self.told.answer()).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""
