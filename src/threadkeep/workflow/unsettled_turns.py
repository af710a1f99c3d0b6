"""The turns of one agent's runs in this process that have begun and not ended; each is settled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.runtime import Runtime

from threadkeep.history.session import Session
from threadkeep.records import Status
from threadkeep.workflow.conversion import id_of, text_of
from threadkeep.workflow.invocation import question_before
from threadkeep.workflow.turns import OpenTurn
from threadkeep.workflow.unsettled import Unsettled

_MOST_RUNS = 1_000
"""How many runs are remembered; one that is forgotten (interrupted, say) is taken up again from the transcript."""


class UnsettledTurns:
    """Turns by their session and question; the memory has them settled before it closes."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str | None], Unsettled] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._turns)

    def known(self, messages: Sequence[BaseMessage], session: Session) -> Unsettled | None:
        """The turn that answers the newest question of some messages."""
        for message in reversed(messages) if question_before(messages) else ():
            # Not simply the newest: a tool may have put a human message (an image, say) after the question.
            known = self._turns.get((session.session_id, id_of(message)))
            if message.type == "human" and known and known.turn.session.user_id == session.user_id:
                return known
        return None

    def enter(self, turn: OpenTurn) -> Unsettled:
        """Remember the turn of a run. A question that is asked again takes the place of its run that failed."""
        key = (turn.session.session_id, turn.question_id)
        unsettled = self._turns.pop(key, None) or Unsettled(turn)
        unsettled.turn = turn
        if unsettled.status == "failed":
            unsettled.let_go()
        self._turns[key] = unsettled
        if len(self._turns) > _MOST_RUNS:
            del self._turns[next(iter(self._turns))]
        return unsettled

    def hold(self, unsettled: Unsettled, said: BaseMessage | str, status: Status, runtime: Runtime[Any]) -> None:
        """Remember what was said until the run ends; a run that is never heard of again has it stored by the timer."""
        unsettled.hold(said, status, runtime)
        unsettled.wait(lambda: self._settle_abandoned(unsettled))

    async def end(self, unsettled: Unsettled, said: BaseMessage | str, status: Status) -> None:
        """The run is over for this turn."""
        unsettled.stop_waiting()
        key = (unsettled.turn.session.session_id, unsettled.turn.question_id)
        if self._turns.get(key) is unsettled:
            del self._turns[key]
        await unsettled.turn.close(said, status)

    async def settle(self, unsettled: Unsettled) -> None:
        """Store what was said so far, as the last of the turn."""
        await self.end(unsettled, unsettled.text, unsettled.status)

    async def settle_what_is_over(self, new: OpenTurn) -> None:
        """Store what was said by runs of a session that were cut off, before its next turn; a run that may live stays.

        What the same question was answered is left to its second try.
        """
        for (session_id, question_id), unsettled in list(self._turns.items()):
            if session_id == new.session.session_id and question_id != new.question_id and unsettled.is_over:
                await self.settle(unsettled)

    async def settle_all(self) -> None:
        """Store what was said by runs that did not end; the memory asks for it when it closes."""
        errors: list[Exception] = []
        for unsettled in list(self._turns.values()):
            try:
                await self.settle(unsettled)
            except Exception as error:  # noqa: BLE001 - one turn's trouble keeps no other from being stored
                errors.append(error)
        for first in errors:
            raise first

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Store what a run had said that is over for certain; forget it where the run goes on elsewhere."""
        for key, unsettled in list(self._turns.items()):
            if unsettled.turn.run_id != run_id:
                continue
            if elsewhere:
                unsettled.let_go()
                del self._turns[key]
            else:
                await self.settle(unsettled)

    async def _settle_abandoned(self, unsettled: Unsettled) -> None:
        """Store what was said by a run that is not heard of.

        Nobody can tell for certain that it is over: if it ends well all the same, its answer must not be taken for one
        that is there already. So what is stored now has an id of its own. Then both are in the transcript, one of them
        marked; without it a question would stand there as never answered, and be answered anew when it is repeated.
        """
        said = unsettled.text
        if not unsettled.is_over and isinstance(said, AIMessage):
            said = text_of(said)
        await self.end(unsettled, said, unsettled.status)
