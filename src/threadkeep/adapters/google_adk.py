"""A memory service for Google's Agent Development Kit: agents find what was said in earlier sessions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from google.adk.events import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import Session
from google.genai.types import Content, Part

from threadkeep.history import keys
from threadkeep.memory import Memory
from threadkeep.records import Message, SearchHit

_MOST_HITS = 20
_MOST_WORDS = 12
_WORD = re.compile(r"\w+")


class MemoryService(BaseMemoryService):
    """A memory as ADK's memory service.

    A session of ADK is the session `adk:<app>:<user>:<session>` of the user; an event with a text is a message with the
    event's id, so that a session can be added again.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def add_session_to_memory(self, session: Session) -> None:
        """Store the texts of a session that are not stored yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id, events=session.events
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store the texts of events that are not stored yet; without a session they share one of the user."""
        key = f"{_prefix(app_name, user_id)}{keys.escape_key(session_id or 'events')}"
        if messages := [message for event in events if (message := _message(event)) is not None]:
            await self._memory.session(key, user_id=user_id).append(messages)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return what the user's earlier sessions of the app have said: messages with most words of a query first."""
        prefix = _prefix(app_name, user_id)
        found: dict[tuple[str, int | None], SearchHit] = {}
        words_in: Counter[tuple[str, int | None]] = Counter()
        for words in dict.fromkeys(_WORD.findall(query)[:_MOST_WORDS]):
            for hit in await self._memory.search(words, user_id=user_id, limit=_MOST_HITS):
                if hit.session_id.startswith(prefix):
                    place = (hit.session_id, hit.message.seq)
                    found.setdefault(place, hit)
                    words_in[place] += 1
        best = [found[place].message for place, _ in words_in.most_common(_MOST_HITS)]
        return SearchMemoryResponse(memories=[_entry(message) for message in best])


def _prefix(app_name: str, user_id: str) -> str:
    return f"adk:{keys.escape_key(app_name)}:{keys.escape_key(user_id)}:"


def _message(event: Event) -> Message | None:
    """Return the message of an event; None if nothing is said in it."""
    parts = event.content.parts or [] if event.content else []
    text = "\n".join(part.text for part in parts if part.text and not part.thought)
    if not text or event.partial:
        return None
    return Message(
        "user" if event.author == "user" else "assistant",
        text,
        id=event.id or None,
        author=None if event.author == "user" else event.author,
        sent_at=datetime.fromtimestamp(event.timestamp, UTC),
    )


def _entry(message: Message) -> MemoryEntry:
    moment = message.sent_at or message.created_at
    role = "user" if message.role == "user" else "model"
    return MemoryEntry(
        content=Content(role=role, parts=[Part(text=message.content)]),
        id=message.id,
        author=message.author or role,
        timestamp=moment.isoformat() if moment else None,
    )
