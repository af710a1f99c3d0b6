"""Searches by meaning in the graph stores of both engines. Importing this imports LangGraph."""

from __future__ import annotations

from typing import Any

from langgraph.store.base import SearchItem
from langgraph.store.base.batch import AsyncBatchedBaseStore

from threadkeep.errors import InvalidInput


class IndexedStore(AsyncBatchedBaseStore):
    """A LangGraph store that refuses a query without an index. LangGraph's own ignore it and return any items."""

    async def asearch(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return the items of a namespace and of the namespaces below.

        Raises:
            InvalidInput: there is a query, but no index.
        """
        # Not in `abatch`, where it would fail all concurrent operations.
        if query and getattr(self, "index_config", None) is None:
            raise InvalidInput(
                "This graph store has no index, so it cannot search by a query; give one to "
                "create_graph_store(settings, index={'dims': …, 'embed': …}), or search by filter."
            )
        return await super().asearch(
            namespace_prefix, query=query, filter=filter, limit=limit, offset=offset, refresh_ttl=refresh_ttl
        )
