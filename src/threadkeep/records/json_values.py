"""JSON values in records. They are validated, normalised, and written in one form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from threadkeep.errors import InvalidMessage

type Json = None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]

# The most frequent types. Checking for them first is faster than checking for a mapping.
_WITHOUT_KEYS = frozenset({type(None), bool, int, float, str})
_TEXT = frozenset({str})
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
DESCRIBED = {"use_attribute_docstrings": True, "json_schema_serialization_defaults_required": True}
"""A `__pydantic_config__` that puts the docstrings of fields into the JSON schemas of responses."""

_NO_JSON = "Values of metadata, inputs and originals must be JSON: text keys, finite numbers, no bytes, not too deep."


def dump_json(value: Any) -> str:
    """Return the compact JSON text of a value, as it is stored.

    Raises:
        InvalidMessage: the value contains something that JSON cannot express (NaN, bytes, keys that are not text).
    """
    try:
        if type(value) not in _WITHOUT_KEYS:
            _check_keys(value)
        return ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        # Suppress the cause, because the original error may quote the value.
        raise InvalidMessage(_NO_JSON) from None


def is_whole(value: object, least: int, most: int = 2**53 - 1) -> TypeGuard[int]:
    """Return True for a whole number from `least` to `most`; True and False are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_finite(value: object) -> TypeGuard[float]:
    """Return True for a number that a float can express; True and False are not numbers."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that is too large for a float
        return False


def example(**values: Any) -> dict[str, Any]:
    """Return the part of a JSON schema that shows an example of an object with these values."""
    return {"examples": [values]}


def as_json(value: Any) -> Json:
    """Return a copy of a value with only the types that a JSON parser returns.

    Raises:
        InvalidMessage: the value contains something that JSON cannot express.
    """
    try:
        return _copied(value)
    except RecursionError:
        raise InvalidMessage(_NO_JSON) from None


def _copied(value: Any) -> Json:
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _copied(inner) for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    raise InvalidMessage(_NO_JSON)


def _check_keys(value: Any) -> None:
    if type(value) is dict or isinstance(value, Mapping):
        # Check all keys at once: a loop would take longer than the encoding.
        if not _TEXT.issuperset(map(type, value)):
            for key in value:
                if not isinstance(key, str):
                    raise InvalidMessage(f"JSON keys must be text, not {type(key).__name__}.")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for inner in value:
        if type(inner) not in _WITHOUT_KEYS:
            _check_keys(inner)
