"""The state of a candidate graph: the event, the messages, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage

from threadkeep.agent.reducers import BoundedMessages
from threadkeep.records import Json

type CandidateOutcome = Literal["SKIP", "OK", "ERROR"]


class Candidate(TypedDict):
    """A proposed answer; the same event gives it the same id each time."""

    id: str
    kind: Literal["text"]
    status: Literal["proposed"]
    source: str
    text: str
    created_at: str


class CandidateError(TypedDict):
    """Why there is no answer; `error` is the name of the error's class, since its sentence may quote people."""

    source: str
    error: str
    message: str
    created_at: str


class CandidateState(TypedDict, total=False):
    """The state: the event comes in, and goes out with its `candidates` and `errors` when there are new ones."""

    event: Mapping[str, Json]
    messages: list[BaseMessage]
    outcome: CandidateOutcome | None
    candidate: Candidate | None
    errors: list[CandidateError]
    combinedPrompt: str | None
    llmText: str | None


def bounded_state(reducer: BoundedMessages) -> type[CandidateState]:
    """The state with a reducer of its own for the messages; nodes are annotated with `CandidateState`."""

    class BoundedState(CandidateState, total=False):
        """The state of a candidate graph."""

    # Not written in the class: annotations are kept as text, and there a reducer of this function has no name.
    BoundedState.__annotations__["messages"] = Annotated[list[AnyMessage], reducer]
    return BoundedState
