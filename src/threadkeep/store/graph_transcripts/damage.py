"""Damaged items of a graph store that were found, so that lists and searches can name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadkeep.errors import SessionDamaged


class DamageRegister:
    """The known damaged items of one location; an item that was repaired or removed is dropped."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], SessionDamaged] = {}

    @contextmanager
    def noting(self, session_id: str, item: str) -> Iterator[None]:
        """Record whether an item that is read in the block is damaged."""
        try:
            yield
        except SessionDamaged as error:
            self._items[session_id, item] = error
            raise
        if self._items:
            self._items.pop((session_id, item), None)

    def forget(self, session_id: str) -> None:
        """Forget a session that does not exist any more."""
        for key in [key for key in self._items if key[0] == session_id]:
            del self._items[key]

    def of(self, user_id: str | None = None) -> list[SessionDamaged]:
        """Return the damaged items; with a user only items that are known to be theirs."""
        found = sorted(self._items.items())
        return [error for _, error in found if user_id in (None, error.user_id)]
