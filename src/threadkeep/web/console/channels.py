"""The page of channels: bots, and the answers on their way to people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from fastapi import APIRouter, Request, Response

from threadkeep.app import App
from threadkeep.records.channels import OutboxStatus
from threadkeep.store.outbox import Outgoing
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.console.rendering import ConsoleRoute, page

_OPEN: tuple[OutboxStatus, ...] = ("waiting", "ready", "failed")
_SHOWN = 50

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@dataclass(frozen=True)
class ChannelStatus:
    """A bot with the numbers of its open answers."""

    name: str
    counts: dict[OutboxStatus, int]
    oldest_open: datetime | None
    last_heard: datetime | None


@router.get("/channels")
async def show_channels(request: Request, app: AppInUse) -> Response:
    """Show the bots that have ever received or sent a message, and their open answers."""
    return page(request, "channels.html", channels=await _statuses(app), open=_OPEN, outbox=await _open_answers(app))


async def _statuses(app: App) -> list[ChannelStatus]:
    outbox = app.memory.channels.outbox
    counts, times = await outbox.counts(), await outbox.times()
    names = sorted({name for name, _ in counts} | times.keys())
    return [
        ChannelStatus(name, {status: counts.get((name, status), 0) for status in _OPEN}, *times.get(name, (None, None)))
        for name in names
    ]


async def _open_answers(app: App) -> list[Outgoing]:
    """Return the first open answers, failed ones first."""
    found = [await app.memory.channels.outbox.entries(status=status, limit=_SHOWN) for status in reversed(_OPEN)]
    return list(islice((entry for entries in found for entry in entries), _SHOWN))
