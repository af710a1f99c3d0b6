"""A fake of Telegram's Bot API in another process: it queues, pushes, refuses, and records its calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

from tests.channels.markdown_v2 import visible
from tests.children import serving

type Values = dict[str, Any]

_LONGEST_POLL_SECONDS = 1.0


@dataclass
class _State:
    updates: list[Values] = field(default_factory=list)
    calls: list[Values] = field(default_factory=list)
    refusals: list[Values] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)


class FakeTelegram:
    """The interface of the fake platform for tests."""

    def __init__(self, address: str, client: httpx2.Client) -> None:
        self.address = address
        self._client = client

    def push(self, *updates: Values) -> None:
        """Queue updates for polling."""
        self._control("push", updates=updates)

    def deliver(self, url: str, secret: str, *updates: Values, times: int = 1) -> list[int]:
        """Call a webhook with each update this many times at once; return the statuses in order."""
        return list(self._control("deliver", url=url, secret=secret, updates=updates, times=times))

    def refuse(
        self,
        status: int,
        description: str = "",
        *,
        page: str | Values = "",
        times: int = 1,
        method: str = "sendMessage",
        headers: Mapping[str, str] | None = None,
        **parameters: int,
    ) -> None:
        """Refuse the next calls of a method; for status 0, accept them and break the connection before the response.

        If `page` is not empty, send it as the response, as a proxy would.
        """
        body = page or {"ok": False, "error_code": status, "description": description, "parameters": parameters}
        refusal = {"method": method, "status": status, "body": body, "headers": headers or {}}
        self._control("refuse", refusals=[refusal] * times)

    def calls(self, method: str = "sendMessage") -> list[Values]:
        """Return the accepted calls of a method, in order."""
        return [call["values"] for call in self._control("calls") if call["method"] == method and call["accepted"]]

    def texts(self) -> list[str]:
        """Return the texts that people see, in order."""
        return [call["seen"] for call in self._control("calls") if call["method"] == "sendMessage" and call["accepted"]]

    def _control(self, verb: str, **values: object) -> Any:
        return self._client.post(f"{self.address}/control/{verb}", json=values).json()


@contextmanager
def faking_telegram(folder: Path) -> Iterator[FakeTelegram]:
    """Run the platform in a process, and yield its interface."""
    with serving(_serve, folder / "telegram.address") as address, httpx2.Client(timeout=60, trust_env=False) as client:
        yield FakeTelegram(address, client)


def _serve(place: Path) -> None:
    state = _State()

    class Handler(_Handler):
        known = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    place.write_text(f"http://127.0.0.1:{server.server_address[1]}\n")
    server.serve_forever(0.02)


class _Handler(BaseHTTPRequestHandler):
    known: _State
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Handle a request of a bot or a test."""
        values = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
        _, first, method = self.path.split("/", 2)
        if first == "control":
            self._send(200, getattr(self, f"_control_{method}")(values))
            return
        try:
            self._send(*self._call(method, values))
        except ConnectionAbortedError:
            self.close_connection = True

    def _call(self, method: str, values: Values) -> tuple[int, Values, Mapping[str, str]]:
        """Record a call; return the status, the body and further headers of the response."""
        call: Values = {"method": method, "values": values, "accepted": True}
        with self.known.changed:
            refusal = next((one for one in self.known.refusals if one["method"] == method), None)
            if refusal is not None:
                self.known.refusals.remove(refusal)
                if refusal["status"] == 0:
                    self.known.calls.append({**call, "seen": _seen(values)})
                    raise ConnectionAbortedError
                self.known.calls.append({**call, "accepted": False})
                return refusal["status"], refusal["body"], refusal["headers"]
        return (*self._accept(method, call), {})

    def _accept(self, method: str, call: Values) -> tuple[int, Values]:
        values = call["values"]
        if method == "getUpdates":
            return 200, {"ok": True, "result": self._updates(values)}
        with self.known.changed:
            if method == "sendMessage":
                try:
                    call["seen"] = _seen(values)
                except (AssertionError, KeyError, IndexError) as error:
                    self.known.calls.append({**call, "accepted": False})
                    return 400, {"ok": False, "description": f"Bad Request: can't parse entities: {error}"}
            self.known.calls.append(call)
        if method == "getMe":
            return 200, {"ok": True, "result": {"id": 1, "is_bot": True, "username": "FakeBot"}}
        if method == "getWebhookInfo":
            changes = [call for call in self.known.calls if call["method"] in ("setWebhook", "deleteWebhook")]
            url = changes[-1]["values"].get("url", "") if changes else ""
            return 200, {"ok": True, "result": {"url": url, "pending_update_count": len(self.known.updates)}}
        return 200, {"ok": True, "result": {"message_id": len(self.known.calls)}}

    def _updates(self, values: Values) -> list[Values]:
        offset, state = values.get("offset") or 0, self.known
        with state.changed:
            # An offset beyond the newest update belongs to a sequence that has ended, so it confirms nothing.
            if not state.updates or offset <= state.updates[-1]["update_id"] + 1:
                state.updates = [update for update in state.updates if update["update_id"] >= offset]
            if not state.updates:
                state.changed.wait(min(values.get("timeout", 0), _LONGEST_POLL_SECONDS))
            return state.updates[: values.get("limit", 100)]

    def _control_push(self, values: Values) -> None:
        with self.known.changed:
            self.known.updates += values["updates"]
            self.known.changed.notify_all()

    def _control_refuse(self, values: Values) -> None:
        self.known.refusals += values["refusals"]

    def _control_calls(self, _: Values) -> list[Values]:
        return self.known.calls

    def _control_deliver(self, values: Values) -> list[int]:
        updates: Sequence[Values] = [update for update in values["updates"] for _ in range(values["times"])]
        with httpx2.Client(timeout=30, trust_env=False) as client, ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(lambda update: _push(client, values["url"], values["secret"], update), updates))

    def _send(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""


def _seen(values: Values) -> str:
    """Return the visible text of a message; fail if Telegram would refuse it."""
    assert isinstance(values["chat_id"], int)
    text: str = visible(values["text"]) if values.get("parse_mode") == "MarkdownV2" else values["text"]
    assert 1 <= len(text.encode("utf-16-le")) // 2 <= 4096
    return text


def _push(client: httpx2.Client, url: str, secret: str, update: Values) -> int:
    headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
    try:
        return client.post(url, json=update, headers=headers).status_code
    except httpx2.HTTPError:
        return 0
