"""The ZIP archive of a person's data: the export as lines of JSON, and a page for people to read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from html import escape
from tempfile import TemporaryFile
from typing import BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

LINES: Final = "person.jsonl"
PAGE: Final = "person.html"
_PART_BYTES: Final = 65_536
_POSITION: Final = b'{"type": "position"'

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Export of a person</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 1em }
small { color: #555 }
</style></head><body>
"""
_HIDDEN: Final = frozenset({"position", "end", "run_event"})
_TITLES: Final[Mapping[str, str]] = {
    "shared_message": "Messages in sessions of others",
    "model_call": "Records of model calls",
    "run": "Runs",
    "fact": "Facts",
    "procedure": "Procedures",
    "proposal": "Proposed facts",
    "pending_message": "Messages that wait to be stored",
    "value": "Values of front ends and frameworks",
    "item": "Items of the graph store",
    "step": "Tool calls of earlier turns",
    "api_key": "Keys of the HTTP service",
}


class _Sink:
    """A file for a ZIP archive; `take` returns the bytes written since its last call."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> bytes:
        data, self._parts, self.size = b"".join(self._parts), [], 0
        return data


async def archive(lines: AsyncIterator[str], now: datetime) -> AsyncIterator[bytes]:
    """Yield, in parts, a ZIP archive with the lines of an export, and a page that shows them.

    The lines are also written to an anonymous temporary file, from which the page is made.
    """
    sink = _Sink()
    with TemporaryFile() as copy, ZipFile(sink, "w") as archived:
        with archived.open(_entry(LINES, now), "w", force_zip64=True) as entry:
            async for line in lines:
                data = line.encode("utf-8", "surrogatepass")
                entry.write(data)
                copy.write(data)
                if sink.size > _PART_BYTES:
                    yield sink.take()
        copy.seek(0)
        with archived.open(_entry(PAGE, now), "w", force_zip64=True) as entry:
            for part in _page(copy):
                entry.write(part.encode("utf-8", "replace"))
                if sink.size > _PART_BYTES:
                    yield sink.take()
    yield sink.take()


def whole_lines(file: BinaryIO) -> tuple[str | None, int]:
    """Truncate an unfinished export after its last complete line of type `position`.

    Return the `after` value of this line and the number of lines that were kept. The caller can append to the file.
    """
    after, count, end, number = None, 0, 0, 0
    while line := file.readline():
        number += 1
        if line.startswith(_POSITION) and line.endswith(b"}\n"):
            after, count, end = str(json.loads(line)["after"]), number, file.tell()
    file.seek(end)
    file.truncate()
    return after, count


def _entry(name: str, now: datetime) -> ZipInfo:
    entry = ZipInfo(name, now.timetuple()[:6])
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry


def _page(lines: Iterator[bytes]) -> Iterator[str]:
    yield _HEAD
    last = ""
    for line in lines:
        values = json.loads(line.decode("utf-8", "surrogatepass"))
        kind = str(values.pop("type"))
        if kind in _HIDDEN:
            continue
        if kind != last and kind in _TITLES:
            yield f"<h2>{_TITLES[kind]}</h2>\n"
        last = kind
        yield _part(kind, values)
    yield "</body></html>\n"


def _part(kind: str, values: Mapping[str, object]) -> str:
    if kind == "person":
        ids = values.get("ids")
        names = ", ".join(map(str, ids)) if isinstance(ids, list) else ""
        return f"<h1>{escape(names)}</h1>\n<p><small>Exported {_text(values, 'begun_at')}</small></p>\n"
    if kind == "session":
        title = _text(values, "title") or _text(values, "session_id")
        return f"<h2>{title}</h2>\n<p><small>{_text(values, 'session_id')}, {_text(values, 'created_at')}</small></p>\n"
    if kind in ("message", "shared_message", "pending_message"):
        who = _text(values, "author") or _text(values, "role")
        when = _text(values, "sent_at") or _text(values, "created_at")
        return f"<p><b>{who}</b> <small>{when}</small></p>\n<pre>{_text(values, 'content')}</pre>\n"
    return f"<pre>{escape(json.dumps(values, ensure_ascii=False, indent=1))}</pre>\n"


def _text(values: Mapping[str, object], name: str) -> str:
    value = values.get(name)
    return "" if value is None else escape(str(value))
