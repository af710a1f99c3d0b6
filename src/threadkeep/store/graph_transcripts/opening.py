"""Selection of the interface to a LangGraph store's conversations. Importing this imports LangGraph."""

from __future__ import annotations

from langgraph.store.base import BaseStore

from threadkeep.store.graph_transcripts.foreign import StoreItems
from threadkeep.store.graph_transcripts.items import Items
from threadkeep.store.graph_transcripts.table import TabledStore


def items_of(store: BaseStore) -> Items:
    """Return the items of a store: by its table for `threadkeep.create_graph_store`, else by its interface."""
    if isinstance(store, TabledStore) and store.items is not None:
        return store.items
    return StoreItems(store)
