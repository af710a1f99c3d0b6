"""Counts what the model calls of a run take, as providers report it; without budget none is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from threadkeep.errors import BudgetSpent
from threadkeep.records.runs import TokenUsage
from threadkeep.runs.prices import Prices
from threadkeep.workflow.counting import count_tokens
from threadkeep.workflow.model_facts import kept_name

UNNAMED = "unnamed"
"""The model of calls whose model does not say its name."""


class Ledger(Protocol):
    """Where the usage of a run is kept."""

    async def check(self) -> None:
        """Raise what stops the run when it, or one that it belongs to, has used its budget."""
        ...

    async def add(self, usage: TokenUsage) -> None:
        """Take a call down."""
        ...


class Account(Ledger, Protocol):
    """The ledger of one life of a run: what its own calls took in it, and the budget that it used up."""

    input_tokens: int
    output_tokens: int
    spent: BudgetSpent | None


class Meter(AsyncCallbackHandler):
    """A callback of a run: `config={"callbacks": [Meter(ledger, prices)]}`. A call is counted once, in its own run."""

    # What `check` raises has to stop the call. Not inline: LangChain forgets the handlers after one that raises there.
    raise_error = True
    # What it does not listen to is not worth a coroutine for each step of a graph.
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, ledger: Ledger, prices: Prices) -> None:
        self._ledger = ledger
        self._prices = prices
        self._asked: dict[UUID, tuple[str, list[BaseMessage]]] = {}

    async def on_chat_model_start(
        self,
        serialized: Mapping[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Before a call: is there budget left?"""
        await self._ledger.check()
        name = (metadata or {}).get("ls_model_name")
        self._asked[run_id] = (name if isinstance(name, str) and name else UNNAMED, messages[0] if messages else [])

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """After a call: what it took."""
        name, asked = self._asked.pop(run_id, (UNNAMED, []))
        if (answer := _answer_of(response)) is not None:
            await self._ledger.add(self.usage(name, asked, answer))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """After a call that failed: nothing was reported, and nothing is guessed."""
        self._asked.pop(run_id, None)

    def usage(self, name: str, asked: list[BaseMessage], answer: AIMessage) -> TokenUsage:
        """What a call took: as reported, else as Threadkeep estimates it."""
        told = answer.response_metadata.get("model_name")
        model = kept_name(told if isinstance(told, str) and told else name)
        reported = answer.usage_metadata
        input_tokens = reported["input_tokens"] if reported else count_tokens(asked, model)
        output_tokens = reported["output_tokens"] if reported else count_tokens(answer, model)
        details = reported.get("input_token_details") if reported else None
        cached = min((details or {}).get("cache_read") or 0, input_tokens)
        # Some providers answer for another name than the one that was asked.
        price = self._prices.of(model) or self._prices.of(name)
        return TokenUsage(
            model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cached,
            estimated_calls=0 if reported else 1,
            cost=None if price is None else price.cost(input_tokens, output_tokens, cached),
        )


def _answer_of(response: LLMResult) -> AIMessage | None:
    for generation in response.generations[0][:1] if response.generations else ():
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            return generation.message
    return None
