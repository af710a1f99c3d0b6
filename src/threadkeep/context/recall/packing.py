"""The form in which an index is stored: a header of JSON, then its arrays of numbers, compressed."""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, NamedTuple
from unicodedata import unidata_version

_LENGTH_BYTES = 8
# Level 1 of zlib takes a fifth of the default level's time, and a tenth more bytes.
_LEVEL = 1
COPIED_AT_ONCE: Final = 2_000
"""The number of terms or positions to copy at once, in about a millisecond; then other tasks run."""


class Packed(NamedTuple):
    """The state of an index or a part of it: values for JSON, and arrays by name."""

    values: Mapping[str, Any]
    arrays: Mapping[str, array[Any]]


def pack(states: Iterable[Packed]) -> bytes:
    """Join parts of a state, and return them as bytes. Arrays with the same name are joined."""
    arrays: dict[str, array[Any]] = {}
    values: dict[str, Any] = {}
    for state in states:
        for name, found in state.arrays.items():
            arrays.setdefault(name, array(found.typecode)).extend(found)
        values |= state.values
    shapes = {name: (found.typecode, len(found) * found.itemsize) for name, found in arrays.items()}
    header = json.dumps({"arrays": shapes, "values": values}).encode()
    return zlib.compress(b"".join((len(header).to_bytes(_LENGTH_BYTES), header, *arrays.values())), _LEVEL)


def unpack(data: bytes) -> Packed:
    """Return the state from the bytes that `pack` returned.

    Raises:
        zlib.error: the bytes are damaged.
    """
    content = memoryview(zlib.decompress(data))
    begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    header = json.loads(bytes(content[_LENGTH_BYTES:begin]))
    arrays: dict[str, array[Any]] = {}
    for name, (typecode, size) in header["arrays"].items():
        arrays[name] = array(typecode, bytes(content[begin : begin + size]))
        begin += size
    return Packed(header["values"], arrays)


def joined(typecode: str, arrays: Iterable[array[Any]]) -> array[Any]:
    """Join arrays with the same type code into one array."""
    return array(typecode, b"".join(arrays))


def divided(whole: array[Any], lengths: Sequence[int]) -> Iterator[array[Any]]:
    """Yield consecutive parts of an array, with these lengths."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return (whole[begin:end] for begin, end in pairwise(ends))


@cache
def analysis_version() -> str:
    """Return the version of the code and data that split texts into index terms.

    It changes with this package and its lists, with the stemmer, and with Python's Unicode data.
    """
    found = hashlib.sha256(f"{sys.byteorder} {unidata_version} {version('snowballstemmer')}".encode())
    for folder in (files("threadkeep.context.recall"), files("threadkeep.context.recall") / "data"):
        for entry in sorted(folder.iterdir(), key=lambda one: one.name):
            if entry.name.endswith((".py", ".txt")):
                found.update(entry.name.encode())
                found.update(entry.read_bytes())
    return found.hexdigest()[:16]
