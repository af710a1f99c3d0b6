"""The token usage and cost of runs, and the check of their budgets before model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from threadkeep.agent.counting import count_tokens
from threadkeep.agent.turn_options import kept_name
from threadkeep.errors import BudgetSpent
from threadkeep.records import Json
from threadkeep.records.runs import NO_USAGE, Run, TokenUsage
from threadkeep.runs.options import Prices
from threadkeep.runs.tracing import Trace

UNNAMED = "unnamed"
"""The model name for calls of models that do not report their name."""


class Ledger(AsyncCallbackHandler):
    """The token usage of one execution of a run, checked against the budgets of the run and its ancestors.

    As a callback, it adds the usage of each model call exactly once. Concurrent calls may exceed a budget, because a
    call is counted when it ends. A model without a price costs nothing. A run in the database stores its usage in
    groups with its trace, so a killed process loses only the usage of the last model calls.

    - `limited`: the run and its ancestors, but only runs that have a budget.
    - `stored`: a callback that stores the pending usage of the whole tree, and returns the usage of a run and all runs
      below it. It is called before each model call for each run in `limited`.
    - `usages`: the usage of the run's own model calls, not of its child runs.
    - `spent`: the error that stopped a model call; None if none was stopped.
    """

    # An error from `check` must stop the call. Do not set `run_inline`, because an inline error skips other handlers.
    raise_error = True
    # Ignore other events, each of which would cost a coroutine in each step of a graph.
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(
        self,
        prices: Prices,
        tracer: Trace | None = None,
        stored: Callable[[str], Awaitable[Sequence[TokenUsage]]] | None = None,
    ) -> None:
        self.limited: Sequence[Run] = ()
        self.has_children = False
        self.spent: BudgetSpent | None = None
        self.usages: list[TokenUsage] = []
        self._prices = prices
        self._tracer = tracer or Trace()
        self._stored = stored
        self._asked: dict[UUID, tuple[str, list[BaseMessage]]] = {}

    async def check(self) -> None:
        """Check before a model call that no budget is used up.

        Raises:
            BudgetSpent: a budget is used up.
        """
        for run in self.limited:
            self.spent = spent_budget(run, await self._used(run))
            if self.spent is not None:
                raise self.spent

    async def crossed(self) -> BudgetSpent | None:
        """Return the first exceeded budget as an error; return None if no budget is exceeded."""
        for run in self.limited:
            if (crossed := spent_budget(run, await self._used(run), crossed=True)) is not None:
                return crossed
        return None

    async def on_chat_model_start(
        self,
        serialized: Mapping[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Check the budget before a call."""
        await self.check()
        name = (metadata or {}).get("ls_model_name")
        self._asked[run_id] = (name if isinstance(name, str) and name else UNNAMED, messages[0] if messages else [])

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Record the usage after a call."""
        name, asked = self._asked.pop(run_id, (UNNAMED, []))
        for generation in response.generations[0][:1] if response.generations else ():
            if not isinstance(generation, ChatGeneration) or not isinstance(answer := generation.message, AIMessage):
                continue
            usage = self.usage(name, asked, answer)
            self.usages.append(usage)
            data: dict[str, Json] = {
                "model": usage.model,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cost": usage.cost,
                **({"estimated": True} if usage.estimated else {}),
                # With this id, a reader of the trace finds the message.
                **({"answer": answer.id} if answer.id else {}),
            }
            self._tracer.note("model_called", data=data, usage=usage)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a failed call, because its usage is neither known nor estimated."""
        self._asked.pop(run_id, None)

    def usage(self, name: str, asked: list[BaseMessage], answer: AIMessage) -> TokenUsage:
        """Return the usage of a model call as the provider reported it, or else as Threadkeep estimates it."""
        reported_name = answer.response_metadata.get("model_name")
        model = kept_name(reported_name if isinstance(reported_name, str) and reported_name else name)
        reported = answer.usage_metadata
        input_tokens = reported["input_tokens"] if reported else count_tokens(asked, model)
        output_tokens = reported["output_tokens"] if reported else count_tokens(answer, model)
        details = reported.get("input_token_details") if reported else None
        cached = min((details or {}).get("cache_read") or 0, input_tokens)
        # Try both names, because some providers report a model name that differs from the requested one.
        price = (self._prices.of(model) or self._prices.of(name)) if self._prices else None
        return TokenUsage(
            model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cached,
            estimated_calls=0 if reported else 1,
            cost=None if price is None else price.cost(input_tokens, output_tokens, cached),
        )

    async def _used(self, run: Run) -> Sequence[TokenUsage]:
        return self.usages if self._stored is None else await self._stored(run.run_id)


def spent_budget(run: Run, usages: Sequence[TokenUsage], *, crossed: bool = False) -> BudgetSpent | None:
    """Return an error if a run has used up its budget; with `crossed`, only if it has exceeded the budget."""
    total = sum(usages, NO_USAGE)
    for limit, used, allowed in (
        ("max_tokens", total.tokens, run.budget.max_tokens),
        ("max_cost", total.cost or 0.0, run.budget.max_cost),
    ):
        if allowed is not None and (used > allowed or (used == allowed and not crossed)):
            return BudgetSpent(run.run_id, limit=limit, used=used, allowed=allowed, estimated=total.estimated)
    return None
