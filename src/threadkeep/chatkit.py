"""`ThreadkeepStore`: a store for your own ChatKit server, with threads in a `Memory`. Needs `threadkeep[chatkit]`."""

from threadkeep.adapters.chatkit import ThreadkeepStore

__all__ = ["ThreadkeepStore"]
