"""A fake of WeCom's API in another process, with access tokens, pages of desks, limits, and records of its calls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from tests.children import serving

type Values = dict[str, Any]

SECRET = "canary-corp-secret"


@dataclass
class _State:
    lock: threading.Lock = field(default_factory=threading.Lock)
    tokens: int = 0
    broken_tokens: int = 0
    valid: set[str] = field(default_factory=set)
    sent: list[Values] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    refusals: list[int] = field(default_factory=list)
    items: list[Values] = field(default_factory=list)
    page: int = 1000
    pages: list[Values] = field(default_factory=list)
    page_codes: list[int] = field(default_factory=list)
    busy: dict[str, list[int]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    most: int | None = None
    heard: dict[str, int] = field(default_factory=dict)


class FakeWeCom:
    """The interface of the fake platform for tests."""

    def __init__(self, address: str, client: httpx2.Client) -> None:
        self.address = address
        self._client = client

    def texts(self) -> list[str]:
        """Return the texts that people see, in order."""
        return [self.text_of(call) for call in self.sent()]

    def sent(self) -> list[Values]:
        """Return the accepted messages, in order."""
        return list(self._control("sent"))

    def tokens(self) -> int:
        """Return the number of issued access tokens."""
        return int(self._control("tokens"))

    def pages(self) -> list[Values]:
        """Return the calls for pages, in order."""
        return list(self._control("pages"))

    def expire(self) -> None:
        """Invalidate all tokens."""
        self._control("expire")

    def break_tokens(self, count: int) -> None:
        """Break the connection of the next requests for a token."""
        self._control("break_tokens", count=count)

    def refuse(self, *codes: int) -> None:
        """Refuse the next messages with these codes; for 0, accept one and break the connection before the response."""
        self._control("refuse", codes=codes)

    def accept(self) -> None:
        """Accept messages again, although not all codes of `refuse` were used."""
        self._control("accept")

    def refuse_pages(self, *codes: int) -> None:
        """Refuse the next calls for pages with these codes; answer a call whose code is 0."""
        self._control("refuse_pages", codes=codes)

    def be_busy(self, method: str, *seconds: int) -> None:
        """Answer the next calls of a method with status 429 and these values of `Retry-After`."""
        self._control("be_busy", method=method, seconds=seconds)

    def times(self) -> list[float]:
        """Return the times of the calls that were answered with 429, and of the next call after each of them."""
        return list(self._control("times"))

    def limit(self, messages: int) -> None:
        """Accept this many messages after each message of a customer."""
        self._control("limit", messages=messages)

    def write(self, *items: Values, page: int = 1000) -> None:
        """Add messages to a desk, whose pages have `page` messages. A page lacks the items that have no message id."""
        self._control("write", items=items, page=page)

    @staticmethod
    def text_of(call: Values) -> str:
        """Return the text of a message; fail if it exceeds the limit of the platform."""
        kind: str = call["msgtype"]
        text: str = call[kind]["content"]
        assert len(text.encode()) <= (20_480 if kind == "markdown" else 2048)
        return text

    def _control(self, verb: str, **values: object) -> Any:
        return self._client.post(f"{self.address}/control/{verb}", json=values).json()


@contextmanager
def faking_wecom(folder: Path) -> Iterator[FakeWeCom]:
    """Run the platform in a process, and yield its interface."""
    with serving(_serve, folder / "wecom.address") as address, httpx2.Client(timeout=60, trust_env=False) as client:
        yield FakeWeCom(address, client)


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

    def do_GET(self) -> None:
        """Handle a request of a bot."""
        self._do({})

    def do_POST(self) -> None:
        """Handle a request of a bot or a test."""
        self._do(json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}"))

    def _do(self, values: Values) -> None:
        parts = urlsplit(self.path)
        with self.known.lock:
            seconds = self._busy_seconds(parts.path.removeprefix("/cgi-bin/"))
            if seconds is not None:
                self.send_response(429)
                self.send_header("retry-after", str(seconds))
                self.send_header("content-length", "0")
                self.end_headers()
                return
            try:
                body = self._answer(parts.path, dict(parse_qsl(parts.query)), values)
            except ConnectionAbortedError:
                self.close_connection = True
                return
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _busy_seconds(self, method: str) -> int | None:
        """Return the value of `Retry-After` for a call of a method, or None if the call is accepted."""
        if method not in self.known.busy:
            return None
        self.known.times.append(time.monotonic())
        if self.known.busy[method]:
            return self.known.busy[method].pop(0)
        del self.known.busy[method]
        return None

    def _answer(self, path: str, query: dict[str, str], values: Values) -> object:
        if path.startswith("/control/"):
            return getattr(self, f"_control_{path.removeprefix('/control/')}")(values)
        method = path.removeprefix("/cgi-bin/")
        state = self.known
        if method == "gettoken":
            if query.get("corpsecret") != SECRET:
                return {"errcode": 40001, "errmsg": "invalid credential"}
            if state.broken_tokens:
                state.broken_tokens -= 1
                raise ConnectionAbortedError
            state.tokens += 1
            state.valid.add(f"T{state.tokens}")
            return {"errcode": 0, "access_token": f"T{state.tokens}", "expires_in": 7200}
        if method == "aibot/response":
            return self._respond(query["response_code"], values)
        if query.get("access_token") not in state.valid:
            return {"errcode": 40014, "errmsg": "invalid access_token"}
        return self._page(values) if method == "kf/sync_msg" else self._send(method, values)

    def _send(self, method: str, values: Values) -> Values:
        state, key = self.known, values.get("msgid")
        if values["touser"] in ("invalid", "unlicensed"):
            return {"errcode": 0, "errmsg": "ok", f"{values['touser']}user": values["touser"]}
        if method == "message/send":
            assert isinstance(values["agentid"], int)
            key = values["text"]["content"] if values["enable_duplicate_check"] else None
        code = state.refusals.pop(0) if state.refusals else self._limited(values)
        if code:
            return {"errcode": code, "errmsg": "refused"}
        if method != "message/send" and key in state.seen:
            # WeCom's documentation says that a repeated id is an error, but does not name its code.
            return {"errcode": 99_999, "errmsg": "invalid msgid, hint: [1700000000]"}
        if key is None or key not in state.seen:
            state.sent.append(values)
        state.seen.add(str(values["text"]["content"] if method == "message/send" else key))
        if code == 0:
            raise ConnectionAbortedError
        return {"errcode": 0, "errmsg": "ok"}

    def _limited(self, values: Values) -> int | None:
        if self.known.most is None:
            return None
        count = self.known.heard.get(values["touser"], 0)
        if count >= self.known.most:
            return 95001
        self.known.heard[values["touser"]] = count + 1
        return None

    def _respond(self, code: str, values: Values) -> Values:
        if code in self.known.used:
            return {"errcode": 846607, "errmsg": "response_url was used"}
        self.known.used.add(code)
        self.known.sent.append(values)
        return {"errcode": 0, "errmsg": "ok"}

    def _page(self, values: Values) -> Values:
        state = self.known
        state.pages.append(values)
        if state.page_codes and (code := state.page_codes.pop(0)):
            return {"errcode": code, "errmsg": "refused"}
        items = [item for item in state.items if self._desk(item) == values["open_kfid"]]
        begin = int(values.get("cursor") or 0)
        end = min(begin + state.page, len(items))
        more = int(end < len(items))
        seen = [item for item in items[begin:end] if "msgid" in item]
        return {"errcode": 0, "next_cursor": str(end), "has_more": more, "msg_list": seen}

    @staticmethod
    def _desk(item: Values) -> object:
        return item.get("open_kfid") or item.get("event", {}).get("open_kfid")

    def _control_sent(self, _: Values) -> list[Values]:
        return self.known.sent

    def _control_tokens(self, _: Values) -> int:
        return self.known.tokens

    def _control_pages(self, _: Values) -> list[Values]:
        return self.known.pages

    def _control_expire(self, _: Values) -> None:
        self.known.valid.clear()

    def _control_break_tokens(self, values: Values) -> None:
        self.known.broken_tokens = values["count"]

    def _control_refuse(self, values: Values) -> None:
        self.known.refusals += values["codes"]

    def _control_accept(self, _: Values) -> None:
        self.known.refusals.clear()

    def _control_refuse_pages(self, values: Values) -> None:
        self.known.page_codes += values["codes"]

    def _control_be_busy(self, values: Values) -> None:
        self.known.busy[values["method"]] = values["seconds"]

    def _control_times(self, _: Values) -> list[float]:
        return self.known.times

    def _control_limit(self, values: Values) -> None:
        self.known.most = values["messages"]

    def _control_write(self, values: Values) -> None:
        for item in values["items"]:
            self.known.heard.pop(item.get("external_userid"), None)
        self.known.items += values["items"]
        self.known.page = values["page"]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""
