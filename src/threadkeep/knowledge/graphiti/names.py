"""Names and texts as Graphiti takes them: ids of groups, names of episodes, cut messages, times in its range."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

from threadkeep.records.graphiti import GroupStrategy, check_group_id
from threadkeep.records.knowledge import Scope

MARK = "\n…[truncated]"
"""The end of a message that was cut."""

_MOST_GROUP_CHARACTERS = 80
_KEPT_GROUP_CHARACTERS = 63
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
# Each of them stops the worker of the server for good, or is refused by its database.
_REMOVED = re.compile("[\x00\ud800-\udfff]")
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


def group_key(scope: Scope) -> str:
    """Return the text that an id of a group is made of, such as `user:ann`."""
    return f"{scope.kind}:{scope.owner}"


def group_id_of(scope: Scope, strategy: GroupStrategy = "hashed") -> str:
    """Return the id of a scope's group.

    The strategy `raw` is for readers: two owners may have the same raw id, so whoever uses it looks for the key beside
    it, and takes the hashed one for the second.
    """
    key = group_key(scope)
    if strategy == "raw":
        readable = _UNSAFE.sub("_", f"threadkeep_{key}")
        if len(readable) > _MOST_GROUP_CHARACTERS:
            readable = f"{readable[:_KEPT_GROUP_CHARACTERS]}_{_digest(key, 16)}"
        return check_group_id(readable)
    return check_group_id(f"threadkeep_{scope.kind}_{_digest(key, 32)}")


def turn_id(session_id: str, message_id: str, stored_at: datetime) -> str:
    """Return the id of a turn in names of episodes: the same at each try, and no word of the session's own ids."""
    return _digest("\x00".join((session_id, message_id, stored_at.astimezone(UTC).isoformat())), 32)


def episode_name(turn: str, role: str, number: int = 1) -> str:
    """Return the name by which a message is known again among the episodes of a group.

    `number` counts the messages of one role in a turn, from 1.
    """
    return f"threadkeep.turn.{turn}{'' if number == 1 else f'-{number}'}.{role}"


def fact_episode(fact_id: str) -> str:
    """Return the name of the episode that tells a promoted fact."""
    return f"threadkeep.fact.{fact_id}.user"


def cut(text: str, limit: int) -> str:
    """Return a text, or its beginning and the mark, in at most so many characters; without a mark if it has no room."""
    if len(text) <= limit:
        return text
    return text[:limit] if limit <= len(MARK) else text[: limit - len(MARK)] + MARK


def sendable(text: str, limit: int) -> str:
    """Return a text without characters that stop the server's worker, cut to a limit."""
    return cut(_REMOVED.sub("", text), limit)


def clamped(moment: datetime, now: datetime) -> datetime:
    """Return a time that the server can store: from the year 2000 to now, since it hides episodes of the future."""
    return min(max(moment, _EARLIEST), now).astimezone(UTC)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]
