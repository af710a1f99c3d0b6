"""Token counters, by their own name or a model's name; context windows; the input budget of a prompt."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import get_args

from threadkeep.context.estimates import (
    FAMILIES,
    Encoding,
    ExactCounter,
    Family,
    FamilyEstimate,
    TokenCounter,
    chars4,
    estimate,
    estimate_cl100k,
    exact_counter,
    installed_counter,
    other_scripts,
)
from threadkeep.errors import BudgetTooSmall, InvalidInput

_VENDORS = re.compile(r"^(?:[a-z]+\.)+(?=[a-z])")  # us.anthropic.claude-…


def names_of(model: str | None) -> list[str]:
    """Return a model's lower-case names, with and without the provider's prefix (`anthropic/`, `us.anthropic.`)."""
    whole = (model or "").strip().lower()
    bare = whole.rpartition("/")[2]
    names = [whole, bare, bare.partition(":")[2], _VENDORS.sub("", bare)]
    return [name for name in dict.fromkeys(names) if name]


def continues(name: str, known: str) -> bool:
    """Return True if a name continues `known`: `gpt-4-0613` continues `gpt-4`, but `gpt-4.1` does not."""
    if not name.startswith(known):
        return False
    rest = name[len(known) :]
    return not rest or not known[-1].isalnum() or not (rest[0].isalnum() or rest[0] == ".")


DEFAULT_WINDOW = 128_000
"""The context window, in tokens, of models that are not in `WINDOWS`."""

_BY_VENDOR: dict[str, dict[str, int]] = json.loads(
    files("threadkeep.context").joinpath("context_windows.json").read_text(encoding="utf-8")
)
WINDOWS = {name: tokens for models in _BY_VENDOR.values() for name, tokens in models.items()}
"""The context windows in `context_windows.json`, in tokens, by the lower-case names of models.

A name in the table also matches longer names that continue it after a separator (`gpt-4` matches `gpt-4-0613`, but not
`gpt-4.1`). A name that ends with a separator matches every name that begins with it.
"""


SAFETY_TOKENS = 512
"""Tokens reserved for what a provider adds around messages and tools, which no counter counts."""

_MAX_RESERVE = 16_384


def context_window(model: str | None, override: object = None) -> int:
    """Return the context window of a model in tokens, input and output together.

    A positive `override` takes precedence. The default for unknown models is 128,000.
    """
    return known_window(model, override) or DEFAULT_WINDOW


def known_window(model: str | None, override: object = None) -> int | None:
    """Return the context window like `context_window`, but None instead of the default for unknown models."""
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
    """Return the number of tokens that a prompt may use: the context window less the output and 512 for safety.

    Without `max_output_tokens`, a quarter of the window, at most 16,384 tokens, is reserved for the output.

    Raises:
        BudgetTooSmall: nothing is left; the error shows the three numbers.
    """
    window = known_window(model, context_window) or DEFAULT_WINDOW
    reserve = _positive(max_output_tokens) or min(_MAX_RESERVE, window // 4)
    budget = window - reserve - SAFETY_TOKENS
    if budget <= 0:
        raise BudgetTooSmall(
            f"A context window of {window} tokens, less {reserve} for the reply and {SAFETY_TOKENS} for safety, leaves "
            "no room for a prompt: lower max_output_tokens, or set the real context window of the model."
        )
    return budget


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value >= 1 else None


LEAST_FACTOR, GREATEST_FACTOR = 0.5, 3.0
"""The bounds of the factor by which a model's estimates are multiplied, as learned from the provider's counts."""

GREATEST_OF_OTHER = 8.0
"""The upper bound of the factor for scripts other than Latin. Only models of an unknown family have this factor."""

MIN_TOKENS = 200
"""The fewest tokens of a prompt from which a factor is learned: a provider's own tokens distort smaller prompts."""

_LONGEST_STEP = 0.15  # one report changes the logarithm of the factor by this at most, so the factor by 16 %
_LEAST_WEIGHT = 0.1  # the least weight of a new report, so that about the last twenty reports count
_LONGEST_STEP_OF_SCRIPTS = 0.3  # the right factors may be far from 1
_WEIGHT_OF_SCRIPTS = 0.5  # a new report always has this weight, because the shares of scripts differ between reports


@dataclass(frozen=True, slots=True)
class TokenFactor:
    """The factor by which a model's token estimates are multiplied, as learned from the provider's counts.

    A model of an unknown family has a second factor, `other`, for scripts other than Latin. Then `value` applies to
    Latin letters, digits, punctuation and code.
    """

    model: str
    value: float = 1.0
    samples: int = 0
    other: float | None = None

    @property
    def label(self) -> str:
        """The factor as the end of a counter's name: `×1.12`, or `×1.05, other scripts ×3.74`."""
        return _label(*_hundredths(self))

    @property
    def is_at_limit(self) -> bool:
        """True if `value` or `other` has reached its upper or lower bound."""
        within = LEAST_FACTOR < self.value < GREATEST_FACTOR
        return not (within and (self.other is None or LEAST_FACTOR < self.other < GREATEST_OF_OTHER))

    def learn(self, estimated: int, reported: int, other: int = 0) -> TokenFactor:
        """Return the factor after one more model call.

        Calls below `MIN_TOKENS` change nothing. The first reports weigh most. Steps are bounded: an outlier has little
        effect, but many consistent reports move the factor to the ratio of reported to estimated tokens.

        Args:
            estimated: the tokens of the whole request including tools, as the counter without a factor estimates them.
            reported: the input tokens that the provider reported, including cached tokens.
            other: the part of `estimated` that is in scripts other than Latin.
        """
        if estimated < MIN_TOKENS or reported < MIN_TOKENS:
            return self
        if self.other is not None:
            return self._learn_scripts((self.value, self.other), (max(estimated - other, 0), other), reported)
        here = math.log(_bounded(self.value))
        change = math.log(_bounded(reported / estimated))
        weight = max(_LEAST_WEIGHT, 2 / (self.samples + 2))
        step = max(-_LONGEST_STEP, min(_LONGEST_STEP, weight * (change - here)))
        return replace(self, value=_bounded(math.exp(here + step)), samples=self.samples + 1)

    def _learn_scripts(self, values: tuple[float, float], estimated: tuple[int, int], reported: int) -> TokenFactor:
        """Adapt both factors to one report. They move on a logarithmic scale (normalised least mean squares)."""
        bounds = (GREATEST_FACTOR, GREATEST_OF_OTHER)
        factors = [_bounded(value, bound) for value, bound in zip(values, bounds, strict=True)]
        parts = [tokens * value for tokens, value in zip(estimated, factors, strict=True)]
        error = _WEIGHT_OF_SCRIPTS * math.log(reported / sum(parts))
        step = max(-_LONGEST_STEP_OF_SCRIPTS, min(_LONGEST_STEP_OF_SCRIPTS, error))
        moves = [step * part * sum(parts) / math.sumprod(parts, parts) for part in parts]
        latin, other = (
            _bounded(value * math.exp(move), bound) for value, move, bound in zip(factors, moves, bounds, strict=True)
        )
        return replace(self, value=latin, other=other, samples=self.samples + 1)


@dataclass(frozen=True, slots=True)
class ScaledCounter:
    """A counter that multiplies a token estimate by a factor in hundredths, and rounds the result up.

    `other_hundredths` is the factor for other scripts than Latin, and `share` returns their share of a text's tokens in
    thousandths.
    """

    counter: TokenCounter
    base: str
    hundredths: int
    other_hundredths: int | None = None
    share: TokenCounter = other_scripts

    @property
    def name(self) -> str:
        """The counter's name and factor, such as `estimate×1.12`."""
        return self.base + _label(self.hundredths, self.other_hundredths)

    def __call__(self, text: str, /) -> int:
        tokens = self.counter(text)
        if self.other_hundredths is None or text.isascii():
            return -(-tokens * self.hundredths // 100)
        share = self.share(text)
        return -(-tokens * (self.hundredths * (1_000 - share) + self.other_hundredths * share) // 100_000)


def scaled(counter: TokenCounter, factor: TokenFactor) -> TokenCounter:
    """Return a counter that multiplies each count by the factor, and rounds the result up.

    An exact counter is returned unchanged. Its counts lack only the tokens that the provider adds around messages.
    """
    if isinstance(counter, ExactCounter):
        return counter
    unscaled, base = (counter.counter, counter.base) if isinstance(counter, ScaledCounter) else (counter, None)
    hundredths, other = _hundredths(factor)
    if hundredths == 100 and other in (None, 100):
        return unscaled
    return ScaledCounter(unscaled, base or plain_name(unscaled), hundredths, other)


def other_tokens(counter: TokenCounter) -> TokenCounter:
    """Return a counter of the tokens in scripts other than Latin."""
    return ScaledCounter(counter, plain_name(counter), 0, 100)


def _hundredths(factor: TokenFactor) -> tuple[int, int | None]:
    other = None if factor.other is None else round(100 * _bounded(factor.other, GREATEST_OF_OTHER))
    return round(100 * _bounded(factor.value)), other


def _label(hundredths: int, other: int | None) -> str:
    label = f"×{hundredths / 100:.2f}"
    return label if other is None else f"{label}, other scripts ×{other / 100:.2f}"


def plain_name(counter: TokenCounter) -> str:
    """Return the counter's own name; for a counter without a name, the name of its type."""
    for attribute in ("name", "__name__"):
        name = getattr(counter, attribute, None)
        if isinstance(name, str) and name:
            return name
    return type(counter).__name__


def _bounded(value: float, greatest: float = GREATEST_FACTOR) -> float:
    return min(greatest, max(LEAST_FACTOR, value)) if math.isfinite(value) else 1.0


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

FAMILY_ESTIMATES: dict[Family, TokenCounter] = {
    **{family: FamilyEstimate(family) for family in FAMILIES},
    "o200k": estimate,
    "cl100k": estimate_cl100k,
}
"""The counter that estimates the tokens of each tokenizer family."""
_ESTIMATES: dict[str, TokenCounter] = {
    **{plain_name(counter): counter for counter in FAMILY_ESTIMATES.values()},
    "chars4": chars4,
}
_ENCODINGS: dict[str, Encoding] = {encoding: encoding for encoding in get_args(Encoding.__value__)}
_SCALED = re.compile(r"(?P<base>[a-z0-9_]+)×(?P<factor>\d\.\d\d)(?:, other scripts ×(?P<other>\d\.\d\d))?")
_BY_FAMILY: dict[Family, str] = {
    "o200k": "chatgpt-4o codex-mini gpt-4o gpt-4.1 gpt-4.5 gpt-5 gpt-5. gpt-oss o1 o3 o4",
    "cl100k": "gpt-3.5 gpt-35 gpt-4 text-embedding-3 text-embedding-ada-002",
    "claude2": "claude-1 claude-1. claude-2 claude-2. claude-v1 claude-v2 claude-instant",
    "claude3": "claude-3 claude-3. claude-4 claude-4. claude-opus-4 claude-opus-4. claude-sonnet-4 claude-sonnet-4. "
    "claude-haiku-4 claude-haiku-4.",
    "claude47": "claude-",
    "llama2": "llama-2 llama2 codellama",
    "llama3": "llama-3 llama-3. llama3 llama3. meta-llama-3 meta-llama-3. deepseek-r1-distill-llama",
    "gemma3": "gemini- gemma-3 gemma3 gemma-4 gemma4",
    "qwen3": "qwen- qwen2 qwen2. qwen3 qwen3. deepseek-r1-distill-qwen",
    "deepseek": "deepseek-v3 deepseek-v3. deepseek-r1 deepseek-chat deepseek-reasoner",
}
# Match Claude 4.7 and later. A longer number is a release date: claude-opus-4-20250514 is Claude 4.
_LATE_CLAUDE_4 = re.compile(r"claude-(?:[a-z]+-)?4[-.](?:[7-9]|[1-9]\d)(?!\d)")
_FAMILIES: dict[str, Family] = {name: family for family, names in _BY_FAMILY.items() for name in names.split()}


def counter_named(name: str) -> TokenCounter:
    """Return a counter by its name: `o200k` and `cl100k` (exact), `chars4`, or an estimate.

    The name of a scaled estimate ends with the factor: `estimate×1.12`.

    Raises:
        InvalidInput: the name is unknown, or its extra is not installed.
    """
    if name in _ESTIMATES:
        return _ESTIMATES[name]
    if name in _ENCODINGS:
        return exact_counter(_ENCODINGS[name])
    if (found := _SCALED.fullmatch(name)) and (base := _ESTIMATES.get(found["base"])):
        other = float(found["other"]) if found["other"] else None
        counter = scaled(base, TokenFactor("", float(found["factor"]), other=other))
        if name_of(counter) == name:
            return counter
    known = ", ".join(sorted({*_ESTIMATES, *_ENCODINGS}))
    raise InvalidInput(f"There is no token counter {name!r}; choose one of {known}.")


def counter_for(model: str | None, *, factor: TokenFactor | None = None) -> TokenCounter:
    """Return the best counter for a model: exact for OpenAI's with the extra `tokens`, else an estimate.

    Args:
        model: the model's name, with or without its provider; None and unknown names get the estimate for OpenAI's
            current models.
        factor: the learned correction of the estimate for this model; exact counters ignore it.
    """
    encoding = encoding_of(model)
    if encoding is not None and (exact := installed_counter(encoding)) is not None:
        return exact
    counter = FAMILY_ESTIMATES[family_of(model) or "o200k"]
    return counter if factor is None else scaled(counter, factor)


def encoding_of(model: str | None) -> Encoding | None:
    """Return the encoding of an OpenAI model; None for models of other providers."""
    return _ENCODINGS.get(family_of(model) or "")


@lru_cache(maxsize=256)
def family_of(model: str | None) -> Family | None:
    """Return the tokenizer family of a model; None if the model is unknown."""
    for name in names_of(model):
        if _LATE_CLAUDE_4.match(name):
            return "claude47"
        if known := [known for known in _FAMILIES if continues(name.removeprefix("ft:"), known)]:
            return _FAMILIES[max(known, key=len)]
    return None


def name_of(counter: TokenCounter) -> str:
    """Return a counter's name. For the built-in counters, it is a name that `counter_named` accepts."""
    if isinstance(counter, ScaledCounter | RememberingCounter):
        return counter.name
    known = [name for name, estimating in _ESTIMATES.items() if counter is estimating]
    return known[0] if known else plain_name(counter)


_MOST = 16_384


class RememberingCounter:
    """A counter that caches recent counts by hash and length of the text; it stores no text."""

    def __init__(self, counter: TokenCounter, *, most: int = _MOST) -> None:
        self.counter = counter
        self.name = plain_name(counter)
        self._most = most
        self._counts: dict[tuple[int, int], int] = {}

    def __call__(self, text: str, /) -> int:
        key = (hash(text), len(text))
        if (known := self._counts.get(key)) is not None:
            return known
        if len(self._counts) >= self._most:
            self._counts.clear()
        self._counts[key] = tokens = self.counter(text)
        return tokens


class RememberedCounts:
    """A memory's token counters, each with a cache of its own. Exact counters are fast and get no cache."""

    def __init__(self) -> None:
        self._counters: dict[TokenCounter, RememberingCounter] = {}

    def remembering(self, counter: TokenCounter) -> TokenCounter:
        """Return the counter with a cache; an exact counter is returned unchanged."""
        if isinstance(counter, ExactCounter | RememberingCounter):
            return counter
        if isinstance(counter, ScaledCounter):
            return replace(counter, counter=self.remembering(counter.counter), share=self.remembering(counter.share))
        if counter not in self._counters:
            self._counters[counter] = RememberingCounter(counter)
        return self._counters[counter]


def plain_counter(counter: TokenCounter) -> TokenCounter:
    """Return the counter without its cache, and without the factor that was learned for a model."""
    while isinstance(counter, ScaledCounter | RememberingCounter):
        counter = counter.counter
    return counter
