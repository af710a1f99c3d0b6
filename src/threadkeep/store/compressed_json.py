"""Compression of JSON texts with zstd and a trained dictionary, because short texts hardly compress on their own.

Texts that were written before migration 25 have another format, which is still read.
"""

from __future__ import annotations

import io
import json
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import zstandard

from threadkeep.errors import RecordTooNew, RecordUnreadable
from threadkeep.records import Json

# Never change a dictionary, because stored texts need it. `python -m bench.train_dictionary` makes a new one. Add it
# with a migration (which may be empty): an older Threadkeep then refuses to open a database that it could not read.
_NEWEST: Final = 40_001
_DICTIONARIES = Path(__file__).with_name("dictionaries")
LEVEL: Final = 9
_SHORT_BYTES: Final = 2_048
_compressing = threading.Lock()
_PLAIN_JSON = frozenset(b'{ [ " - 0 1 2 3 4 5 6 7 8 9 t f n'.split())


def compress(text: str) -> bytes:
    """Return a JSON text as a zstd frame, or in UTF-8 if that is shorter."""
    plain = text.encode()
    with _compressing:
        return min(_compressor(is_short=len(plain) <= _SHORT_BYTES).compress(plain), plain, key=len)


def decompress(stored: bytes) -> str:
    """Return the text that was given to `compress`.

    Raises:
        RecordUnreadable: a newer Threadkeep compressed the text with another dictionary, or the value is damaged.
    """
    try:
        if stored[:1] in _PLAIN_JSON:
            return stored.decode()
        if stored[:1] == _FIRST_FORMAT:
            return _decompress_first_format(stored)
        dictionary = _dictionary(zstandard.get_frame_parameters(stored).dict_id)
        return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(stored).decode()
    except (zstandard.ZstdError, zlib.error, ValueError, IndexError, MemoryError):
        raise RecordUnreadable("A compressed record is damaged; restore a backup of the database.") from None


def reads_record[**P, T](read: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it raises `RecordUnreadable` if its input is damaged or has a wrong shape."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise RecordUnreadable("A record is damaged; restore a backup of the database.") from None

    return reading


@reads_record
def json_of(stored: str | bytes | None, shape: type = object) -> Any:
    """Return the value of a column that has JSON or compressed JSON.

    Raises:
        RecordUnreadable: the value is damaged or not of the type `shape`, or a newer Threadkeep wrote it.
    """
    if stored is None:
        return None
    value = json.loads(decompress(stored) if isinstance(stored, bytes) else stored)
    if not isinstance(value, shape):
        raise TypeError
    return value


@cache
def _compressor(*, is_short: bool) -> zstandard.ZstdCompressor:
    # Cached, because creating a compressor takes longer than compressing. Never use it in two threads at once.
    dictionary = zstandard.ZstdCompressionDict(_dictionary(_NEWEST).as_bytes())
    if is_short:
        # Small tables fit into the processor's caches: a call takes half the time, and the result is about as long.
        logs = {"window_log": 14, "chain_log": 10, "hash_log": 10, "search_log": 4}
        method = {"min_match": 5, "target_length": 16, "strategy": zstandard.STRATEGY_LAZY2}
        dictionary.precompute_compress(compression_params=zstandard.ZstdCompressionParameters(**logs, **method))
    else:
        dictionary.precompute_compress(level=LEVEL)
    return zstandard.ZstdCompressor(dict_data=dictionary, write_checksum=True)


@cache
def _dictionary(number: int) -> zstandard.ZstdCompressionDict:
    try:
        return zstandard.ZstdCompressionDict((_DICTIONARIES / f"{number}.zdict").read_bytes())
    except FileNotFoundError:
        raise RecordTooNew(
            f"A newer Threadkeep wrote a record with the zstd dictionary {number}, which this version does not have: "
            "upgrade Threadkeep on this machine, and start its processes again. If this is the newest version, the "
            "record is damaged; restore a backup of the database."
        ) from None


# In the format before migration 25, the ids and hashes of the text come first, as bytes. The rest of the text follows,
# deflated with a fixed vocabulary. The entries of a manifest are stored by field: one list for each field.

_FIRST_FORMAT = b"\x01"
_RAW_DEFLATE = -15
# In the deflated text, these characters mark where a hash (two units of 16 bytes) and an id (one unit) were.
_HASH, _ID = "\x01", "\x02"
_UNITS: Mapping[str, int] = {_HASH: 2, _ID: 1}
_UNIT_BYTES = 16
_MARKS = re.compile(f"[{_HASH}{_ID}]")
_VOCABULARY: Final = (
    b'"summary","summaries":["facts","snippets":["selected","steps","turns":[{"session_id":"system","source":"text",'
    b'"digest":"source":"summaries","tokens_before":"reported":{"input_tokens":,"output_tokens":,"cached_tokens":0}'
    b'"over_budget","over_limit","before_anchor","reset","summarised","duplicate","role","orphan_tool","archived",'
    b'"empty","folded","anchor":"cuts":[{"seq":"excluded":[{"first_seq":1,"last_seq":,"reason":"left_out":[{"id":'
    b'"last_id":"count":"conversation":{"key":"namespace":["meta_key_suffix":"__meta__","value_field":"content"'
    b'"version":"attempts":"max_tokens":"profile":"model":"exact","system":"steps":'
    b'{"error":null,"text":"tool","tool_calls":[{"name":"args":{"id":"tool_call_id":"artifact":null,"content":""'
    b'"additional_kwargs":{},"response_metadata":{"usage_metadata":"invalid_tool_calls":[],"type":"human","data":{'
    b'"cost":null}{"status":"failed","cancelled","waiting","interrupted","child_started","child_ended","trace_cut"'
    b'"budget":{"output":{"text":"confidence":"role","message_id":"escalated":false,"context":{"messages":0,"tokens":0,'
    b'"dropped":0}}'
    b'[1,0,"status",null,{"status":"running","try":1}],[1,0,"node_started","answer",{}],[1,0,"model_called",null,'
    b'{"model":"","input_tokens":0,"output_tokens":0,"cache_read_tokens":0,"cost":null}],[1,0,"agent_messages","answer",'
    b'{"messages":[{"type":"ai","data":{"type":"ai","id":"lc_run--\x02-0"}}]}],[1,0,"node_finished","answer",{}],'
    b'[1,0,"message",null,{"message_id":"lc_run--\x02-0"}],[1,0,"status",null,{"status":"done"}]]'
    b'"section":"input","tokens":10,"source":"transcript","seq":1,"id":true}'
    b'"section":["window","window","input"],"tokens":[10,26,93],"seq":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,'
    b'19,20,21]},"all":{"source":"transcript","id":true},"fields":["section","tokens","source","seq","id"],"count":1}]}'
    b'{"node":"answer","created_at":"2026-11-22T11:40:22.113078Z","counter":"estimate","budget":4000,'
    b'"max_messages":20,"tokens":2762,"prefix":{"messages":16,"tokens":2746,"digest":"\x01"},"digest":"\x01",'
    b'"sections":{"window":2746,"input":16},"packed":[{"each":{"section":["window","window","window","window"'
)


def _decompress_first_format(stored: bytes) -> str:
    begin = 2 + stored[1] * _UNIT_BYTES
    inflater = zlib.decompressobj(wbits=_RAW_DEFLATE, zdict=_VOCABULARY)
    short = inflater.decompress(stored[begin:])
    if not inflater.eof:
        raise ValueError
    names = io.BytesIO(stored[2:begin])

    def put_in(found: re.Match[str]) -> str:
        mark = found.group()
        name = names.read(_UNITS[mark] * _UNIT_BYTES)
        return name.hex() if mark == _HASH else str(UUID(bytes=name))

    return _MARKS.sub(put_in, short.decode())


def unpack_manifest(stored: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """Unpack a manifest that was stored before migration 25, and add the values in `columns`. A newer one is copied."""
    parts = stored.get("packed")
    if "entries" in stored or not isinstance(parts, list):
        return dict(stored)
    whole: dict[str, Json] = {**columns, **{name: value for name, value in stored.items() if name != "packed"}}
    return {**whole, "entries": [entry for part in parts for entry in _entries_of(part)]}


def _entries_of(part: Json) -> Iterable[Json]:
    if not isinstance(part, Mapping) or "each" not in part:
        yield part
        return
    each, alike, fields = part["each"], part["all"], part["fields"]
    if isinstance(each, Mapping) and isinstance(alike, Mapping) and isinstance(fields, list):
        for number in range(int(str(part["count"]))):
            yield {str(name): _value(each, alike, str(name), number) for name in fields}


def _value(each: Mapping[str, Json], alike: Mapping[str, Json], name: str, number: int) -> Json:
    values = each.get(name)
    return values[number] if isinstance(values, list) else alike[name]
