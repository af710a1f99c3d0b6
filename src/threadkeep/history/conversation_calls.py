"""The runs that spoke in a conversation, and the records of their model calls there.

A conversation that an agent keeps has no row in our tables: the records of its calls are stored with the runs, and its
messages name the runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from threadkeep.context.manifest import ContextManifest, ConversationPlace
from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.history.manifests import Manifests
from threadkeep.history.session import LONGEST_PAGE, Session
from threadkeep.store.manifests import Cursor, StoredManifest


async def runs_in(
    session: Session, *, page_size: int = LONGEST_PAGE, since: datetime | None = None
) -> AsyncIterator[list[str]]:
    """Yield the runs that spoke in a session, in groups, each once, the run with the newest message first.

    The first page has `page_size` messages, including superseded ones, and each further page twice as many. Messages
    stored before `since` are not read. The first messages of a branch belong to another session.
    """
    try:
        info = await session.info()
    except SessionNotFound:
        return
    begun = info.created_at if info.parent_session_id is not None else None
    seen: set[str] = set()
    before: int | None = None
    while True:
        page = await session.page(before, min(page_size, LONGEST_PAGE), view="history")
        newest_first = [
            message.run_id
            for message in reversed(page.messages)
            if message.run_id is not None and not (begun and message.created_at and message.created_at < begun)
        ]
        if found := [run_id for run_id in dict.fromkeys(newest_first) if run_id not in seen]:
            seen.update(found)
            yield found
        oldest = page.messages[0].created_at if page.messages else None
        if page.next_before is None or (since is not None and oldest is not None and oldest < since):
            return
        before, page_size = page.next_before, page_size * 2


async def calls_in(
    session: Session, place: ConversationPlace, manifests: Manifests, *, limit: int, before: Cursor | None = None
) -> list[StoredManifest]:
    """Return the calls that saw a conversation, before a cursor: newest run first, newest call first.

    It reads only as much of the conversation as the page needs.
    """
    if limit < 1:
        raise InvalidInput("A page of manifests has at least one.")
    found: list[StoredManifest] = []
    last_run = None if before is None else before[1]
    async for runs in runs_in(session, page_size=2 * limit, since=manifests.kept_since()):
        if last_run is not None and last_run not in runs:
            continue
        wanted = runs if last_run is None else runs[runs.index(last_run) :]
        last_run = None
        rank = {run_id: number for number, run_id in enumerate(wanted)}
        calls = [call for call in await manifests.of_runs(wanted) if _saw(call, place)]
        calls.sort(key=lambda call: call.cursor, reverse=True)
        calls.sort(key=lambda call: rank[call.run_id])
        if before is not None:
            calls = [call for call in calls if call.run_id != before[1] or call.cursor < before]
        found += calls
        if len(found) >= limit:
            break
    return found[:limit]


def _saw(call: StoredManifest, place: ConversationPlace) -> bool:
    """Return whether a call was made in a conversation."""
    conversation = call.manifest.get("conversation")
    if not isinstance(conversation, dict) or conversation.get("key") != place.key:
        return False
    return ContextManifest.from_dict(call.manifest).conversation == place
