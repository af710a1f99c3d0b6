"""A LangGraph store and a checkpointer in the configured databases, for an application's own graphs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from threadkeep.graph_store.langgraph_stores import open_graph_store
from threadkeep.settings import Settings
from threadkeep.store.checkpointers import open_checkpointer

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore, IndexConfig, TTLConfig


def create_graph_store(
    settings: Settings, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
) -> AbstractAsyncContextManager[BaseStore]:
    """Return a LangGraph store in the configured database, for `graph.compile(store=…)`.

    Open it once at startup. `index` (semantic search) and `ttl` (expiry of items) are options of LangGraph's stores.

    ::

        async with create_checkpointer(settings) as checkpointer, create_graph_store(settings) as store:
            graph = builder.compile(checkpointer=checkpointer, store=store)

    Raises:
        StoreUnavailable: on entering, if the database does not respond.
        InvalidInput: on entering, if the database cannot have an index.
    """
    options = replace(settings.store_options(), waits_for_server=True)
    return open_graph_store(settings.graph_store, options, index=index, ttl=ttl)


def create_checkpointer(
    settings: Settings, *, types: Sequence[type] = ()
) -> AbstractAsyncContextManager[BaseCheckpointSaver[str]]:
    """Return a LangGraph checkpointer in the configured database, for `graph.compile(checkpointer=…)`.

    Open it once. For safety, reading a checkpoint creates only objects of LangGraph's safe types, and of `types`. List
    the classes of your state in `types`; with `LANGGRAPH_STRICT_MSGPACK=true`, LangGraph finds them itself.

    Raises:
        StoreUnavailable: on entering, if the database does not respond.
    """
    options = replace(settings.store_options(), waits_for_server=True)
    return open_checkpointer(settings.database, options, types=types)
