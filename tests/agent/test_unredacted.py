"""Tests of answers that stop before `PIIMiddleware` has redacted them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, PIIMiddleware

from tests.agent.talking import config_of, input_of, kept_with_status, make_agent, stream
from tests.limits import HANG_SECONDS
from threadkeep import Memory, SessionMemory
from threadkeep.testing import Gate, ScriptedModel

MAIL = "Write to c@d.co or look at the page. "
REST = "It says when they are there. " * 6


class Waiting(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that waits at a gate before the answer is redacted."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def aafter_model(self, state: AgentState[Any], runtime: Any) -> None:
        """Wait."""
        await self._gate.pass_through()


def redacting(memory: Memory, model: ScriptedModel, pii: Any, *, first: bool, behind: Any = ()) -> Any:
    """Return an agent that redacts its answers, with the memory before or after the redaction."""
    own = SessionMemory(memory)
    return make_agent(model, [*([pii, own] if first else [own, pii]), *behind])


async def cut_off(agent: Any, gate: Gate) -> None:
    """Ask, and cancel the run at the gate."""
    asking = asyncio.create_task(stream(agent, "where?"))
    async with asyncio.timeout(HANG_SECONDS):
        await gate.reached()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_stream_that_is_cut_off_is_stored_redacted(memory: Memory, first: bool) -> None:
    gate = Gate()
    model = ScriptedModel([[MAIL, REST, "and ask x@y", gate, ".co"], "fine"])
    agent = redacting(memory, model, PIIMiddleware("email", apply_to_output=True), first=first)
    await cut_off(agent, gate)
    [question, (role, text, status)] = await kept_with_status(memory)
    assert question == ("user", "where?", "complete")
    assert (role, status) == ("assistant", "interrupted")
    assert text.startswith("Write to [REDACTED_EMAIL] or look at the page. It says")
    assert "@" not in text
    await agent.ainvoke(input_of("and now?"), config_of())
    assert not any("@" in message.text for message in model.calls[1])


async def test_a_short_stream_that_is_cut_off_leaves_no_text(small_memory: Memory) -> None:
    gate = Gate()
    model = ScriptedModel([["c@d", gate, ".co"]])
    await cut_off(redacting(small_memory, model, PIIMiddleware("email", apply_to_output=True), first=True), gate)
    assert await kept_with_status(small_memory) == [("user", "where?", "complete")]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_complete_answer_of_a_cancelled_run_is_stored_redacted(small_memory: Memory, first: bool) -> None:
    gate = Gate()
    pii = PIIMiddleware("email", apply_to_output=True)
    agent = redacting(small_memory, ScriptedModel([MAIL + REST]), pii, first=first, behind=[Waiting(gate)])
    await cut_off(agent, gate)
    [_, answer] = await kept_with_status(small_memory)
    assert answer == ("assistant", (MAIL + REST).replace("c@d.co", "[REDACTED_EMAIL]"), "interrupted")


async def test_with_a_custom_detector_no_partial_answer_is_stored(small_memory: Memory) -> None:
    gate = Gate()
    pii = PIIMiddleware("badge", detector=r"B-\d+", apply_to_output=True)
    agent = redacting(small_memory, ScriptedModel([["B-12 " + REST, gate, "x"]]), pii, first=False)
    await cut_off(agent, gate)
    assert await kept_with_status(small_memory) == [("user", "where?", "complete")]


async def test_without_redaction_the_whole_partial_answer_is_stored(small_memory: Memory) -> None:
    gate = Gate()
    await cut_off(make_agent(ScriptedModel([[MAIL, gate, "x"]]), [SessionMemory(small_memory)]), gate)
    assert (await kept_with_status(small_memory))[1] == ("assistant", MAIL, "interrupted")
