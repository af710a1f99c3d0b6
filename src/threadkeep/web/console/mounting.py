"""The console as a part of the service: its pages and its files."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from threadkeep.web.console import (
    calls,
    channels,
    health,
    knowledge,
    known,
    runs,
    session_actions,
    sessions,
    sign_in,
)

_FILES: Final = "/console/files"
OPEN: Final = (sign_in.ADDRESS, *(f"{_FILES}/{name}" for name in ("console.css", "console.js", "icon.svg")))
"""What a browser gets before it has signed in; it contains no data."""


def mount_console(service: FastAPI) -> None:
    """Serve the console's pages and files."""
    service.mount(_FILES, StaticFiles(packages=[("threadkeep.web.console", "static")]))
    for pages in (sessions, session_actions, calls, runs, known, knowledge, channels, health, sign_in):
        service.router.routes.extend(pages.router.routes)
