"""Ranking of older turns of a conversation for a new input, by words, speakers and days.

`RecallIndex` indexes turns one by one and ranks them for an input; `select` takes the turns of the ranking that fit the
budget. No model is needed. `words` splits a text into stemmed words, or into characters and pairs. `hits` adds related
words and looks all of them up in `postings`. `matching` scores a turn by its words, those of neighbouring turns, the
days that the input names (`spans`), and how informative the turn is (`priors`). All weights are in `weights`.
"""

from __future__ import annotations

from threadkeep.context.recall.index import Analysis, IndexedTurn, Ranked, RecallIndex, analysis_of, select
from threadkeep.context.recall.query import Passage, passage_of

__all__ = ["Analysis", "IndexedTurn", "Passage", "Ranked", "RecallIndex", "analysis_of", "passage_of", "select"]
