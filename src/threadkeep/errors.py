"""The tree of errors. Each error says what is wrong and how to fix it; its attributes contain the details.

::

    ThreadkeepError
    ├── InvalidInput (ValueError)         an argument cannot be used
    │   ├── InvalidMessage
    │   ├── InvalidKey                    .reason is one of the reasons of `threadkeep.resolve_key`
    │   ├── InvalidSettings               .variable names the environment variable
    │   └── InvalidWorkflow               .problems say what is wrong, and where in which file
    ├── BudgetTooSmall (ValueError)       nothing useful fits into the budget
    ├── SessionNotFound (LookupError)
    ├── WrongUser (PermissionError)       the session belongs to somebody else
    ├── MessageNotFound (LookupError)     the session has no message with that id
    ├── MessageSuperseded                 the message was taken back or replaced before
    ├── QuestionGone (LookupError)        the message that a turn answers was deleted
    ├── RunNotFound (LookupError)
    ├── KnowledgeNotFound (LookupError)   no such fact, person or other item; .kind says which
    ├── SessionBusy                       another turn of the session is queued or running
    ├── ContextGone (LookupError)         some messages of a model call no longer exist
    ├── WorkflowNotFound (LookupError)    no workflow of that name is registered
    ├── ChildFailed                       a child workflow gave no result
    ├── BudgetSpent                       a run has used up its limit of tokens or cost
    ├── ModelCallFailed                   the model did not answer; the question is stored
    ├── RunFailed                         a workflow gave no answer; its run says why
    ├── RunWaits                          a workflow asks a person before it answers
    ├── RunBusy                           a run does not wait for a person yet, but its child does
    ├── ChannelNotFound (LookupError)     no bot of that name is configured
    ├── ApiKeyNotFound (LookupError)      no valid key of the service has that name
    ├── CallbackRefused (PermissionError)  a callback did not come from the platform, or came too late
    ├── GraphitiError (ConnectionError)   a request to the Graphiti server failed; .kind says how
    ├── GraphitiClosed (PermissionError)  nothing may be sent to Graphiti: .reason is off, no_consent or untrusted
    ├── Interrupted                       the service or the turn was stopped, or another process did not answer in time
    └── StoreError
        ├── StoreUnavailable (ConnectionError)   down, locked, full or read-only: the same call may succeed later
        │   ├── DatabaseFileReplaced      the database file was removed or replaced while it was open
        │   ├── PendingFolderUnusable     the folder of pending turns cannot be written
        │   └── TurnInMemoryOnly          neither the database nor that folder takes a turn; a crash would lose it
        ├── SessionDamaged                an item of one session in a graph store cannot be read
        ├── RecordUnreadable              a stored record is damaged, or a newer Threadkeep wrote it
        │   └── RecordTooNew              a newer Threadkeep wrote the record
        ├── SchemaTooNew                  the database was written by a newer Threadkeep
        └── StoreClosed                   the memory or the run service is closing, or its `async with` ended

No error contains the text of a message, because errors are logged, and messages must not be. There is one warning,
`MiddlewareWarning`. `is_transient` says whether a failed call may succeed later.
"""

from __future__ import annotations

from collections.abc import Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal


class ThreadkeepError(Exception):
    """The root of all errors that Threadkeep raises itself."""

    def __reduce__(self) -> tuple[object, ...]:
        """Make copying and unpickling skip `__init__`, because its parameters are not in `args`."""
        return __newobj__, (type(self),), {**self.__dict__, "args": self.args}


class MiddlewareWarning(UserWarning):
    """A warning about an agent's middleware that repeats the memory's work or is at a wrong position in the list.

    `threadkeep.recorded` also issues it if the graph's output has no messages, so that no answer can be stored.
    """


class InvalidInput(ThreadkeepError, ValueError):
    """An argument that cannot be used; nothing was stored."""


class InvalidMessage(InvalidInput):
    """A message with a field that cannot be stored; the error names the field."""


class InvalidKey(InvalidInput):
    """A session id, or the key of an agent's conversation, that cannot be used.

    `reason` is `empty`, `empty_part`, `unresolved_template`, `too_long` or `invalid_chars`.
    """

    def __init__(self, sentence: str, *, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class InvalidSettings(InvalidInput):
    """A setting that cannot be used; `variable` is its environment variable or option."""

    def __init__(self, sentence: str, *, variable: str) -> None:
        super().__init__(sentence)
        self.variable = variable


type CallbackRefusal = Literal["signature_missing", "signature_wrong", "stale", "unreadable", "receiver_wrong"]


@dataclass(frozen=True)
class WorkflowProblem:
    """A problem of a workflow: what is wrong, the fix, and the location in a file, if known."""

    sentence: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return the problem in a sentence, preceded by its location, if known, in the form `file:line:column`."""
        position = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{position}: {self.sentence}" if position else self.sentence


class InvalidWorkflow(InvalidInput):
    """A workflow that cannot be built; `problems` lists all faults in the order of the file."""

    def __init__(self, problems: Sequence[WorkflowProblem] | str) -> None:
        found = (WorkflowProblem(problems),) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(map(str, found)))
        self.problems = found


class WorkflowNotFound(ThreadkeepError, LookupError):
    """No workflow of that name is registered; `available` lists the registered names."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        super().__init__(
            f"There is no workflow {name!r} here; there are {', '.join(available)}. "
            "Add the file or module of any other workflow to THREADKEEP_WORKFLOWS."
        )
        self.name = name
        self.available = tuple(available)


class ChildFailed(ThreadkeepError):
    """A workflow that a node started gave no result; `status` says how it ended, such as `failed`.

    The status is `refused` if the child was not started, for example because it would nest too deeply.
    """

    def __init__(self, sentence: str, *, workflow: str, status: str, run_id: str | None = None) -> None:
        super().__init__(sentence)
        self.workflow = workflow
        self.status = status
        self.run_id = run_id


class ContextGone(ThreadkeepError, LookupError):
    """The messages of a model call cannot be rebuilt, because some were deleted or have changed."""


class BudgetTooSmall(ThreadkeepError, ValueError):
    """A token budget that is too small for the parts that a model call must have."""


class SessionNotFound(ThreadkeepError, LookupError):
    """The session does not exist, or this user may not see it."""

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


class MessageNotFound(ThreadkeepError, LookupError):
    """The session has no such message or, if `message_id` is None, no user message. Nothing was changed."""

    def __init__(self, session_id: str, message_id: str | None, kind: str = "message") -> None:
        wanted = "message of a user" if message_id is None else f"{kind} {message_id!r}"
        super().__init__(
            f"Session {session_id!r} has no {wanted}; read its messages with "
            f"`threadkeep sessions show {session_id} --json`."
        )
        self.session_id = session_id
        self.message_id = message_id


class MessageSuperseded(ThreadkeepError):
    """The message was already taken back or replaced; nothing was changed.

    `superseded_by` is the id of the message that replaces it; None if no message replaces it.
    """

    def __init__(self, session_id: str, message_id: str, superseded_by: str | None) -> None:
        super().__init__(
            f"Message {message_id!r} of session {session_id!r} was superseded before; read the session again, "
            "and change a message that is active."
        )
        self.session_id = session_id
        self.message_id = message_id
        self.superseded_by = superseded_by


class QuestionGone(ThreadkeepError, LookupError):
    """The message that a turn answers does not exist any more. The turn was not stored."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The message that this turn answers was deleted from session {session_id!r}, so the turn was not stored. "
            "Append it without `answers` to store it anyway."
        )
        self.session_id = session_id


class RunNotFound(ThreadkeepError, LookupError):
    """The run does not exist, or this user may not see it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"There is no run {run_id!r} here: it never existed, or it was deleted with its session or by retention."
        )
        self.run_id = run_id


class KnowledgeNotFound(ThreadkeepError, LookupError):
    """A fact, person or other item does not exist, or this user may not see it. `kind` is its type, such as `fact`."""

    def __init__(
        self, kind: Literal["fact", "proposal", "procedure", "person", "scope", "delivery"], name: str
    ) -> None:
        several = "deliveries" if kind == "delivery" else f"{kind}s"
        super().__init__(f"There is no {kind} {name!r} here that this user may see; list the {several}.")
        self.kind = kind
        self.name = name


class SessionBusy(ThreadkeepError):
    """Another turn of the conversation is queued or running, and the workflow rejects messages until it ends.

    Nothing was stored. `run_id` is the run of that turn. The run's session may differ from `session_id`, because
    sessions can share a conversation that an agent stores under its own key.
    """

    def __init__(self, session_id: str | None, run_id: str) -> None:
        where = "The conversation" if session_id is None else f"Session {session_id!r}"
        super().__init__(
            f"{where} is still busy with run {run_id!r}, and its workflow rejects messages until that run ends: "
            "send the message again later, cancel the run, or set double_texting of the workflow to enqueue."
        )
        self.session_id = session_id
        self.run_id = run_id


class BudgetSpent(ThreadkeepError):
    """A run, or one of its ancestors, has used up its budget; the model was not called.

    `run_id` names the run whose budget is used up. `limit` is `max_tokens` or `max_cost`, with the `allowed` and the
    `used` tokens or cost. `estimated` is true if a provider did not report all tokens.
    """

    def __init__(self, run_id: str, *, limit: str, used: float, allowed: float, estimated: bool = False) -> None:
        about = "about " if estimated else ""
        super().__init__(
            f"Run {run_id!r} has used {about}{used:g} of {allowed:g} ({limit}) and may not call a model again: "
            f"retry the run with a larger {limit}."
        )
        self.run_id = run_id
        self.limit = limit
        self.used = used
        self.allowed = allowed
        self.estimated = estimated


class ModelCallFailed(ThreadkeepError):
    """The model raised an error or took too long. The user's message is stored, but there is no answer.

    `kind` is only the name of the model's error, because its message may quote people.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The model did not answer ({kind}). The message is stored: send it again with the same message_id, "
            "or check the model with `threadkeep doctor`."
        )
        self.kind = kind


class RunFailed(ThreadkeepError):
    """A workflow gave no answer. The user's message is stored.

    `kind` is only the name of the run's error, because its message may quote people.
    """

    def __init__(self, run_id: str, kind: str, cure: str | None = None) -> None:
        super().__init__(
            f"Run {run_id!r} gave no answer ({kind}). "
            + (cure or f"See how far it came with `threadkeep runs trace {run_id}`, and send the message again.")
        )
        self.run_id = run_id
        self.kind = kind


class RunWaits(ThreadkeepError):
    """A workflow's run waits for a person's reply, so there is no answer yet. The run resumes with that reply."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id!r} waits for a person: answer it with POST /api/v1/runs/{run_id}/resume or "
            f"`threadkeep runs resume {run_id}`."
        )
        self.run_id = run_id


class RunBusy(ThreadkeepError):
    """A person answered a child run before its root run began to wait for the answer. Nothing was stored."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Run {run_id!r} does not wait yet for the answer to its child; send the answer again later.")
        self.run_id = run_id


class Interrupted(ThreadkeepError):
    """The turn was stopped or rolled back, the service stopped, or another process did not answer in time.

    The partial answer is stored if the turn was stopped, or if the service stopped and the run is not recorded.
    """


class ChannelNotFound(ThreadkeepError, LookupError):
    """No bot of that name is configured."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no channel {name!r} here; THREADKEEP_CHANNELS names the file of all channels.")
        self.name = name


class ApiKeyNotFound(ThreadkeepError, LookupError):
    """No valid API key of the service has that name."""

    def __init__(self, name: str) -> None:
        super().__init__("There is no valid key of that name; `threadkeep keys list` shows all keys.")
        self.name = name


class CallbackRefused(ThreadkeepError, PermissionError):
    """A callback that was rejected: it is not from the platform, is too old or cannot be read.

    `reason` is `signature_missing`, `signature_wrong`, `stale`, `unreadable` or `receiver_wrong`.
    """

    def __init__(self, reason: CallbackRefusal) -> None:
        super().__init__(
            f"A callback was refused ({reason}); compare the channel's secrets with the platform's and set the clock."
        )
        self.reason = reason


type GraphitiFailure = Literal[
    "unreachable", "timeout", "broken", "server", "limited", "denied", "refused", "unreadable"
]


class GraphitiError(ThreadkeepError, ConnectionError):
    """A request to the Graphiti server failed. The error's message quotes neither the request nor the response.

    kind: `unreachable`; `timeout`; `broken` (the connection); `server` (status 5xx); `limited` (408, 429); `denied`
        (401, 403: the key is wrong); `refused` (other 4xx); or `unreadable` (the response is not Graphiti's).
    status: the HTTP status; None if there was no response.
    retry_after: the number of seconds that the server asks to wait.
    uncertain: True if the request may have been executed.
    accepted: the number of messages that the server accepted before the failure, if they were sent one by one.
    """

    accepted: int | None = None

    def __init__(
        self,
        kind: GraphitiFailure,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        uncertain: bool = False,
    ) -> None:
        answered = "" if status is None else f" It answered with status {status}."
        super().__init__(_GRAPHITI_FAILURES[kind].replace(". ", f".{answered} ", 1))
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        self.uncertain = uncertain

    @property
    def is_final(self) -> bool:
        """True if Graphiti would reject the same request again. False for 404 and 405: a wrong server may send them."""
        return self.kind == "refused" and self.status not in (404, 405)


_GRAPHITI_FAILURES: dict[GraphitiFailure, str] = {
    "unreachable": "The Graphiti server cannot be reached. Start it, or correct THREADKEEP_GRAPHITI_ENDPOINT.",
    "timeout": "The Graphiti server did not answer in time. See its log, or raise THREADKEEP_GRAPHITI_TIMEOUT_MS.",
    "broken": "The connection to the Graphiti server broke. It is retried; see the server's log if this continues.",
    "server": "The Graphiti server failed. See its log, and check its database, model and embedder.",
    "limited": "The Graphiti server limits requests. They are retried; lower the load if this continues.",
    "denied": "The Graphiti server rejected the key. Correct THREADKEEP_GRAPHITI_API_KEY, or the proxy in front of it.",
    "refused": "The Graphiti server rejected a request. Check the server's version with `threadkeep knowledge test`.",
    "unreadable": "The response is not from Graphiti. Check which server THREADKEEP_GRAPHITI_ENDPOINT names.",
}

type GraphitiClosure = Literal["off", "no_consent", "untrusted"]


class GraphitiClosed(ThreadkeepError, PermissionError):
    """Nothing may be sent to Graphiti; `reason` is `off`, `no_consent` or `untrusted` (the workspace)."""

    def __init__(self, reason: GraphitiClosure, data_class: str = "chat_text") -> None:
        # Name the class of data: without `--data`, the command grants consent only for data that its settings send.
        other = reason == "no_consent" and data_class != "chat_text"
        kinds = f" --data chat_text --data {data_class}" if other else ""
        super().__init__(_GRAPHITI_CLOSURES[reason] + kinds)
        self.reason = reason


_GRAPHITI_CLOSURES: dict[GraphitiClosure, str] = {
    "off": "Graphiti is off. Set THREADKEEP_GRAPHITI_ENABLED=true and THREADKEEP_GRAPHITI_ENDPOINT.",
    "no_consent": "Nobody has consented to sending this data. Consent with: threadkeep knowledge consent --grant",
    "untrusted": "The workspace is not trusted. Trust it with: threadkeep knowledge trust",
}


class StoreError(ThreadkeepError):
    """The root of all errors of the storage: of a database, a graph store, records, or the folder of pending turns."""


class StoreUnavailable(StoreError, ConnectionError):
    """The database is down, locked, full or read-only; do not assume that anything was stored.

    Messages with an id can safely be sent again, because stored ones are recognised. `interrupted` is True if the
    connection broke or a deadlock ended the call, so that an immediate retry may succeed.
    """

    def __init__(self, sentence: str, *, interrupted: bool = False) -> None:
        super().__init__(sentence)
        self.interrupted = interrupted


class DatabaseFileReplaced(StoreUnavailable):
    """The file of an open SQLite database was removed or replaced; nothing is written."""

    CURE: ClassVar[str] = (
        "The database file was removed or replaced while this process had it open, so nothing is written. Put the "
        "file back, or restart this process to use the file that is there now."
    )

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {self.CURE}")
        self.path = path


class PendingFolderUnusable(StoreUnavailable):
    """The folder of pending turns cannot be used, because it is a file or not writable."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(
            f"Pending turns cannot be stored in {error.filename or folder} ({error.strerror or type(error).__name__}). "
            "Make the folder writable for this user, or name another one in THREADKEEP_PENDING_DIR."
        )
        self.folder = folder


class TurnInMemoryOnly(StoreUnavailable):
    """A turn could be stored neither in the database nor in the folder of pending turns.

    The write is retried as long as this process lives; a crash would lose the turn. If you send the turn again, use the
    same message ids.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The turn is in memory only: neither the database nor the folder of pending turns can store it. "
            "Keep this process running, and repair one of the two: `threadkeep doctor` says what is wrong."
        )
        self.session_id = session_id


class SessionDamaged(StoreError):
    """An item of a session in a graph store cannot be read; no other session is affected.

    `item` names the item within the session: `metadata` or `chunk:000021`. `problem` says what is wrong with it.
    `user_id` is the owner of the session, if known.
    """

    def __init__(self, session_id: str, item: str, problem: str, *, user_id: str | None = None) -> None:
        super().__init__(
            f"Session {session_id!r} is damaged: its item {item!r} in the graph store {problem}. "
            "Repair the item, or delete the session."
        )
        self.session_id = session_id
        self.item = item
        self.problem = problem
        self.user_id = user_id


class RecordUnreadable(StoreError):
    """A stored record is damaged, or a newer version of Threadkeep wrote it."""


class RecordTooNew(RecordUnreadable):
    """A record compressed with an unknown dictionary: written by a newer Threadkeep, or damaged."""


class SchemaTooNew(StoreError):
    """A database whose schema was upgraded by a newer Threadkeep."""

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"The database is at schema {found}, but this Threadkeep only knows schemas up to {known}: "
            "upgrade Threadkeep on this machine, or open an older database."
        )
        self.found = found
        self.known = known


class StoreClosed(StoreError):
    """The memory or the run service was used while or after it was closed, or on another event loop."""


# Names of error classes of providers and databases, so that these packages need not be imported.
_TRANSIENT_NAMES = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectError",
        "DeadlineExceeded",
        "InterfaceError",
        "InternalServerError",
        "OperationalError",
        "OverloadedError",
        "RateLimitError",
        "RemoteProtocolError",
        "ResourceExhausted",
        "ServiceUnavailable",
        "ServiceUnavailableError",
        "TimeoutException",
        "TooManyRequests",
        "TransportError",
    }
)
_TRANSIENT_CODES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


def is_transient(error: BaseException) -> bool:
    """Return True if a retry may succeed: after timeouts, rate limits, connection errors and server errors."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if _is_transient_itself(current):
            return True
        if isinstance(current, ThreadkeepError):
            return False
        current = current.__cause__
    return False


def _is_transient_itself(error: BaseException) -> bool:
    if isinstance(error, StoreUnavailable | TimeoutError | ConnectionError):
        return True
    if not isinstance(error, Exception) or isinstance(error, ThreadkeepError):
        return False
    code = getattr(error, "status_code", None)
    if isinstance(code, int) and not isinstance(code, bool):
        return code in _TRANSIENT_CODES
    return any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__)
