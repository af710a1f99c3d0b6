"""`categorizer`: a model chooses one of a few categories for the newest message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field, model_validator

from threadkeep.agent.conversion import text_of
from threadkeep.agent.nodes import session_turn
from threadkeep.agent.turn_options import NodeTurnOptions
from threadkeep.workflows.nodes.asking import AskingNode
from threadkeep.workflows.nodes.base import Again, NodeKind, Step, found, rendered, sent_to
from threadkeep.workflows.nodes.places import place_of_run
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, last_text

_MOST_REPLY_CHARACTERS = 2_000

type CategoryName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class Category(BaseModel):
    """A category: its name, its description, and its next node."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: CategoryName
    description: str = Field("", description="What belongs to it, for the model.")
    next: str = Field(description="The node with which the run goes on, or end.")


class CategorizerNode(AskingNode):
    """Assigns the newest message to one of a few categories, which determines the next node.

    The model sees only the prompt, the categories, and the last message. A reply that is not a category selects the
    default. The reply enters no transcript.
    """

    node_kind: ClassVar[NodeKind] = "categorizer"

    categories: tuple[Category, ...] = Field(min_length=1, max_length=50, description="The categories there are.")
    default: str = Field(description="Where the run goes on if the model names no category: a node, or end.")
    system_prompt: str = Field("", description="What the model is told before the categories; a template.")
    max_tokens: int | None = Field(
        None, ge=1, description="Tokens of the call at most; the service's limit if not set."
    )

    @model_validator(mode="after")
    def _check_names(self) -> CategorizerNode:
        names = [category.name.casefold() for category in self.categories]
        if len(set(names)) < len(names):
            raise ValueError("Two categories have one name; call one of them otherwise.")
        return self

    def templates(self) -> Iterable[tuple[str, str]]:
        """Return the prompt."""
        yield "system_prompt", self.system_prompt

    def targets(self) -> Mapping[str, str]:
        """Return the nodes of the categories, and the default."""
        wanted: dict[str, list[str]] = {}
        for category in self.categories:
            wanted.setdefault(category.next, []).append(category.name)
        wanted.setdefault(self.default, []).append("else")
        return {target: ", ".join(names) for target, names in wanted.items()}

    @property
    def again(self) -> Again:
        """Return its model call."""
        return "a model call"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> Command[str]:
        """Call the model and continue with the node of its category."""
        step = Step.of(config, runtime)
        reply = await self._ask(step, state, config)
        category = self.named_in(reply)
        name = category.name if category is not None else None
        target = category.next if category is not None else self.default
        return sent_to(target, found(step, name, {"category": name, "next": target}))

    def named_in(self, reply: str) -> Category | None:
        """Return the category that a reply names: alone, or as the only one in a few words."""
        text = reply[:_MOST_REPLY_CHARACTERS].casefold()
        alone = re.sub(r"^\W+|\W+$", "", text)
        by_name = {category.name.casefold(): category for category in self.categories}
        if alone in by_name:
            return by_name[alone]
        named = [name for name in by_name if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
        return by_name[named[0]] if len(named) == 1 else None

    async def _ask(self, step: Step, state: WorkflowState, config: RunnableConfig) -> str:
        given = step.context.resources.turn_options
        place = place_of_run(step)
        options = replace(
            NodeTurnOptions.of(given, lambda _: place.call),
            max_messages=0,
            max_tokens=given.max_tokens if self.max_tokens is None else self.max_tokens,
            sources=(),
            compression=None,
            context_window=self.window_in(given),
            session_id=lambda _: place.session_id,
            user_id=lambda _: place.user_id,
        )
        text = last_text(state) or state.get("text") or ""
        model = self.chat_model(step)
        question = HumanMessage(text, id=f"{step.message_id}:input")
        async with session_turn(place.memory, [question], config, options) as turn:
            sent = await turn.messages(SystemMessage(self._prompt(state)), model=model)
            async with asyncio.timeout(self.timeout_seconds):
                reply: AIMessage = await model.ainvoke(sent)
            turn.answer(reply)
        return text_of(reply)

    def _prompt(self, state: WorkflowState) -> str:
        lines = [
            f"- {category.name}: {category.description}" if category.description else f"- {category.name}"
            for category in self.categories
        ]
        told = "Say to which of these categories the message belongs. Answer with the category's name and nothing else."
        return "\n".join([*filter(None, [rendered(self.system_prompt, state).strip()]), told, *lines])
