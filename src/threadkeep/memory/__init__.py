"""The memory of a database as users open it, for asynchronous and synchronous code."""

from threadkeep.memory.memory import Memory, open_memory
from threadkeep.memory.sync_memory import SyncMemory, SyncSession, open_memory_sync

__all__ = ["Memory", "SyncMemory", "SyncSession", "open_memory", "open_memory_sync"]
