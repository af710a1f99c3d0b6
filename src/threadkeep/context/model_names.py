"""The names under which a model may be known: with its provider, and without."""

from __future__ import annotations

import re

_VENDORS = re.compile(r"^(?:[a-z]+\.)+(?=[a-z])")  # us.anthropic.claude-…


def names_of(model: str | None) -> list[str]:
    """The name in lower case, and without what stands for a provider: `anthropic/…`, `openai:…`, `us.anthropic.…`."""
    whole = (model or "").strip().lower()
    bare = whole.rpartition("/")[2]
    names = [whole, bare, bare.partition(":")[2], _VENDORS.sub("", bare)]
    return [name for name in dict.fromkeys(names) if name]


def continues(name: str, known: str) -> bool:
    """Whether a name is a known one with more behind it: `gpt-4-0613` continues `gpt-4`, `gpt-4.1` does not."""
    if not name.startswith(known):
        return False
    rest = name[len(known) :]
    return not rest or not known[-1].isalnum() or not (rest[0].isalnum() or rest[0] == ".")
