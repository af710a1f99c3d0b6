"""Context windows of models, and the part of them that a prompt may use."""

from __future__ import annotations

import math
import re
from functools import lru_cache

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

WINDOWS: dict[str, int] = {
    # OpenAI
    "gpt-3.5-turbo": 16_385,
    "gpt-3.5-turbo-instruct": 4_096,
    "gpt-35-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-4-0125-preview": 128_000,
    "gpt-4-1106": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4-vision": 128_000,
    "gpt-4o": 128_000,
    "chatgpt-4o-latest": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.5-preview": 128_000,
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-5.1": 400_000,
    "gpt-5.1-chat": 128_000,
    "gpt-5.2": 400_000,
    "gpt-5.2-chat": 128_000,
    "gpt-5.3": 400_000,
    "gpt-5.3-chat": 128_000,
    "gpt-5.3-codex-spark": 128_000,
    "gpt-5.4": 1_050_000,
    "gpt-5.4-mini": 400_000,
    "gpt-5.4-nano": 400_000,
    "gpt-5.5": 1_050_000,
    "gpt-5.6": 1_050_000,
    "gpt-6": 1_050_000,
    "gpt-6.1": 1_050_000,
    "gpt-oss": 131_072,
    "gpt-realtime": 128_000,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    # Anthropic
    "claude-": 200_000,
    "claude-instant": 100_000,
    "claude-2.0": 100_000,
    "claude-opus-4-6": 1_000_000,
    "claude-opus-4-7": 1_000_000,
    "claude-opus-4-8": 1_000_000,
    "claude-opus-5": 1_000_000,
    "claude-sonnet-4-6": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "claude-haiku-5": 1_000_000,
    "claude-fable-5": 1_000_000,
    # Google
    "gemini-1.0-pro": 32_760,
    "gemini-1.5-flash": 1_048_576,
    "gemini-1.5-pro": 2_097_152,
    "gemini-2.0-flash": 1_048_576,
    "gemini-2.5": 1_048_576,
    "gemini-3": 1_048_576,
    "gemini-3.": 1_048_576,
    "gemini-4": 1_048_576,
    "gemini-flash": 1_048_576,
    "gemma2": 8_192,
    "gemma-2": 8_192,
    "gemma3": 131_072,
    "gemma-3": 131_072,
    "gemma-3-1b": 32_768,
    "gemma3:1b": 32_768,
    "gemma-4": 262_144,
    # Mistral
    "open-mistral-7b": 32_768,
    "mistral-7b": 32_768,
    "open-mixtral-8x7b": 32_768,
    "mixtral": 32_768,
    "open-mixtral-8x22b": 65_536,
    "mistral-nemo": 131_072,
    "mistral-saba": 32_768,
    "mistral-small": 131_072,
    "mistral-small-latest": 256_000,
    "mistral-small-2603": 256_000,
    "mistral-medium": 131_072,
    "mistral-medium-2508": 262_144,
    "mistral-medium-2604": 262_144,
    "mistral-medium-latest": 262_144,
    "mistral-large": 131_072,
    "mistral-large-2512": 262_144,
    "mistral-large-latest": 262_144,
    "magistral": 128_000,
    "ministral": 128_000,
    "pixtral": 128_000,
    "codestral": 256_000,
    "devstral": 128_000,
    "devstral-2512": 262_144,
    "devstral-latest": 262_144,
    # Meta
    "llama2": 4_096,
    "llama-2": 4_096,
    "llama3": 8_192,
    "llama-3": 8_192,
    "llama3-70b-8192": 8_192,
    "llama3-8b-8192": 8_192,
    "llama3.1": 131_072,
    "llama3.2": 131_072,
    "llama3.3": 131_072,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "meta-llama-3.1": 131_072,
    "meta-llama-3": 8_192,
    "llama-4-scout": 131_072,
    "llama-4-maverick": 131_072,
    # Qwen
    "qwen2": 32_768,
    "qwen2.5": 32_768,
    "qwen-2.5": 32_768,
    "qwen3": 131_072,
    "qwen3:": 40_960,
    "qwen3.5-plus": 1_000_000,
    "qwen3.6-plus": 1_000_000,
    "qwen-long": 1_000_000,
    "qwen-max": 32_768,
    "qwen-plus": 131_072,
    "qwen-turbo": 131_072,
    "qwq": 131_072,
    # DeepSeek
    "deepseek-chat": 128_000,
    "deepseek-reasoner": 128_000,
    "deepseek-r1": 128_000,
    "deepseek-v3": 128_000,
    "deepseek-v4": 1_000_000,
    "deepseek-flash": 1_000_000,
    # others
    "command-a": 256_000,
    "command-r": 128_000,
    "grok-2": 131_072,
    "grok-3": 131_072,
    "grok-4": 256_000,
    "grok-4.20": 1_000_000,
    "grok-4.3": 1_000_000,
    "grok-4.5": 500_000,
    "kimi-k2": 131_072,
    "kimi-k2-instruct-0905": 262_144,
    "phi3": 131_072,
    "phi-3": 4_096,
    "phi4": 16_384,
    "phi-4": 16_384,
}
"""Lower-case names. A name also matches longer names that continue it after a separator (`gpt-4` matches `gpt-4-0613`,
not `gpt-4.1`); a name that ends with a separator matches every name that begins with it.
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
