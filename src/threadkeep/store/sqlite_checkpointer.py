"""LangGraph's checkpointer on SQLite, with our errors. Importing this imports LangGraph."""

from __future__ import annotations

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from threadkeep.store.checkpointers import TranslatingSaver
from threadkeep.store.sqlite_connection import translated


class SqliteCheckpointer(TranslatingSaver, AsyncSqliteSaver):
    """A checkpointer with LangGraph's tables and methods."""

    translated = translated
