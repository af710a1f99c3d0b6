"""Token counters by the name of a counter, and by the name of a model."""

from __future__ import annotations

import re
from typing import get_args

from threadkeep.context.calibration import ScaledCounter, TokenFactor, plain_name, scaled
from threadkeep.context.estimates import TokenCounter, chars4, estimate, estimate_cl100k
from threadkeep.context.exact_tokens import Encoding, exact_counter, installed_counter
from threadkeep.context.model_names import continues, names_of
from threadkeep.errors import InvalidInput

__all__ = [
    "TokenCounter",
    "chars4",
    "counter_for",
    "counter_named",
    "encoding_of",
    "estimate",
    "estimate_cl100k",
    "name_of",
]

_ESTIMATES: dict[str, TokenCounter] = {"estimate": estimate, "estimate_cl100k": estimate_cl100k, "chars4": chars4}
_ENCODINGS: dict[str, Encoding] = {encoding: encoding for encoding in get_args(Encoding.__value__)}
_SCALED = re.compile(r"(?P<base>[a-z0-9_]+)×(?P<factor>[0-3]\.\d\d)")
_FAMILIES: dict[str, Encoding] = {
    "chatgpt-4o": "o200k",
    "codex-mini": "o200k",
    "gpt-3.5": "cl100k",
    "gpt-35": "cl100k",
    "gpt-4": "cl100k",
    "gpt-4o": "o200k",
    "gpt-4.1": "o200k",
    "gpt-4.5": "o200k",
    "gpt-5": "o200k",
    "gpt-5.": "o200k",
    "gpt-oss": "o200k",
    "o1": "o200k",
    "o3": "o200k",
    "o4": "o200k",
    "text-embedding-3": "cl100k",
    "text-embedding-ada-002": "cl100k",
}
_FAMILY_ESTIMATES: dict[Encoding, TokenCounter] = {"o200k": estimate, "cl100k": estimate_cl100k}


def counter_named(name: str) -> TokenCounter:
    """The counter of a name: `estimate`, `estimate_cl100k`, `chars4`, `o200k`, `cl100k`, or an estimate and its factor.

    `o200k` and `cl100k` are exact. With a factor is written as `name_of` gives it: `estimate×1.12`.

    Raises:
        InvalidInput: there is no such counter, or the extra that it needs is not installed.
    """
    if name in _ESTIMATES:
        return _ESTIMATES[name]
    if name in _ENCODINGS:
        return exact_counter(_ENCODINGS[name])
    if (found := _SCALED.fullmatch(name)) and (base := _ESTIMATES.get(found["base"])):
        counter = scaled(base, TokenFactor("", float(found["factor"])))
        if name_of(counter) == name:
            return counter
    known = ", ".join(sorted({*_ESTIMATES, *_ENCODINGS}))
    raise InvalidInput(f"There is no token counter {name!r}; choose one of {known}.")


def counter_for(model: str | None, *, factor: TokenFactor | None = None) -> TokenCounter:
    """The best counter there is for a model: exact for OpenAI's with the extra `tokens`, else an estimate.

    Args:
        model: its name, with or without its provider; None and unknown ones have the estimate for current models.
        factor: what was learned of the estimate for this model; exact counters take no notice of it.
    """
    encoding = encoding_of(model)
    if encoding is not None and (exact := installed_counter(encoding)) is not None:
        return exact
    counter = _FAMILY_ESTIMATES[encoding or "o200k"]
    return counter if factor is None else scaled(counter, factor)


def encoding_of(model: str | None) -> Encoding | None:
    """The encoding of a model of OpenAI's; None for others."""
    for name in names_of(model):
        if known := [known for known in _FAMILIES if continues(name.removeprefix("ft:"), known)]:
            return _FAMILIES[max(known, key=len)]
    return None


def name_of(counter: TokenCounter) -> str:
    """The counter's name, for manifests: that of `counter_named`, or the function's own."""
    if isinstance(counter, ScaledCounter):
        return counter.name
    return next((name for name, known in _ESTIMATES.items() if counter is known), plain_name(counter))
