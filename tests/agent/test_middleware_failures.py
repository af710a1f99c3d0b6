"""Tests of runs that fail, are cancelled or stop: what is stored, and that the next turn works."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import Context
from itertools import pairwise
from typing import Any
from uuid import uuid4

import anyio
import pytest
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from tests.agent.talking import (
    ROOM,
    Agent,
    add,
    adding,
    ask,
    config_of,
    input_of,
    kept,
    kept_with_status,
    make_agent,
    seen,
    stream,
    tokens,
)
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, WrongUser, open_memory, recorded, session_turn
from threadkeep.agent.callbacks import RootCall, root_callbacks
from threadkeep.agent.conversion import text_of
from threadkeep.agent.provider_messages import NO_ANSWER
from threadkeep.agent.root_runs import RootRun
from threadkeep.observe import ModelFailed
from threadkeep.testing import Gate, ScriptedModel

DOWN = ConnectionError("the provider is down; the prompt was: canary-7f3a")


def check_calls_are_answered(messages: Sequence[BaseMessage]) -> None:
    """Check that the results of each tool call follow it directly, because providers reject other orders."""
    for place, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            results = messages[place + 1 : place + 1 + len(message.tool_calls)]
            answered = [result.tool_call_id for result in results if isinstance(result, ToolMessage)]
            assert answered == [call["id"] for call in message.tool_calls]


async def test_the_question_of_a_failed_model_call_is_stored(memory: Memory, events: RecordedEvents) -> None:
    """The question of a failed model call is stored without an answer, and events contain none of the error's text."""
    model = ScriptedModel([DOWN, "hello"])
    agent = make_agent(model, [SessionMemory(memory)])
    with pytest.raises(ConnectionError, match="provider"):
        await ask(agent, "hi", message_id="telegram:1")
    assert await kept(memory) == [("user", "hi")]
    (failed,) = events.of(ModelFailed)
    assert (failed.error, failed.session_id, failed.channel) == ("ConnectionError", ROOM, "telegram")
    assert "canary" not in repr(events.all)
    assert await ask(agent, "hi", message_id="telegram:1") == "hello"
    assert seen(model.calls[1]) == [("human", "hi")]
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_an_unanswered_question_is_part_of_the_next_call(small_memory: Memory) -> None:
    for saver, thread in ((None, "telegram:1"), (InMemorySaver(), "telegram:2")):
        model = ScriptedModel([DOWN, "hello"])
        agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=saver)
        with pytest.raises(ConnectionError):
            await ask(agent, "hi", thread_id=thread)
        await ask(agent, "are you there?", thread_id=thread)
        assert seen(model.calls[1]) == [("human", "hi"), ("ai", NO_ANSWER), ("human", "are you there?")]
        assert len(await kept(small_memory, thread)) == 3


async def test_a_partial_answer_before_a_failure_is_stored_as_failed(memory: Memory) -> None:
    agent = make_agent(ScriptedModel([["Let me ", "see", DOWN], "fine"]), [SessionMemory(memory)])
    with pytest.raises(ConnectionError):
        await stream(agent, "hi")
    failed = [("user", "hi", "complete"), ("assistant", "Let me see", "failed")]
    assert await kept_with_status(memory) == failed
    await ask(agent, "again")
    assert (await kept_with_status(memory))[:3] == [*failed, ("user", "again", "complete")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_run_cancelled_during_a_stream_stores_its_partial_answer(memory: Memory, checkpointed: bool) -> None:
    gate = Gate()
    model = ScriptedModel([["once upon ", "a ", gate, "time"], "fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=saver)
    task = asyncio.create_task(stream(agent, "a story, please"))
    await gate.reached()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (await kept_with_status(memory))[1:] == [("assistant", "once upon a ", "interrupted")]
    await ask(agent, "go on")
    assert seen(model.calls[1]) == [("human", "a story, please"), ("ai", "once upon a "), ("human", "go on")]


async def test_a_run_that_is_cancelled_again_and_again_stores_its_partial_answer(memory: Memory) -> None:
    """A scope of anyio cancels until its tasks end. LangGraph then gives up waiting for the node, which may go on."""
    gate = Gate()
    agent = make_agent(ScriptedModel([["once upon ", "a ", gate, "time"]]), [SessionMemory(memory)])
    with anyio.CancelScope() as scope:
        ends = asyncio.create_task(gate.reached())
        ends.add_done_callback(lambda _: scope.cancel())
        await stream(agent, "a story, please")
    gate.open()
    await memory.settle()
    assert (await kept_with_status(memory))[1:] == [("assistant", "once upon a ", "interrupted")]


async def test_a_stream_that_is_dropped_before_the_memory_closes_is_stored_once(
    sqlite_url: str, memory_options: MemoryOptions
) -> None:
    """The event loop closes the stream, and the memory closes, at the same time."""
    for number in range(8):
        async with open_memory(sqlite_url, options=memory_options) as memory:
            agent = make_agent(ScriptedModel(["one two three"]), [SessionMemory(memory)])
            async for _ in agent.astream(input_of("count"), config_of(f"room:{number}"), stream_mode="messages"):
                break
    async with open_memory(sqlite_url, options=memory_options) as memory:
        stored = [await kept(memory, f"room:{number}") for number in range(8)]
    assert stored == [[("user", "count"), ("assistant", "one two three")]] * 8


def waiting_for_two(memory: Memory, gate: Gate, saver: InMemorySaver | None = None) -> tuple[Agent, ScriptedModel]:
    """Return an agent that writes a text and calls a tool twice; the tool waits at the gate."""

    @tool
    async def wait_for(name: str) -> str:
        """Wait for somebody."""
        await gate.pass_through()
        return f"{name} is here"

    calls = [{"name": "wait_for", "args": {"name": name}, "id": f"call-{name}"} for name in ("ann", "bob")]
    model = ScriptedModel([AIMessage("Wait a moment.", tool_calls=calls), "fine", "yes"])
    return make_agent(model, [SessionMemory(memory)], [wait_for], checkpointer=saver), model


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_cancelled_again_and_again_in_tools_stores_its_text(memory: Memory, streamed: bool) -> None:
    gate = Gate()
    agent, _ = waiting_for_two(memory, gate)
    with anyio.CancelScope() as scope:
        ends = asyncio.create_task(gate.reached())
        ends.add_done_callback(lambda _: scope.cancel())
        await (stream(agent, "are they here?") if streamed else ask(agent, "are they here?"))
    gate.open()
    await memory.settle()
    assert (await kept_with_status(memory))[1:] == [("assistant", "Wait a moment.", "interrupted")]


async def test_a_run_cancelled_after_one_of_two_tools_failed_stores_its_text(memory: Memory) -> None:
    gate = Gate()

    @tool
    async def work(name: str) -> str:
        """Work for somebody."""
        if name == "ann":
            raise ValueError("ann is away")
        await gate.pass_through()
        return "done"

    calls = [{"name": "work", "args": {"name": name}, "id": f"call-{name}"} for name in ("ann", "bob")]
    model = ScriptedModel([AIMessage("Wait a moment.", tool_calls=calls)])
    agent = make_agent(model, [ToolRetryMiddleware(max_retries=0), SessionMemory(memory)], [work])
    task = asyncio.create_task(agent.ainvoke(input_of("are they here?"), config_of()))
    await gate.reached()
    await asyncio.sleep(0.1)  # until the failure of the other tool is handled
    task.cancel()
    await asyncio.wait([task])
    assert (await kept_with_status(memory))[1:] == [("assistant", "Wait a moment.", "interrupted")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_run_cancelled_in_tools_stores_its_text_once(memory: Memory, checkpointed: bool) -> None:
    gate = Gate()
    agent, model = waiting_for_two(memory, gate, InMemorySaver() if checkpointed else None)
    task = asyncio.create_task(agent.ainvoke(input_of("are they here?"), config_of()))
    await gate.reached()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await kept_with_status(memory) == [
        ("user", "are they here?", "complete"),
        ("assistant", "Wait a moment.", "interrupted"),
    ]
    await ask(agent, "never mind")
    await ask(agent, "sure?")
    for call in model.calls:
        check_calls_are_answered(call)
    assert [text for kind, text in seen(model.calls[2]) if kind == "ai"] == ["Wait a moment.", "fine"]
    assert [text for kind, text in seen(model.calls[2]) if kind == "human"] == ["are they here?", "never mind", "sure?"]


@pytest.mark.parametrize("same_id", [True, False])
async def test_the_question_of_a_failed_tool_call_is_stored(small_memory: Memory, same_id: bool) -> None:
    """After a tool has raised, a retry or a new question sends a valid call with the checkpointed state."""

    @tool
    def explode() -> str:
        """Fail."""
        raise RuntimeError("broken")

    call = AIMessage("", tool_calls=[{"name": "explode", "args": {}, "id": "call-1"}])
    model = ScriptedModel([call, "fine"])
    agent = make_agent(model, [SessionMemory(small_memory)], [explode], checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError, match="broken"):
        await ask(agent, "do it", message_id="telegram:1")
    assert await kept(small_memory) == [("user", "do it")]
    assert await ask(agent, "do it", message_id="telegram:1" if same_id else "telegram:2") == "fine"
    check_calls_are_answered(model.calls[1])
    questions = [("user", "do it")] * (1 if same_id else 2)
    assert await kept(small_memory) == [*questions, ("assistant", "fine")]


async def test_an_answer_whose_stream_is_closed_is_stored(sqlite_url: str, memory_options: MemoryOptions) -> None:
    """An answer whose stream the reader closes is stored at the latest when the memory closes."""
    async with open_memory(sqlite_url, options=memory_options) as memory:
        agent = make_agent(ScriptedModel(["one two"]), [SessionMemory(memory)])
        async with aclosing(tokens(agent, "count")) as pieces:
            async for piece in pieces:
                if piece == " two":
                    break
    async with open_memory(sqlite_url, options=memory_options) as memory:
        assert await kept(memory) == [("user", "count"), ("assistant", "one two")]


class Failing(AgentMiddleware):
    """Middleware that raises after the model has answered."""

    async def aafter_model(self, state: object, runtime: object) -> None:
        """Fail."""
        raise RuntimeError("broken")


async def test_an_answer_before_a_caught_failure_is_stored_after_a_timeout(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is stored after a timeout if the program catches the error that followed it."""
    monkeypatch.setattr("threadkeep.agent.participation.ABANDONED_SECONDS", 0.0)
    middleware = SessionMemory(small_memory)
    agent = make_agent(ScriptedModel(["hello"]), [middleware, Failing()])

    async def caught(state: MessagesState) -> dict[str, list[BaseMessage]]:
        with pytest.raises(RuntimeError, match="broken"):
            await agent.ainvoke(state)
        return {"messages": []}

    graph: Agent = StateGraph(MessagesState).add_node(caught).add_edge(START, "caught").compile()
    await graph.ainvoke(input_of("hi"), config_of())
    async with asyncio.timeout(HANG_SECONDS):
        while len(await kept(small_memory)) < 2:
            pass
    assert middleware.open_runs == 0
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [middleware]), "and now?")
    assert [text for _, text in seen(model.calls[0])] == ["hi", "hello", "and now?"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_an_answer_before_a_failure_of_other_middleware_is_stored(memory: Memory, checkpointed: bool) -> None:
    middleware, saver = SessionMemory(memory), InMemorySaver() if checkpointed else None
    with pytest.raises(RuntimeError, match="broken"):
        await ask(make_agent(ScriptedModel(["hello"]), [middleware, Failing()], checkpointer=saver), "hi")
    stopped = [("user", "hi", "complete"), ("assistant", "hello", "interrupted")]
    assert await kept_with_status(memory) == stopped
    assert middleware.open_runs == 0
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [middleware], checkpointer=saver), "and now?")
    assert seen(model.calls[0]) == [("human", "hi"), ("ai", "hello"), ("human", "and now?")]
    assert await kept_with_status(memory) == [
        *stopped,
        ("user", "and now?", "complete"),
        ("assistant", "fine", "complete"),
    ]


async def test_a_failure_that_a_chain_catches_ends_the_turn(memory: Memory) -> None:
    """The partial answer is stored, and the session is released, before the chain goes on."""
    agent = make_agent(ScriptedModel(["hello"]), [SessionMemory(memory), Failing()])

    async def chain(words: str) -> list[tuple[str, str, str]]:
        with pytest.raises(RuntimeError, match="broken"):
            await agent.ainvoke(input_of(words))
        return await kept_with_status(memory)

    stopped = [("user", "hi", "complete"), ("assistant", "hello", "interrupted")]
    assert await RunnableLambda(chain).ainvoke("hi", config_of()) == stopped


async def test_a_chain_that_caught_a_failure_is_still_the_root_run(small_memory: Memory) -> None:
    """LangChain reports the failure in a copy of the context of synchronous code."""
    agent = make_agent(ScriptedModel([RuntimeError("broken")]), [SessionMemory(small_memory)])

    def chain(words: str) -> object:
        with pytest.raises(RuntimeError, match="broken"):
            agent.invoke(input_of(words))
        assert root_callbacks.call is not None
        return root_callbacks.call.input

    assert await asyncio.to_thread(RunnableLambda(chain).invoke, "hi", config_of()) == "hi"


def test_a_root_run_is_found_in_another_context_while_others_begin_and_end() -> None:
    """Other OS threads may run chains during the search; here, the comparison of the thread id runs one."""

    class ThreadId(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            RunnableLambda(str).invoke("other")
            return str(self) == other

    def chain(words: str, config: RunnableConfig) -> object:
        def find() -> object:
            var_child_runnable_config.set(config)
            return root_callbacks.call and root_callbacks.call.input

        def run_another(_: str) -> object:
            return Context().run(find)

        return Context().run(RunnableLambda(run_another).invoke, "later")

    assert RunnableLambda(chain).invoke("hi", {"metadata": {"thread_id": ThreadId("t1")}}) == "hi"


async def test_many_chains_do_not_displace_the_run_of_an_agent(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial answer of an agent that fails while many chains are running is stored."""
    monkeypatch.setattr("threadkeep.agent.callbacks._MOST_RUNS", 5)
    gate = Gate()
    agent = make_agent(ScriptedModel([["hello", gate]]), [SessionMemory(small_memory), Failing()])
    running = asyncio.create_task(agent.ainvoke(input_of("hi"), config_of()))
    await gate.reached()
    all_started = asyncio.Barrier(9)

    async def wait(number: int) -> None:
        await all_started.wait()

    async def chain(_: int) -> None:
        await RunnableLambda(wait).abatch([*range(9)])

    await RunnableLambda(chain).ainvoke(1)
    gate.open()
    with pytest.raises(RuntimeError, match="broken"):
        await running
    assert await kept_with_status(small_memory) == [
        ("user", "hi", "complete"),
        ("assistant", "hello", "interrupted"),
    ]


def test_many_threads_may_start_chains_while_many_agents_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LangChain would log an error of the handler, and the run would not be known."""
    monkeypatch.setattr("threadkeep.agent.callbacks._MOST_RUNS", 300)
    agents = {uuid4(): RootCall("hi", at_end=[lambda *_: None]) for _ in range(300)}
    monkeypatch.setattr(root_callbacks, "_calls", agents)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map((RunnableLambda(str.upper) | RunnableLambda(str.lower)).invoke, ["hello"] * 1500))
    finally:
        sys.setswitchinterval(usual)
    assert caplog.messages == []


async def test_the_number_of_open_runs_is_limited(small_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.agent.participation._MOST_CALLS", 5)

    gates, middleware = [Gate() for _ in range(9)], SessionMemory(small_memory)
    agent = make_agent(ScriptedModel([[gate, "ok"] for gate in gates]), [middleware])
    runs = [asyncio.create_task(ask(agent, "do it", thread_id=f"telegram:{number}")) for number in range(9)]
    await asyncio.gather(*[gate.reached() for gate in gates])
    assert middleware.open_runs == 5
    for gate in gates:
        gate.open()
    await asyncio.gather(*runs)
    for number in range(9):
        assert await kept(small_memory, f"telegram:{number}") == [("user", "do it"), ("assistant", "ok")]


async def test_an_interrupted_run_is_not_open(small_memory: Memory) -> None:
    @tool
    def consult() -> str:
        """Ask a person."""
        return str(interrupt("Well?"))

    call = AIMessage("", tool_calls=[{"name": "consult", "args": {}, "id": "call-1"}])
    middleware = SessionMemory(small_memory)
    agent = make_agent(ScriptedModel([call, "ok"]), [middleware], [consult], checkpointer=InMemorySaver())
    await ask(agent, "do it")
    assert middleware.open_runs == 0
    await agent.ainvoke(Command(resume="yes"), config_of())
    assert middleware.open_runs == 0
    assert await kept(small_memory) == [("user", "do it"), ("assistant", "ok")]


async def test_a_run_that_failed_in_a_tool_has_ended(small_memory: Memory) -> None:
    @tool
    def explode() -> str:
        """Fail."""
        raise RuntimeError("broken")

    call = AIMessage("", tool_calls=[{"name": "explode", "args": {}, "id": "call-1"}])
    middleware = SessionMemory(small_memory)
    with pytest.raises(RuntimeError, match="broken"):
        await ask(make_agent(ScriptedModel([call]), [middleware], [explode]), "do it")
    assert middleware.open_runs == 0


async def test_no_run_stays_open_after_its_end(small_memory: Memory) -> None:
    middleware = SessionMemory(small_memory)
    model = ScriptedModel([adding(), "3", "two"])
    agent = make_agent(model, [middleware], [add])
    await ask(agent, "1 + 2?", message_id="telegram:1")
    await ask(agent, "1 + 2?", message_id="telegram:1")
    await ask(agent, "and 1 + 1?")
    await small_memory.session("telegram:2", user_id="ann").append([Message(role="user", content="hi")])
    with pytest.raises(WrongUser):
        await agent.ainvoke(input_of("hi"), config_of("telegram:2", user_id="bob"))
    assert middleware.open_runs == 0


def remembered_questions() -> list[list[str]]:
    """Return the questions of the root runs that are still in the process."""
    gc.collect()
    return [[*map(text_of, one.question)] for one in gc.get_objects() if isinstance(one, RootRun)]


def remembered_runs() -> int:
    """Return the number of root runs that are still in the process."""
    return len(remembered_questions())


@pytest.mark.parametrize("kind", ["agent", "recorded", "silent"])
async def test_an_ended_run_leaves_no_object(small_memory: Memory, kind: str) -> None:
    middleware = SessionMemory(small_memory, scope="none" if kind == "silent" else "turn")
    agent: Any = make_agent(ScriptedModel(["one", "two"]), [] if kind == "recorded" else [middleware])
    agent = recorded(agent, small_memory) if kind == "recorded" else agent
    before = remembered_runs()
    assert [await ask(agent, "1?"), await ask(agent, "2?")] == ["one", "two"]
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        await agent.ainvoke({"messages": [object()]}, config_of())
    assert remembered_runs() == before


async def test_a_block_outside_of_graphs_leaves_no_object(small_memory: Memory) -> None:
    before = remembered_runs()
    async with session_turn(small_memory, [HumanMessage("hi")], config_of()) as turn:
        turn.answer("hello")
    del turn
    assert remembered_runs() == before


async def test_a_waiting_call_that_is_cancelled_leaves_no_object(small_memory: Memory) -> None:
    gate, before = Gate(), remembered_runs()
    graph: Any = recorded(make_agent(ScriptedModel([[gate, "one"]]), []), small_memory)
    first = asyncio.create_task(ask(graph, "1?"))
    await gate.reached()
    second = asyncio.create_task(ask(graph, "2?"))
    await asyncio.wait([second], timeout=0.1)
    second.cancel()
    await asyncio.wait([second])
    gate.open()
    assert await first == "one"
    del first, second
    assert remembered_runs() == before


async def test_a_run_that_waited_leaves_no_object_while_others_wait(small_memory: Memory) -> None:
    """A session that is never idle would otherwise keep the messages of all its turns in memory."""
    one, two, three = gates = [Gate() for _ in range(3)]
    model = ScriptedModel([[one, "yes"], [two, "yes"], [three, "yes"], "yes"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    asked = []
    for number in range(4):
        asked.append(asyncio.create_task(ask(agent, f"{number}?")))
        await (one.reached() if number == 0 else asyncio.wait([asked[-1]], timeout=0.1))
    for gate, following in pairwise(gates):
        gate.open()
        await following.reached()
    await asyncio.gather(*asked[:2])
    del asked[:2]
    assert ["1?"] not in remembered_questions()
    three.open()
    await asyncio.gather(*asked)


async def test_a_run_that_fails_before_its_question_is_not_open(small_memory: Memory) -> None:
    class Refusing(AgentMiddleware):
        """Middleware that refuses every question."""

        async def abefore_model(self, state: object, runtime: object) -> None:
            """Fail."""
            raise RuntimeError("refused")

    middleware = SessionMemory(small_memory)
    with pytest.raises(RuntimeError, match="refused"):
        await ask(make_agent(ScriptedModel([]), [middleware, Refusing()]), "hi")
    assert middleware.open_runs == 0
    await ask(make_agent(ScriptedModel(["hello"]), [middleware]), "and now?")
    assert [text for _, text in await kept(small_memory)][-2:] == ["and now?", "hello"]


async def test_a_repeat_of_a_question_discards_its_failed_answer(small_memory: Memory) -> None:
    """The graph catches the failure and ends, so the partial answer is held in memory until the repeat."""
    middleware = SessionMemory(small_memory)
    agent = make_agent(ScriptedModel([["Let me ", "see", DOWN], "fine"]), [middleware])

    async def caught(state: MessagesState) -> dict[str, list[BaseMessage]]:
        with pytest.raises(ConnectionError):
            async for _ in agent.astream(state, stream_mode="messages"):
                pass
        return {"messages": []}

    graph: Agent = StateGraph(MessagesState).add_node(caught).add_edge(START, "caught").compile()
    await graph.ainvoke(input_of("hi", "m1"), config_of())
    assert middleware.open_runs == 1
    assert await ask(agent, "hi", message_id="m1") == "fine"
    assert middleware.open_runs == 0
    assert await kept_with_status(small_memory) == [("user", "hi", "complete"), ("assistant", "fine", "complete")]


async def test_the_text_beside_a_handover_is_not_stored_if_the_next_agent_fails(small_memory: Memory) -> None:
    @tool
    def hand_over() -> Command[Any]:
        """Hand over to the second agent."""
        return Command(goto="second", graph=Command.PARENT)

    call = AIMessage("One moment.", tool_calls=[{"name": "hand_over", "args": {}, "id": "call-1"}])
    graph: Any = StateGraph(MessagesState)
    first = make_agent(ScriptedModel([call]), [SessionMemory(small_memory)], [hand_over])
    graph.add_node("first", first, destinations=("second",))
    graph.add_node("second", make_agent(ScriptedModel([DOWN]), [SessionMemory(small_memory)]))
    graph.add_edge(START, "first")
    with pytest.raises(ConnectionError):
        await graph.compile().ainvoke(input_of("hi"), config_of())
    assert await kept(small_memory) == [("user", "hi")]


async def test_the_memory_does_not_reference_unused_middleware(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(), [middleware := SessionMemory(small_memory)])
    gone = weakref.ref(middleware)
    del agent, middleware
    gc.collect()
    assert gone() is None


async def test_background_tasks_do_not_inherit_the_first_runs_context(small_memory: Memory) -> None:
    await ask(make_agent(ScriptedModel(["hello"]), [SessionMemory(small_memory)]), "hi")
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("threadkeep-")]
    assert tasks
    assert all(task.get_context().get(var_child_runnable_config) is None for task in tasks)


async def test_a_partial_answer_is_stored_before_the_next_question(memory: Memory) -> None:
    for number, last in enumerate(["few", "words", "more", "end"] * 4):
        agent = make_agent(ScriptedModel([["a few ", "words ", "more ", "end"], "fine"]), [SessionMemory(memory)])
        room = f"telegram:{number}"
        async for part, _ in agent.astream(input_of("hi"), config_of(room), stream_mode="messages"):
            if isinstance(part, BaseMessage) and last in part.text:
                break
        await ask(agent, "and now?", thread_id=room)
        roles = [message.role for message in await memory.session(room).tail(9)]
        assert roles == ["user", "assistant", "user", "assistant"]
