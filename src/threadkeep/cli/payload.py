"""The payload of a run, from a file or from stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from threadkeep.cli.problems import WrongUse

_MOST_BYTES = 2_097_152


def read_payload(place: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        WrongUse: it is none.
    """
    stream = sys.stdin.buffer if place == "-" else None
    if stream is not None:
        data = stream.read(_MOST_BYTES + 1)
    else:
        with Path(place).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise WrongUse("The payload is no JSON in UTF-8; give a file with one JSON object.") from None
    if len(data) > _MOST_BYTES or not isinstance(value, dict):
        raise WrongUse("The payload is a JSON object of at most 2 MiB; put what the channel delivers into one.")
    return value
