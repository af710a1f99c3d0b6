"""Filling the search index while somebody waits for it, as after an upgrade."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from threadkeep.cli.progress import progress
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted
from threadkeep.errors import StoreError

if TYPE_CHECKING:
    from threadkeep.store.driver import Driver

_SLICE_SECONDS = 0.25
# Of slices in which nothing was done, since somebody has locked what is left: each waits for a lock half a second.
_PATIENCE = 20


async def fill_index(terminal: Terminal, driver: Driver) -> tuple[int, int]:
    """Index what is not indexed, together with whoever else is at it; answers how many messages went in, and are left.

    Sessions that others have locked for long are left. Broken off, it goes on from there the next time. What is said
    after the index has caught up is none of what is left.
    """
    from threadkeep.store.search import SearchIndex

    index = SearchIndex(driver)
    total = left = await index.unindexed()
    idle = 0
    with progress(terminal, "Filling the search index", total) as reach:
        try:
            while left and idle < _PATIENCE:
                complete = await index.catch_up(seconds=_SLICE_SECONDS)
                before, left = left, 0 if complete else await index.unindexed()
                idle = 0 if left < before else idle + 1
                reach(max(total - left, 0), f"{max(total - left, 0):,} of {counted(total, 'message')}")
        except (StoreError, asyncio.CancelledError):
            done = f"{max(total - left, 0):,} of {counted(total, 'message')}"
            terminal.note(f"Broken off: {done} are in the search index. Migrate again to go on; nothing is half done.")
            raise
    return max(total - left, 0), left
