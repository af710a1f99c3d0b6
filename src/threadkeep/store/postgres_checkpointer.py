"""LangGraph's checkpointer on PostgreSQL, with our errors. Importing this imports LangGraph and psycopg."""

from __future__ import annotations

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from threadkeep.store.checkpointers import TranslatingSaver
from threadkeep.store.postgres_connection import translated


class PostgresCheckpointer(TranslatingSaver, AsyncPostgresSaver):
    """A checkpointer with LangGraph's tables and methods."""

    translated = translated
