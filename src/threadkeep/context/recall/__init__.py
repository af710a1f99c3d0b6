"""WHAT MATTERS NOW: the older turns of a talk that bear on a new input, found by their words, speakers and days.

`RecallIndex` takes turns one by one and ranks them for an input; `select` takes of the ranking what fits a budget. No
model is needed: words are stemmed (`stems`, `irregular`) or paired (`words`), looked up together with words that belong
to them (`topics`, `postings`, `hits`), and weighed with what stands beside them (`matching`), with days (`spans`) and
with how telling a turn is (`signs`, `priors`). All weights are in one file (`weights`).
"""

from __future__ import annotations

from threadkeep.context.recall.index import IndexedTurn, Ranked, RecallIndex
from threadkeep.context.recall.selection import select

__all__ = ["IndexedTurn", "Ranked", "RecallIndex", "select"]
