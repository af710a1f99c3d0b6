"""How carrying a run out ended, before and after that is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from threadkeep.records import Json


@dataclass(frozen=True)
class Outcome:
    """How carrying a run out ended; with `waiting` it is to go on when a person has answered."""

    status: Literal["done", "failed", "cancelled", "interrupted", "waiting"]
    result: Mapping[str, Json] | None = None
    error: str | None = None
    interrupt: Json = None
    set_aside: bool = False
