"""One tree of errors. Each is a sentence with the cure; the data it speaks of is on the instance.

::

    ThreadkeepError
    ├── InvalidInput (ValueError)         what the caller passed cannot be used
    │   ├── InvalidMessage
    │   ├── InvalidKey                    .reason is one of the reasons of `threadkeep.resolve_key`
    │   ├── InvalidSettings               .variable names the environment variable
    │   └── InvalidWorkflow               .problems say what is wrong, and where in which file
    ├── BudgetTooSmall (ValueError)       nothing useful fits into the budget
    ├── SessionNotFound (LookupError)
    ├── WrongUser (PermissionError)       the session belongs to somebody else
    ├── QuestionGone (LookupError)        what a turn answers was deleted, mostly with its session
    ├── RunNotFound (LookupError)
    ├── SessionBusy                       another turn of the session is queued or at work, and none may wait
    ├── ContextGone (LookupError)         a model call's messages are not all there any more
    ├── WorkflowNotFound (LookupError)    no workflow of that name is registered
    ├── ChildFailed                       a workflow that another one started gave no result
    ├── BudgetSpent                       a run has used the tokens or the money that it may
    ├── ModelCallFailed                   the model did not answer; the question is stored
    ├── RunFailed                         a workflow gave no answer; its run says why
    ├── RunWaits                          a workflow asks a person before it answers
    ├── Interrupted                       the service or the turn was stopped before the answer was complete
    └── StoreError
        ├── StoreUnavailable (ConnectionError)   down, locked, full or read-only: the same call may succeed later
        ├── SchemaTooNew                  the database was written by a newer Threadkeep
        └── StoreClosed                   used after its `async with` ended

No error carries message text: errors are logged, and people's words are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ThreadkeepError(Exception):
    """The root of all errors that Threadkeep raises itself."""


class InvalidInput(ThreadkeepError, ValueError):
    """What the caller passed cannot be used; nothing was stored."""


class InvalidMessage(InvalidInput):
    """A message has a field that cannot be stored; the sentence names the field."""


class InvalidKey(InvalidInput):
    """A session id is not a valid key.

    `reason` is `empty`, `empty_part`, `unresolved_template`, `too_long` or `invalid_chars`.
    """

    def __init__(self, sentence: str, *, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class InvalidSettings(InvalidInput):
    """A setting cannot be used; `variable` is the environment variable that holds it."""

    def __init__(self, sentence: str, *, variable: str) -> None:
        super().__init__(sentence)
        self.variable = variable


@dataclass(frozen=True)
class WorkflowProblem:
    """One thing that is wrong with a workflow: a sentence with its cure, and where; None where it is in no file."""

    sentence: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """The place as compilers write it, then the sentence."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.sentence}" if place else self.sentence


class InvalidWorkflow(InvalidInput):
    """A workflow cannot be built; `problems` has everything that is wrong with it, in the order of the file."""

    def __init__(self, problems: Sequence[WorkflowProblem] | str) -> None:
        found = (WorkflowProblem(problems),) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(map(str, found)))
        self.problems = found


class WorkflowNotFound(ThreadkeepError, LookupError):
    """No workflow of that name is registered; `available` are those that are."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        super().__init__(
            f"There is no workflow {name!r} here; there are {', '.join(available)}. "
            "THREADKEEP_WORKFLOWS names the files and modules of others."
        )
        self.name = name
        self.available = tuple(available)


class ChildFailed(ThreadkeepError):
    """A workflow that a node started gave no result; `status` says how it ended, such as `failed` or `deadline`.

    It is `refused` where it would nest too deeply or in a circle, and was not started.
    """

    def __init__(self, sentence: str, *, workflow: str, status: str, run_id: str | None = None) -> None:
        super().__init__(sentence)
        self.workflow = workflow
        self.status = status
        self.run_id = run_id


class ContextGone(ThreadkeepError, LookupError):
    """What a model call was sent cannot be rebuilt: some of it was deleted, or its record is older than its texts."""


class BudgetTooSmall(ThreadkeepError, ValueError):
    """A token budget leaves no room for what must be in a model call."""


class SessionNotFound(ThreadkeepError, LookupError):
    """No such session, or not one that this user may see."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"There is no session {session_id!r} here; list what there is with `threadkeep sessions list`."
        )
        self.session_id = session_id


class WrongUser(ThreadkeepError, PermissionError):
    """The session belongs to another user; nothing was stored."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} belongs to another user; use a session id of this user's own.")
        self.session_id = session_id


class QuestionGone(ThreadkeepError, LookupError):
    """The message that a turn answers is not there any more; nothing was stored, and no session begun."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"What this turn answers is not in session {session_id!r}: it was deleted, and an answer does not bring it "
            "back. Append it as a turn of its own if it is to be kept all the same."
        )
        self.session_id = session_id


class RunNotFound(ThreadkeepError, LookupError):
    """No such run, or not one that this user may see."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"There is no run {run_id!r} here: it was never asked for, or it went with its session or with its time."
        )
        self.run_id = run_id


class SessionBusy(ThreadkeepError):
    """Another turn of the session is queued or at work, and the workflow refuses messages then; nothing was stored.

    `run_id` is the turn that is in the way.
    """

    def __init__(self, session_id: str, run_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} is still busy with run {run_id!r}, and its workflow takes no message meanwhile: "
            "send it again when that is over, cancel that run, or let the workflow enqueue (double_texting)."
        )
        self.session_id = session_id
        self.run_id = run_id


class BudgetSpent(ThreadkeepError):
    """A run, or one that it belongs to, has used what it may; the call was not made.

    `limit` is `max_tokens` or `max_cost`; `used` and `allowed` are in its unit.
    """

    def __init__(self, run_id: str, *, limit: str, used: float, allowed: float) -> None:
        super().__init__(
            f"Run {run_id!r} has used {used:g} of {allowed:g} ({limit}), and calls no model any more: "
            f"retry the run with a larger {limit}."
        )
        self.run_id = run_id
        self.limit = limit
        self.used = used
        self.allowed = allowed


class ModelCallFailed(ThreadkeepError):
    """The model raised, or took too long; what the user said is stored, and nothing stands in for an answer.

    `kind` is the name of the error's class: its own sentence may quote what people said.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The model did not answer ({kind}). The message is stored: send it again with the same message_id, "
            "or check the model with `threadkeep doctor`."
        )
        self.kind = kind


class RunFailed(ThreadkeepError):
    """A workflow gave no answer; what the user said is stored, and nothing stands in for an answer.

    `kind` names the error: its own sentence may quote what people said.
    """

    def __init__(self, run_id: str, kind: str, cure: str | None = None) -> None:
        super().__init__(
            f"Run {run_id!r} gave no answer ({kind}). "
            + (cure or f"See how far it came with `threadkeep runs trace {run_id}`, and send the message again.")
        )
        self.run_id = run_id
        self.kind = kind


class RunWaits(ThreadkeepError):
    """A workflow asks a person something before it answers; the run goes on with what it is told."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id!r} waits for a person: answer it with POST /api/v1/runs/{run_id}/resume or "
            f"`threadkeep runs resume {run_id}`."
        )
        self.run_id = run_id


class Interrupted(ThreadkeepError):
    """The service stopped before the answer was complete; what there was of it is stored."""


class StoreError(ThreadkeepError):
    """The root of what can go wrong with the place where transcripts are kept."""


class StoreUnavailable(StoreError, ConnectionError):
    """The database is down, locked beyond its timeout, full or read-only; nothing of this call is stored for certain.

    Trying the same call again is safe for messages that have an id: those that did arrive are recognised.
    `interrupted` says that the connection broke in the middle, so that a second try on another one is worth it at once.
    """

    def __init__(self, sentence: str, *, interrupted: bool = False) -> None:
        super().__init__(sentence)
        self.interrupted = interrupted


class SchemaTooNew(StoreError):
    """The database has migrations that this version of Threadkeep does not know."""

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"The database is at schema {found}, this Threadkeep knows schemas up to {known}: "
            "upgrade Threadkeep on this machine, or open a database of its own age."
        )
        self.found = found
        self.known = known


class StoreClosed(StoreError):
    """The memory was used after its `async with open_memory(...)` block had ended."""
