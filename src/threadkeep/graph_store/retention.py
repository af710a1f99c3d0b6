"""The deletion of old messages from conversations that agents store in a LangGraph store."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import islice

from threadkeep.errors import InvalidInput
from threadkeep.graph_store.layout import seqs_down
from threadkeep.graph_store.reading import title_without
from threadkeep.graph_store.shapes import Conversation
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.graph_store.writing import Beginning
from threadkeep.records import Message, Retention
from threadkeep.store.retention import STEP_MESSAGES, Prunable, Removal, Removed


class ConversationRetention:
    """The deletion of old messages from conversations in a graph store; see `RetentionRows` for the methods.

    Messages are deleted, never archived, and their ids are not remembered. Conversations have no limits of their
    own. Before a deletion, `forget_runs` deletes the runs that stored the messages, so that no data derived from them
    stays. If such a run is queued or running, `forget_runs` raises `RowLocked`, and the messages are deleted later.
    """

    archives = False

    def __init__(
        self, conversations: GraphTranscripts, *, forget_runs: Callable[[Sequence[str]], Awaitable[object]]
    ) -> None:
        self._reader = conversations.reader
        self._writer = conversations.writer
        self._forget_runs = forget_runs

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Return up to `limit` readable conversations with ids above `after`, sorted; none if `with_own` is true."""
        if with_own:
            return []
        found = [one async for one in self._reader.all() if one.session_id > after and user_id in (None, one.user_id)]
        wanted = map(_prunable, found)
        return heapq.nsmallest(limit, wanted, key=lambda one: one.session_id)

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Return one conversation, or None if it does not exist, or belongs to another user."""
        conversation = await self._reader.conversation(session_id, user_id=user_id)
        return None if conversation is None else _prunable(conversation)

    async def end_of_older(self, session: Prunable, *, after: int, moment: datetime) -> int:
        """Return the `seq` up to which all messages after `after` are older than `moment`, or `after` if none is."""
        conversation = await self._reader.conversation(session.session_id)
        if conversation is None:
            return after
        async for message in self._reader.up(conversation, after + 1, session.last_seq):
            # Another program may have written a message without a time; keep it.
            if message.created_at is None or message.created_at >= moment:
                return (message.seq or after + 1) - 1
        return session.last_seq

    async def end_before_newest(self, session: Prunable, messages: int) -> int:
        """Return the `seq` before the oldest of the newest `messages` active messages; 0 if there are fewer."""
        conversation = await self._reader.conversation(session.session_id)
        if conversation is None:
            return 0
        seqs = seqs_down(conversation.last_seq, conversation.deleted_seq + 1, conversation.superseded)
        first = next(islice(seqs, messages - 1, None), 1)
        return first - 1

    async def extent(self, removal: Removal) -> Removed:
        """Return how many messages and tokens would be deleted if the request `removal` were executed now."""
        conversation = await self._reader.conversation(removal.session_id)
        removed: list[Message] = []
        if conversation is not None:
            removed = [each async for each in self._reader.up(conversation, removal.after_seq + 1, removal.upto_seq)]
        return _removed(removal.upto_seq, removed)

    async def step(self, removal: Removal, *, messages: int = STEP_MESSAGES) -> Removed | None:
        """Delete the next messages of `removal`. Return None if there are none, or if another writer deleted some.

        Raises:
            RowLocked: another writer keeps changing the conversation, or a run that stored the messages is queued or
                running.
        """
        upto = min(removal.upto_seq, removal.after_seq + messages)
        beginning = Beginning(removal.after_seq, upto, removal.idle_before)
        conversation = await self._reader.conversation(removal.session_id)
        if conversation is None or upto <= removal.after_seq or not beginning.is_of(conversation):
            return None
        removed = await self._reader.between(conversation, removal.after_seq + 1, upto)
        active = [message for message in removed if message.superseded_at is None]
        rest = self._reader.up(conversation, upto + 1, conversation.last_seq)
        title = await title_without(conversation.title, active, rest)
        await self._forget_runs(_runs_in(conversation, removed))
        if not await self._writer.delete_old(removal.session_id, beginning, title=(conversation.title, title)):
            return None
        return _removed(upto, removed)

    async def delete_session(self, session_id: str, *, idle_before: datetime) -> bool:
        """Delete a conversation if it has no messages and its last write was before `idle_before`, or return False."""
        return await self._writer.delete(session_id, idle_before=idle_before)

    async def forget_ids(self) -> None:
        """Do nothing; the ids of messages are deleted with the messages."""

    async def retention(self, session_id: str, *, user_id: str | None = None) -> tuple[bool, Retention | None]:
        """Return whether the user has this conversation, and None: a conversation has no limits of its own."""
        return await self._reader.conversation(session_id, user_id=user_id) is not None, None

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Reject retention limits for a single conversation; return False if the conversation does not exist.

        Raises:
            InvalidInput: the conversation exists.
        """
        if await self._reader.conversation(session_id, user_id=user_id) is None:
            return False
        raise InvalidInput(
            "A conversation in a graph store has no limits of its own: the memory's rules apply to it. "
            "Prune it by name: threadkeep sessions prune SESSION --delete."
        )

    async def reclaim_space(self) -> bool:
        """Do nothing, and return False."""
        return False


def _runs_in(conversation: Conversation, messages: Sequence[Message]) -> list[str]:
    """Return the ids of the runs that stored these messages, but skip messages that were copied into a branch."""
    begun = conversation.created_at if conversation.parent_session_id is not None else None
    own = [one for one in messages if begun is None or one.created_at is None or one.created_at >= begun]
    return sorted({message.run_id for message in own if message.run_id is not None})


def _removed(upto: int, removed: Sequence[Message]) -> Removed:
    return Removed(upto, len(removed), sum(message.tokens or 0 for message in removed))


def _prunable(conversation: Conversation) -> Prunable:
    """Return a conversation as a `Prunable`. Its creation time stands for the time of its first message."""
    return Prunable(
        conversation.session_id,
        conversation.last_seq,
        conversation.last_user_seq,
        conversation.deleted_seq,
        conversation.deleted_seq,
        conversation.info().message_count,
        updated_at=conversation.updated_at,
        retention_text=None,
        first_stored_at=conversation.created_at,
        first_live_at=conversation.created_at,
    )
