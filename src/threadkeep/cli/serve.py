"""`threadkeep serve`: the HTTP service, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from threadkeep.cli.opening import run
from threadkeep.cli.options import AsJson
from threadkeep.cli.terminal import Terminal


def serve_http(
    host: Annotated[str | None, typer.Option(help="Address to listen on, in place of THREADKEEP_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, in place of THREADKEEP_PORT; 0 takes a free one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the HTTP service.

    Ctrl-C or SIGTERM stops it when the turns that run are done. With --json it logs JSON lines.
    """
    from threadkeep.settings import load_settings

    given = {"host": host, "port": port, "log_json": True if as_json else None}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    with Terminal(as_json=as_json).waiting("Starting"):
        # FastAPI, LangChain and LangGraph: some seconds on a slow machine.
        from threadkeep.web.service import serve

    run(serve(settings, output=_Announcement() if as_json else sys.stdout))


class _Announcement(io.StringIO):
    """Says as one JSON object what the service says when it is up."""

    def write(self, text: str, /) -> int:
        Terminal(as_json=True).json({"announcement": text.splitlines()})
        return len(text)
