"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
