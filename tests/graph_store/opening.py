"""Helpers that open transcripts in graph stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from langgraph.store.base import BaseStore

from threadkeep.context.tokens import estimate
from threadkeep.graph_store.items import Items
from threadkeep.graph_store.langgraph_stores import items_of, open_graph_store
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions


def open_store(url: str) -> AbstractAsyncContextManager[BaseStore]:
    """Open a LangGraph store as Threadkeep does."""
    return open_graph_store(parse_address(url), StoreOptions())


def transcripts_of(
    items: Items,
    layout: GraphLayout | None = None,
    *,
    clock: Callable[[], datetime] | None = None,
    conflicted: Callable[[str], object] | None = None,
) -> GraphTranscripts:
    """Return transcripts in the items of a store."""
    return GraphTranscripts(items, layout, count=estimate, clock=clock or moving_clock(), conflicted=conflicted)


@asynccontextmanager
async def graph_transcripts(url: str, layout: GraphLayout | None = None) -> AsyncIterator[GraphTranscripts]:
    """Open transcripts in a graph store, and close it after the block."""
    async with open_store(url) as store:
        yield transcripts_of(items_of(store), layout)


def moving_clock() -> Callable[[], datetime]:
    """Return a clock that advances by one second at each call."""
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> datetime:
        nonlocal now
        now += timedelta(seconds=1)
        return now

    return clock
