"""Limits on connections: their number, and the time that a request may take to arrive.

uvicorn limits neither: a client that sends a byte now and then, or none at all, would hold a connection for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


_GRACE_SECONDS = 0.2


@dataclass(frozen=True)
class ConnectionLimits:
    """The number of open connections, and the seconds for the headers and for the body of a request."""

    connections: int = 1000
    header_seconds: float = 10.0
    body_seconds: float = 30.0


def limited_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these limits."""

    class Limited(LimitedProtocol):
        """The protocol of one server."""

    Limited.limits = limits
    return Limited


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes connections whose request does not arrive in time.

    The time of a request begins with its connection, or with its first byte on a connection that is kept. Its answer,
    such as a stream, may take any time.
    """

    limits = ConnectionLimits()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse one too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(_TOO_MANY)
            transport.close()
        else:
            self._expect(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; the first ones on a kept connection begin its time."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self.limits.header_seconds)
        super().data_received(data)

    def on_headers_complete(self) -> Any:
        """Begin the time of the body."""
        super().on_headers_complete()
        self._expect(self.limits.body_seconds)

    def on_message_complete(self) -> Any:
        """End the time of the request: it has arrived."""
        super().on_message_complete()
        self._expect(None)

    def _expect(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._wait_a_moment)

    def _wait_a_moment(self) -> None:
        """Read what has arrived first: timers come before sockets if the process was stopped meanwhile."""
        self._deadline = self.loop.call_later(_GRACE_SECONDS, self._close_late)

    def _close_late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_TOO_LATE)
        self.transport.close()
