"""How much each signal counts. Fitted by `python -m bench.fit_recall`; not written by hand."""

from __future__ import annotations

from typing import Final

# What a turn brings along, whoever asks.
PRIOR: Final[dict[str, float]] = {
    "terms": 0.085,
    "density": 0.015,
    "rarity": 3.062,
    "opening": 0.966,
    "asks": -0.069,
    "ends_asking": -0.418,
    "after_question": 0.459,
    "names": 0.298,
    "time": 0.205,
    "second_person": -0.319,
    "greeting": -0.175,
    "past": 0.099,
}
# What it brings along for a kind of answer.
ANSWER: Final[dict[str, float]] = {
    "when": 1.548,
    "number": 1.458,
    "who": 0.474,
    "where": 1.530,
    "why": 0.161,
}

# What it has in common with the query.
MATCH: Final[dict[str, float]] = {
    "words": 1.443,
    "with_next": 0.966,
    "with_near": 1.088,
    "around": 1.472,
    "episode_words": 0.865,
    "score": 0.176,
    "near_score": 1.149,
    "episode_score": 0.883,
    "date": 2.646,
    "in_date": 1.196,
    "speaker": 0.980,
    "speaker_of_self": 0.886,
    "speaker_words": 1.019,
    "when_score": 0.843,
}

# What the likeness of an embedding counts for, from -1 to 1; not fitted.
SEMANTIC: Final = 4.0
