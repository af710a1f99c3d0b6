"""The nouns of Threadkeep as frozen records: what is stored, and what the store answers."""

from threadkeep.records.json_values import Json, dump_json
from threadkeep.records.messages import (
    MAX_ID_CHARACTERS,
    ROLES,
    SPEAKERS,
    STATUSES,
    Message,
    Page,
    Receipt,
    Role,
    SearchHit,
    SearchResult,
    Status,
    Turn,
)
from threadkeep.records.retention import Retention, RetentionLimits
from threadkeep.records.sessions import SessionInfo
from threadkeep.records.summaries import Summary

__all__ = [
    "MAX_ID_CHARACTERS",
    "ROLES",
    "SPEAKERS",
    "STATUSES",
    "Json",
    "Message",
    "Page",
    "Receipt",
    "Retention",
    "RetentionLimits",
    "Role",
    "SearchHit",
    "SearchResult",
    "SessionInfo",
    "Status",
    "Summary",
    "Turn",
    "dump_json",
]
