"""A store for ChatKit over a memory: `ThreadkeepStore`, for your own ChatKit server. It needs `threadkeep[chatkit]`."""

from threadkeep.adapters.chatkit import ThreadkeepStore

__all__ = ["ThreadkeepStore"]
