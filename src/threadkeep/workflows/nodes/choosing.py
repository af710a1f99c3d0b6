"""`categorizer` and `router`: nodes in which a model or rules choose the next node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar

import re2
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from threadkeep.agent.conversion import text_of
from threadkeep.history.keys import is_path, look_up
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step, found, rendered, sent_to
from threadkeep.workflows.nodes.conversations import run_conversation
from threadkeep.workflows.nodes.speaking import AskingNode
from threadkeep.workflows.state import ROOTS, WorkflowState, last_text, scope_of

_MOST_REPLY_CHARACTERS = 2_000

type CategoryName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class Category(BaseModel):
    """A category: its name, its description, and its next node."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: CategoryName
    description: str = Field("", description="The description of the category, for the model.")
    next: str = Field(description="The next node, or end.")


class CategorizerNode(AskingNode):
    """A node that assigns the newest message to a category, which determines the next node.

    The model sees only the prompt, the categories, and the last message. A reply that is not a category selects the
    default. No reply is stored in a transcript.
    """

    node_kind: ClassVar[NodeKind] = "categorizer"
    template_options: ClassVar[tuple[str, ...]] = ("system_prompt",)
    repetition: ClassVar[Again] = "a model call"

    categories: tuple[Category, ...] = Field(min_length=1, max_length=50, description="The categories.")
    default: str = Field(description="The next node if the model names no category, or end.")
    system_prompt: str = Field("", description="The prompt before the categories; a template.")
    max_tokens: int | None = Field(
        None, ge=1, description="The maximum number of tokens of a call; by default the service's limit."
    )

    @model_validator(mode="after")
    def _check_names(self) -> CategorizerNode:
        names = [category.name.casefold() for category in self.categories]
        if len(set(names)) < len(names):
            raise ValueError("Two categories have the same name; rename one.")
        return self

    def targets(self) -> Mapping[str, str]:
        """Map each next node to the names of its categories; the name for the default is `else`."""
        return _by_target([(category.next, category.name) for category in self.categories], self.default)

    async def run(self, step: Step, state: WorkflowState) -> Command[str]:
        """Ask the model for a category, and continue with the node of this category, or with the default node."""
        reply = await self._ask(step, state)
        category = self.named_in(reply)
        name = category.name if category is not None else None
        target = category.next if category is not None else self.default
        return sent_to(target, found(step, name, {"category": name, "next": target}))

    def named_in(self, reply: str) -> Category | None:
        """Return the category that is the whole reply, or else the only category that it mentions, or else None."""
        text = reply[:_MOST_REPLY_CHARACTERS].casefold()
        alone = re.sub(r"^\W+|\W+$", "", text)
        by_name = {category.name.casefold(): category for category in self.categories}
        if alone in by_name:
            return by_name[alone]
        named = [name for name in by_name if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
        return by_name[named[0]] if len(named) == 1 else None

    async def _ask(self, step: Step, state: WorkflowState) -> str:
        given = step.context.resources.turn_options
        options = replace(
            given,
            max_messages=0,
            max_tokens=given.max_tokens if self.max_tokens is None else self.max_tokens,
            sources=(),
            compression=None,
            context_window=self.window_in(given),
        )
        question = HumanMessage(last_text(state) or state.get("text") or "", id=f"{step.message_id}:input")
        system = SystemMessage(self._prompt(state))
        return text_of(await self.ask(step, run_conversation(step), [question], system, options))

    def _prompt(self, state: WorkflowState) -> str:
        lines = [
            f"- {category.name}: {category.description}" if category.description else f"- {category.name}"
            for category in self.categories
        ]
        task = "Say to which of these categories the message belongs. Answer with the category's name and nothing else."
        return "\n".join([*filter(None, [rendered(self.system_prompt, state).strip()]), task, *lines])


_MOST_CHARACTERS = 2_000
LAST_MESSAGE = "last_message"

type Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class Rule(BaseModel):
    """A value, a condition on it, and the next node. The first rule that matches decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str = Field("text", description="The value: a path such as results.triage.category, or last_message.")
    equals: StrictBool | StrictInt | StrictFloat | str | None = Field(None, description="What the value must equal.")
    matches: Pattern | None = Field(
        None,
        description="A regular expression (RE2, no look-around) that must match a part of the value, ignoring case.",
    )
    exists: StrictBool | None = Field(None, description="True if the value must exist, false if it must not.")
    next: str = Field(description="The next node, or end.")

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
                raise ValueError(f"matches is not a regular expression of RE2: {reason}.") from None
        return self

    def holds(self, value: object) -> bool:
        """Return True if the rule's condition is true for a value. `matches` reads only the first 2,000 characters."""
        if self.exists is not None:
            return (value is not None) is self.exists
        if self.matches is not None:
            text = value if isinstance(value, str) else "" if value is None else str(value)
            # RE2 needs valid UTF-8, so replace lone surrogates.
            valid = text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode()
            return _compiled(self.matches).search(valid) is not None
        if isinstance(value, bool) or isinstance(self.equals, bool):
            return value is self.equals
        return value == self.equals


class RouterNode(Node):
    """A node that chooses the next node by rules, without a model. If no rule matches, `otherwise` is the next node."""

    node_kind: ClassVar[NodeKind] = "router"
    repetition: ClassVar[Again] = "nothing"

    rules: tuple[Rule, ...] = Field(min_length=1, max_length=100, description="The rules, tried in their order.")
    otherwise: str = Field(description="The next node if no rule matches, or end.")

    def targets(self) -> Mapping[str, str]:
        """Map each next node to the labels of its rules; the label for `otherwise` is `else`."""
        return _by_target([(rule.next, _label(rule)) for rule in self.rules], self.otherwise)

    async def run(self, step: Step, state: WorkflowState) -> Command[str]:
        """Evaluate the rules and continue with the node of the first rule that matches."""
        scope = {**scope_of(state), LAST_MESSAGE: last_text(state)}
        target = next((rule.next for rule in self.rules if rule.holds(look_up(scope, rule.path))), self.otherwise)
        return sent_to(target, found(step, target, {"next": target}))


def _by_target(choices: Iterable[tuple[str, str]], otherwise: str) -> Mapping[str, str]:
    """Map each next node to the labels of the choices that lead to it, separated by commas."""
    labels: dict[str, list[str]] = {}
    for target, label in (*choices, (otherwise, "else")):
        labels.setdefault(target, []).append(label)
    return {target: ", ".join(dict.fromkeys(found)) for target, found in labels.items()}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re2.Pattern:
    """Return a pattern of RE2, which matches in linear time, so that no text blocks the event loop."""
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(pattern, options)


def _label(rule: Rule) -> str:
    name = rule.path.rpartition(".")[2]
    if rule.exists is not None:
        return f"{name}" if rule.exists else f"no {name}"
    return f"{name} = {rule.equals}" if rule.matches is None else f"{name} matches"
