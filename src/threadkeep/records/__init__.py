"""Frozen records of the domain: stored data, and the results of store calls."""

from threadkeep.records.json_values import Json, dump_json
from threadkeep.records.messages import (
    MAX_ID_CHARACTERS,
    ROLES,
    SPEAKERS,
    STATUSES,
    TAKEN_BACK,
    Message,
    Page,
    Receipt,
    Role,
    SearchHit,
    SearchResult,
    Status,
    Turn,
    View,
)
from threadkeep.records.sessions import Retention, RetentionLimits, SessionInfo, Summary

__all__ = [
    "MAX_ID_CHARACTERS",
    "ROLES",
    "SPEAKERS",
    "STATUSES",
    "TAKEN_BACK",
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
    "View",
    "dump_json",
]
