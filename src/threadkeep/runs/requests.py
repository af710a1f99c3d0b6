"""Requests to run a workflow, the values of a request that are stored, and the input of the workflow's graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from langchain_core.messages import AnyMessage, HumanMessage

from threadkeep.agent.conversion import SENT_AT
from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.records.runs import NO_BUDGET, DoubleTexting, Run, RunBudget, RunInput, RunTrigger, interrupts_of
from threadkeep.runs.streams import RunStream
from threadkeep.workflows.resources import MAX_DEADLINE, Resources, RunContext
from threadkeep.workflows.state import WorkflowState, map_of

type Values = Mapping[str, Json]

QUESTION_ID = re.compile("[0-9a-f]{32}")
"""The form of LangGraph's interrupt ids."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request to run a workflow.

    - `session_id`: if it is None, the run continues the user's last session with the workflow, or starts a new one.
    - `sessionless`: if it is true, the run sees no earlier turns and stores none.
    - `message_id`: the request can be repeated safely with the same id.
    - `inputs`: the payload that starts the run; in the chat, its `quoted_text` is the text that the message replies to.
    - `results`: the values that a channel parsed from the payload.
    - `metadata` and `sent_at` (the time that the platform reports): they are stored with the message.
    - `stream`: if it is true, the caller receives each token when it arrives.
    - `double_texting`: it replaces the workflow's policy for a message that arrives during a turn.
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
    sent_at: datetime | None = None
    trigger: RunTrigger = "http"
    budget: RunBudget = NO_BUDGET
    deadline_seconds: float | None = None
    sessionless: bool = False
    stream: bool = False
    double_texting: DoubleTexting | None = None

    def __post_init__(self) -> None:
        """Reject fields that contradict each other, and a deadline that is not positive or too long.

        Raises:
            InvalidInput: the error names the fields.
        """
        if self.sessionless and (self.session_id is not None or self.message_id is not None):
            raise InvalidInput("A sessionless run has no session_id and no message_id; leave them out.")
        if self.deadline_seconds is not None and not 0 < self.deadline_seconds <= MAX_DEADLINE:
            raise InvalidInput(
                "deadline_seconds is above 0 and at most a year, or None for the deadline of the workflow."
            )

    def values(self) -> dict[str, Json]:
        """Return the fields of the request that are stored as the input of its run, except empty fields."""
        given: dict[str, Json] = {
            "text": self.text,
            "inputs": dict(self.inputs),
            "results": dict(self.results),
            "user_context": dict(self.user_context),
            "metadata": dict(self.metadata),
            SENT_AT: self.sent_at.isoformat() if self.sent_at else None,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class Submitted:
    """The run that answers a request: a `new` run, one that the request `joined`, or one that was `known` already.

    `stream` receives the tokens and outcome of the run in this process. `over`: the run had ended before the request.
    """

    run_id: str
    session_id: str | None
    outcome: Literal["new", "joined", "known"]
    stream: RunStream = field(repr=False, compare=False)
    over: bool = False


def begin_state(run: Run) -> WorkflowState:
    """Return the initial state of a run's graph; it is the same each time the run starts from the beginning."""
    newest = run.inputs[-1].values if run.inputs else {}
    messages: list[AnyMessage] = []
    for number, one in enumerate(run.inputs):
        message = message_of_input(one, one.message_id or (f"{run.run_id}:{number}" if number else run.run_id))
        if message.content:
            messages.append(message)
    return {
        "messages": messages,
        "node_outputs": {},
        "results": map_of(newest, "results"),
        "inputs": map_of(newest, "inputs"),
        "user_context": map_of(newest, "user_context"),
        "text": "\n".join([str(message.content) for message in messages]),
    }


def message_of_input(given: RunInput, message_id: str) -> HumanMessage:
    """Return one of a run's inputs as a LangChain message with the id `message_id`."""
    # `from_langchain` reads the platform's time from the metadata, so that the transcript gets it.
    sent_at = given.values.get(SENT_AT)
    metadata = {SENT_AT: sent_at} if isinstance(sent_at, str) else {}
    return HumanMessage(text_of_input(given), id=message_id, response_metadata=metadata)


def context_of(run: Run, resources: Resources) -> RunContext:
    """Return the LangGraph runtime context that the nodes of a run receive in addition to the state."""
    values = run.inputs[-1].values if run.inputs else {}
    above = values.get("ancestors")
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
        ancestors=tuple(map(str, above)) if isinstance(above, list) else (),
    )


def metadata_of(run: Run) -> dict[str, Json]:
    """Return the metadata of a run's newest input, which is stored with its message; empty if there is none."""
    return map_of(run.inputs[-1].values, "metadata") if run.inputs else {}


def answer_for(run: Run, value: Json) -> Json:
    """Convert a person's answer to the form that a waiting run needs: for several questions, a map by question id.

    Raises:
        InvalidInput: the run, or its child, asks several questions, but the answers are not in a map by question id;
            or the map answers only questions that are not asked any more.
    """
    return _answer_for(run.run_id, interrupts_of(run), value)


def _answer_for(run_id: str, asked: Sequence[Mapping[str, Json]], value: Json) -> Json:
    by_id = {str(one.get("id")): one for one in asked}
    answers = value if isinstance(value, dict) and value else {}
    if answers and answers.keys() <= by_id.keys():
        checked = {name: _answer_within(run_id, by_id[name], answer) for name, answer in answers.items()}
        return checked if len(by_id) > 1 else next(iter(checked.values()))
    if len(by_id) > 1:
        names = ", ".join(by_id)
        raise InvalidInput(f"Run {run_id!r} asks {len(by_id)} questions; answer with a map from their ids: {names}.")
    [only] = asked
    if answers and not _asked_by_child(only) and all(map(QUESTION_ID.fullmatch, answers)):
        raise InvalidInput(f"Run {run_id!r} does not ask this any more; see the run for what it asks now.")
    return _answer_within(run_id, only, value)


def _answer_within(run_id: str, question: Mapping[str, Json], value: Json) -> Json:
    below = _asked_by_child(question)
    return _answer_for(run_id, below, value) if below else value


def _asked_by_child(question: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return the questions of a child run if `question` passes them on, or an empty list if the run itself asks."""
    value = question.get("value")
    if not isinstance(value, Mapping) or value.keys() != {"run_id", "workflow", "interrupts"}:
        return []
    asked = value["interrupts"]
    return [one for one in asked if isinstance(one, Mapping)] if isinstance(asked, list) else []


def text_of_input(given: RunInput) -> str:
    """Return the text of an input message, or an empty string if the input has none."""
    text = given.values.get("text")
    return text if isinstance(text, str) else ""
