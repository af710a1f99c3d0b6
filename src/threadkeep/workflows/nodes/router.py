"""`router`: rules choose the next node, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar

import re2
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from threadkeep.history.keys import is_path, look_up
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step, found, sent_to
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, last_text
from threadkeep.workflows.templates import ROOTS, scope_of

_MOST_CHARACTERS = 2_000
LAST_MESSAGE = "last_message"

type Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class Rule(BaseModel):
    """A rule: a value, its condition, and the next node. The first rule that matches decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str = Field("text", description="The value: a path such as results.triage.category, or last_message.")
    equals: StrictBool | StrictInt | StrictFloat | str | None = Field(None, description="What it must be equal to.")
    matches: Pattern | None = Field(
        None,
        description="A regular expression (of RE2, without look-around) that must be found in it, in any case.",
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
                _compiled(self.matches)
            except re2.error as error:
                reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
                raise ValueError(f"matches is no regular expression of RE2: {reason}.") from None
        return self

    def holds(self, value: object) -> bool:
        """Return True if the rule matches a value. Of a text, the first two thousand characters are checked."""
        if self.exists is not None:
            return (value is not None) is self.exists
        if self.matches is not None:
            text = value if isinstance(value, str) else "" if value is None else str(value)
            return _found_in(self.matches, text[:_MOST_CHARACTERS])
        if isinstance(value, bool) or isinstance(self.equals, bool):
            return value is self.equals
        return value == self.equals


class RouterNode(Node):
    """Chooses the next node by rules, without a model; `otherwise` if none matches."""

    node_kind: ClassVar[NodeKind] = "router"

    rules: tuple[Rule, ...] = Field(min_length=1, max_length=100, description="The rules, tried in their order.")
    otherwise: str = Field(description="Where the run goes on if no rule holds: a node, or end.")

    @property
    def again(self) -> Again:
        """Return nothing."""
        return "nothing"

    def targets(self) -> Mapping[str, str]:
        """Return the nodes of the rules, and the default."""
        wanted: dict[str, list[str]] = {}
        for rule in self.rules:
            wanted.setdefault(rule.next, []).append(_label(rule))
        wanted.setdefault(self.otherwise, []).append("else")
        return {target: ", ".join(dict.fromkeys(labels)) for target, labels in wanted.items()}

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> Command[str]:
        """Evaluate the rules and continue with the node of the first match."""
        step = Step.of(config, runtime)
        scope = {**scope_of(state), LAST_MESSAGE: last_text(state)}
        target = next((rule.next for rule in self.rules if rule.holds(look_up(scope, rule.path))), self.otherwise)
        return sent_to(target, found(step, target, {"next": target}))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re2.Pattern:
    """Return a pattern of RE2, whose search takes linear time: visitors choose the text, and the event loop waits."""
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(pattern, options)


def _found_in(pattern: str, text: str) -> bool:
    # RE2 works on UTF-8, which has no lone surrogates.
    return _compiled(pattern).search(text.encode("utf-8", "replace").decode()) is not None


def _label(rule: Rule) -> str:
    name = rule.path.rpartition(".")[2]
    if rule.exists is not None:
        return f"{name}" if rule.exists else f"no {name}"
    return f"{name} = {rule.equals}" if rule.matches is None else f"{name} matches"
