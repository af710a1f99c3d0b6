"""Packing of manifests: without values that other columns have, and with similar entries as lists of fields.

Ids of messages that the transcript has under the `seq` of an entry are left out as well, and replaced by a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import cast

from threadkeep.records import Json

_PACKED = "packed"
_AT_ITS_PLACE: Json = True
_EACH, _ALL, _FIELDS, _COUNT = "each", "all", "fields", "count"


def packed(manifest: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """Return a manifest in packed form; `columns` are fields of its row. Other formats stay unchanged."""
    entries = manifest.get("entries")
    told = all(manifest.get(name) == value for name, value in columns.items())
    if not isinstance(entries, list) or _PACKED in manifest or not told:
        return dict(manifest)
    if any(not isinstance(one, Mapping) or _EACH in one for one in entries):
        return dict(manifest)
    mappings = cast("list[Mapping[str, Json]]", entries)
    short = {name: value for name, value in manifest.items() if name not in columns and name != "entries"}
    short[_PACKED] = [part for _, group in groupby(mappings, key=tuple) for part in _together(list(group))]
    return short


def unpacked(short: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """Return the manifest that was packed; an unpacked one is returned unchanged."""
    parts = short.get(_PACKED)
    if "entries" in short or not isinstance(parts, list):
        return dict(short)
    whole: dict[str, Json] = dict(columns)
    whole |= {name: value for name, value in short.items() if name != _PACKED}
    whole["entries"] = [one for part in parts for one in _apart(part)]
    return whole


def places_of_ids(manifest: Mapping[str, Json]) -> set[int]:
    """Return the `seq` values of transcript messages in a manifest, with their ids or without."""
    return {seq for entry in _entries(manifest) if (seq := _place(entry)) is not None}


def without_ids(manifest: Mapping[str, Json], ids: Mapping[int, str] | None = None) -> dict[str, Json]:
    """Return a manifest without the ids of messages that the transcript has under the same `seq`: all, or these."""

    def shorter(entry: Json) -> Json:
        place = _place(entry)
        if place is None or not isinstance(entry, Mapping) or (ids is not None and ids.get(place) != entry["id"]):
            return entry
        return {**entry, "id": _AT_ITS_PLACE}

    return _each_entry(manifest, shorter)


def with_ids(manifest: Mapping[str, Json], ids: Mapping[int, str]) -> dict[str, Json]:
    """Return the manifest with its omitted ids restored, for the messages that the transcript still has."""

    def whole(entry: Json) -> Json:
        if not isinstance(entry, Mapping) or entry.get("id") is not _AT_ITS_PLACE:
            return entry
        known = ids.get(_place(entry) or 0)
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


def _place(entry: Json) -> int | None:
    if not isinstance(entry, Mapping) or entry.get("source") != "transcript":
        return None
    seq, known = entry.get("seq"), entry.get("id")
    return seq if type(seq) is int and (type(known) is str or known is _AT_ITS_PLACE) else None


def _together(group: Sequence[Mapping[str, Json]]) -> Iterable[Json]:
    if len(group) == 1:
        yield dict(group[0])
        return
    each: dict[str, Json] = {name: [one[name] for one in group] for name in group[0]}
    alike = {name: values[0] for name, values in each.items() if isinstance(values, list) and _same(values)}
    each = {name: values for name, values in each.items() if name not in alike}
    # The fields keep the order of the entries, which their text shows.
    yield {_EACH: each, _ALL: alike, _FIELDS: list(group[0]), _COUNT: len(group)}


def _same(values: list[Json]) -> bool:
    """Return whether all values have the same JSON: 1 and True are equal in Python, but not in JSON."""
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
