"""Tests of metering: each model call is counted once, as its provider reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from threadkeep import count_tokens
from threadkeep.records.runs import TokenUsage
from threadkeep.runs.options import Price, Prices
from threadkeep.runs.tracing import Ledger
from threadkeep.testing import ScriptedModel


class Spent(Exception):
    """The budget is used up."""


class Taken(Ledger):
    """A ledger in a list, with a limit on the number of calls."""

    def __init__(self, room: int = 100, prices: Prices | None = None) -> None:
        super().__init__(prices or Prices({}))
        self._room = room
        self.run_inline = False  # as `limit` sets it, because `check` may raise

    async def check(self) -> None:
        """Raise `Spent` if the limit is reached."""
        if len(self.usages) >= self._room:
            raise Spent


async def metered(replies: Sequence[AIMessage | Exception], ledger: Taken) -> None:
    """Call a model once for each reply."""
    model = ScriptedModel(replies)
    for _ in replies:
        await model.ainvoke([HumanMessage("How are you?")], {"callbacks": [ledger]})


async def test_reported_usage_is_recorded() -> None:
    """The ledger records the input, output and cached tokens, the reported name of the model, and the cost."""
    ledger = Taken(prices=Prices({"m": Price(1, 10, 0.5)}))
    reply = AIMessage(
        "Well.",
        usage_metadata={
            "input_tokens": 1000,
            "output_tokens": 10,
            "total_tokens": 1010,
            "input_token_details": {"cache_read": 400},
        },
        response_metadata={"model_name": "m-2025"},
    )
    await metered([reply], ledger)
    [usage] = ledger.usages
    assert replace(usage, cost=None) == TokenUsage("m-2025", 1, 1000, 10, 400, 0)
    assert usage.cost == pytest.approx(0.0009)
    assert usage.tokens == 1010


async def test_unreported_usage_is_estimated() -> None:
    """Usage that the provider does not report is estimated and marked. A model without a price has no cost."""
    ledger = Taken()
    model = FakeMessagesListChatModel(responses=[AIMessage("I am well, thank you.")])
    await model.ainvoke([HumanMessage("How are you?")], {"callbacks": [ledger]})
    [usage] = ledger.usages
    assert usage.input_tokens == count_tokens("How are you?")
    assert usage.output_tokens == count_tokens("I am well, thank you.")
    assert (usage.estimated_calls, usage.estimated, usage.cost) == (1, True, None)


async def test_without_budget_no_model_is_called() -> None:
    """An error of the ledger prevents the call; the calls before it count."""
    ledger = Taken(room=2)
    with pytest.raises(Spent):
        await metered([AIMessage("1"), AIMessage("2"), AIMessage("3")], ledger)
    assert len(ledger.usages) == 2


async def test_a_call_that_fails_counts_nothing() -> None:
    ledger = Taken()
    with pytest.raises(OSError, match="away"):
        await metered([OSError("away")], ledger)
    assert ledger.usages == []


async def test_a_model_without_a_name_is_recorded_as_unnamed() -> None:
    ledger = Taken()
    await ledger.on_llm_end(LLMResult(generations=[[ChatGeneration(message=AIMessage("hi"))]]), run_id=uuid4())
    assert [usage.model for usage in ledger.usages] == ["unnamed"]
