"""The server process: connection limits, socket, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from operator import itemgetter
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from threadkeep.app import stop_signals
from threadkeep.errors import InvalidSettings
from threadkeep.web.problems import make_problem, problem_response

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
_NOT_HTTP = "The request is not valid HTTP, or its method is unknown; see /docs for the methods of each address."
_LATE_SECONDS = 0.2
_IDLE_SECONDS = 75
"""Seconds until an idle connection is closed. If this is below the 60 seconds of nginx and AWS, both may send 502."""


@dataclass(frozen=True)
class ConnectionLimits:
    """The maximum number of open connections, and the seconds for the headers and the body of a request.

    A request with more than `header_bytes` in its address and headers is rejected. The count is approximate: it omits
    the first and the last piece of data that the socket returns for them.
    """

    connections: int = 1000
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    header_bytes: int = 65_536


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits: it closes a connection if a request does not arrive in time.

    The timeout starts when the connection opens or, on a kept-alive connection, with the first byte of a request.
    Responses, such as streams, have no timeout.
    """

    limits = ConnectionLimits()
    _deadline: asyncio.TimerHandle | None = None
    _head = 0
    """The number of requests that have begun on this connection."""
    _head_bytes: int | None = None
    """The counted bytes of the request line and headers, while headers are being received."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If too many are open, close an idle connection, or reject the new one with 503."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections and not self._close_idle():
            transport.write(_TOO_MANY)
            transport.close()
        else:
            self._expect(self.limits.header_seconds)

    def _close_idle(self) -> bool:
        """Close the connection that has waited longest for its next request; return False if there is none."""
        idle = [
            (other.timeout_keep_alive_task.when(), other.transport)
            for other in self.connections
            if isinstance(other, LimitedProtocol) and other.timeout_keep_alive_task and not other.transport.is_closing()
        ]
        if idle:
            min(idle, key=itemgetter(0))[1].close()
        return bool(idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout of a closed connection."""
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request. On a kept-alive connection, the first bytes start the timeout."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self.limits.header_seconds)
        head = self._head
        super().data_received(data)
        if self._head_bytes is not None and head == self._head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.header_bytes:
                self._close(_TOO_LONG)

    def on_message_begin(self) -> None:
        """Start counting the bytes of the request line and headers."""
        super().on_message_begin()
        self._head += 1
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Drop a trailer, because it arrives after the body, and its length is not limited."""
        if self._head_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> Any:
        """Start the timeout for the body of the request."""
        self._head_bytes = None
        super().on_headers_complete()
        self._expect(self.limits.body_seconds)

    def on_message_complete(self) -> Any:
        """Stop the timeout, because the whole request has arrived."""
        super().on_message_complete()
        self._expect(None)

    def send_400_response(self, msg: str) -> None:
        """Reject a request that is not valid HTTP. The response is a problem document."""
        body = problem_response(make_problem(400, "bad-request", _NOT_HTTP)).body
        self._close(_BAD_REQUEST % (len(body), bytes(body)))

    def _expect(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._wait_a_moment)

    def _wait_a_moment(self) -> None:
        """Wait 0.2 seconds more: if the process was suspended, the timer fires before data that has arrived is read."""
        self._deadline = self.loop.call_later(_LATE_SECONDS, self._close, _TOO_LATE)

    def _close(self, response: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(response)
        self.transport.close()


_GRACE_SECONDS = 5
"""Seconds in which the last answers can be sent after all turns have ended."""


class Server(uvicorn.Server):
    """uvicorn with a shutdown that ends turns first, then connections.

    After the first SIGTERM, SIGINT or SIGHUP, running turns may finish within `shutdown_seconds`; a second SIGINT skips
    this wait. The clients of the remaining turns receive an error. Runs that are recorded in the database are left to
    other processes. Runs that are not recorded are stopped, and their partial answers are stored.
    """

    def __init__(
        self,
        service: Starlette,
        end_turns: Callable[[float], Coroutine[object, object, None]],
        *,
        shutdown_seconds: float,
        on_start: Callable[[], None],
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Create the server. `end_turns` gets the seconds to wait; `on_start` is called on startup."""
        super().__init__(
            uvicorn.Config(
                service,
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=math.ceil(shutdown_seconds) + _GRACE_SECONDS,
                http=type("Limited", (LimitedProtocol,), {"limits": limits or ConnectionLimits()}),
                ws="none",
            )
        )
        self._end_turns = end_turns
        self._shutdown_seconds = shutdown_seconds
        self._on_start = on_start
        self._signalled = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections and call `on_start`."""
        await super().startup(sockets)
        self._on_start()

    async def main_loop(self) -> None:
        """Update the date header once a second. uvicorn's own loop would do this ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), 1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server; a second SIGINT skips the wait for running turns."""
        super().handle_exit(sig, frame)
        self._signalled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, end the turns, and then close the connections."""
        closing = asyncio.create_task(self._end_turns(self._shutdown_seconds))
        await super().shutdown(sockets)
        if self.force_exit:
            closing.cancel()
            await self._end_turns(0)
        with contextlib.suppress(asyncio.CancelledError):
            await closing

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle signals as requests to stop. uvicorn would raise them again, before the database is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, signals = asyncio.get_running_loop(), stop_signals()
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def address_of(host: str, port: int) -> str:
    """Return the URL of a server on this host and port."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(
    host: str, port: int, *, host_name: str = "THREADKEEP_HOST", port_name: str = "THREADKEEP_PORT"
) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet.

    Args:
        host: The address.
        port: The port; 0 takes any free one.
        host_name: The setting or option for the host; an error names it.
        port_name: The setting or option for the port; an error names it.

    Raises:
        InvalidSettings: the address does not belong to this machine, is used already, or may not be bound.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without IPPROTO_TCP, asyncio leaves Nagle's algorithm on, which delays each request by 40 ms.
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        sentence = f"{host_name} is not an address of this machine; set it to one of its IP addresses or names."
        raise InvalidSettings(sentence, variable=host_name) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        sentence = f"Cannot listen on {host} port {port} ({error.strerror}): stop the process that does, "
        sentence += f"or choose another port with {port_name}."
        raise InvalidSettings(sentence, variable=port_name) from error
    return bound
