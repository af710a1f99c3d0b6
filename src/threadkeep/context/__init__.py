"""Pure functions that compute the context of a model call.

Everything here depends only on its arguments and packaged data: no other I/O, no clock, no settings, no framework. A
`TokenCounter` (`tokens`) measures texts, and a factor that is learned from reported usage corrects it. `cut` shortens
texts with a mark. Messages are chosen newest first: rows for a window (`window`), and the messages of a model call
(`trim`). `input_budget` in `tokens` is the number of tokens that a prompt may use, and `plan` divides the budget among
sections. `compression` chooses the messages to summarise, `recall` ranks older turns for an input, and `quotation`
formats summaries and older turns for a prompt. A `manifest` records why each message was included or excluded.
"""

from __future__ import annotations
