"""Weights of the signals that rank turns. `bench.fit_recall` fits all but `by_agent`; do not edit them by hand."""

from __future__ import annotations

from typing import Final

# Signals that a turn is informative, whatever the query is.
PRIOR: Final[dict[str, float]] = {
    "terms": 0.026,
    "density": 0.049,
    "rarity": 3.412,
    "opening": 1.184,
    "asks": -0.011,
    "ends_asking": -0.508,
    "after_question": 0.389,
    "names": 0.286,
    "time": 0.162,
    "second_person": -0.327,
    "greeting": -0.205,
    "past": 0.018,
    "by_agent": -0.500,
}
# Signals that a turn has the kind of answer for which the query asks.
ANSWER: Final[dict[str, float]] = {
    "when": 1.457,
    "number": 1.808,
    "who": 0.501,
    "where": 1.533,
    "why": 0.137,
}

# The weights of the signals that show how well a turn matches the query.
MATCH: Final[dict[str, float]] = {
    "words": 0.956,
    "with_next": 1.281,
    "with_near": 1.299,
    "around": 1.720,
    "episode_words": 0.997,
    "score": 0.320,
    "near_score": 1.152,
    "episode_score": 0.912,
    "date": 2.624,
    "in_date": 1.012,
    "speaker": 0.695,
    "speaker_of_self": 0.836,
    "speaker_words": 0.766,
    "when_score": 0.515,
    "topics": 0.374,
    "topics_near": 0.568,
    "with_next_of_many": -2.161,
    "around_of_many": -1.404,
    "near_score_of_many": -0.907,
    "episode_words_of_many": -0.746,
    "speaker_of_many": 1.659,
    "topics_of_many": 1.223,
}

# Embedding similarity, in standard deviations; fitted separately with word vectors.
LIKENESS: Final[dict[str, float]] = {"alike": 0.390, "alike_beside": 0.160, "alike_episode": 0.300}
