"""The variables of the environment, read without pydantic, because importing pydantic takes long."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from threadkeep.store.address import DatabaseAddress, parse_address

PREFIX = "THREADKEEP_"

_URL = f"{PREFIX}DATABASE_URL"
# Prefixes, after `THREADKEEP_`, of settings that affect which sessions are read, or how. `DATA` also matches misspelt
# names of `DATABASE_URL`; `plain_database` exempts the correct name.
_OTHERS = ("DATA", "SQLITE_", "LOCK_TIMEOUT", "POSTGRES_", "GRAPH_STORE_", "TRANSCRIPTS")
# The names of all settings, after `THREADKEEP_`.
_NAMES = """
API_KEYS BODY_LIMIT BODY_TIMEOUT CHANNELS CONTEXT_WINDOW CORS_ORIGINS DATABASE_KEY DATABASE_URL DIRECTIVES
DOUBLE_TEXTING FACTS GRAPHITI_API_KEY GRAPHITI_CONFIRM_SECONDS GRAPHITI_ENABLED GRAPHITI_ENDPOINT GRAPHITI_GIT_FOLDER
GRAPHITI_GROUP_ID_STRATEGY GRAPHITI_INCLUDE_GIT GRAPHITI_INCLUDE_SYSTEM GRAPHITI_MAX_BATCH GRAPHITI_MAX_MESSAGE_CHARS
GRAPHITI_MAX_QUEUE GRAPHITI_RECALL_ENABLED GRAPHITI_RECALL_EXTRA_GROUP_IDS GRAPHITI_RECALL_MAX_FACTS
GRAPHITI_RECALL_SCOPES GRAPHITI_RECALL_TIMEOUT_MS GRAPHITI_SCOPES GRAPHITI_TIMEOUT_MS GRAPHITI_TRANSPORT
GRAPH_STORE_BACKEND GRAPH_STORE_SQLITE_PATH HEADER_TIMEOUT HISTORY_ENABLED HISTORY_MAX_MESSAGES HISTORY_MAX_TOKENS
HISTORY_WINDOW HOST JWT_AUDIENCE JWT_ISSUER JWT_KEY JWT_SCOPE JWT_USER_CLAIM LEARNING LEARNING_ACCEPT_FROM LOCK_TIMEOUT
LOG_JSON LOG_LEVEL MANIFEST_RETENTION_DAYS MAX_CONNECTIONS MAX_OUTPUT_TOKENS MEMORY_MAX_CHARS MEMORY_MAX_MESSAGES MODEL
MODEL_TIMEOUT_SECONDS OTEL PARTITIONS PENDING_DIR PORT POSTGRES_DSN POSTGRES_POOL_MAX_IDLE POSTGRES_POOL_MAX_SIZE
POSTGRES_POOL_MIN_SIZE POSTGRES_POOL_TIMEOUT PRICES RECALL REQUESTS_PER_KEY REQUESTS_PER_USER REQUIRE_KEYS
RETENTION_ARCHIVE_MAX_AGE_DAYS RETENTION_ARCHIVE_MAX_IDLE_DAYS RETENTION_ARCHIVE_MAX_MESSAGES
RETENTION_DELETE_MAX_AGE_DAYS RETENTION_DELETE_MAX_IDLE_DAYS RETENTION_DELETE_MAX_MESSAGES RETENTION_INTERVAL_HOURS
RUN_CHECKPOINT_RETENTION_HOURS RUN_CONCURRENCY RUN_DEAD_SECONDS RUN_LONGEST_PAUSE_SECONDS RUN_MAX_ATTEMPTS
RUN_PAUSE_SECONDS RUN_POLL_SECONDS RUN_RETENTION_DAYS RUN_RETENTION_SET_ASIDE_DAYS RUN_TRACE_MAX_CHARS
RUN_TRACE_MAX_EVENTS SHUTDOWN_TIMEOUT SQLITE_SYNCHRONOUS SUMMARY_KEEP SUMMARY_MODEL SUMMARY_TRIGGER SYSTEM_PROMPT
TRANSCRIPTS WORKFLOWS WORKSPACE WRITE_TIMEOUT
"""


def default_database() -> Path:
    """Return the SQLite file that is used if no database is named."""
    return user_data_path("threadkeep") / "threadkeep.db"


def plain_database(url: str | None = None) -> DatabaseAddress | None:
    """Return the address `url` or, without it, the address in the environment, or the default address.

    Return None if a `.env` file or a variable may change how sessions are read; the caller must load all settings then.

    Raises:
        InvalidSettings: the URL is not a database URL.
    """
    given = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}
    others = tuple(PREFIX + name for name in _OTHERS)
    if any(name.startswith(others) and name != _URL for name in given) or Path(".env").exists():
        return None
    return parse_address(url or given.get(_URL) or f"sqlite:///{default_database()}", variable=_URL)


def has_unknown_variables() -> bool:
    """Return True if a `THREADKEEP_*` variable of the environment is not a setting."""
    names = {name.upper().removeprefix(PREFIX) for name in os.environ if name.upper().startswith(PREFIX)}
    return not names.issubset(_NAMES.split())
