"""Tests of the order of turns of one session in one process with several memories and event loops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from tests.agent.talking import ROOM, Agent, add, adding, ask, config_of, input_of, kept, make_agent
from tests.agent.ways import Loop
from tests.conftest import url_of
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, SessionMemory, open_memory, open_memory_sync
from threadkeep.observe import TurnWaits
from threadkeep.testing import Gate, ScriptedModel


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
async def test_turns_of_two_memories_of_one_database_wait_for_each_other(
    request: pytest.FixtureRequest, kind: str, memory_options: MemoryOptions
) -> None:
    url = url_of(request, kind)
    begun, go_on = threading.Event(), threading.Event()

    def reply(_: Any) -> str:
        begun.set()
        assert go_on.wait(HANG_SECONDS)
        return "one"

    def script() -> None:
        with open_memory_sync(url, options=memory_options) as memory:
            make_agent(ScriptedModel([reply]), [SessionMemory(memory)]).invoke(input_of("first"), config_of())

    async with open_memory(url, options=memory_options) as memory:
        first = asyncio.create_task(asyncio.to_thread(script))
        assert await asyncio.to_thread(begun.wait, HANG_SECONDS)
        model = ScriptedModel(["two"])
        agent = make_agent(model, [SessionMemory(memory)])
        second = asyncio.create_task(agent.ainvoke(input_of("second"), config_of()))
        await asyncio.wait([second], timeout=0.2)
        assert not model.calls
        go_on.set()
        await asyncio.gather(first, second)
        assert [m.content for m in await memory.session(ROOM).tail(10)] == ["first", "one", "second", "two"]


async def test_a_waiting_call_that_is_cancelled_leaves_no_open_run(memory: Memory) -> None:
    gate = Gate()
    model, middleware = ScriptedModel([[gate, "one"], "three"]), SessionMemory(memory)
    agent = make_agent(model, [middleware])
    first = asyncio.create_task(agent.ainvoke(input_of("first"), config_of()))
    await gate.reached()
    second = asyncio.create_task(agent.ainvoke(input_of("second"), config_of()))
    await asyncio.wait([second], timeout=0.1)
    second.cancel()
    await asyncio.wait([second])
    assert middleware.open_runs == 1
    gate.open()
    await first
    await agent.ainvoke(input_of("third"), config_of())
    assert middleware.open_runs == 0
    assert [m.content for m in await memory.session(ROOM).tail(10)] == ["first", "one", "third", "three"]


async def test_a_resumed_run_holds_its_session(memory: Memory) -> None:
    gate = Gate()
    approval = HumanInTheLoopMiddleware(interrupt_on={"add": True})
    models = ScriptedModel([adding(), [gate, "3"]]), ScriptedModel(["two"])
    first, second = (
        make_agent(models[0], [SessionMemory(memory), approval], [add], checkpointer=InMemorySaver()),
        make_agent(models[1], [SessionMemory(memory)]),
    )
    await first.ainvoke(input_of("first"), config_of())
    resumed = asyncio.create_task(first.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), config_of()))
    await gate.reached()
    following = asyncio.create_task(second.ainvoke(input_of("second"), config_of()))
    await asyncio.wait([following], timeout=0.1)
    assert not models[1].calls
    gate.open()
    await asyncio.gather(resumed, following)
    assert [m.content for m in await memory.session(ROOM).tail(10)] == ["first", "3", "second", "two"]


async def test_parallel_branches_begin_together_after_an_earlier_turn(memory: Memory) -> None:
    earlier, *gates = Gate(), Gate(), Gate()
    first = make_agent(ScriptedModel([[earlier, "one"]]), [SessionMemory(memory)])
    builder: Any = StateGraph(MessagesState)
    for number, gate in enumerate(gates):
        builder.add_node(f"n{number}", make_agent(ScriptedModel([[gate, f"answer {number}"]]), [SessionMemory(memory)]))
        builder.add_edge(START, f"n{number}")
    running = asyncio.create_task(first.ainvoke(input_of("first"), config_of()))
    await earlier.reached()
    branches = asyncio.create_task(builder.compile().ainvoke(input_of("second"), config_of()))
    await asyncio.wait([branches], timeout=0.1)
    earlier.open()
    async with asyncio.timeout(HANG_SECONDS):
        for gate in gates:
            await gate.reached()
        for gate in gates:
            gate.open()
        await asyncio.gather(running, branches)
    assert [m.content for m in await memory.session(ROOM).tail(10)][:3] == ["first", "one", "second"]


@pytest.mark.parametrize("nested", [False, True])
async def test_an_agent_that_answers_again_holds_its_session(memory: Memory, nested: bool) -> None:
    """If the agent is nested, the next turn may end before its second answer."""

    class Again(AgentMiddleware[AgentState[Any], Any, Any]):
        """Middleware that lets the agent answer `first` twice."""

        @hook_config(can_jump_to=["model"])
        async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
            """Jump to the model after the first answer."""
            return {"jump_to": "model"} if [message.text for message in state["messages"]] == ["first", "one"] else None

    gate = Gate()
    model = ScriptedModel([[gate, "one"], "two", "three"])
    agent: Any = make_agent(model, [Again(), SessionMemory(memory)])
    if nested:
        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        agent = builder.compile()
    first = asyncio.create_task(agent.ainvoke(input_of("first"), config_of()))
    await gate.reached()
    second = asyncio.create_task(agent.ainvoke(input_of("second"), config_of()))
    await asyncio.wait([second], timeout=0.1)
    gate.open()
    told = [state["messages"][-1].text for state in await asyncio.gather(first, second)]
    rows = ["first", "one", "second", "two", "three"] if nested else ["first", "one", "two", "second", "three"]
    assert [m.content for m in await memory.session(ROOM).tail(10)] == rows
    assert told == (["three", "two"] if nested else ["two", "three"])


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_blocking_call_does_not_wait_for_its_own_loop(
    tmp_path: Path, memory_options: MemoryOptions, waiting: int
) -> None:
    loop = Loop()
    gate = Gate()
    url = f"sqlite:///{tmp_path}/threadkeep.db"

    async def begin() -> tuple[Any, list[Any]]:
        memory = await Memory.open(url, options=memory_options)
        agent = make_agent(ScriptedModel([[gate, "late"], "later"]), [SessionMemory(memory)])
        tasks = [asyncio.create_task(agent.ainvoke(input_of("first"), config_of()))]
        await gate.reached()
        tasks += [asyncio.create_task(agent.ainvoke(input_of("more"), config_of())) for _ in range(waiting)]
        await asyncio.sleep(0.05)
        return memory, tasks

    async def end(memory: Any, tasks: list[Any]) -> list[str]:
        gate.open()
        await asyncio.gather(*tasks)
        texts = [message.content for message in await memory.session(ROOM).tail(10)]
        await memory.close()
        return texts

    try:
        memory, tasks = loop.run(begin())
        agent = make_agent(ScriptedModel(["at once"]), [SessionMemory(memory)])
        loop.call(lambda: agent.invoke(input_of("second"), config_of()))
        texts = loop.run(end(memory, tasks))
    finally:
        loop.close()
    assert texts == ["first", "second", "at once", "late", *(["more", "later"] * waiting)]


@pytest.mark.parametrize("fails", ["model", "tool"])
async def test_a_failure_that_a_graph_catches_releases_the_session(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The graph may run for long after the failure, so the next turn does not wait for its end."""
    monkeypatch.setattr("threadkeep.agent.root_runs._IDLE_SECONDS", 2 * HANG_SECONDS)

    @tool
    def explode() -> str:
        """Fail."""
        raise RuntimeError("broken")

    call = AIMessage("", tool_calls=[{"name": "explode", "args": {}, "id": "call-1"}])
    reply = call if fails == "tool" else RuntimeError("broken")
    gate, agent = Gate(), make_agent(ScriptedModel([reply]), [SessionMemory(memory)], [explode])

    async def caught(state: MessagesState) -> dict[str, list[BaseMessage]]:
        with pytest.raises(RuntimeError, match="broken"):
            await agent.ainvoke(state)
        await gate.pass_through()
        return {"messages": []}

    graph: Agent = StateGraph(MessagesState).add_node(caught).add_edge(START, "caught").compile()
    first = asyncio.create_task(graph.ainvoke(input_of("first"), config_of()))
    await gate.reached()
    async with asyncio.timeout(HANG_SECONDS):
        await ask(make_agent(ScriptedModel(["two"]), [SessionMemory(memory)]), "second")
    gate.open()
    await first
    assert await kept(memory) == [("user", "first"), ("user", "second"), ("assistant", "two")]


async def test_a_long_wait_for_an_earlier_turn_is_reported_once(
    memory: Memory, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.agent.root_runs._REPORT_SECONDS", 0.1)
    gate = Gate()
    agent = make_agent(ScriptedModel([[gate, "one"], "two"]), [SessionMemory(memory)])
    first = asyncio.create_task(agent.ainvoke(input_of("first"), config_of()))
    await gate.reached()
    second = asyncio.create_task(agent.ainvoke(input_of("second"), config_of()))
    await events.until(lambda: events.of(TurnWaits) != [])
    await asyncio.wait([second], timeout=0.6)
    gate.open()
    await asyncio.gather(first, second)
    assert events.of(TurnWaits) == [TurnWaits(session_id=ROOM, seconds=0.1)]
