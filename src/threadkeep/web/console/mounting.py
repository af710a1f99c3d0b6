"""The console as a part of the service: its pages and its files."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from threadkeep.web.console import calls, runs, session_actions, sessions

HOME: Final = "/"
FILES: Final = "/console/files"


def mount_console(service: FastAPI) -> None:
    """Serve the console's pages and files."""
    service.mount(FILES, StaticFiles(packages=[("threadkeep.web.console", "static")]))
    for pages in (sessions, session_actions, calls, runs):
        service.router.routes.extend(pages.router.routes)
