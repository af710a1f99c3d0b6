"""A fake gateway of WeCom's AI bots in another process, with one WebSocket at a time and records of its frames."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import httpx2
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.children import serving

type Values = dict[str, Any]

SECRET = "canary-connection-secret"


@dataclass
class _State:
    lock: threading.RLock = field(default_factory=threading.RLock)
    current: ServerConnection | None = None
    subscriptions: list[int] = field(default_factory=list)
    frames: list[Values] = field(default_factory=list)
    pings: int = 0
    waiting: list[Values] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    pushed: int = 0


class FakeGateway:
    """The interface of the fake gateway for tests."""

    def __init__(self, address: str, control: str) -> None:
        self.address = address
        self._url = control

    def push(self, body: Values) -> str:
        """Send a message or an event, now or to the next connection; return the id of its frame."""
        return str(self._control("push", body=body))

    def refuse(self, *codes: int) -> None:
        """Refuse the next replies with these codes."""
        self._control("refuse", codes=codes)

    def is_connected(self) -> bool:
        """Return whether a bot is connected."""
        return bool(self._control("connected"))

    def drop(self) -> None:
        """Break the connection."""
        self._control("drop")

    def subscriptions(self) -> list[int]:
        """Return the error code of each attempt to subscribe, in order."""
        return list(self._control("subscriptions"))

    def pings(self) -> int:
        """Return the number of pings from the bot."""
        return int(self._control("pings"))

    def frames(self, cmd: str) -> list[Values]:
        """Return the accepted frames of a command, in order."""
        return [frame for frame in self._control("frames") if frame["cmd"] == cmd]

    def streams(self, req_id: str) -> list[tuple[str, bool]]:
        """Return the texts that the reply to a message showed, in order; each with True if it was the last."""
        frames = [frame["body"] for frame in self.frames("aibot_respond_msg") if frame["headers"]["req_id"] == req_id]
        assert len({body["stream"]["id"] for body in frames}) <= 1
        return [(body["stream"]["content"], body["stream"]["finish"]) for body in frames]

    def texts(self) -> list[str]:
        """Return the final replies, of finished streams and of messages, in order."""
        found = []
        for frame in self._control("frames"):
            body = frame.get("body", {})
            if frame["cmd"] == "aibot_respond_msg" and body["stream"]["finish"]:
                found.append(str(body["stream"]["content"]))
            if frame["cmd"] == "aibot_send_msg":
                found.append(str(body["markdown"]["content"]))
        return found

    def _control(self, verb: str, **values: object) -> Any:
        return httpx2.post(f"{self._url}/{verb}", json=values, timeout=60, trust_env=False).json()


@contextmanager
def faking_gateway(folder: Path) -> Iterator[FakeGateway]:
    """Run the gateway in a process, and yield its interface."""
    with serving(_serve, folder / "gateway.address") as address:
        yield FakeGateway(*address.split())


def _serve(place: Path) -> None:
    state = _State()

    class Handler(_Control):
        known = state

    control = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    control.daemon_threads = True
    with serve(lambda socket: _talk(state, socket), "127.0.0.1", 0) as gateway:
        port = gateway.socket.getsockname()[1]
        place.write_text(f"ws://127.0.0.1:{port} http://127.0.0.1:{control.server_address[1]}\n")
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        control.serve_forever(0.02)


def _talk(state: _State, socket: ServerConnection) -> None:
    """Serve one connection until it ends."""
    try:
        for text in socket:
            frame = json.loads(text)
            with state.lock:
                code = _subscribe(state, socket, frame) if frame["cmd"] == "aibot_subscribe" else _accept(state, frame)
                socket.send(json.dumps({"headers": frame["headers"], "errcode": code, "errmsg": ""}))
                while state.current is socket and state.waiting:
                    socket.send(json.dumps(state.waiting.pop(0)))
    except ConnectionClosed:
        pass
    finally:
        with state.lock:
            if state.current is socket:
                state.current = None


def _subscribe(state: _State, socket: ServerConnection, frame: Values) -> int:
    code = 0 if frame["body"] == {"bot_id": "B1", "secret": SECRET} else 853000
    state.subscriptions.append(code)
    if code == 0:
        if state.current is not None:
            body = {"msgtype": "event", "event": {"eventtype": "disconnected_event"}}
            event = {"cmd": "aibot_event_callback", "headers": {"req_id": "d"}, "body": body}
            try:
                state.current.send(json.dumps(event))
                state.current.socket.shutdown(SHUT_RDWR)
            except (ConnectionClosed, OSError):
                pass
        state.current = socket
    return code


def _accept(state: _State, frame: Values) -> int:
    if frame["cmd"] == "ping":
        state.pings += 1
        return 0
    if state.refusals:
        return state.refusals.pop(0)
    state.frames.append(frame)
    return 0


class _Control(BaseHTTPRequestHandler):
    known: _State

    def do_POST(self) -> None:
        """Answer a test."""
        values = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
        with self.known.lock:
            content = json.dumps(getattr(self, f"_{self.path.removeprefix('/')}")(values)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _push(self, values: Values) -> str:
        state = self.known
        state.pushed += 1
        req_id = f"push-{state.pushed}"
        kind = "event" if values["body"]["msgtype"] == "event" else "msg"
        frame = {"cmd": f"aibot_{kind}_callback", "headers": {"req_id": req_id}, "body": values["body"]}
        try:
            if state.current is None:
                state.waiting.append(frame)
            else:
                state.current.send(json.dumps(frame))
        except ConnectionClosed:
            state.current = None
            state.waiting.append(frame)
        return req_id

    def _refuse(self, values: Values) -> None:
        self.known.refusals += values["codes"]

    def _drop(self, _: Values) -> None:
        if self.known.current is not None:
            self.known.current.socket.shutdown(SHUT_RDWR)
            self.known.current = None

    def _connected(self, _: Values) -> bool:
        return self.known.current is not None

    def _subscriptions(self, _: Values) -> list[int]:
        return self.known.subscriptions

    def _pings(self, _: Values) -> int:
        return self.known.pings

    def _frames(self, _: Values) -> list[Values]:
        return self.known.frames

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""
