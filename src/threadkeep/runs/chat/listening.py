"""How a turn of the chat hears of its run."""

from __future__ import annotations

import asyncio
from typing import Any

from threadkeep.runs.chat.turns import ChatTurn
from threadkeep.runs.live import LiveRun


async def listen(turn: ChatTurn, live: LiveRun, work: asyncio.Task[Any]) -> None:
    """Pass on what is told of a run from the beginning of its present try, until what came out is known."""
    work.add_done_callback(lambda _: live.signal())
    heard = live.first_piece
    while True:
        change = live.next_change
        if live.begun:
            turn.tell_started()
        for piece in live.pieces[heard:]:
            turn.tell_piece(piece.text)
        heard = len(live.pieces)
        if work.done() or live.outcome is not None:
            return
        await change.wait()
