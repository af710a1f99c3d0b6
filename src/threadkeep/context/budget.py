"""How many tokens a model takes, and how many of them a prompt may have."""

from __future__ import annotations

import math

from threadkeep.context.model_names import continues, names_of
from threadkeep.context.model_windows import DEFAULT_WINDOW, WINDOWS
from threadkeep.errors import BudgetTooSmall

SAFETY_TOKENS = 512
"""Kept free for what is counted nowhere: the provider's own framing of messages and tools."""

_MAX_RESERVE = 16_384


def context_window(model: str | None, override: object = None) -> int:
    """The context window of a model in tokens: input and reply together.

    A positive number as override wins; anything else there is no override. Otherwise the name, without its provider and
    in any case, is looked up: exactly, then by the longest name that it continues; unknown ones have 128,000.
    """
    if (given := _positive(override)) is not None:
        return given
    names = names_of(model)
    for name in names:
        if name in WINDOWS:
            return WINDOWS[name]
    for name in names:
        if known := [known for known in WINDOWS if continues(name, known)]:
            return WINDOWS[max(known, key=len)]
    return DEFAULT_WINDOW


def input_budget(model: str | None, max_output_tokens: int | None = None, context_window: int | None = None) -> int:
    """The tokens that a prompt may have: the window less the reserve for the reply and a safety margin of 512.

    The reserve is `max_output_tokens` if that is a positive number, else a quarter of the window, at most 16,384.

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
