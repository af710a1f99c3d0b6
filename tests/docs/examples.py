"""Comparison of a response with the one in the docs: equal, except for values that change each time."""

from __future__ import annotations

import json
import re

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# `stores` varies because maintenance may have deleted checkpoints of earlier examples.
_VARYING = frozenset({"subject", "ids", "signature", "next_cursor", "stores"})


def differences(shown: object, real: object, where: str = "") -> list[str]:
    """Return the differences from a shown response. Ids, times and fractions may differ; `…` stands for any rest."""
    match shown, real:
        case dict(), dict():
            found = [f"{where}/{key} is only in the docs" for key in shown.keys() - real.keys()]
            found += [f"{where}/{key} is not in the docs" for key in real.keys() - shown.keys()]
            for key in shown.keys() & real.keys():
                if key not in _VARYING or type(shown[key]) is not type(real[key]):
                    found += differences(shown[key], real[key], f"{where}/{key}")
            return found
        case list(), list() if len(shown) == len(real):
            pairs = enumerate(zip(shown, real, strict=True))
            return [one for place, (a, b) in pairs for one in differences(a, b, f"{where}/{place}")]
        case str(), str() if _same_text(shown, real):
            return []
        case float(), float():
            return []
        case _:
            return [] if shown == real and type(shown) is type(real) else [f"{where} is {real!r}, not {shown!r}"]


def events_of(stream: str) -> list[tuple[str, object]]:
    """Return server-sent events with name and data, without comments."""
    found: list[tuple[str, object]] = []
    for block in stream.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def json_documents(text: str) -> list[object]:
    """Return the JSON documents of a block: one, or one on each line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def _same_text(shown: str, real: str) -> bool:
    if shown == real or any(kind.fullmatch(shown) and kind.fullmatch(real) for kind in (_UUID, _TIME)):
        return True
    beginning, mark, end = shown.partition("…")
    return bool(mark) and real.startswith(beginning) and real.endswith(end)
