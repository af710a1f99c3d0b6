"""ChatKit over a memory: `ThreadkeepStore` for a ChatKit server of one's own. It needs `threadkeep[chatkit]`."""

from threadkeep.adapters.chatkit import ThreadkeepStore

__all__ = ["ThreadkeepStore"]
