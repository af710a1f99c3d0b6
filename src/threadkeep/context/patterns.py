"""Patterns of characters with what they cost in tokens."""

from __future__ import annotations

from dataclasses import dataclass

type Pattern = tuple[str | bytes, float, float]
"""Characters or kinds of them, and the tokens per occurrence in the tokenizers `o200k` and `cl100k`."""


@dataclass(frozen=True, slots=True)
class Script:
    """The patterns of texts that have this script: of kinds, of characters, and of where capitals stand.

    The first of its kinds is that of its characters.
    """

    kinds: tuple[Pattern, ...]
    text: tuple[Pattern, ...] = ()
    capitals: tuple[Pattern, ...] = ()


def as_bytes(pattern: Pattern) -> bytes:
    """The bytes that are looked for."""
    return pattern[0] if isinstance(pattern[0], bytes) else pattern[0].encode()
