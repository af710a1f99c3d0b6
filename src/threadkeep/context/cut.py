"""Functions that shorten a text to a token budget and mark the cut."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial
from itertools import count

from threadkeep.context.tokens import TokenCounter

CUT_MARK = "… [cut]"
"""The mark at the end of a shortened text, in place of the removed part."""

_MAX_CLUSTER = 32
_LONGEST_TOKEN = 16
_SLACK = 1 / 16
_ZERO_WIDTH_JOINER = "\u200d"
_CONTINUES = frozenset("\u200d\ufe0e\ufe0f") | {chr(tone) for tone in range(0x1F3FB, 0x1F400)}


def middle_mark(characters: int) -> str:
    """Return the mark that replaces `characters` characters in the middle of a text."""
    return f"… [cut {characters} characters] …"


def cut_end(text: str, budget: int, counter: TokenCounter) -> str:
    """Replace the end of a text by `CUT_MARK`, so that the result has at most `budget` tokens; "" if nothing fits.

    A text that fits is returned unchanged. Each attempt is counted, because a shorter text may have more tokens.
    """
    return _cut(text, budget, counter, lambda kept: text[: _boundary(text, kept)] + CUT_MARK)


def cut_middle(text: str, budget: int, counter: TokenCounter) -> str:
    """Replace the middle of a text by a mark, so that the result has at most `budget` tokens; "" if nothing fits."""
    return _cut(text, budget, counter, partial(keep_ends, text))


def keep_ends(text: str, kept: int) -> str:
    """Return the beginning and the end of the text, about `kept` characters, with `middle_mark` between them."""
    start = _boundary(text, kept - kept // 2)
    end = len(text) - kept // 2
    while end < len(text) and _boundary(text, end) != end:
        end += 1
    return text[:start] + middle_mark(end - start) + text[end:]


def pieces(text: str, budget: int, counter: TokenCounter) -> list[str]:
    """Split a text into pieces of at most `budget` tokens. Joined again, they equal the text.

    A piece ends at white space if possible, and not between a character and its combining marks, unless there are too
    many marks. A piece of one character may exceed the budget. Long pieces may be shorter than allowed, because an
    exact search would take longer.
    """
    found: list[str] = []
    start = 0
    reach = max(_LONGEST_TOKEN * budget, 2 * _MAX_CLUSTER)
    while start < len(text):
        # Count only the part that may fit: counting the rest of a huge text for each piece would take long.
        ahead = text[start : start + reach]
        kept = _cut(ahead, budget, counter, partial(_beginning, ahead), slack=_SLACK)
        if len(kept) == reach:
            reach *= 2
            continue
        if start + len(kept) < len(text):
            kept = _to_white_space(kept) or ahead[: next(end for end in count(1) if _boundary(ahead, end) == end)]
        found.append(kept)
        start += len(kept)
        reach = 2 * max(len(kept), _MAX_CLUSTER)
    return found


def _beginning(text: str, end: int) -> str:
    return text[: _boundary(text, end)]


def _to_white_space(text: str) -> str:
    """Return the text up to its last white space, unless that would drop a third of it."""
    end = next((end for end in range(len(text), len(text) * 2 // 3, -1) if text[end - 1].isspace()), len(text))
    return text[:end]


def _cut(text: str, budget: int, counter: TokenCounter, shortened: Callable[[int], str], *, slack: float = 0.0) -> str:
    total = counter(text)
    if total <= budget:
        return text
    best = shortened(0)
    if counter(best) > budget:
        return ""
    low, high = 0, _first_miss(len(text), budget, total, lambda kept: counter(shortened(kept)) <= budget)
    while high - low > max(1, slack * low):
        middle = (low + high) // 2
        candidate = shortened(middle)
        if counter(candidate) <= budget:
            low, best = middle, candidate
        else:
            high = middle
    return best


def _first_miss(length: int, budget: int, total: int, fits: Callable[[int], bool]) -> int:
    """Return the upper limit for `_cut`'s binary search: a length that does not fit, or the whole length."""
    high = max(64, 2 * length * max(budget, 1) // max(total, 1))
    while high < length and fits(high):
        high *= 2
    return min(high, length)


def _boundary(text: str, end: int) -> int:
    """Return the nearest position, at or before `end`, that separates no character from its combining marks."""
    for index in range(end, max(end - _MAX_CLUSTER, 0), -1):
        if index >= len(text) or not _belongs(text[index - 1], text[index]):
            return index
    return end if end > _MAX_CLUSTER else 0


def _belongs(before: str, after: str) -> bool:
    if after < "\u0300":
        return False
    if after in _CONTINUES or before == _ZERO_WIDTH_JOINER:
        return True
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    return unicodedata.category(after) in ("Mn", "Mc", "Me")
