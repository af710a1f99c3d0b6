"""The texts on which token counters are measured: own texts in 24 languages, code, labels, synthetic data.

Every kind has two halves of different texts: weights are fitted to one, the published figures come from the other.
Italian, Dutch, Swedish, Czech, Romanian, Indonesian, Ukrainian and Greek have the published half only.
A sample is a part of a text, of 50 to 2,000 characters. It begins at a sentence, remark or line, and ends at one unless
it is cut at 2,000 characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal

from bench.token_data import MADE_UP

type Half = Literal["fit", "published"]

SHORTEST, LONGEST = 50, 2_000
_TEXTS = Path(__file__).with_name("token_texts.jsonl")
_SENTENCE = re.compile(r"(?<=[.!?।؟])\s+|(?<=[。！？])")
_WINDOWS = {"prose": (1, 2, 3, 4), "chat": (1, 2, 4, 7, 10), "code": (2, 4, 8, 14, 24), "labels": (4, 6, 10, 15)}
_SEPARATORS = {"prose": " ", "chat": "\n", "code": "\n", "labels": "\n"}


@dataclass(frozen=True)
class Text:
    """A text of the project: its row in the table, its content, and its half."""

    row: str
    kind: Literal["prose", "chat", "code", "labels"]
    half: Half
    text: str


@cache
def rows(half: Half) -> dict[str, list[str]]:
    """Return the samples of a half, by row of the table."""
    found: dict[str, list[str]] = {}
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in texts():
        if one.half == half:
            grouped.setdefault((one.row, one.kind), []).append(one.text)
    for (row, kind), own in grouped.items():
        title = f"{row}: {kind}" if kind in {"prose", "chat"} else row
        found.setdefault(title, []).extend(_samples(kind, own))
    for name, make in MADE_UP.items():
        found.setdefault(name, []).extend(text for text in make(half) if SHORTEST <= len(text) <= LONGEST)
    return found


@cache
def texts() -> tuple[Text, ...]:
    """Return all texts of the project."""
    return tuple(Text(**json.loads(line)) for line in _TEXTS.read_text(encoding="utf-8").splitlines())


def _samples(kind: str, own: Sequence[str]) -> Iterable[str]:
    if kind == "chat":
        yield from _windows(kind, own)
        return
    for text in own:
        yield from _windows(kind, _pieces(kind, text))
    if kind == "prose":
        yield from (text[:LONGEST] for text in accumulate(own, lambda before, text: f"{before}\n\n{text}"))


def _pieces(kind: str, text: str) -> list[str]:
    if kind != "prose":
        return text.split("\n")
    sentences = _SENTENCE.split(text)
    return sentences if len(sentences) > 1 else _phrases(text)


def _phrases(text: str) -> list[str]:
    """Return parts of a Thai text between spaces, joined to about sixty characters. Thai marks no end of a sentence."""
    phrases = [""]
    for word in text.split():
        if len(phrases[-1]) > 60:
            phrases.append("")
        phrases[-1] = f"{phrases[-1]} {word}".strip()
    return phrases


def _windows(kind: str, pieces: Sequence[str]) -> Iterable[str]:
    """Yield windows of consecutive pieces, for each size at steps of half of the size."""
    for size in _WINDOWS[kind]:
        step = max(1, size // 2)
        for start in range(0, len(pieces) - size + 1, step):
            text = _SEPARATORS[kind].join(pieces[start : start + size])
            if SHORTEST <= len(text) <= LONGEST:
                yield text
