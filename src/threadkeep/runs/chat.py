"""The chat: people's messages and the answers to them, for every interface (HTTP, terminal).

Each turn is a run. Turns of one session are executed one after the other, in order of arrival, whichever process
received them. A turn belongs to the chat, not to the caller that waits for it: it continues when the caller goes away.
If the database cannot store runs, messages are answered by runs that are not recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from weakref import WeakValueDictionary

from threadkeep.boundary import ErrorBoundary, Tasks
from threadkeep.errors import (
    Interrupted,
    InvalidInput,
    MessageSuperseded,
    RunFailed,
    RunNotFound,
    SessionBusy,
    SessionNotFound,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    WrongUser,
)
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.records.runs import DELETE, RESET, DoubleTexting, Run, RunInput, RunQuery, RunStatus, RunTrigger
from threadkeep.runs.chat_turns import ELSEWHERE, STOPPED, UNEXECUTED, ChatAnswer, ChatAnswers, ChatTurn
from threadkeep.runs.endings import report_turn
from threadkeep.runs.execution import Dependencies, RunExecution
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import InFlightMessages, RunStream, changed
from threadkeep.runs.tool_idempotency import IdempotentToolsOnly
from threadkeep.runs.tracing import Ledger
from threadkeep.store.driver import waiting_until
from threadkeep.store.runs import Outcome
from threadkeep.store.runs.order import DISOWNED
from threadkeep.workflows.built_in import CHAT
from threadkeep.workflows.definition import Compiler
from threadkeep.workflows.registry import InProcessChildren, Workflows
from threadkeep.workflows.resources import Resources, RunOptions

_SUBMIT_SECONDS = 15.0
"""Seconds to wait until a run is stored. If it is stored later, the message may be answered twice."""

_STOPS = "The service stops; send the message again, with its message_id."
_ELSEWHERE_SECONDS = 60.0
"""Seconds to wait for a turn in another process. Without a limit, callers hang if that process is suspended."""

_MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class RegenerationRequest:
    """A request to answer a question again: the message `message_id`, or the question that the run `run_id` answered.

    By default, the newest question is answered, by the same workflow as before. `double_texting` replaces the
    workflow's policy for the case that another turn of the session is active.
    """

    run_id: str | None = None
    message_id: str | None = None
    workflow: str | None = None
    trigger: RunTrigger = "http"
    double_texting: DoubleTexting | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if the request names both a run and a message."""
        if self.run_id is not None and self.message_id is not None:
            raise InvalidInput("Name the run or the message, not both.")


class Chat:
    """The chat on top of one `Memory`. It starts turns; the agents of registered workflows answer the messages."""

    def __init__(
        self,
        memory: Memory,
        workflows: Workflows,
        runs: RunsOnDemand,
        offline: OfflineRuns,
        *,
        elsewhere_seconds: float = _ELSEWHERE_SECONDS,
    ) -> None:
        self._memory = memory
        self._workflows = workflows
        self._runs = runs
        self._offline = offline
        self._elsewhere_seconds = elsewhere_seconds
        self._answers = ChatAnswers(memory, workflows)
        self._turns: dict[tuple[str, str, str | None], ChatTurn] = {}
        # Locks that keep the turns of a session in order. A lock lives as long as a turn holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stopping = Tasks()
        self._closing = False
        # The last session of each user and workflow, for use while the database is unavailable.
        self._last_sessions: dict[str, str] = {}

    @property
    def running(self) -> int:
        """The number of turns that are running or waiting now."""
        return len(self._turns)

    def begin(self, request: RunRequest, *, stream: bool = True) -> ChatTurn:
        """Start a turn and return it, or return the running turn that already answers this message.

        If `stream` is false, the model is called without streaming, and followers of the turn get no tokens.

        Raises:
            InvalidKey, InvalidInput: the session id or the user id cannot be used.
            WorkflowNotFound: no workflow of that name is registered.
            Interrupted: the chat was closed, so the turn cannot start.
        """
        turn = ChatTurn(request, stream=stream)
        if request.session_id is None and turn.user_key is not None:
            turn.session_id = self._last_sessions.get(turn.user_key, turn.session_id)
        self._memory.session(turn.session_id, user_id=request.user_id)
        self._workflows.get(request.workflow)
        key = (turn.session_id, turn.message_id, request.user_id)
        if running := self._turns.get(key):
            return running
        if self._closing:
            raise Interrupted(_STOPS)
        turn.task = asyncio.create_task(self._run(turn), name="threadkeep-turn")
        self._turns[key] = turn
        turn.task.add_done_callback(partial(self._ended, key, turn))
        return turn

    async def ask(self, request: RunRequest) -> ChatAnswer:
        """Return the answer to a message.

        Raises:
            ModelCallFailed, RunFailed: there is no answer; the message is stored.
            BudgetTooSmall: the message does not fit beside the system prompt.
            RunWaits: the workflow waits for a person's answer.
            SessionNotFound: the session belongs to another user, or was deleted during the call.
            SessionBusy: the workflow rejects messages while another turn of the session is active.
            TurnInMemoryOnly: the answer is stored neither in the database nor on disk yet; repeat the call later.
            StoreUnavailable: the database is unavailable, and the message cannot be answered without it.
            Interrupted: the service or the turn was stopped before there was an answer, a newer message rolled the turn
                back, or another process did not answer in time.
            InvalidKey, InvalidInput, WorkflowNotFound: `begin` rejects the request for the same reasons.
        """
        return await self.begin(request, stream=False).answer()

    def stop(self, turn: ChatTurn) -> None:
        """Request that a turn stops, but do not wait for it. A partial answer is stored as interrupted."""
        turn.stopped = True
        if turn.cancel is not None:
            _ = self._stopping.start(turn.cancel(), "threadkeep-stop")

    async def reset(self, session_id: str) -> None:
        """Wait for the turns queued now, then hide all turns from later model calls. Raises the errors of `delete`."""
        await self._between_turns(RESET, session_id)

    async def delete(self, session_id: str) -> None:
        """Wait for the turns that are queued now, then delete the session. Raises `RunFailed` or `StoreError`."""
        await self._between_turns(DELETE, session_id)

    async def close(self, seconds: float) -> None:
        """Accept no more turns, wait up to `seconds` for the running ones, and then cancel the rest.

        Callers of cancelled turns get `Interrupted`. Another process continues the runs that the database records; for
        other runs, the partial answers are stored.
        """
        self._closing = True
        if tasks := [turn.task for turn in self._turns.values()]:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _ended(self, key: tuple[str, str, str | None], turn: ChatTurn, task: asyncio.Task[ChatAnswer]) -> None:
        del self._turns[key]
        turn.stream.signal()
        # Retrieve the exception even if no caller waits for it; otherwise asyncio logs it.
        if task.cancelled() or task.exception() is not None or turn.user_key is None:
            return
        self._last_sessions.pop(turn.user_key, None)
        self._last_sessions[turn.user_key] = turn.session_id
        if len(self._last_sessions) > _MOST_REMEMBERED:
            del self._last_sessions[next(iter(self._last_sessions))]

    async def _run(self, turn: ChatTurn) -> ChatAnswer:
        answer: ChatAnswer | None = None
        try:
            answer = await self._answer_recorded(turn)
        except (WrongUser, RunNotFound) as error:
            raise SessionNotFound(turn.session_id) from error
        except StoreClosed:
            raise Interrupted(_STOPS) from None
        except (StoreError, TimeoutError):
            pass
        answer = answer or await self._answer_unstored(turn)
        if answer.answer_id not in (None, turn.stored_id):
            await self._memory.pending.ensure_kept(answer.session_id, answer.answer_id)
        return answer

    async def _answer_recorded(self, turn: ChatTurn) -> ChatAnswer | None:
        """Answer a turn with a run that the database records; return None if that is not possible."""
        session = self._memory.session(turn.session_id, user_id=turn.request.user_id)
        # Submit one message at a time, so that the turns keep the order of arrival.
        async with self._locks.setdefault(turn.order_key, asyncio.Lock()):
            runs = self._runs.opened or await self._service(session)
            if runs is None:
                return None
            async with session.timeout(_SUBMIT_SECONDS):
                submitted = await runs.submit(turn.run_request)
        turn.session_id, turn.run_id = submitted.session_id or turn.session_id, submitted.run_id
        ended = await self._end_of(turn, runs, submitted)
        if ended.status == "failed" and ended.error == StoreUnavailable.__name__:
            return None
        return await self._answers.of_recorded(turn, ended, runs, submitted)

    async def _service(self, session: Session) -> RunService | None:
        """Open and return the service that stores and executes runs; return None if this process cannot have one."""
        pending = self._memory.pending
        # Limit the wait for locks, because a person is waiting.
        async with session.timeout(pending.wait_seconds):
            with waiting_until(time.monotonic() + pending.wait_seconds):
                await self._memory.runs.take_lock()
        limit = session.timeout() if pending.database_fails else contextlib.nullcontext()
        try:
            async with limit:
                return await self._runs.service()
        except InvalidInput:
            # No run engine can be opened, for example because the extra `engine` is missing: do not store runs.
            return None

    async def _end_of(self, turn: ChatTurn, runs: RunService, submitted: Submitted) -> Run | Outcome:
        """Wait until a run ends or waits for a person; return it, or its outcome if the database does not respond."""
        stream = submitted.stream
        ending = asyncio.create_task(runs.end_of(submitted.run_id, user_id=turn.request.user_id))
        ending.add_done_callback(stream.signal)
        if not submitted.over:
            turn.read_from(stream)

        async def cancel() -> None:
            with contextlib.suppress(RunNotFound, StoreError):
                await runs.cancel(submitted.run_id)

        turn.cancel = cancel
        if turn.stopped:
            await cancel()
        try:
            while True:
                seconds = None if runs.has(turn.run_id) else self._elsewhere_seconds
                while not (submitted.over or ending.done() or stream.outcome):
                    if not await changed(stream.next_change, seconds) and not runs.is_active(turn.session_id):
                        raise Interrupted(await self._why_it_waits(turn))
                if (outcome := stream.outcome) is None:
                    return await ending
                ended: Run | Outcome = outcome
                with contextlib.suppress(RunNotFound, StoreError, TimeoutError, Interrupted):
                    async with self._memory.session(turn.session_id).timeout():
                        ended = await asyncio.shield(ending)
                # If the outcome has changed, the run has continued after a failure of the database. Wait for its end.
                if ended is not outcome or stream.outcome is outcome:
                    return ended
        finally:
            ending.cancel()

    async def _answer_unstored(self, turn: ChatTurn) -> ChatAnswer:
        # If the database has a run for this message too, that run waits until this block ends: only one run answers.
        with self._runs.in_flight.answering(turn.session_id, turn.message_id):
            async with self._locks.setdefault(turn.order_key, asyncio.Lock()):
                if turn.stopped:
                    raise Interrupted(STOPPED)
                if (stored := await self._answers.stored(turn)) is not None:
                    return stored
                stream = RunStream(turn.run_id)
                turn.read_from(stream)
                work = asyncio.create_task(self._work_unstored(turn, stream))

                async def cancel() -> None:
                    work.cancel()

                turn.cancel = cancel
                try:
                    outcome, ledger = await work
                except asyncio.CancelledError:
                    work.cancel()
                    await asyncio.wait([work])
                    if turn.stopped:
                        raise Interrupted(STOPPED) from None
                    raise
        if outcome.status == "waiting":
            raise StoreUnavailable("The workflow asks a person, and the database cannot store that now; send it again.")
        return await self._answers.of_unrecorded(turn, outcome, ledger.usages)

    async def _work_unstored(self, turn: ChatTurn, stream: RunStream) -> tuple[Outcome, Ledger]:
        outcome, ledger = await self._offline.execute(turn.run_request, stream, turn.session_id)
        if outcome.status == "done":
            self._runs.in_flight.set_answered(turn.session_id, turn.message_id)
        return outcome, ledger

    async def _between_turns(self, workflow: str, session_id: str) -> None:
        """Execute an internal workflow (reset or delete) as if it were the next turn of its session.

        Raises:
            RunFailed: the workflow did not succeed.
        """
        runs = await self._runs.service()
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            submitted = await runs.submit(RunRequest(workflow=workflow, session_id=session_id))
            try:
                result = await runs.result(submitted.run_id)
            except RunNotFound:
                return  # the session was deleted, and the run with it
        if result.status != "done":
            raise RunFailed(submitted.run_id, result.run.error or result.status)

    async def regenerate(self, session: Session, request: RegenerationRequest, *, stream: bool = True) -> ChatTurn:
        """Mark all messages after a question as superseded, and start or join a turn that answers the question.

        Raises:
            MessageNotFound: the session has no such question.
            MessageSuperseded: the question itself was superseded.
            WrongUser: the session belongs to another user.
            WorkflowNotFound: no workflow of that name is registered.
            SessionBusy: the policy is `reject`, and another turn of the session is active; nothing was superseded.
            Interrupted: the chat was closed, so the turn cannot start.
            StoreUnavailable: the database did not respond; the call can be repeated.
        """
        return self.begin(await self.supersede_answers(session, request), stream=stream)

    async def supersede_answers(self, session: Session, request: RegenerationRequest) -> RunRequest:
        """Mark all messages after a question as superseded, and return the request for a new answer.

        Change nothing if a run is answering the question. Raise the same errors as `regenerate`, except `Interrupted`.
        """
        question = await session.question(request.message_id or await self._asked_by(session, request.run_id))
        question_id = str(question.id)
        if question.superseded_at is not None:
            raise MessageSuperseded(session.session_id, question_id, question.superseded_by)
        workflow = self._workflows.get(request.workflow or await self._workflow_of(question, request.run_id))
        if (request.double_texting or workflow.options.double_texting) == "reject":
            await self.check_free(session, question_id)
        # Read the newest `seq` first, so that `regenerate` does not supersede the answer of a concurrent regeneration.
        info = await session.info()
        if await self._memory.runs.order.release(session.session_id, question_id):
            await session.regenerate(question_id, upto=info.last_seq)
        return RunRequest(
            text=question.content,
            session_id=session.session_id,
            user_id=info.user_id,  # the session's owner, so that a repeated message of the owner joins this run
            message_id=question_id,
            metadata=question.metadata,
            workflow=workflow.name,
            trigger=request.trigger,
        )

    async def check_free(self, session: Session, message_id: str | None) -> None:
        """Raise `SessionBusy` if the session has an active run, not a child run, that does not answer `message_id`."""
        for run in await self._unfinished(session.session_id):
            if message_id not in {one.message_id or run.run_id for one in run.inputs}:
                raise SessionBusy(session.session_id, run.run_id)

    async def _unfinished(self, session_id: str) -> list[Run]:
        """Return the running and queued runs of a session that are not child runs, in the order of their turns."""
        statuses: tuple[RunStatus, ...] = ("running", "queued")
        pages = [await self._memory.runs.records.runs(RunQuery(session_id=session_id, status=one)) for one in statuses]
        found = [run for page, _ in pages for run in page if run.parent_run_id is None]
        return sorted(found, key=lambda run: run.arrival or 0)

    async def _why_it_waits(self, turn: ChatTurn) -> str:
        """Return why another process has not answered a turn, and what to do."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with self._memory.session(turn.session_id).timeout():
                for run in await self._unfinished(turn.session_id):
                    if run.error == "WorkflowGone":
                        return UNEXECUTED.format(f"a worker that has the workflow {run.workflow!r}", run.run_id)
                    is_disowned = run.heartbeat_at == datetime.fromisoformat(DISOWNED)
                    if not is_disowned and (run.status == "running" or run.run_id == turn.run_id):
                        break  # the runs after it wait for it, or are later than the turn
                    return UNEXECUTED.format("`threadkeep serve` or `threadkeep worker`", run.run_id)
        return ELSEWHERE

    async def _asked_by(self, session: Session, run_id: str | None) -> str | None:
        """Return the id of the newest message that the session's run `run_id` answers, or `run_id` if there is none."""
        run = await self._memory.runs.run(run_id) if run_id is not None else None
        if run is None or run.session_id != session.session_id:
            return run_id
        return (run.inputs[-1].message_id if run.inputs else run.message_id) or run_id

    async def _workflow_of(self, question: Message, run_id: str | None) -> str:
        """Return the workflow of the run `run_id` or, if it is not stored, of the question's run; by default `chat`."""
        for known in filter(None, (run_id, question.run_id)):
            if (run := await self._memory.runs.run(known)) is not None:
                return run.workflow
        return CHAT


class RunsOnDemand:
    """A run service that is opened on first use. If opening fails, the error is raised; the next call tries again.

    The service stays open in a separate task until `close`. `opened` is None until the service is open.
    """

    def __init__(self, opening: Callable[[InFlightMessages], AbstractAsyncContextManager[RunService]]) -> None:
        self.in_flight = InFlightMessages()
        self.opened: RunService | None = None
        self._opening = opening
        self._task: asyncio.Task[None] | None = None
        self._future: asyncio.Future[RunService] | None = None
        self._closing = False
        self._may_end = asyncio.Event()

    async def service(self) -> RunService:
        """Return the open service; open it first if necessary.

        Raises:
            StoreClosed: the application is being closed.
            StoreUnavailable: the database does not answer.
            InvalidInput: the engine cannot be opened, for a reason that `open_runs` lists.
        """
        if self._closing:
            raise StoreClosed("The application is closing and accepts no more runs.")
        future = self._future
        if future is None or (future.done() and future.exception() is not None):
            future = self._future = self._begin()
        return await asyncio.shield(future)

    def open_soon(self) -> None:
        """Start opening the service in the background, at most once. If that fails, `service` tries again."""
        if not self._closing and self._future is None:
            self._future = self._begin()

    async def close(self, seconds: float = 0.0) -> None:
        """Close the service. Active runs may continue for `seconds`; the rest is then left to other processes."""
        self._closing = True
        if self.opened is not None:
            await self.opened.close(seconds)
        self._may_end.set()
        if self._task is not None:
            await self._task

    def _begin(self) -> asyncio.Future[RunService]:
        opened: asyncio.Future[RunService] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_open(opened), context=Context(), name="threadkeep-runs")
        return opened

    async def _keep_open(self, opened: asyncio.Future[RunService]) -> None:
        with ErrorBoundary() as attempt:
            async with self._opening(self.in_flight) as self.opened:
                opened.set_result(self.opened)
                await self._may_end.wait()
        if attempt.error is not None:
            if opened.done():
                raise attempt.error
            opened.set_exception(attempt.error)
            opened.exception()  # otherwise asyncio logs the error if the caller has gone away


class OfflineRuns:
    """A service that executes runs without recording them. Their turns are written to the transcript, possibly later.

    Each graph is executed once, without checkpoints and without the graph store. These runs end with the process,
    cannot wait for a person, and cannot call tools that must not run twice.
    """

    def __init__(
        self, memory: Memory, workflows: Workflows, resources: Resources, options: RunServiceOptions | None = None
    ) -> None:
        self._memory = memory
        self._workflows = workflows
        compiler = Compiler(checkpointer=False, store=None)
        alone = replace(resources, middleware=(*resources.middleware, IdempotentToolsOnly()))
        children = InProcessChildren(workflows, compiler, alone)
        self._dependencies = Dependencies(compiler, None, children.resources, options or RunServiceOptions())

    async def execute(self, request: RunRequest, stream: RunStream, session_id: str) -> tuple[Outcome, Ledger]:
        """Execute a request as the run `stream.run_id`, and report its turn; return the outcome and the token usage.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
        """
        workflow = self._workflows.get(request.workflow)
        options = workflow.options
        run = self._run(request, stream.run_id, session_id, options)
        ledger = Ledger(self._dependencies.options.prices)
        ledger.limit([run])
        started = time.perf_counter()
        stream.wants_pieces = request.stream
        stream.renew(begun=True)
        execution = RunExecution(run=run, dependencies=self._dependencies, tracer=ledger, stream=stream)
        outcome = Outcome("interrupted")
        try:
            outcome = await execution.run_to_end(workflow)
        finally:
            milliseconds = (time.perf_counter() - started) * 1000
            report_turn(self._memory.observers, run, outcome, ledger.usages, milliseconds=milliseconds)
        return outcome, ledger

    def _run(self, request: RunRequest, run_id: str, session_id: str, options: RunOptions) -> Run:
        now, seconds = self._memory.clock(), options.deadline_seconds
        return Run(
            run_id=run_id,
            session_id=session_id,
            message_id=request.message_id,
            workflow=request.workflow,
            status="running",
            started_at=now,
            heartbeat_at=now,
            ended_at=None,
            user_id=request.user_id,
            root_run_id=run_id,
            trigger=request.trigger,
            inputs=(RunInput(request.values(), request.message_id),),
            budget=options.budget,
            # Count all attempts as used: without checkpoints a second attempt would repeat every step.
            attempts=options.max_tries,
            created_at=now,
            deadline_at=None if seconds is None else now + timedelta(seconds=seconds),
        )
