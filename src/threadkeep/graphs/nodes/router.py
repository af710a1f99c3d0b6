"""`router`: rules on what is known say where the run goes on. No model is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from threadkeep.graphs.nodes.base import Again, Node, NodeKind, Step, found, sent_to
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState, last_text
from threadkeep.graphs.templates import ROOTS, scope_of
from threadkeep.history.keys import is_path, look_up

_MOST_CHARACTERS = 2_000
LAST_MESSAGE = "last_message"

type Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class Rule(BaseModel):
    """One rule: a value, what it must be, and where the run goes on then. The first rule that holds decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str = Field("text", description="The value: a path such as results.triage.category, or last_message.")
    equals: StrictBool | StrictInt | StrictFloat | str | None = Field(None, description="What it must be equal to.")
    matches: Pattern | None = Field(
        None, description="A regular expression (of Python) that must be found in it, upper and lower case alike."
    )
    exists: StrictBool | None = Field(None, description="Whether there must be such a value, or must not.")
    next: str = Field(description="The node with which the run goes on, or end.")

    @model_validator(mode="after")
    def _check(self) -> Rule:
        if not is_path(self.path) or re.split(r"[.\[]", self.path)[0] not in (*ROOTS, LAST_MESSAGE):
            raise ValueError(f"The path of a rule begins with {', '.join(ROOTS)}, or is {LAST_MESSAGE}.")
        given = [name for name in ("equals", "matches", "exists") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("A rule has exactly one of equals, matches and exists.")
        if self.matches is not None:
            try:
                re.compile(self.matches)
            except re.error as error:
                raise ValueError(f"matches is no regular expression: {error}.") from None
        return self

    def holds(self, value: object) -> bool:
        """Whether the rule holds for a value. Text is looked at in its first two thousand characters."""
        if self.exists is not None:
            return (value is not None) is self.exists
        if self.matches is not None:
            text = value if isinstance(value, str) else "" if value is None else str(value)
            return re.search(self.matches, text[:_MOST_CHARACTERS], re.IGNORECASE) is not None
        if isinstance(value, bool) or isinstance(self.equals, bool):
            return value is self.equals
        return value == self.equals


class RouterNode(Node):
    """Sends the run on by rules, without a model; `otherwise` where none of them holds."""

    node_kind: ClassVar[NodeKind] = "router"

    rules: tuple[Rule, ...] = Field(min_length=1, max_length=100, description="The rules, tried in their order.")
    otherwise: str = Field(description="Where the run goes on if no rule holds: a node, or end.")

    @property
    def again(self) -> Again:
        """Nothing."""
        return "nothing"

    def targets(self) -> Mapping[str, str]:
        """The nodes of the rules, and the other one."""
        wanted: dict[str, list[str]] = {}
        for rule in self.rules:
            wanted.setdefault(rule.next, []).append(_label(rule))
        wanted.setdefault(self.otherwise, []).append("else")
        return {target: ", ".join(dict.fromkeys(labels)) for target, labels in wanted.items()}

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> Command[str]:
        """Try the rules, and go on with the node of the first that holds."""
        step = Step.of(config, runtime)
        scope = {**scope_of(state), LAST_MESSAGE: last_text(state)}
        target = next((rule.next for rule in self.rules if rule.holds(look_up(scope, rule.path))), self.otherwise)
        return sent_to(target, found(step, target, {"next": target}))


def _label(rule: Rule) -> str:
    name = rule.path.rpartition(".")[2]
    if rule.exists is not None:
        return f"{name}" if rule.exists else f"no {name}"
    return f"{name} = {rule.equals}" if rule.matches is None else f"{name} matches"
