"""The process around the service: its socket, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator

import uvicorn
from fastapi import FastAPI

from threadkeep.errors import InvalidSettings

_GRACE_SECONDS = 5
"""What connections get after the last turn has ended, to take its answer."""


class Server(uvicorn.Server):
    """uvicorn with a shutdown that ends turns first and connections after them.

    A first SIGTERM or SIGINT stops accepting; running turns get some seconds, then are stored as far as they came, and
    their callers are told. A second SIGINT does not wait.
    """

    def __init__(
        self,
        service: FastAPI,
        end_turns: Callable[[float], Coroutine[object, object, None]],
        *,
        shutdown_seconds: float,
        on_start: Callable[[], None],
    ) -> None:
        """`end_turns` lets turns finish within some seconds; `on_start` is called when connections are accepted."""
        super().__init__(
            uvicorn.Config(
                service,
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(shutdown_seconds) + _GRACE_SECONDS,
                ws="none",
            )
        )
        self._end_turns = end_turns
        self._shutdown_seconds = shutdown_seconds
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and say so."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, end the turns, let the connections go."""
        closing = asyncio.create_task(self._end_turns(self._shutdown_seconds))
        await super().shutdown(sockets)
        if self.force_exit:
            closing.cancel()
            await self._end_turns(0)
        with contextlib.suppress(asyncio.CancelledError):
            await closing

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take signals as requests to stop. uvicorn's own would raise them again before the database is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on an address.

    Raises:
        InvalidSettings: the address is not this machine's, or another process has it.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where it sees IPPROTO_TCP: else each request takes 40 ms more.
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise InvalidSettings(
            "THREADKEEP_HOST is no address of this machine; write an IP address or a name that it has.",
            variable="THREADKEEP_HOST",
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InvalidSettings(
            f"Cannot listen on {host} port {port} ({error.strerror}): stop the process that does, "
            "or set THREADKEEP_PORT (0 takes any free port).",
            variable="THREADKEEP_PORT",
        ) from error
    return bound
