"""Frozen event records, and the observers that receive them.

Code that emits events does not depend on observers. Import `threadkeep.observe.log`, `.prometheus` or `.otel` only
where the observer is created, because each needs a separate library.
"""

from threadkeep.observe.events import *  # noqa: F403 - the package exports every event
from threadkeep.observe.observer import *  # noqa: F403
