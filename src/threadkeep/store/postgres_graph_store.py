"""LangGraph's store on PostgreSQL, with a way to its table. Importing this imports LangGraph and psycopg."""

from __future__ import annotations

from langgraph.store.postgres.aio import AsyncPostgresStore

from threadkeep.store.graph_transcripts.table import TabledStore


class PostgresGraphStore(TabledStore, AsyncPostgresStore):
    """LangGraph's store as it is."""
