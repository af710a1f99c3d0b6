"""A model provider on loopback with OpenAI's protocol, which records its requests and sends scripted answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.limits import HANG_SECONDS

type Piece = str | threading.Event
type Answer = Sequence[Piece] | int


class Provider:
    """The recorded requests and the next answer: pieces of text, an event to wait for between them, or a status.

    `answer` is called with the text of the newest message. It may be replaced at any time.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answer: Callable[[str], Answer] = lambda _: ["ok"]
        self.reports_usage = False
        self.address = ""

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Return the roles and texts of the newest request."""
        return [(message["role"], message["content"]) for message in self.requests[-1]["messages"]]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a service that uses this provider."""
        return {
            "THREADKEEP_MODEL": "openai:gpt-test",
            "OPENAI_BASE_URL": f"{self.address}/v1",
            "OPENAI_API_KEY": "sk-test",
        }


@contextmanager
def providing() -> Iterator[Provider]:
    """Start a provider, and stop it after the block."""
    provider = Provider()

    class Handler(_Handler):
        told = provider

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: Provider

    def do_POST(self) -> None:
        """Record a request, and answer it."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.told.requests.append({**body, "path": self.path})
        self.told.keys.append(self.headers["authorization"])
        newest = str(body["messages"][-1]["content"])
        with contextlib.suppress(ConnectionError):  # the caller may have disconnected
            asked = body.get("stream_options", {}).get("include_usage") is True
            self._answer(newest, stream=body.get("stream") is True, asked_for_usage=asked)

    def _answer(self, newest: str, *, stream: bool, asked_for_usage: bool) -> None:
        answer = self.told.answer(newest)
        if isinstance(answer, int):
            # Providers quote the request in errors. The service must not pass this on.
            self._send(answer, {"error": {"message": f"cannot answer: {newest}", "type": "invalid_request_error"}})
        elif stream:
            self._stream(answer, _USAGE if asked_for_usage and self.told.reports_usage else None)
        else:
            text = "".join(_after_waiting(answer))
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"usage": _USAGE} if self.told.reports_usage else {}
            self._send(200, {**_FRAME, "object": "chat.completion", "choices": [choice], **usage})

    def _stream(self, pieces: Sequence[Piece], usage: Mapping[str, int] | None) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for piece in _after_waiting(pieces):
            self._chunk({"delta": {"role": "assistant", "content": piece}, "finish_reason": None})
        self._chunk({"delta": {}, "finish_reason": "stop"})
        if usage is not None:
            self._write({**_FRAME, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, choice: Mapping[str, object]) -> None:
        self._write({**_FRAME, "object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]})

    def _write(self, chunk: Mapping[str, object]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, body: Mapping[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""


def _after_waiting(pieces: Sequence[Piece]) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
        else:
            piece.wait(HANG_SECONDS)


_USAGE = {"prompt_tokens": 812, "completion_tokens": 12, "total_tokens": 824}
_FRAME = {"id": "chatcmpl-1", "created": 1, "model": "gpt-test"}
