"""Options of the built-in chat, and checks of them against its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from langchain_core.language_models import BaseChatModel

from threadkeep.agent.extras import ExtraSource
from threadkeep.agent.model_facts import facts_of
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.budget import input_budget
from threadkeep.context.plan import ContextPlan, WindowKind
from threadkeep.context.tokens import counter_for
from threadkeep.errors import BudgetTooSmall, InvalidSettings
from threadkeep.history.compression import Compression
from threadkeep.records.runs import DoubleTexting

type Recall = Literal["off", "session", "user"]

LEAST_QUESTION_TOKENS = 32
"""What a system prompt must leave of the budget: less, and questions are cut to a few words."""


@dataclass(frozen=True)
class ChatOptions:
    """Options of the chat agent; `threadkeep.settings` explains each."""

    system_prompt: str = ""
    max_messages: int = 20
    max_tokens: int = 4000
    model_timeout_seconds: float = 60.0
    window: WindowKind = "anchored"
    context_window: int | None = None
    max_output_tokens: int | None = None
    compression: Compression | None = None
    recall: Recall = "off"
    facts: bool = False
    directives: bool = False
    learning: bool = False
    learning_accept_from: float | None = None
    summary_model: str = ""
    workspace: str | None = None
    double_texting: DoubleTexting = "enqueue"

    def turn_options(self, sources: Sequence[ExtraSource] = ()) -> TurnOptions:
        """Return the options with which each turn reads and writes its session."""
        return TurnOptions(
            max_messages=self.max_messages,
            max_tokens=self.max_tokens,
            plan=ContextPlan(window=self.window),
            sources=tuple(sources),
            compression=self.compression,
            context_window=self.context_window,
            max_output_tokens=self.max_output_tokens,
        )

    def check_room(self, model: BaseChatModel | None = None) -> None:
        """Refuse what leaves no room for a question: no message at all could be answered.

        Raises:
            InvalidSettings: names the variables that do not go together.
        """
        facts = facts_of(model, self.context_window)
        room = self._room(facts.name, facts.window)
        prompt = counter_for(facts.name)(self.system_prompt)
        needed = prompt + LEAST_QUESTION_TOKENS
        if prompt and needed > room:
            raise InvalidSettings(
                f"THREADKEEP_SYSTEM_PROMPT has {prompt:,} tokens, and a model call may have {room:,} of a context "
                f"window of {facts.window:,}: shorten it, lower THREADKEEP_MAX_OUTPUT_TOKENS, or set "
                "THREADKEEP_CONTEXT_WINDOW to what the model really has.",
                variable="THREADKEEP_SYSTEM_PROMPT",
            )
        if prompt and 0 < self.max_tokens < needed:
            variable = "THREADKEEP_HISTORY_MAX_TOKENS"
            raise InvalidSettings(
                f"THREADKEEP_SYSTEM_PROMPT has {prompt:,} tokens, and {variable}={self.max_tokens} is for all that a "
                f"model call is sent: raise it to {needed} at least (4000 more is better), or shorten the prompt.",
                variable=variable,
            )

    def _room(self, name: str | None, window: int) -> int:
        try:
            return input_budget(name, self.max_output_tokens, window)
        except BudgetTooSmall as error:
            numbers = str(error).partition(":")[0]
            raise InvalidSettings(
                f"{numbers}: lower THREADKEEP_MAX_OUTPUT_TOKENS, or set THREADKEEP_CONTEXT_WINDOW to what the model "
                "really has.",
                variable="THREADKEEP_MAX_OUTPUT_TOKENS" if self.max_output_tokens else "THREADKEEP_CONTEXT_WINDOW",
            ) from None
