"""Ranking of older turns of a conversation for a new input, by words, speakers and days.

`RecallIndex` indexes turns one by one and ranks them for an input; `select` takes the turns of the ranking that fit the
budget. No model is needed: words are stemmed, or split into characters and pairs (`words`), expanded with related words
(`hits`), looked up (`postings`), and scored with neighbouring turns (`matching`), days (`spans`) and the
informativeness of a turn (`priors`). All weights are in one file (`weights`).
"""

from __future__ import annotations

from threadkeep.context.recall.index import Analysis, IndexedTurn, Ranked, RecallIndex, analysis_of, select
from threadkeep.context.recall.query import Passage, passage_of

__all__ = ["Analysis", "IndexedTurn", "Passage", "Ranked", "RecallIndex", "analysis_of", "passage_of", "select"]
