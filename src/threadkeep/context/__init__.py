"""Pure functions that compute the context of a model call.

Everything here depends only on its arguments and packaged data: no other I/O, no clock, no settings, no framework.
`tokens` measures texts, and `plan` divides the budget of a model call among the sections of its context. `window` and
`trim` choose messages, newest first. `compression` chooses messages to summarise, `recall` ranks older turns, and
`quotation` formats summaries and turns for a prompt. A `manifest` records why messages were included or excluded.
"""

from __future__ import annotations
