"""The beginning of conversations deleted, where an agent keeps them by itself."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from threadkeep.errors import InvalidInput
from threadkeep.records import Message, Retention
from threadkeep.store.codec import TITLE_CHARACTERS, shorten
from threadkeep.store.graph_transcripts.shapes import Conversation, conversation_of
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts
from threadkeep.store.graph_transcripts.writing import Beginning
from threadkeep.store.retention import STEP_MESSAGES, Prunable, Removal, Removed


class ConversationRetention:
    """What retention asks of conversations that have no rows in our tables.

    Nothing is archived in them, since a conversation has one border: what is before it is gone. They have no limits of
    their own, and the id of a message that was deleted is not known any more. `forget_runs` is given the runs that
    spoke in what goes; they go first, so that nothing outlives what it was made of. Where one of them is at work it
    raises `RowLocked`, and the conversation waits for the next round.
    """

    archives = False

    def __init__(
        self, conversations: GraphTranscripts, *, forget_runs: Callable[[Sequence[str]], Awaitable[object]]
    ) -> None:
        self._conversations = conversations
        self._reader = conversations.reader
        self._writer = conversations.writer
        self._forget_runs = forget_runs

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Some conversations in the order of their keys; the metadata of all of them are read."""
        if with_own:
            return []
        found = [conversation_of(value) async for value in self._conversations.all()]
        wanted = [_prunable(one) for one in found if one.session_id > after and user_id in (None, one.user_id)]
        return heapq.nsmallest(limit, wanted, key=lambda one: one.session_id)

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """One conversation; None when it is not there (or not this user's)."""
        conversation = await self._reader.conversation(session_id, user_id=user_id)
        return None if conversation is None else _prunable(conversation)

    async def end_of_older(self, session: Prunable, *, after: int, moment: datetime) -> int:
        """Where the messages end that follow a place and were all stored before a time."""
        conversation = await self._reader.conversation(session.session_id)
        if conversation is None:
            return after
        async for message in self._reader.up(conversation, after + 1, session.last_seq):
            # Of one that somebody else wrote nobody may know when: it stays.
            if message.created_at is None or message.created_at >= moment:
                return (message.seq or after + 1) - 1
        return session.last_seq

    async def extent(self, removal: Removal) -> Removed:
        """How much a removal would take now."""
        conversation = await self._reader.conversation(removal.session_id)
        going: list[Message] = []
        if conversation is not None:
            going = [each async for each in self._reader.up(conversation, removal.after_seq + 1, removal.upto_seq)]
        return _removed(removal.upto_seq, going)

    async def step(self, removal: Removal, *, messages: int = STEP_MESSAGES) -> Removed | None:
        """Take the next messages of a removal; None when it is over, or the conversation is not as it was.

        Raises:
            RowLocked: somebody else keeps changing it, or a run that spoke in it is at work.
        """
        upto = min(removal.upto_seq, removal.after_seq + messages)
        beginning = Beginning(removal.after_seq, upto, removal.idle_before)
        conversation = await self._reader.conversation(removal.session_id)
        if conversation is None or upto <= removal.after_seq or not beginning.is_of(conversation):
            return None
        going = await self._reader.between(conversation, removal.after_seq + 1, upto)
        title = await self._title_after(conversation, going, upto)
        await self._forget_runs(sorted({message.run_id for message in going if message.run_id is not None}))
        if not await self._writer.take_away(removal.session_id, beginning, title=(conversation.title, title)):
            return None
        return _removed(upto, going)

    async def delete_session(self, session_id: str, *, idle_before: datetime) -> bool:
        """Delete a conversation whose messages are all gone, if nothing was said in it since."""
        return await self._writer.delete(session_id, idle_before=idle_before)

    async def forget_ids(self) -> None:
        """They went with their messages."""

    async def retention(self, session_id: str, *, user_id: str | None = None) -> tuple[bool, Retention | None]:
        """Whether a conversation is there (for this user); it has no limits of its own."""
        return await self._reader.conversation(session_id, user_id=user_id) is not None, None

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Refused where the conversation is there; False where it is not.

        Raises:
            InvalidInput: it is there.
        """
        if await self._reader.conversation(session_id, user_id=user_id) is None:
            return False
        raise InvalidInput(
            "A conversation that an agent keeps by itself has no limits of its own: the rules hold for it. "
            "Prune it by name: threadkeep sessions prune SESSION --delete."
        )

    async def give_back_room(self) -> bool:
        """The tables do, with which conversations share their database."""
        return False

    async def _title_after(self, conversation: Conversation, going: Sequence[Message], upto: int) -> str | None:
        """A title that was made of what goes is made of what stays: the first user message, as ever."""
        first = next((message.content for message in going if message.role == "user"), None)
        if first is None or conversation.title != shorten(first, TITLE_CHARACTERS):
            return conversation.title
        async for message in self._reader.up(conversation, upto + 1, conversation.last_seq):
            if message.role == "user":
                return shorten(message.content, TITLE_CHARACTERS)
        return None


def _removed(upto: int, going: Sequence[Message]) -> Removed:
    return Removed(upto, len(going), sum(message.tokens or 0 for message in going))


def _prunable(conversation: Conversation) -> Prunable:
    """A conversation as far as retention goes; none of its messages was stored before it began."""
    return Prunable(
        conversation.session_id,
        conversation.last_seq,
        conversation.last_user_seq,
        conversation.deleted_seq,
        conversation.deleted_seq,
        updated_at=conversation.updated_at,
        retention=None,
        first_stored_at=conversation.created_at,
        first_live_at=conversation.created_at,
    )
