"""What a run has used, and whether it may use more: its own budget, and those of the runs above it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from threadkeep.errors import BudgetSpent
from threadkeep.records.runs import Run, TokenUsage
from threadkeep.runs.tracing import RunTracer
from threadkeep.store.runs.trace import RunTrace


class RunLedger:
    """The ledger of one run: the `Ledger` of its `Meter`.

    What a call took is stored with the trace, in groups: a process that is killed loses the count of the last calls at
    most. Where there is a budget it is stored before the next call is let through. Calls that go on at one moment are
    each let through before the others are counted. A model without a price costs nothing.
    """

    def __init__(
        self, trace: RunTrace, tracer: RunTracer, limited: Sequence[Run], flush_tree: Callable[[], Awaitable[None]]
    ) -> None:
        """`limited` are those with a budget, of the run and all above it; `flush_tree` stores what their tree took."""
        self.spent: BudgetSpent | None = None
        self.input_tokens = self.output_tokens = 0
        self._trace = trace
        self._tracer = tracer
        self._limited = limited
        self._flush_tree = flush_tree

    async def check(self) -> None:
        """Let a call through.

        Raises:
            BudgetSpent: there is nothing left for it.
        """
        if not self._limited:
            return
        await self._flush_tree()
        for run in self._limited:
            usage = await self._trace.usage(run.run_id)
            tokens, cost = sum(used.tokens for used in usage), sum(used.cost or 0.0 for used in usage)
            budget = run.budget
            if budget.max_tokens is not None and tokens >= budget.max_tokens:
                self.spent = BudgetSpent(run.run_id, limit="max_tokens", used=tokens, allowed=budget.max_tokens)
            elif budget.max_cost is not None and cost >= budget.max_cost:
                self.spent = BudgetSpent(run.run_id, limit="max_cost", used=cost, allowed=budget.max_cost)
            if self.spent is not None:
                raise self.spent

    async def add(self, usage: TokenUsage) -> None:
        """Take a call down."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self._tracer.use(usage)
        self._tracer.note(
            "model_called",
            data={
                "model": usage.model,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cost": usage.cost,
            },
        )
