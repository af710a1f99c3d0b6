"""What a run is asked for with, as it is stored, as its graph begins with it, and as it comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from langchain_core.messages import HumanMessage

from threadkeep.errors import InvalidInput
from threadkeep.graphs.resources import Resources, RunContext
from threadkeep.graphs.state import WorkflowState, initial_state
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunBudget, RunInput, RunStatus, RunTrigger
from threadkeep.runs.live import LiveRun

type Values = Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run that somebody wants of a workflow.

    Without a `session_id` it goes on with the session that the user last had with the workflow, or begins one; a run
    that is `sessionless` sees no earlier turns and stores none. A `message_id` makes repeats harmless. `inputs` are the
    payload that started the run, `results` what a channel found in it; `metadata` is kept with the message. With
    `stream` its reader wants the pieces of the answer as they come.
    """

    workflow: str
    text: str = ""
    session_id: str | None = None
    user_id: str | None = None
    message_id: str | None = None
    inputs: Values = field(default_factory=dict)
    results: Values = field(default_factory=dict)
    user_context: Values = field(default_factory=dict)
    metadata: Values = field(default_factory=dict)
    trigger: RunTrigger = "http"
    budget: RunBudget = RunBudget()
    deadline_seconds: float | None = None
    sessionless: bool = False
    stream: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            InvalidInput: the sentence says what to leave out.
        """
        if self.sessionless and (self.session_id is not None or self.message_id is not None):
            raise InvalidInput("A sessionless run has no session_id and no message_id; leave them out.")
        if self.deadline_seconds is not None and not self.deadline_seconds > 0:
            raise InvalidInput("deadline_seconds is a number above 0, or None for the workflow's own.")

    def values(self) -> dict[str, Json]:
        """The request as it is stored with its run."""
        given: dict[str, Json] = {
            "text": self.text,
            "inputs": dict(self.inputs),
            "results": dict(self.results),
            "user_context": dict(self.user_context),
            "metadata": dict(self.metadata),
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class Submitted:
    """The run that answers a request: a `new` one, one that it `joined`, or one that was `known` before.

    Whoever holds on to it is told of the run as soon as it begins. One that is `over` had ended before, for good.
    """

    run_id: str
    session_id: str | None
    outcome: Literal["new", "joined", "known"]
    live: LiveRun = field(repr=False, compare=False)
    over: bool = False


@dataclass(frozen=True)
class RunResult:
    """What became of a run: `output` and `text` if it is done, `interrupts` (ids and values) if it waits for a person.

    `confidence` and `escalated` are what the answer said of itself.
    """

    run: Run
    output: Json = None
    text: str = ""
    message_id: str | None = None
    confidence: float | None = None
    escalated: bool = False
    interrupts: Sequence[Values] = ()

    @property
    def status(self) -> RunStatus:
        """How the run stands."""
        return self.run.status

    @classmethod
    def of(cls, run: Run) -> RunResult:
        """The result of a run that is over, or waits."""
        known = run.result or {}
        confidence, message_id, text = (known.get(name) for name in ("confidence", "message_id", "text"))
        return cls(
            run,
            known.get("output"),
            text if isinstance(text, str) else "",
            message_id if isinstance(message_id, str) else None,
            float(confidence) if isinstance(confidence, int | float) else None,
            escalated=bool(known.get("escalated")),
            interrupts=interrupts_of(run) if run.status == "waiting" else (),
        )


def interrupts_of(run: Run) -> list[Values]:
    """What a run asks a person: the `id` and the `value` of each question."""
    asked = run.interrupt.get("interrupts") if isinstance(run.interrupt, Mapping) else None
    return [one for one in asked if isinstance(one, Mapping)] if isinstance(asked, list) else []


def begin_state(run: Run) -> WorkflowState:
    """What the graph of a run begins with; the same however often it begins."""
    newest = run.inputs[-1] if run.inputs else RunInput({})
    texts = [text for one in run.inputs if (text := text_of_input(one))]
    state = initial_state(
        "\n".join(texts),
        inputs=map_of(newest.values, "inputs"),
        results=map_of(newest.values, "results"),
        user_context=map_of(newest.values, "user_context"),
    )
    asked = [(one, number) for number, one in enumerate(run.inputs) if text_of_input(one)]
    state["messages"] = [
        HumanMessage(text_of_input(one), id=one.message_id or _question_id(run, number)) for one, number in asked
    ]
    return state


def context_of(run: Run, resources: Resources) -> RunContext:
    """What the nodes of a run get beside the state."""
    values = run.inputs[-1].values if run.inputs else {}
    return RunContext(
        run_id=run.run_id,
        workflow=run.workflow,
        resources=resources,
        session_id=run.session_id,
        user_id=run.user_id,
        message_id=run.message_id,
        trigger=run.trigger,
        depth=run.depth,
        user_context=map_of(values, "user_context"),
        ancestors=names_in(values, "ancestors"),
    )


def metadata_of(run: Run) -> dict[str, Json]:
    """What is kept with the message that a run was asked for by."""
    return map_of(run.inputs[-1].values, "metadata") if run.inputs else {}


def text_of_input(given: RunInput) -> str:
    """What a message said."""
    text = given.values.get("text")
    return text if isinstance(text, str) else ""


def map_of(values: Values, name: str) -> dict[str, Json]:
    """A part of what was asked that is a map; empty where it is missing."""
    part = values.get(name)
    return dict(part) if isinstance(part, Mapping) else {}


def names_in(values: Values, name: str) -> tuple[str, ...]:
    """A part of what was asked that is a list of names."""
    part = values.get(name)
    return tuple(one for one in part if isinstance(one, str)) if isinstance(part, list | tuple) else ()


def _question_id(run: Run, number: int) -> str:
    return f"{run.run_id}:{number}" if number else run.run_id
