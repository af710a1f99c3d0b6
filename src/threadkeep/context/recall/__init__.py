"""Ranking of older turns of a conversation for a new input, by words, speakers and days.

`RecallIndex` ranks the turns for an input, without a model, and `select` takes the best ones that fit the budget.
`words` splits a text into stemmed words, or into characters and pairs. `hits` looks up these words and related ones in
`postings`. `matching` scores a turn by its words, its neighbours' words, the days in the input (`spans`), and how
informative the turn is (`priors`). All weights are in `weights`.
"""

from __future__ import annotations

from threadkeep.context.recall.index import Analysis, IndexedTurn, Ranked, RecallIndex, analysis_of, select
from threadkeep.context.recall.query import Passage, passage_of

__all__ = ["Analysis", "IndexedTurn", "Passage", "Ranked", "RecallIndex", "analysis_of", "passage_of", "select"]
