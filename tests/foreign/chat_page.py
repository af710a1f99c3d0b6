"""The chat page agent-chat-ui, as `scripts/agent_chat_ui.sh` builds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_BUILT = Path(__file__).parents[2] / ".agent-chat-ui"
IS_BUILT = (_BUILT / "ready").exists()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""


@contextmanager
def serving_page() -> Iterator[str]:
    """Serve the page, and yield its origin."""
    handler = partial(_Files, directory=str(_BUILT / "page" / "dist"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def page_address(origin: str, service: str, assistant: str, **more: str) -> str:
    """Return the URL with which the page uses an assistant of a service."""
    query = "".join(f"&{name}={value}" for name, value in more.items())
    return f"{origin}/?apiUrl={service.rstrip('/')}&assistantId={assistant}{query}"
