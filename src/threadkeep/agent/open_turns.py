"""The calls of one agent in this process that have begun and not ended; each is settled once."""

from __future__ import annotations

import contextlib
from typing import Any

from langchain.agents.middleware import PIIDetectionError
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.runtime import Runtime

from threadkeep.agent.conversion import text_of
from threadkeep.agent.participation import Caller, CallKey, Participation
from threadkeep.errors import ThreadkeepError
from threadkeep.records import Status

_MOST_CALLS = 1_000


class OpenTurns:
    """Calls by their keys; the memory has them settled before it closes.

    At most a thousand are remembered. A forgotten one (of an interrupted run, say) continues from the transcript.
    """

    def __init__(self) -> None:
        self._calls: dict[CallKey, Participation] = {}

    def __len__(self) -> int:
        """Return how many take part in a turn."""
        return sum(not call.silent for call in self._calls.values())

    def of(self, key: CallKey) -> Participation | None:
        """Return the call with a key."""
        return self._calls.get(key)

    def enter(self, call: Participation) -> None:
        """Remember a call that begins, in the place of one with the same key."""
        self._calls.pop(call.key, None)
        self._calls[call.key] = call
        if len(self._calls) > _MOST_CALLS:
            del self._calls[next(iter(self._calls))]

    def hold(self, call: Participation, said: BaseMessage | str, status: Status, runtime: Runtime[Any]) -> None:
        """Keep what was said until the run ends; a timer stores it if nothing more is heard of the run."""
        call.hold(said, status, runtime)
        call.wait(lambda: self._settle_abandoned(call))

    async def end(self, call: Participation, said: BaseMessage | str, status: Status) -> AIMessage | None:
        """Store the answer of a call, which is over; return the answer of another process that was first."""
        call.stop_waiting()
        self.forget(call)
        if call.turn is None:
            return None
        winner = await call.turn.close(said, status)
        if status == "complete":
            final = winner if winner is not None else said
            if isinstance(final, BaseMessage):
                call.root.add_answer(final, call.author)
        return winner

    async def fail(self, call: Participation, caller: Caller, error: Exception) -> None:
        """Settle a call whose run failed outside of its model call.

        A question that no model was asked is stored without its text: other middleware may have refused the text. An
        answer that was refused is stored nowhere.
        """
        if self._calls.get(call.key) is not call:
            return
        if call.turn is None:
            self.forget(call)
            # The caller hears the error of the run.
            with contextlib.suppress(ThreadkeepError):
                await call.refuse(caller)
        elif isinstance(error, PIIDetectionError):
            await self.end(call, "", "failed")

    async def cut_off(self, call: Participation) -> None:
        """Store what a run had said that was cancelled, or whose reader went away."""
        if self._calls.get(call.key) is call:
            await self.settle(call)

    def forget(self, call: Participation) -> None:
        """Forget a call, and what it said."""
        call.stop_waiting()
        if self._calls.get(call.key) is call:
            del self._calls[call.key]

    async def settle(self, call: Participation) -> None:
        """Store what was said so far, as the last of the turn."""
        await self.end(call, call.text, call.status)

    async def settle_before(self, new: Participation) -> None:
        """Store what was said by runs of a session that were cut off, before its next turn; a live run stays.

        What the same question was answered by a run that failed is left to this second try.
        """
        for call in list(self._calls.values()):
            if call is new or call.session.session_id != new.session.session_id or call.silent:
                continue
            if call.question_id is not None and call.question_id == new.question_id:
                if call.status == "failed" or call.is_over:
                    self.forget(call)
            elif call.is_over:
                await self.settle(call)

    async def settle_all(self) -> None:
        """Store what was said by runs that did not end; the memory asks for it when it closes."""
        errors: list[Exception] = []
        for call in list(self._calls.values()):
            try:
                await self.settle(call)
            except Exception as error:  # noqa: BLE001 - one turn's trouble keeps no other from being stored
                errors.append(error)
        for first in errors:
            raise first

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Store what a run had said that is over for certain; forget it if the run goes on in another process."""
        for call in list(self._calls.values()):
            if call.turn is None or call.turn.run_id != run_id:
                continue
            if elsewhere:
                self.forget(call)
            else:
                await self.settle(call)

    async def _settle_abandoned(self, call: Participation) -> None:
        """Store what was said by a run that is not heard of.

        It may still end well, and its answer must not be taken for one that is there already: what is stored now gets
        an id of its own. Then both are in the transcript, one of them marked; without it a question would stand there
        as never answered.
        """
        said = call.text
        if not call.is_over and isinstance(said, AIMessage):
            said = text_of(said)
        await self.end(call, said, call.status)
