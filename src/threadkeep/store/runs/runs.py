"""The owners of runs (the processes that execute them), the ends of runs, and the versions of their workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from threadkeep.records import Json, Message
from threadkeep.records.runs import (
    REPLY,
    ROLLED_BACK,
    STATUS,
    Run,
    RunBudget,
    RunEnd,
    TraceEvent,
    WorkflowVersion,
    questions_in,
)
from threadkeep.store.codec import clean_json, json_text, time_of, time_text
from threadkeep.store.compressed_json import compress, json_of
from threadkeep.store.driver import Connection, Driver, Joined, Parameters, Row, Statement
from threadkeep.store.retention import FinishedRuns
from threadkeep.store.runs.order import DISOWNED, ActiveSessions, RunLocks, RunOrder, RunPositions
from threadkeep.store.runs.rows import RunRecords, fetch_run, lacks_text, run_of, short_inputs, short_result
from threadkeep.store.runs.trace import RunTrace, TraceGroup, TraceLimits
from threadkeep.store.statements import ClockedTables


@dataclass(frozen=True)
class Outcome:
    """The outcome of executing a run. A run whose outcome is `waiting` continues after a person's answer."""

    status: Literal["done", "failed", "cancelled", "interrupted", "waiting"]
    result: Mapping[str, Json] | None = None
    error: str | None = None
    interrupt: Json = None
    set_aside: bool = False


# Keep a version that has a run younger than this, because queries take time and the clocks of processes differ.
_CLOCKS_DIFFER = timedelta(hours=1)


class WorkflowVersions(ClockedTables, sql=("runs_records.sql",)):
    """The table `chat_workflows` with the definitions of workflows. A stored version never changes."""

    async def keep(self, name: str, version: str, definition: Mapping[str, Json] | None) -> None:
        """Store a workflow's definition, unless this version is stored already."""
        if await self.version(name, version) is not None:
            return
        parameters = {
            "name": name,
            "version": version,
            "definition": None if definition is None else json_text(dict(definition)),
            "now": time_text(self._clock()),
        }
        await self._driver.write([(self._sql["keep_workflow"], parameters)])

    async def version(self, name: str, version: str) -> WorkflowVersion | None:
        """Return one version of a workflow, or None if it is not stored."""
        rows = await self._driver.fetch(self._sql["workflow"], {"name": name, "version": version})
        if not rows:
            return None
        [(name, version, definition, first_used_at)] = rows
        return WorkflowVersion(name, version, json_of(definition), time_of(first_used_at))

    async def unused(self, before: datetime, *, limit: int = 100) -> list[tuple[str, str]]:
        """Return up to `limit` versions without runs, first used before `before`. Omit every workflow's newest one."""
        rows = await self._driver.fetch(self._sql["unused_workflows"], {"before": time_text(before), "limit": limit})
        return [(name, version) for name, version in rows]

    async def forget(self, unused: Sequence[tuple[str, str]]) -> int:
        """Delete unused versions, except versions with which runs have begun since; return the number deleted."""
        since = time_text(self._clock() - _CLOCKS_DIFFER)
        rows = [{"name": name, "version": version, "since": since} for name, version in unused]
        async with self._driver.writing() as connection:
            return sum([await connection.execute(self._sql["forget_workflow"], row) for row in rows])


class Runs(ClockedTables, sql=("runs.sql", "{backend}/runs.sql")):
    """The table of runs, and the tables that depend on it.

    Guarantees: at most one of the runs with a position in a conversation is running, and these runs begin in the order
    of their arrival. Only the owner of a run can end it. When an owner is found dead, its runs are disowned, and any
    process may begin them again. The rows of a session's runs are deleted with the session.
    """

    def __init__(
        self, driver: Driver, *, clock: Callable[[], datetime], trace_limits: TraceLimits | None = None
    ) -> None:
        super().__init__(driver, clock=clock)
        self._locks = RunLocks(driver.backend)
        self.trace = RunTrace(driver, clock=clock, limits=trace_limits or TraceLimits())
        self.order = RunOrder(driver, self.trace, clock=clock)
        self.positions = RunPositions(driver)
        self.records = RunRecords(driver)
        self.finished = FinishedRuns(driver)
        self.workflows = WorkflowVersions(driver, clock=clock)
        self.sessions = ActiveSessions(driver, clock=clock)

    async def run(self, run_id: str, *, damaged: bool = False) -> Run | None:
        """Return the run `run_id` or, if it was deleted, the data that is left of it; None if there is no data.

        With `damaged`, a run that cannot be read has the error `RecordUnreadable` and lacks its damaged records.
        """
        async with self._driver.reading() as connection:
            return await fetch_run(connection, run_id, damaged=damaged)

    async def owners(self) -> set[str]:
        """Return the names of the processes that own running runs, except processes found dead (see `disown`)."""
        return {owner for (owner,) in await self._driver.fetch(self._sql["owners"], {"disowned": DISOWNED})}

    async def take_lock(self) -> None:
        """Take and release the write lock, to check that the database can be written. Raises `StoreUnavailable`."""
        await self._driver.write([])

    async def held_by(self, owner: str) -> dict[str, str | None]:
        """Return the ids of the runs that `owner` executes, each with the reason for stopping it, if any.

        If a run is missing, the owner has lost the run: another process executes it, or it was deleted.
        """
        return dict(await self._driver.fetch(self._sql["held"], {"owner": owner}))

    async def disown(self, owner: str) -> list[str]:
        """Let any process begin the runs of a dead owner. Return their ids; a concurrent call returns none of them."""
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["disown"], {"owner": owner, "disowned": DISOWNED})
        return [run_id for (run_id,) in rows]

    async def begin_with(self, run_id: str, owner: str, version: str) -> bool:
        """Set the workflow version of a run that has executed nothing; return False if `owner` has lost the run."""
        return await self._execute("begin_with", {"run_id": run_id, "owner": owner, "version": version}) > 0

    async def finish(
        self,
        run_id: str,
        owner: str,
        status: RunEnd,
        *,
        result: Mapping[str, Json] | None = None,
        error: str | None = None,
        set_aside: bool = False,
    ) -> bool:
        """Record the end of a run, in its row and in its trace; return False if the owner has lost the run.

        Repeating the call changes nothing. `error` is the name of a kind of error, not a message. A run that is
        `set_aside` stays failed until a person retries it.
        """
        outcome = Outcome(status, result, error, set_aside=set_aside)
        data: dict[str, Json] = {"status": status} if error is None else {"status": status, "error": error}
        return await self.end(run_id, owner, outcome, TraceGroup([TraceEvent(STATUS, data=data)])) is not None

    async def end(
        self, run_id: str, owner: str, outcome: Outcome, group: TraceGroup | None = None, asked: Run | None = None
    ) -> Run | None:
        """Record the end of a run and of its trace; return the run, or None if the owner has lost the run.

        `asked` is the run's record from the time when its owner began it. Repeating the call changes nothing.
        """
        key = {"run_id": run_id, "owner": owner, "status": outcome.status}
        parameters = self._end_parameters(run_id, owner, outcome, asked)
        finish = (self._sql["finish"], parameters)
        async with self._driver.writing() as connection:
            held: Sequence[list[Row]]
            ended, *held = await connection.fetch_each([finish, *self.trace.hold(run_id, group, ends=True)])
            if ended and group is not None:
                await self.trace.store(connection, run_id, held, group, ends=True)
            if not ended and not await connection.fetch(self._sql["ended"], key):
                return None
            if not ended or outcome.result is None:
                return await fetch_run(connection, run_id, damaged=True)
        run, result = run_of(ended[0]), parameters["result"]
        inputs = asked.inputs if asked and any(map(lacks_text, run.inputs)) else run.inputs
        return replace(run, result=json_of(result if isinstance(result, bytes) else None), inputs=inputs)

    def ending(
        self, run: Run, outcome: Outcome, group: TraceGroup, others: Sequence[Statement], messages: Sequence[Message]
    ) -> Joined | None:
        """Return the statements that end a run, including `others`, for the transaction that stores its answer.

        The answer is the only message in `messages`. The statements make the transaction fail if another process owns
        the run. Return None if the run has no session, or if its trace is too long.
        """
        [answer] = messages
        texts = {str(answer.id): answer.content}
        trace = self.trace.whole(run.run_id, group, texts)
        if not trace or run.session_id is None:
            return None
        finish = self._end_parameters(run.run_id, str(run.owner), outcome, run)
        known = {**finish, "session_id": run.session_id, "answer_id": answer.id}
        return Joined(
            self._locks.statements("lock_order", place=run.session_id),
            [
                (self._sql["finish"], finish),
                (self._sql["refuse_unless_ended"], known),
                *trace,
                *others,
                (self._sql["has_following"], {"run_id": run.run_id, "session_id": run.session_id}),
            ],
        )

    async def set_aside(self, run_id: str, error: str) -> bool:
        """Mark a run as failed and set it aside; return False if it has ended already or waits for a person.

        The owner is not checked: the caller must know that no process executes the run.
        """
        return await self._execute("set_aside", {"run_id": run_id, "error": error, "now": time_text(self._clock())}) > 0

    async def wait(self, run_id: str, owner: str, interrupt: Json) -> bool:
        """Mark a run as waiting for a person's answer to `interrupt`. Other runs of its session continue meanwhile.

        Return False if the owner has lost the run, or if the run must be stopped. Repeating the call changes nothing.
        If the run waits for a child that was cancelled just before, the run is queued again.
        """
        waits = await self._execute("wait", {"run_id": run_id, "owner": owner, "interrupt": json_text(interrupt)}) > 0
        if not waits and (run := await self.run(run_id, damaged=True)) is not None:
            waits = run.status == "waiting" and run.interrupt == clean_json(interrupt)
        for question in questions_in(interrupt):
            value = question.get("value")
            child = await self.run(str(value["run_id"])) if isinstance(value, Mapping) and "run_id" in value else None
            if child is not None and child.parent_run_id == run_id and child.status == "cancelled":
                await self._continue_above(child.run_id)
        return waits

    async def give_back(self, run_id: str, owner: str) -> bool:
        """Release a run, so that another process can begin it. The run stays the first of its session.

        Return False if the owner has lost the run, or if the run must be stopped.
        """
        return await self._execute("give_back", {"run_id": run_id, "owner": owner}) > 0

    async def note_workflow_gone(self, run_id: str) -> None:
        """Record that a run waits because a worker lacks its workflow, unless a process executes the run."""
        await self._execute("note_workflow_gone", {"run_id": run_id, "disowned": DISOWNED})

    async def resume(self, run_id: str, value: Json, *, asked: Json = None) -> bool:
        """Queue a waiting run again behind the other runs, with a person's answer; return False if it does not wait.

        `asked`, if given, is the `interrupt` that the person answered. Return False if the run has another one by now.
        """
        given = {"resume_value": json_text(value), "asked": None if asked is None else json_text(asked)}
        return await self._arrive_again("resume", {"run_id": run_id, **given})

    async def resume_by(self, message_id: str, run: Run, value: Json, *, is_reply: bool = True) -> bool:
        """Resume a waiting run with a message of its session.

        With `is_reply`, the run's answer becomes a reply to this message; otherwise the channel that asked the question
        sends the answer. Return False if the run does not wait for this answer, or if the message was used before.
        """
        asked = run.interrupt if isinstance(run.interrupt, Mapping) else {}
        interrupt = json_text({**asked, REPLY: message_id})
        parameters = {"run_id": run.run_id, "message_id": message_id, "resume_value": json_text(value), "asked": None}
        async with self._driver.writing() as connection:
            await self._locks.hold(connection, "lock_order_of", run_id=run.run_id)
            current = await fetch_run(connection, run.run_id)
            if current is None or current.interrupt != run.interrupt:
                return False  # the run now asks another question
            if not await connection.fetch(self._sql["take_reply"], parameters):
                return False
            await connection.execute(self._sql["resume"], parameters)
            await connection.execute(self._sql["arrive_again"], parameters)
            if is_reply:
                await connection.execute(self._sql["note_reply"], {**parameters, "interrupt": interrupt})
            else:
                await connection.execute(self._sql["owe_again"], {**parameters, "now": time_text(self._clock())})
        return True

    async def is_resumed_by(self, message_id: str, run: Run) -> bool:
        """Return True if a message has answered a question that the run asked a person."""
        if message_id in [given.message_id for given in run.inputs]:
            return False
        key = {"run_id": run.run_id, "session_id": run.session_id, "message_id": message_id}
        return bool(await self._driver.fetch(self._sql["has_reply"], key))

    async def retry(self, run_id: str, *, budget: RunBudget | None = None) -> bool:
        """Queue a run that did not succeed, and count its attempts from 0. Return False for other runs.

        A `budget` replaces the total limits of the run.
        """
        limits = {} if budget is None else budget.to_dict()
        given = {"has_budget": budget is not None, "budget": json_text(limits) if limits else None}
        return await self._arrive_again("retry", {"run_id": run_id, **given})

    async def request_cancel(self, run_id: str, *, reason: str = "requested") -> list[str]:
        """Stop a run and all its descendants in one transaction; return the ids of those that had not ended yet.

        A run that no process executes is cancelled at once. A run that a process executes stays `running` until that
        process has stopped it. `reason` is one word, which is stored. Waiting ancestors of a child are queued again.
        """
        parameters = {"run_id": run_id, "reason": reason, "now": time_text(self._clock())}
        above = await self._waiting_above(run_id)
        async with self._driver.writing() as connection:
            roots = await connection.fetch(self._sql["root"], parameters)
            if not roots:
                return []
            await self._lock_orders_of(connection, above)
            await self._locks.hold(connection, "lock_tree", root_run_id=roots[0][0])
            await self._locks.hold(connection, "lock_below", run_id=above[0].run_id if above else run_id)
            rows = await connection.fetch(self._sql["cancel"], parameters)
            await self.trace.note_cancelled(connection, rows)
            await self._continue(connection, above)
        # Check again, because an ancestor may have begun to wait since `above` was read.
        await self._continue_above(run_id)
        return [cancelled for cancelled, *_ in rows]

    async def _continue_above(self, run_id: str) -> None:
        """Queue a run's waiting ancestors again, and remove their interrupts, the questions to a person."""
        if above := await self._waiting_above(run_id):
            async with self._driver.writing() as connection:
                await self._lock_orders_of(connection, above)
                await self._continue(connection, above)

    async def _waiting_above(self, run_id: str) -> list[Run]:
        """Return a run's ancestors with the status `waiting`, the one nearest to the root first."""
        above: list[Run] = []
        run = await self.run(run_id, damaged=True)
        while run is not None and run.parent_run_id is not None:
            run = await self.run(run.parent_run_id, damaged=True)
            if run is None or run.status != "waiting":
                break
            above.insert(0, run)
        return above

    async def _lock_orders_of(self, connection: Connection, runs: Sequence[Run]) -> None:
        for run in runs:
            await self._locks.hold(connection, "lock_order_of", run_id=run.run_id)

    async def _continue(self, connection: Connection, above: Sequence[Run]) -> None:
        for waiting in above:
            asked = waiting.interrupt if isinstance(waiting.interrupt, Mapping) else {}
            row = {"run_id": waiting.run_id, "resume_value": json_text(None), "asked": json_text(asked)}
            row |= {"interrupt": json_text({**asked, "interrupts": []}), "now": time_text(self._clock())}
            if not await connection.execute(self._sql["resume"], row):
                return  # a person has answered
            for name in ("note_reply", "arrive_again", "owe_again"):
                await connection.execute(self._sql[name], row)

    async def _arrive_again(self, statement: str, parameters: Parameters) -> bool:
        async with self._driver.writing() as connection:
            await self._locks.hold(connection, "lock_order_of", run_id=parameters["run_id"])
            changed = await connection.execute(self._sql[statement], parameters) > 0
            if changed:
                again = {"run_id": parameters["run_id"], "now": time_text(self._clock())}
                await connection.execute(self._sql["arrive_again"], {"run_id": parameters["run_id"]})
                await connection.execute(self._sql["owe_again"], again)
        return changed

    def _end_parameters(self, run_id: str, owner: str, outcome: Outcome, asked: Run | None) -> dict[str, object]:
        result = outcome.result
        # Omit texts that the transcript has, but only if the run is done: a retry reads them from the run.
        inputs = asked.inputs if asked is not None and outcome.status == "done" else ()
        short = None if result is None else short_result(result)
        message_id, text = (None, None) if result is None or short is None else (result["message_id"], result["text"])
        return {
            "run_id": run_id,
            "owner": owner,
            "status": outcome.status,
            "result": None if result is None else compress(json_text(dict(result))),
            "short_result": None if short is None else compress(json_text(short)),
            "message_id": message_id,
            "text": clean_json(text),
            **short_inputs(inputs, asked.message_id if asked else None),
            "error": outcome.error,
            "set_aside": outcome.set_aside,
            "attempt": asked.attempts if asked else None,
            "rolled_back": ROLLED_BACK,
            "now": time_text(self._clock()),
        }
