"""Splitting of answers into messages within a platform's limit."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator

type Size = Callable[[str], int]

# Paragraph, line, sentence, blank: the best cut first.
_CUTS = tuple(map(re.compile, (r"\n[ \t]*\n", r"\n", r"(?<=[.!?])[ \t]+|(?<=[。！？；])", r"\s+")))

_FENCE = re.compile(r"[ ]{0,3}(`{3,8}|~{3,8})([^`]*)")
_FENCE_ROOM = 100
"""Units reserved for the lines that close and reopen a code block."""


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units, in which Telegram counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8_length(text: str) -> int:
    """Return the number of bytes in UTF-8, in which WeCom counts."""
    return len(text.encode("utf-8", "surrogatepass"))


def split_text(text: str, limit: int, *, size: Size = len) -> tuple[str, ...]:
    """Split a text into parts of at most `limit`; no part is blank.

    A cut is at the last paragraph, line, sentence or blank in the second half of the part, in this order of
    preference, else between two characters. White space at a cut is dropped; everything else stays in order.
    """
    parts: list[str] = []
    rest = text.strip("\n")
    while size(rest) > limit:
        fits = _fitting(rest, limit, size)
        end, begin = _cut(rest, fits)
        parts.append(rest[:end].rstrip())
        rest = rest[begin:].lstrip("\n")
    return tuple(part for part in (*parts, rest.rstrip()) if part.strip())


def split_markdown(text: str, limit: int, *, size: Size = len) -> tuple[str, ...]:
    """Split as `split_text` does; a code block that is cut is closed and reopened."""
    if size(text) <= limit:
        return split_text(text, limit, size=size)
    parts = split_text(text, limit - _FENCE_ROOM, size=size)
    return tuple(_balanced(parts))


def _fitting(text: str, limit: int, size: Size) -> int:
    """Return the number of characters that fit, at least one."""
    # A character has at least one unit, so the result is among the first `limit` + 1 prefixes.
    ends = range(1, min(len(text), limit) + 1)
    return max(1, bisect_right(ends, limit, key=lambda end: size(text[:end])))


def _cut(text: str, fits: int) -> tuple[int, int]:
    """Return the end of a part and the start of the next one."""
    for pattern in _CUTS:
        found = [match.span() for match in pattern.finditer(text, max(1, fits // 2), fits + 1) if match.start() <= fits]
        if found:
            return found[-1]
    end = fits
    while end > max(1, fits - 16) and _joined(text, end):
        end -= 1
    return end, end


def _joined(text: str, place: int) -> bool:
    """Return True if the characters before and after a position are displayed as one."""
    after = text[place]
    return (
        unicodedata.combining(after) > 0
        or after in "\u200d\ufe0f"
        or text[place - 1] == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )


def _balanced(parts: tuple[str, ...]) -> Iterator[str]:
    opening = ""
    for part in parts:
        before = f"{opening}\n" if opening else ""
        opening = _open_fence(part, opening)
        after = f"\n{opening.strip()[: _marks(opening)]}" if opening else ""
        yield before + part + after


def _open_fence(part: str, opening: str) -> str:
    """Return the opening line of the code block that is open at the end of a part; empty if there is none."""
    for line in part.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        marks, info = fence[1], fence[2].strip()
        if not opening:
            opening = marks + info[:20]
        elif marks[0] == opening[0] and len(marks) >= _marks(opening) and not info:
            opening = ""
    return opening


def _marks(opening: str) -> int:
    """Return the number of fence marks at the beginning of a code block."""
    return len(opening) - len(opening.lstrip(opening[:1]))
