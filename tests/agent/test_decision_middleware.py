"""Tests of `SessionMemory` with the middleware that LangChain 1.5 added, for routes, tool calls and refusals."""

from __future__ import annotations

from typing import Any

import langchain.agents.middleware as middlewares
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from tests.agent.talking import ROOM, add, adding, config_of, input_of
from tests.agent.test_other_middleware import Tooled, said
from threadkeep import Memory, SessionMemory
from threadkeep.testing import ScriptedModel

decisions = pytest.importorskip("langchain_core.decisions", reason="LangChain 1.5 has decision models.")


class Deciding(decisions.BaseDecisionModel):  # type: ignore[misc,name-defined]
    """A decision model that gives the same answer to every question."""

    model: str = "test"
    answer: Any

    @property
    def _provider(self) -> str:
        return "test"

    def _classify(self, state: Any, questions: Any) -> Any:
        return decisions.ClassifierResponse(model="test", answers=dict.fromkeys(questions, self.answer))


def router_to(model: ScriptedModel) -> Any:
    """Return a middleware that routes each turn to a model."""
    answer = decisions.ChoiceAnswer(type="choice", choice="large", probabilities={"large": 1.0}, confidence=1.0)
    choices = {"large": middlewares.ModelChoice(model=model, criteria="Any task.")}
    return middlewares.ModelRouterMiddleware(
        choices=choices, instructions="Choose a model.", classifier=Deciding(answer=answer)
    )


@pytest.mark.filterwarnings("ignore:.*beta")
async def test_a_routed_model_gets_the_window_that_fits_it(small_memory: Memory) -> None:
    unused, routed = Tooled(replies=[]), Tooled(replies=["one", "two"])
    agent: Any = create_agent(unused, middleware=[router_to(routed), SessionMemory(small_memory)])
    await agent.ainvoke(input_of("first"), config_of())
    await agent.ainvoke(input_of("second"), config_of())
    assert [message.text for message in routed.calls[1]] == ["first", "one", "second"]
    assert [text for _, _, text in await said(small_memory)] == ["first", "one", "second", "two"]


@pytest.mark.filterwarnings("ignore:.*beta")
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("risk", [0.0, 1.0], ids=["allowed", "blocked"])
async def test_a_turn_with_a_judged_tool_call_is_stored_once(small_memory: Memory, first: bool, risk: float) -> None:
    judging = middlewares.AutoModeMiddleware(
        tools=["add"], classifier=Deciding(answer=decisions.NoulAnswer(type="noul", noul=risk))
    )
    model = Tooled(replies=[adding(), "done"])
    remembering = SessionMemory(small_memory)
    order = [judging, remembering] if first else [remembering, judging]
    agent: Any = create_agent(model, [add], middleware=order)
    await agent.ainvoke(input_of("1 + 2?"), config_of())
    assert ("blocked" in model.calls[1][-1].text) == (risk == 1.0)
    assert [text for _, _, text in await said(small_memory)] == ["1 + 2?", "done"]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_refused_answer_is_replaced_by_the_fallback(small_memory: Memory, first: bool) -> None:
    refusing = ScriptedModel([refusal()])
    others = [middlewares.ModelFallbackMiddleware(ScriptedModel(["fine"])), middlewares.ModelRefusalMiddleware()]
    remembering = SessionMemory(small_memory)
    order = [*others, remembering] if first else [remembering, *others]
    agent: Any = create_agent(refusing, middleware=order)
    await agent.ainvoke(input_of("hi"), config_of())
    assert [text for _, _, text in await said(small_memory)] == ["hi", "fine"]


async def test_a_refusal_that_is_an_error_is_no_answer(small_memory: Memory) -> None:
    order = [SessionMemory(small_memory), middlewares.ModelRefusalMiddleware()]
    agent: Any = create_agent(ScriptedModel([refusal()]), middleware=order)
    with pytest.raises(Exception, match="refused"):
        await agent.ainvoke(input_of("hi"), config_of())
    (question,) = await small_memory.session(ROOM).tail(5)
    assert (question.content, question.status) == ("hi", "complete")


def refusal() -> AIMessage:
    """Return a model's refusal in the form of OpenAI's responses."""
    return AIMessage([{"type": "refusal", "refusal": "I cannot help with that."}])
