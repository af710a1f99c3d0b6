"""WHAT FITS: the arithmetic of what one model call sees.

Everything here is a pure function of its arguments: no I/O, no clock, no settings, no framework. Texts are measured
by a `TokenCounter` (`tokens`), with what was learned of a model (`calibration`), shortened with a visible mark (`cut`),
and chosen from the newest backwards: stored rows for a window (`window`), the messages of a model call (`trim`), the
messages of a run (`reducers`). `budget` says how much a model takes, `plan` which section gets how much of it,
`compression` what becomes a summary, `recall` which older turns matter for an input, `quoted_blocks` how both stand in
a prompt. A `manifest` says afterwards why each line was there.
"""

from __future__ import annotations
