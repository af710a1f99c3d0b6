"""Weights of the signals. Fitted by `python -m bench.fit_recall`; do not edit by hand."""

from __future__ import annotations

from typing import Final

# Query-independent signals of a turn.
PRIOR: Final[dict[str, float]] = {
    "terms": -0.007,
    "density": 0.011,
    "rarity": 3.002,
    "opening": 0.956,
    "asks": -0.042,
    "ends_asking": -0.417,
    "after_question": 0.453,
    "names": 0.299,
    "time": 0.199,
    "second_person": -0.336,
    "greeting": -0.160,
    "past": 0.073,
    "by_agent": -0.500,
}
# Signals of a turn for a kind of answer.
ANSWER: Final[dict[str, float]] = {
    "when": 1.415,
    "number": 1.545,
    "who": 0.476,
    "where": 1.471,
    "why": 0.118,
}

# Signals shared by a turn and the query.
MATCH: Final[dict[str, float]] = {
    "words": 0.928,
    "with_next": 1.162,
    "with_near": 1.354,
    "around": 1.827,
    "episode_words": 1.134,
    "score": 0.083,
    "near_score": 1.286,
    "episode_score": 0.762,
    "date": 2.592,
    "in_date": 1.121,
    "speaker": 0.720,
    "speaker_of_self": 0.804,
    "speaker_words": 0.930,
    "when_score": 0.796,
    "topics": 0.540,
    "topics_near": 0.518,
    "with_next_of_many": -1.503,
    "around_of_many": -1.160,
    "near_score_of_many": -1.591,
    "episode_words_of_many": -0.832,
    "speaker_of_many": 1.536,
    "topics_of_many": 0.964,
}

# Embedding similarity, in standard deviations from the mean; fitted separately with a small model.
LIKENESS: Final[dict[str, float]] = {
    "alike": 0.420,
    "alike_beside": 0.310,
    "alike_episode": 0.260,
}
