"""The user as whom the console's pages show sessions, runs and knowledge."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from threadkeep.web.callers import CallerInUse


async def _seen_as(caller: CallerInUse, user: Annotated[str | None, Query(max_length=512)] = None) -> str | None:
    return caller.user(user or None)


type SeenAs = Annotated[str | None, Depends(_seen_as)]
