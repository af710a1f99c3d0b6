"""Frozen event records, and the observers that receive them.

Code emits events and knows no observer. They are in `threadkeep.observe.log`, `threadkeep.observe.prometheus`
and `threadkeep.observe.otel`. Import them only where they are opened, because each needs its own library.
"""

from threadkeep.observe.events import *  # noqa: F403 - the package exports every event
from threadkeep.observe.observer import *  # noqa: F403
