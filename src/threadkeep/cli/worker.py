"""`threadkeep worker`: carries queued runs out, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from threadkeep.cli.opening import check_others_see, run
from threadkeep.cli.options import AsJson
from threadkeep.cli.terminal import Terminal
from threadkeep.version import __version__

if TYPE_CHECKING:
    from threadkeep.settings import Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def work(as_json: AsJson = False) -> None:
    """Carry out queued runs, and those that other processes left; `serve` does so too.

    Ctrl-C or SIGTERM stops it when the runs at work are done. With --json it logs JSON lines.
    """
    from threadkeep.settings import load_settings

    settings = load_settings(**({"log_json": True} if as_json else {}))
    check_others_see(settings)
    run(_work(settings, Terminal(as_json=as_json)))


async def _work(settings: Settings, terminal: Terminal) -> None:
    from threadkeep.app import open_app
    from threadkeep.observe.log import LogObserver, configure_logging

    configure_logging(settings.log_level, json=settings.log_json)
    with _told_to_stop() as told:
        async with open_app(settings, observers=[LogObserver()], channel="other") as app:
            await app.runs.service()
            up = f"Threadkeep {__version__} carries out the runs of {settings.database} (Ctrl+C stops it)"
            if terminal.as_json:
                terminal.json({"announcement": [up]})
            else:
                terminal.say(up)
                sys.stdout.flush()
            await told.wait()
            seconds = f"{settings.shutdown_timeout:g} seconds"
            terminal.note(f"It stops: runs at work get {seconds} to end, then others go on with them.")


@contextmanager
def _told_to_stop() -> Iterator[asyncio.Event]:
    """Is set by the first signal to stop. A second Ctrl-C does not wait: its runs are others' as soon as it is dead."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        told.set()
        let_go()

    def let_go() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield told
    finally:
        let_go()
