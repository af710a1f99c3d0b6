"""A text shortened to a token budget, with a mark that says so."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial
from itertools import count

from threadkeep.context.tokens import TokenCounter

CUT_MARK = "… [cut]"
"""Stands at the end of a text whose end was cut."""

_MAX_CLUSTER = 32
_LONGEST_TOKEN = 16
_SLACK = 1 / 16
_ZERO_WIDTH_JOINER = "\u200d"
_CONTINUES = frozenset("\u200d\ufe0e\ufe0f") | {chr(tone) for tone in range(0x1F3FB, 0x1F400)}


def middle_mark(characters: int) -> str:
    """The mark that stands for so many characters cut out of the middle of a text."""
    return f"… [cut {characters} characters] …"


def cut_end(text: str, budget: int, counter: TokenCounter) -> str:
    """The text, or its beginning and `CUT_MARK`, such that the counter gives at most the budget.

    Empty when not even the mark fits. The counter need not grow with the text: what is returned has been counted.
    """
    return _cut(text, budget, counter, lambda kept: text[: _boundary(text, kept)] + CUT_MARK)


def cut_middle(text: str, budget: int, counter: TokenCounter) -> str:
    """The text, or its beginning, `middle_mark` and its end, such that the counter gives at most the budget.

    Empty when not even the mark fits.
    """
    return _cut(text, budget, counter, partial(keep_ends, text))


def keep_ends(text: str, kept: int) -> str:
    """About so many characters of the text, from its beginning and its end, with `middle_mark` for what is between."""
    start = _boundary(text, kept - kept // 2)
    end = len(text) - kept // 2
    while end < len(text) and _boundary(text, end) != end:
        end += 1
    return text[:start] + middle_mark(end - start) + text[end:]


def pieces(text: str, budget: int, counter: TokenCounter) -> list[str]:
    """The text in pieces of at most the budget each, which joined are the text; none for an empty one.

    A piece ends at white space where there is some near its end, and never parts a character from its marks unless it
    has more of them than any language. A piece of one character may be over the budget. A long piece is not always the
    longest that fits: the text is counted about eight times in all.
    """
    found: list[str] = []
    start = 0
    reach = max(_LONGEST_TOKEN * budget, 2 * _MAX_CLUSTER)
    while start < len(text):
        # A look at what may fit is enough: the rest of a huge text is not counted again for each piece.
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
    """The text up to its last white space, if that is in its last third; else all of it."""
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
    """A kept length that does not fit, near the budget, so that a huge text is not counted over and over."""
    high = max(64, 2 * length * max(budget, 1) // max(total, 1))
    while high < length and fits(high):
        high *= 2
    return min(high, length)


def _boundary(text: str, end: int) -> int:
    """The nearest place at or before `end` that does not part a character from its marks."""
    for place in range(end, max(end - _MAX_CLUSTER, 0), -1):
        if place >= len(text) or not _belongs(text[place - 1], text[place]):
            return place
    return end if end > _MAX_CLUSTER else 0


def _belongs(before: str, after: str) -> bool:
    if after < "\u0300":
        return False
    if after in _CONTINUES or before == _ZERO_WIDTH_JOINER:
        return True
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    return unicodedata.category(after) in ("Mn", "Mc", "Me")
