"""Which model call is meant: the newest of a session, the newest but some, or one of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from threadkeep.cli.problems import NotDone
from threadkeep.cli.wording import counted
from threadkeep.history.all_sessions import AllSessions

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.store.manifests import Cursor, StoredManifest

_PAGE = 200


class CallNotFound(NotDone):
    """There is no record of the model call that is meant."""


@dataclass(frozen=True)
class CallChoice:
    """Where the call is looked for: in a session, or in a run (of that session, if both are said)."""

    session_id: str | None = None
    run_id: str | None = None
    user_id: str | None = None
    retention_days: float = 0

    async def find(self, memory: Memory, number: int | None) -> StoredManifest:
        """The call with a number: of a run in order, else counted back from the newest; None is the last one.

        Raises:
            CallNotFound: it is not on record; says what is.
            SessionNotFound: there is no such session, or not for this user.
        """
        if self.run_id is None:
            return await self._of_session(memory, number or 1)
        found = await memory.manifests.of_run(self.run_id, user_id=self.user_id)
        calls = {call.call: call for call in found if self.session_id in (None, call.session_id, _key_of(call))}
        if not calls:
            raise CallNotFound(f"No model call of run {self.run_id} is on record{self._cure()}")
        if (call := calls.get(number or max(calls))) is None:
            raise CallNotFound(f"Run {self.run_id} has the calls {min(calls)} to {max(calls)}; say one of them.")
        return call

    async def newest(self, memory: Memory) -> StoredManifest | None:
        """The newest call of the session, if one is on record.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
        """
        found = await self._newest(memory, 1)
        return found[0] if found else None

    async def before(self, memory: Memory, call: StoredManifest) -> StoredManifest:
        """The call before another one in the session; where none is named in its own, or in its run.

        Raises:
            CallNotFound: it was the first, or the one before it is not kept any more.
        """
        if self.session_id is not None:
            older = await self._newest(memory, 1, before=call.cursor)
        elif call.session_id is None:
            older = [one for one in await memory.manifests.of_run(call.run_id) if one.call < call.call][-1:]
        else:
            older = await memory.manifests.of_session(
                call.session_id, user_id=self.user_id, limit=1, before=call.cursor
            )
        if not older:
            raise CallNotFound("There is no earlier call on record to compare it with; name one with --diff N.")
        return older[0]

    async def _newest(self, memory: Memory, limit: int, *, before: Cursor | None = None) -> list[StoredManifest]:
        session_id = self.session_id or ""
        return await AllSessions(memory).calls(session_id, user_id=self.user_id, limit=limit, before=before)

    async def _of_session(self, memory: Memory, number: int) -> StoredManifest:
        session_id = self.session_id or ""
        place, count = None, 0
        while count < number:
            limit = min(_PAGE, number - count)
            page = await self._newest(memory, limit, before=place)
            count += len(page)
            if count == number:
                return page[-1]
            if len(page) < limit:
                break
            place = page[-1].cursor
        if not count:
            raise CallNotFound(f"No model call of {session_id} is on record{self._cure()}")
        raise CallNotFound(
            f"{counted(count, 'call')} of {session_id} on record: --call takes 1, the newest, to {count}."
        )

    def _cure(self) -> str:
        variable = "THREADKEEP_MANIFEST_RETENTION_DAYS"
        if self.retention_days == 0:
            return f": {variable} is 0, so none is kept. Set it above 0, ask something, and look again."
        return f": nothing was asked yet, or longer ago than {variable}={self.retention_days:g} days."


def _key_of(call: StoredManifest) -> object:
    """The key of the conversation that a call was made in, where an agent keeps it by itself."""
    conversation = call.manifest.get("conversation")
    return conversation.get("key") if isinstance(conversation, dict) else None
