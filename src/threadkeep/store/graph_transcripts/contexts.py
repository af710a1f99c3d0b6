"""Contexts of conversations that agents keep, stored in the same graph store."""

from __future__ import annotations

from threadkeep.store.codec import clean_text
from threadkeep.store.contexts import Steps
from threadkeep.store.graph_transcripts.items import Items, Writing
from threadkeep.store.graph_transcripts.shapes import Conversation
from threadkeep.store.graph_transcripts.steps import mark_of, turns_in
from threadkeep.store.graph_transcripts.writing import ConversationWriter
from threadkeep.store.unkept import UnkeptContexts


class ConversationContexts(UnkeptContexts):
    """The state for a conversation's next context: steps only; there are no anchors and no summaries.

    Each agent has an item with its turns. A turn is not returned, and is removed by the next write, if its question is
    gone or its question or answer was superseded.
    """

    def __init__(self, items: Items, writer: ConversationWriter) -> None:
        super().__init__()
        self._items = items
        self._writer = writer

    async def steps(self, session_id: str, author: str, *, since: int) -> list[Steps]:
        """Return the steps of an agent's turns from a question on, oldest first."""
        conversation = await self._writer.reader.conversation(session_id)
        if conversation is None:
            return []
        [found] = await self._items.get([self._writer.layout.steps(session_id, author)])
        turns = [turn for turn in turns_in(found, conversation) if turn["seq"] >= since]
        return [Steps(turn["seq"], turn["body"]) for turn in turns]

    async def keep_steps(
        self, session_id: str, steps: Steps, *, question_id: str, author: str, ordinal: int = 1, turns: int = 1
    ) -> None:
        """Keep the steps of an answer whose question is there, and those of the agent's newest turns only."""
        key = self._writer.layout.steps(session_id, author)

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is None or found.superseded_between(steps.seq, steps.seq):
                return
            if (await self._writer.places_of(writing, found, [question_id])).get(question_id) != steps.seq:
                return
            [former] = await writing.get([key])
            new = {"seq": steps.seq, "ordinal": ordinal, "body": clean_text(steps.body), **mark_of(found, steps.seq)}
            rest = [turn for turn in turns_in(former, found) if (turn["seq"], turn["ordinal"]) != (steps.seq, ordinal)]
            kept = sorted([*rest, new], key=lambda turn: (turn["seq"], turn["ordinal"]))
            newest = sorted({turn["seq"] for turn in kept})[-turns:]
            value = {"author": author, "turns": [turn for turn in kept if turn["seq"] in newest]}
            await self._writer.put(writing, found, found, {key: value})

        await self._writer.hold(session_id, work)
