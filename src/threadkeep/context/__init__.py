"""WHAT FITS: the arithmetic of what one model call sees.

Everything here is a pure function of its arguments: no I/O, no clock, no settings, no framework. Texts are measured
by a `TokenCounter` (`tokens`), shortened with a visible mark (`cut`), and chosen from the newest backwards: stored
rows for a window (`window`, `manifest`), the messages of a model call (`trim`), the messages of a run (`reducers`).
`budget` says how much a model takes.
"""

from __future__ import annotations
