"""Compact form of JSON text: it is deflated with a vocabulary of common words; ids and hashes are stored as bytes.

The first byte is the number of the vocabulary, so that others can be added later. Plain JSON text can be read too.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, cast
from uuid import UUID

from threadkeep.errors import StoreError
from threadkeep.records import Json

_JSON_AS_IT_IS = frozenset(b'{["-0123456789tfn')
_RAW_DEFLATE = -15
# Records are short: with the larger tables that are deflate's default, clearing them would take longer than
# compressing.
_MEMORY_LEVEL = 5
_HEX = "[0-9a-f]"
# Marks in the place of extracted hashes (two units of 16 bytes) and ids (one unit). JSON text never contains these
# characters, because it escapes control characters.
_HASH, _ID = "\x01", "\x02"
_UNITS: Mapping[str, int] = {_HASH: 2, _ID: 1}
_UNIT_BYTES = 16
_MOST_UNITS = 255
_NAMES = re.compile(rf"\b(?:(?P<hash>{_HEX}{{64}})|{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})\b", re.ASCII)
_MARKS = re.compile(f"[{_HASH}{_ID}]")

# The vocabularies for deflate, with frequent words at the end. Never change one, because stored records need it. Add a
# better one under a new number, together with a migration (which may be empty): an older Threadkeep then refuses to
# open a database that it could not read.
_VOCABULARIES: Final[Mapping[int, bytes]] = {
    1: (
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
    ),
}
_NEWEST: Final = 1


def compact(text: str) -> bytes:
    """Return a JSON text in compact form, from which `expanded` restores exactly this text."""
    taken: list[bytes] = []
    room = _MOST_UNITS

    def take(found: re.Match[str]) -> str:
        nonlocal room
        mark = _HASH if found["hash"] else _ID
        if room < _UNITS[mark]:
            return found.group()
        room -= _UNITS[mark]
        taken.append(bytes.fromhex(found.group().replace("-", "")))
        return mark

    short = _NAMES.sub(take, text).encode()
    deflate = zlib.compressobj(wbits=_RAW_DEFLATE, memLevel=_MEMORY_LEVEL, zdict=_VOCABULARIES[_NEWEST])
    return b"".join([bytes([_NEWEST, _MOST_UNITS - room]), *taken, deflate.compress(short), deflate.flush()])


def expanded(stored: bytes) -> str:
    """Return the JSON text of a compact or plain value.

    Raises:
        StoreError: a newer Threadkeep wrote the value with an unknown vocabulary.
    """
    if stored[0] in _JSON_AS_IT_IS:
        return stored.decode()
    if (vocabulary := _VOCABULARIES.get(stored[0])) is None:
        raise StoreError(
            f"A newer Threadkeep wrote a record with vocabulary {stored[0]}; this one knows those up to {_NEWEST}: "
            "upgrade Threadkeep on this machine, and start its processes again."
        )
    begin = 2 + stored[1] * _UNIT_BYTES
    short = zlib.decompressobj(wbits=_RAW_DEFLATE, zdict=vocabulary).decompress(stored[begin:])
    names = io.BytesIO(stored[2:begin])

    def put_in(found: re.Match[str]) -> str:
        mark = found.group()
        name = names.read(_UNITS[mark] * _UNIT_BYTES)
        return name.hex() if mark == _HASH else str(UUID(bytes=name))

    return _MARKS.sub(put_in, short.decode())


_PACKED = "packed"
_AT_ITS_SEQ: Json = True
_EACH, _ALL, _FIELDS, _COUNT = "each", "all", "fields", "count"


def packed(manifest: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """Return a manifest in packed form, without the fields in `columns`; if that is impossible, return it unchanged."""
    entries = manifest.get("entries")
    if not isinstance(entries, list) or _PACKED in manifest or not columns.items() <= manifest.items():
        return dict(manifest)
    if [one for one in entries if not isinstance(one, dict) or _EACH in one]:
        return dict(manifest)
    mappings = cast("list[Mapping[str, Json]]", entries)
    short = {name: value for name, value in manifest.items() if name not in columns and name != "entries"}
    short[_PACKED] = [part for _, group in groupby(mappings, key=tuple) for part in _together(list(group))]
    return short


def unpacked(short: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """Return the manifest from its packed form; a manifest that is not packed is returned unchanged."""
    parts = short.get(_PACKED)
    if "entries" in short or not isinstance(parts, list):
        return dict(short)
    whole: dict[str, Json] = dict(columns)
    whole |= {name: value for name, value in short.items() if name != _PACKED}
    whole["entries"] = [one for part in parts for one in _apart(part)]
    return whole


def seqs_of_ids(manifest: Mapping[str, Json]) -> set[int]:
    """Return the `seq` values in a manifest's entries for transcript messages, even if their ids are omitted."""
    return {seq for entry in _entries(manifest) if (seq := _seq_of(entry)) is not None}


def without_ids(manifest: Mapping[str, Json], ids: Mapping[int, str] | None = None) -> dict[str, Json]:
    """Return a manifest without the ids of transcript messages; with `ids`, keep those that differ from `ids`."""

    def shorter(entry: Json) -> Json:
        seq = _seq_of(entry)
        if seq is None or not isinstance(entry, dict) or (ids is not None and ids.get(seq) != entry["id"]):
            return entry
        return {**entry, "id": _AT_ITS_SEQ}

    return _each_entry(manifest, shorter)


def with_ids(manifest: Mapping[str, Json], ids: Mapping[int, str]) -> dict[str, Json]:
    """Return the manifest with omitted ids restored from `ids`; ids of messages that no longer exist stay omitted."""

    def whole(entry: Json) -> Json:
        if not isinstance(entry, Mapping) or entry.get("id") is not _AT_ITS_SEQ:
            return entry
        known = ids.get(_seq_of(entry) or 0)
        return {name: value if name != "id" else known for name, value in entry.items() if name != "id" or known}

    return _each_entry(manifest, whole)


def _entries(manifest: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    entries = manifest.get("entries")
    return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []


def _each_entry(manifest: Mapping[str, Json], change: Callable[[Json], Json]) -> dict[str, Json]:
    entries = manifest.get("entries")
    if not isinstance(entries, list):
        return dict(manifest)
    return {name: value if name != "entries" else [change(one) for one in entries] for name, value in manifest.items()}


def _seq_of(entry: Json) -> int | None:
    if not isinstance(entry, dict) or entry.get("source") != "transcript":
        return None
    seq, known = entry.get("seq"), entry.get("id")
    return seq if type(seq) is int and (type(known) is str or known is _AT_ITS_SEQ) else None


def _together(group: Sequence[Mapping[str, Json]]) -> Iterable[Json]:
    if len(group) == 1:
        yield dict(group[0])
        return
    each: dict[str, Json] = {name: [one[name] for one in group] for name in group[0]}
    alike = {name: values[0] for name, values in each.items() if isinstance(values, list) and _same(values)}
    each = {name: values for name, values in each.items() if name not in alike}
    # Store the order of the fields too, so that unpacking restores exactly the same text.
    yield {_EACH: each, _ALL: alike, _FIELDS: list(group[0]), _COUNT: len(group)}


def _same(values: list[Json]) -> bool:
    """Return True if all values are the same scalar; 1 and True are equal in Python, but not in JSON."""
    first = values[0]
    return (
        values.count(first) == len(values) and len(set(map(type, values))) == 1 and not isinstance(first, list | dict)
    )


def _apart(part: Json) -> Iterable[Json]:
    if not isinstance(part, Mapping) or _EACH not in part:
        yield part
        return
    each, alike, fields = part[_EACH], part[_ALL], part[_FIELDS]
    if isinstance(each, Mapping) and isinstance(alike, Mapping) and isinstance(fields, list):
        for number in range(int(str(part[_COUNT]))):
            yield {str(name): _value(each, alike, str(name), number) for name in fields}


def _value(each: Mapping[str, Json], alike: Mapping[str, Json], name: str, number: int) -> Json:
    values = each.get(name)
    return values[number] if isinstance(values, list) else alike[name]
