"""Measures model calls: the token counter, its correction by the provider's counts, and the token budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool

from threadkeep.agent.counting import count_message
from threadkeep.agent.model_call import Assembled
from threadkeep.agent.turn_options import AUTO_SHARED_TOKENS, AUTO_TOKENS, TurnOptions, facts_of
from threadkeep.context.estimates import ExactCounter
from threadkeep.context.manifest import ReportedUsage
from threadkeep.context.tokens import (
    ScaledCounter,
    TokenCounter,
    counter_for,
    estimate,
    family_of,
    input_budget,
    other_tokens,
    plain_counter,
)
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.memory import Memory


@dataclass(frozen=True)
class ModelUse:
    """The model of a call, the tools that it may use, and its description for tracers; None if it was not read yet."""

    model: BaseChatModel | None = None
    tools: Sequence[object] = ()
    described: Mapping[str, Any] | None = None


def chosen_model[M: BaseChatModel | None](model: M, config: RunnableConfig | None = None) -> M:
    """Return the model that a configurable model of `init_chat_model` calls, or any other model unchanged.

    Without `config`, the config of the surrounding LangChain run selects the model.
    """
    choose = None if model is None or isinstance(model, BaseChatModel) else getattr(type(model), "_model", None)
    return model if choose is None else cast("M", choose(model, config))


@dataclass(frozen=True)
class CallMeasure:
    """The token counter of a model call and the budget of its messages.

    - `budget`: the maximum number of tokens of the messages. The tokens of the tools (`tools`) do not count.
    - `stored`: the counter with which stored messages were counted; None if the caller chose another counter.
    - `learns`: True if the provider's count can correct the counter.
    - `shared`: if less than `budget`, extra sections and earlier tool calls get shares of this number of tokens.
    - `other_counter`: counts the tokens in scripts other than Latin, if a separate factor corrects them.
    - `other`: the number of tokens that `other_counter` has counted, before the correction.
    """

    model: str | None
    counter: TokenCounter
    budget: int
    tools: int
    stored: TokenCounter | None
    learns: bool
    provider: str | None = None
    shared: int | None = None
    other_counter: TokenCounter | None = None
    other: int = 0

    def unscaled(self, tokens: int) -> int:
        """Undo the learned correction: return the counter's own estimate for a corrected count of `tokens`."""
        if not isinstance(self.counter, ScaledCounter):
            return tokens
        other_hundredths = self.counter.other_hundredths or self.counter.hundredths
        return (tokens * 100 - self.other * other_hundredths) // self.counter.hundredths + self.other

    def learning_from(self, sent: Assembled) -> CallMeasure:
        """Return a copy that lets the provider's count of `sent` correct the counter, unless `sent` has media."""
        if not (self.learns and sent.texts_only):
            return replace(self, learns=False)
        if (counter := self.other_counter) is None:
            return self
        messages = sent.messages if sent.system is None else (sent.system, *sent.messages)
        return replace(self, other=self.other + sum(count_message(message, counter) for message in messages))

    def as_stored(self, tokens: int, sent: Assembled) -> int:
        """Convert a count by `counter` to a count by `stored`. The ratio of both comes from their counts of `sent`."""
        if self.stored is None or self.stored is self.counter:
            return tokens
        chat = sent.chat
        counted, stored = (
            sum(count_message(message, counter) for message in chat) for counter in (self.counter, self.stored)
        )
        return tokens * stored // counted if counted and stored else tokens


@dataclass(eq=False)
class Measuring:
    """A factory of a `CallMeasure` for each model call in a turn. New corrections apply from the next turn on."""

    memory: Memory
    options: TurnOptions
    _tools: tuple[tuple[object, ...], str] = ((), "")
    _counters: dict[str | None, TokenCounter] = field(default_factory=dict)

    async def of(self, use: ModelUse) -> CallMeasure:
        """Return the token counter and the budget for a call with the model and the tools of `use`.

        Raises:
            BudgetTooSmall: the tools fill the model's window.
        """
        options, memory = self.options, self.memory
        facts = facts_of(use.model, options.context_window, use.described)
        learns = options.counter is None and memory.counter is estimate
        counter = options.counter or memory.counter
        if learns:
            if facts.name not in self._counters:
                factor = await memory.learned_factors.of(facts.name) if facts.name else None
                best = counter_for(facts.name, factor=factor)
                self._counters[facts.name] = memory.remembered_counts.remembering(best)
            counter = self._counters[facts.name]
        comparable = learns or plain_counter(counter) is memory.counter
        tools = counter(self._tools_text(use.tools)) if use.tools else 0
        room = input_budget(facts.name, options.max_output_tokens, facts.window) - tools
        if room <= 0:
            raise BudgetTooSmall(
                f"The tools alone have {tools} tokens and a prompt may have {room + tools}: give the agent fewer "
                "tools, or a model with a larger context window."
            )
        most = options.max_tokens
        if most == "auto":
            most = None if facts.known else AUTO_TOKENS
        # A model of an unknown family has a separate correction factor for non-Latin scripts, so count these apart.
        unknown = facts.name is not None and family_of(facts.name) is None
        other = memory.remembered_counts.remembering(other_tokens(estimate)) if learns and unknown else None
        return CallMeasure(
            model=facts.name,
            counter=counter,
            budget=min(most or room, room),
            shared=AUTO_SHARED_TOKENS if options.max_tokens == "auto" else None,
            tools=tools,
            stored=memory.remembered_counts.remembering(memory.counter) if comparable else None,
            learns=learns and not isinstance(counter, ExactCounter),
            provider=facts.provider,
            other_counter=other,
            other=other(self._tools_text(use.tools)) if other and use.tools else 0,
        )

    def _tools_text(self, tools: Sequence[object]) -> str:
        """Return the tools as JSON, cached as long as they stay the same."""
        known, text = self._tools
        if list(map(id, known)) != list(map(id, tools)):
            text = tools_text(tools)
            self._tools = (tuple(tools), text)
        return text


def usage_of(reply: AIMessage | None) -> ReportedUsage | None:
    """Return the token usage that a reply reports, or None if a count is missing."""
    usage: object = reply.usage_metadata if reply is not None else None
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("input_token_details")
    cache_read = details.get("cache_read") if isinstance(details, Mapping) else None
    taken, given, cached = [
        count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
        for count in (usage.get("input_tokens"), usage.get("output_tokens"), cache_read)
    ]
    return None if taken is None or given is None else ReportedUsage(taken, given, min(cached or 0, taken))


def tools_text(tools: Sequence[object]) -> str:
    """Return the tools as the JSON that a provider receives and counts as input."""
    converted = list(tools)
    for index, tool in enumerate(tools):
        # If a tool has a provider's own format, keep it unchanged, as LangChain does.
        with suppress(ValueError, TypeError):
            converted[index] = convert_to_openai_tool(cast("dict[str, Any]", tool))
    return json.dumps(converted, ensure_ascii=False, default=str) if converted else ""
