"""Conversations of realistic length, made of the English texts of the token samples.

The lengths are those of LMSYS-Chat-1M (a million chats with language models): questions of 70 tokens and answers of 215
on average, here at four characters a token; most are shorter and some are many times as long, as in a log-normal
distribution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from math import log
from random import Random

from bench.contenders import TurnTexts
from bench.token_samples import texts

QUESTION_CHARACTERS, ANSWER_CHARACTERS = 280, 860
_QUESTION_SPREAD, _ANSWER_SPREAD = 1.0, 0.7
_OTHER_WORDS = 1 / 3
_SHORTEST, _LONGEST = 8, 8_000
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def chats(seed: int = 1) -> Iterator[TurnTexts]:
    """Yield turns without end."""
    chosen = Random(seed)
    while True:
        yield TurnTexts(
            _text(chosen, QUESTION_CHARACTERS, _QUESTION_SPREAD), _text(chosen, ANSWER_CHARACTERS, _ANSWER_SPREAD)
        )


def _text(chosen: Random, mean: int, spread: float) -> str:
    """Return sentences of a random length with the given mean."""
    wanted = int(chosen.lognormvariate(log(mean) - spread**2 / 2, spread))
    wanted = min(max(wanted, _SHORTEST), _LONGEST)
    said = ""
    while len(said) < wanted:
        said += _sentence(chosen) + " "
    return said[:wanted].strip()


def _sentence(chosen: Random) -> str:
    """Return a sentence with about a third of its words replaced, so that hardly any sentence occurs twice."""
    words = chosen.choice(_sentences()).split()
    return " ".join(chosen.choice(_words()) if chosen.random() < _OTHER_WORDS else word for word in words)


@cache
def _sentences() -> tuple[str, ...]:
    """Return the sentences of the English prose, each one once."""
    found = [one for text in texts() if text.row == "English" for one in _SENTENCE.split(text.text)]
    return tuple(dict.fromkeys(found))


@cache
def _words() -> tuple[str, ...]:
    return tuple(word for sentence in _sentences() for word in sentence.split())
