"""How many tokens a text has: counters that need no network, and their names."""

from __future__ import annotations

from typing import Protocol

from threadkeep.errors import InvalidInput


class TokenCounter(Protocol):
    """Measures a text; any function from text to a whole number is one.

    Its laws: deterministic, 0 for an empty text, never negative. It need not grow with the text, nor be additive.
    """

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        ...


def chars4(text: str) -> int:
    """Four characters a token: the rule of thumb for English, far too low for Chinese (`len(text) // 4`)."""
    return len(text) // 4


def estimate(text: str) -> int:
    """A preliminary estimate: see the calibrated one that replaces it."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


_COUNTERS: dict[str, TokenCounter] = {"estimate": estimate, "chars4": chars4}


def counter_named(name: str) -> TokenCounter:
    """The counter of this name.

    Raises:
        InvalidInput: there is no such counter; the sentence lists those there are.
    """
    if name not in _COUNTERS:
        raise InvalidInput(f"There is no token counter {name!r}; choose one of {', '.join(sorted(_COUNTERS))}.")
    return _COUNTERS[name]


def name_of(counter: TokenCounter) -> str:
    """The counter's name, for manifests: that of `counter_named`, or the function's own."""
    for name, known in _COUNTERS.items():
        if counter is known:
            return name
    name = getattr(counter, "__name__", "")
    return name if isinstance(name, str) and name else type(counter).__name__
