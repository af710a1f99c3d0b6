"""Context windows of models, and the part of them that a prompt may use."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from importlib.resources import files

from threadkeep.errors import BudgetTooSmall

_VENDORS = re.compile(r"^(?:[a-z]+\.)+(?=[a-z])")  # us.anthropic.claude-…


def names_of(model: str | None) -> list[str]:
    """Return the lower-case name, and the name without its provider: `anthropic/…`, `openai:…`, `us.anthropic.…`."""
    whole = (model or "").strip().lower()
    bare = whole.rpartition("/")[2]
    names = [whole, bare, bare.partition(":")[2], _VENDORS.sub("", bare)]
    return [name for name in dict.fromkeys(names) if name]


def continues(name: str, known: str) -> bool:
    """Return True if a name continues a known one: `gpt-4-0613` continues `gpt-4`, `gpt-4.1` does not."""
    if not name.startswith(known):
        return False
    rest = name[len(known) :]
    return not rest or not known[-1].isalnum() or not (rest[0].isalnum() or rest[0] == ".")


DEFAULT_WINDOW = 128_000
"""For models that are not in the table."""

_BY_VENDOR: dict[str, dict[str, int]] = json.loads(
    files("threadkeep.context").joinpath("context_windows.json").read_text(encoding="utf-8")
)
WINDOWS = {name: tokens for models in _BY_VENDOR.values() for name, tokens in models.items()}
"""The windows in `context_windows.json`, by lower-case names.

A name also matches longer names that continue it after a separator (`gpt-4` matches `gpt-4-0613`, not `gpt-4.1`); a
name that ends with a separator matches every name that begins with it.
"""


SAFETY_TOKENS = 512
"""Reserved for tokens that are not counted: the provider's own framing of messages and tools."""

_MAX_RESERVE = 16_384


def context_window(model: str | None, override: object = None) -> int:
    """Return the context window of a model in tokens: input and output together.

    A positive override wins; other overrides are ignored. Otherwise the lower-case name without its provider is
    looked up: first exactly, then by the longest known name that it continues. Unknown models have 128,000.
    """
    return known_window(model, override) or DEFAULT_WINDOW


def known_window(model: str | None, override: object = None) -> int | None:
    """Return the context window of a model as `context_window` does; None for an unknown one."""
    return _positive(override) or _window_by_name(model)


@lru_cache(maxsize=256)
def _window_by_name(model: str | None) -> int | None:
    names = names_of(model)
    for name in names:
        if name in WINDOWS:
            return WINDOWS[name]
    for name in names:
        if known := [known for known in WINDOWS if continues(name, known)]:
            return WINDOWS[max(known, key=len)]
    return None


def input_budget(model: str | None, max_output_tokens: int | None = None, context_window: int | None = None) -> int:
    """Return the tokens that a prompt may use: the window less the output reserve and a safety margin of 512.

    The reserve is `max_output_tokens` if it is positive, else a quarter of the window, at most 16,384.

    Raises:
        BudgetTooSmall: nothing is left; the sentence names the three numbers.
    """
    window = _window_of(model, context_window)
    reserve = _positive(max_output_tokens) or min(_MAX_RESERVE, window // 4)
    budget = window - reserve - SAFETY_TOKENS
    if budget <= 0:
        raise BudgetTooSmall(
            f"A context window of {window} tokens, less {reserve} for the reply and {SAFETY_TOKENS} for safety, leaves "
            "no room for a prompt: lower max_output_tokens, or set the context window that the model really has."
        )
    return budget


_window_of = context_window


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value >= 1 else None
