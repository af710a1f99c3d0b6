"""Tests of several agents in one graph: one model call and one stored answer for each, also in a repeated run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import operator
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from tests.agent.talking import ROOM, config_of, input_of
from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, SessionMemory, memory_node, open_memory, rebuild
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.observe import TurnBegunInTool
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import ScriptedModel


async def said(memory: Memory, thread_id: str = ROOM) -> list[tuple[str | None, str]]:
    """Return the author and text of each message in a session; the author of a person's message is None."""
    return [(message.author, message.content) for message in await memory.session(thread_id).tail(50)]


def writer(memory: Memory, *replies: str, name: str | None = "writer", **options: Any) -> Any:
    """Return an agent with memory and a name."""
    return create_agent(ScriptedModel(list(replies)), [], middleware=[SessionMemory(memory, **options)], name=name)


def in_line(*agents: Any, state: type = MessagesState, saver: InMemorySaver | None = None) -> Any:
    """Return a graph that runs agents one after the other, in nodes named `n0`, `n1` and so on."""
    graph: Any = StateGraph(state)
    previous = START
    for number, agent in enumerate(agents):
        graph.add_node(f"n{number}", agent)
        graph.add_edge(previous, f"n{number}")
        previous = f"n{number}"
    graph.add_edge(previous, END)
    return graph.compile(checkpointer=saver)


def texts(call: list[BaseMessage]) -> list[str]:
    """Return the texts of a model call."""
    return [message.text for message in call]


async def test_two_answers_of_one_author_after_a_resume_are_stored(memory: Memory) -> None:
    agent = writer(memory, "draft", "second", "third")
    review: RunnableLambda[Any, Any] = RunnableLambda(lambda _: {"messages": [interrupt("good?")][:0]})
    graph = in_line(agent, review, agent, agent, saver=InMemorySaver())
    await graph.ainvoke(input_of("q", "m1"), config_of())
    state = await graph.ainvoke(Command(resume="yes"), config_of())
    assert texts(state["messages"]) == ["q", "draft", "second", "third"]
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("writer", "second"), ("writer", "third")]


async def test_each_of_two_agents_answers_once(memory: Memory) -> None:
    first, second = ScriptedModel(["draft", "draft 2"]), ScriptedModel(["remarks", "remarks 2"])
    graph = in_line(
        create_agent(first, [], middleware=[SessionMemory(memory)], name="writer"),
        create_agent(second, [], middleware=[SessionMemory(memory)], name="critic"),
    )
    state = await graph.ainvoke(input_of("q", "m1"), config_of())
    assert texts(second.calls[0]) == ["q", "draft"]
    again = await graph.ainvoke(input_of("q", "m1"), config_of())
    assert [(m.id, m.text) for m in again["messages"]] == [(m.id, m.text) for m in state["messages"]]
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]
    await graph.ainvoke(input_of("q2"), config_of())
    assert texts(first.calls[1]) == ["q", "draft", "remarks", "q2"]
    assert texts(second.calls[1]) == ["q", "draft", "remarks", "q2", "draft 2"]


async def test_an_agent_may_answer_more_than_once_in_a_run(memory: Memory) -> None:
    author, critic = ScriptedModel(["draft", "final"]), ScriptedModel(["remarks"])
    agent = create_agent(author, [], middleware=[SessionMemory(memory)], name="writer")
    graph = in_line(agent, create_agent(critic, [], middleware=[SessionMemory(memory)], name="critic"), agent)
    for _ in range(2):
        state = await graph.ainvoke(input_of("q", "m1"), config_of())
        assert state["messages"][-1].text == "final"
    assert texts(author.calls[1]) == ["q", "draft", "remarks"]
    assert (len(author.calls), len(critic.calls)) == (2, 1)
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks"), ("writer", "final")]


async def test_the_answer_of_an_agent_without_memory_is_sent_and_not_stored(memory: Memory) -> None:
    plain = create_agent(ScriptedModel(["notes"]), [])
    model = ScriptedModel(["article"])
    graph = in_line(plain, create_agent(model, [], middleware=[SessionMemory(memory)]))
    await graph.ainvoke(input_of("q"), config_of())
    assert texts(model.calls[0]) == ["q", "notes"]
    assert await said(memory) == [(None, "q"), ("n1", "article")]


async def test_a_repeated_run_sends_its_earlier_messages(memory: Memory) -> None:
    """A repeated run sends its earlier messages to the models, even if the state has later turns after the question."""
    plain = create_agent(ScriptedModel([f"notes {number}" for number in range(5)]), [])
    first = ScriptedModel(["a0", ConnectionError(), "a2", "a3", "a1"])
    second = ScriptedModel(["b0", "b2", "b3", "b1"])
    agents = [create_agent(model, [], middleware=[SessionMemory(memory)]) for model in (first, second)]
    graph = in_line(plain, *agents, saver=InMemorySaver())
    for message_id in ("m0", "m1", "m2", "m3", "m1"):
        with contextlib.suppress(ConnectionError):
            await graph.ainvoke(input_of(message_id, message_id), config_of())
    assert texts(first.calls[-1])[-3:] == ["m1", "notes 1", "notes 4"]
    assert texts(second.calls[-1])[-4:] == ["m1", "notes 1", "notes 4", "a1"]


async def test_a_nodes_own_question_does_not_replace_the_callers(memory: Memory) -> None:
    """A node's own question to an agent does not prevent the turn of the person's question."""
    router = writer(memory, "route", "route", name="router")
    model = ScriptedModel(["answer"])
    answering: Any = create_agent(model, [], middleware=[SessionMemory(memory)], name="main")

    async def classify(state: MessagesState) -> dict[str, Any]:
        await router.ainvoke({"messages": [("user", f"classify: {state['messages'][-1].text}")]})
        return {}

    graph = in_line(classify, answering)
    await graph.ainvoke(input_of("q", "m1"), config_of())
    assert await said(memory) == [(None, "classify: q"), ("router", "route"), (None, "q"), ("main", "answer")]
    await graph.ainvoke(input_of("q", "m1"), config_of())
    assert len(model.calls) == 1


async def test_an_agent_called_by_a_tool_takes_no_part_in_the_turn(memory: Memory) -> None:
    child = ScriptedModel(["sub answer"])
    sub: Any = create_agent(child, [], middleware=[SessionMemory(memory)], name="flights")

    @tool
    async def ask(q: str) -> str:
        """Ask another agent."""
        return str((await sub.ainvoke({"messages": [("user", q)]}))["messages"][-1].text)

    call = AIMessage("", tool_calls=[{"name": "ask", "args": {"q": "flights"}, "id": "c"}])
    agent: Any = create_agent(ScriptedModel([call, "done"]), [ask], middleware=[SessionMemory(memory)], name="main")
    await agent.ainvoke(input_of("my card is 4111"), config_of())
    assert [texts(one) for one in child.calls] == [["flights"]]
    assert await said(memory) == [(None, "my card is 4111"), ("main", "done")]


async def test_a_turn_that_begins_in_a_tool_is_reported(memory: Memory, events: RecordedEvents) -> None:
    sub = writer(memory, "sub answer", name="flights")

    @tool
    async def ask(q: str) -> str:
        """Ask another agent."""
        return str((await sub.ainvoke({"messages": [("user", q)]}))["messages"][-1].text)

    call = AIMessage("", tool_calls=[{"name": "ask", "args": {"q": "flights"}, "id": "c"}])
    agent: Any = create_agent(ScriptedModel([call, "done"]), [ask], name="main")
    await agent.ainvoke(input_of("my card is 4111"), config_of())
    assert await said(memory) == [(None, "flights"), ("flights", "sub answer")]
    [event] = events.of(TurnBegunInTool)
    assert event.session_id == ROOM


class Asked(TypedDict):
    """The state of a graph that stores its question as text."""

    question: str
    draft: str
    result: str


async def test_agents_that_receive_a_copy_of_the_question_take_part(memory: Memory) -> None:
    """An agent that receives a copy of the question takes part in the turn; an agent with another input does not."""
    first, second, third = ScriptedModel(["draft"]), ScriptedModel(["remarks"]), ScriptedModel(["score"])
    agents = {
        name: create_agent(model, [], middleware=[SessionMemory(memory)], name=name)
        for name, model in (("writer", first), ("critic", second), ("judge", third))
    }

    async def write(state: Asked) -> dict[str, str]:
        result = await agents["writer"].ainvoke({"messages": [HumanMessage(state["question"])]})
        return {"draft": result["messages"][-1].text}

    async def judge(state: Asked) -> dict[str, str]:
        await agents["judge"].ainvoke({"messages": [HumanMessage(f"Score this: {state['draft']}")]})
        result = await agents["critic"].ainvoke({"messages": [HumanMessage(state["question"])]})
        return {"result": result["messages"][-1].text}

    graph = StateGraph(Asked)
    graph.add_node("write", write)
    graph.add_node("judge", judge)
    graph.add_edge(START, "write")
    graph.add_edge("write", "judge")
    state = await graph.compile().ainvoke({"question": "q", "draft": "", "result": ""}, config_of())
    assert state["result"] == "remarks"
    assert texts(second.calls[0]) == ["q", "draft"]
    assert texts(third.calls[0]) == ["Score this: draft"]
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]


class Added(TypedDict):
    """The state of a graph that appends messages, without ids."""

    messages: Annotated[list[Any], operator.add]


async def test_a_question_with_changing_ids_is_stored_once(memory: Memory) -> None:
    second = ScriptedModel(["remarks"])
    agents = (
        create_agent(ScriptedModel(["draft"]), [], middleware=[SessionMemory(memory)], name="writer"),
        create_agent(second, [], middleware=[SessionMemory(memory)], name="critic"),
    )

    def node(agent: Any) -> Any:
        async def run(state: Added) -> dict[str, Any]:
            result = await agent.ainvoke({"messages": state["messages"]})
            return {"messages": [("ai", result["messages"][-1].text)]}

        return run

    await in_line(*map(node, agents), state=Added).ainvoke({"messages": [("user", "q")]}, config_of())
    assert texts(second.calls[0]) == ["q", "draft"]
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]


async def test_parallel_branches_store_one_answer_each(memory: Memory) -> None:
    a, b, twice = ScriptedModel(["from a"]), ScriptedModel(["from b"]), ScriptedModel(["one", "two"])
    graph = StateGraph(MessagesState)
    for name, model in (("a", a), ("b", b), ("twice", twice)):
        graph.add_node(name, create_agent(model, [], middleware=[SessionMemory(memory)], name=name))

    def spread(state: MessagesState) -> list[Send]:
        return [Send(name, state) for name in ("a", "b", "twice", "twice")]

    graph.add_conditional_edges(START, spread, ["a", "b", "twice"])
    compiled: Any = graph.compile()
    for _ in range(2):
        await compiled.ainvoke(input_of("q", "m1"), config_of())
    assert (len(a.calls), len(b.calls), len(twice.calls)) == (1, 1, 2)
    stored = await said(memory)
    assert stored[0] == (None, "q")
    assert sorted(stored[1:], key=str) == [("a", "from a"), ("b", "from b"), ("twice", "one"), ("twice", "two")]


@pytest.mark.parametrize("backwards", [False, True])
async def test_interrupted_branches_that_are_resumed_one_after_the_other_each_answer(
    memory: Memory, backwards: bool
) -> None:
    @tool
    def approve() -> str:
        """Ask a person."""
        return str(interrupt("may I?"))

    calls = [AIMessage("", tool_calls=[{"name": "approve", "args": {}, "id": f"call-{n}"}]) for n in range(2)]
    model = ScriptedModel([*calls, "one", "two"])
    voter: Any = create_agent(model, [approve], middleware=[SessionMemory(memory)], name="voter")
    builder: Any = StateGraph(MessagesState)
    builder.add_node("voter", voter)
    builder.add_conditional_edges(START, lambda state: [Send("voter", {"messages": state["messages"]})] * 2, ["voter"])
    graph = builder.compile(checkpointer=InMemorySaver())
    paused = await graph.ainvoke(input_of("q", "m1"), config_of())
    for question in paused["__interrupt__"][:: -1 if backwards else 1]:
        await graph.ainvoke(Command(resume={question.id: "yes"}), config_of())
    assert await said(memory) == [(None, "q"), ("voter", "one"), ("voter", "two")]
    await graph.ainvoke(input_of("q", "m1"), config_of())
    assert len(model.calls) == 4


class Rounds(MessagesState):
    """A state that also collects the workers' answers."""

    found: Annotated[list[str], operator.add]


@pytest.mark.parametrize("added", [True, False], ids=["in the state", "beside it"])
async def test_branches_after_an_interrupt_call_the_model_again(memory: Memory, added: bool) -> None:
    """Branches after an interrupt call the model again, whether or not the state has the first answers."""
    model = ScriptedModel([f"answer {number}" for number in range(6)])
    worker: Any = create_agent(model, [], middleware=[SessionMemory(memory)], name="worker")

    async def work(state: Rounds) -> dict[str, Any]:
        answer = (await worker.ainvoke({"messages": state["messages"]}))["messages"][-1]
        return {"found": [answer.text], "messages": [answer] if added else []}

    def spread(state: Rounds) -> list[Send]:
        return [Send("work", {"messages": state["messages"]})] * 3

    graph: Any = StateGraph(Rounds)
    graph.add_node("work", work)
    graph.add_node("review", lambda state: {"found": [interrupt("more?")] if len(state["found"]) == 3 else []})
    graph.add_conditional_edges(START, spread, ["work"])
    graph.add_edge("work", "review")
    graph.add_conditional_edges("review", lambda state: spread(state) if len(state["found"]) == 4 else END)
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke({**input_of("q", "m1"), "found": []}, config_of())
    state = await compiled.ainvoke(Command(resume="yes"), config_of())
    answers = [f"answer {number}" for number in range(6)]
    assert sorted(state["found"]) == [*answers, "yes"]
    assert sorted(content for _, content in await said(memory)) == [*answers, "q"]


async def test_a_second_call_in_a_resumed_node_does_not_get_the_answer_of_the_first(memory: Memory) -> None:
    agent = writer(memory, "draft", "final")

    async def write(state: MessagesState) -> dict[str, Any]:
        draft = (await agent.ainvoke({"messages": state["messages"]}))["messages"][-1].text
        reply = interrupt(draft)
        final = (await agent.ainvoke({"messages": state["messages"]}))["messages"][-1]
        return {"messages": [("ai", f"{draft}, {reply}, {final.text}")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    state = await compiled.ainvoke(Command(resume="good"), config_of())
    assert state["messages"][-1].text == "draft, good, final"
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("writer", "final")]


async def test_two_concurrent_resumptions_store_one_answer(memory: Memory) -> None:
    agent = writer(memory, "draft", "final", "another")
    graph: Any = StateGraph(MessagesState)
    graph.add_node("draft", agent)
    graph.add_node("review", lambda _: {"messages": [interrupt("good?")][:0]})
    graph.add_node("final", agent)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "review")
    graph.add_edge("review", "final")
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    states = await asyncio.gather(*(compiled.ainvoke(Command(resume="yes"), config_of()) for _ in range(2)))
    assert [texts(state["messages"]) for state in states] == [["q", "draft", "final"]] * 2
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("writer", "final")]


@pytest.mark.parametrize("answered", [True, False], ids=["answer before", "no answer before"])
async def test_a_late_resumption_returns_the_answer_of_the_first(memory: Memory, answered: bool) -> None:
    """A resumption whose agent begins after another resumption has ended returns its answer, with the same id."""
    model = ScriptedModel([*["draft"] * answered, "final", "another"])
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory)], name="writer")
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: MessagesState, config: RunnableConfig) -> None:
        if config["configurable"].get("late"):
            waits.set()
            await go_on.wait()

    async def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await agent.ainvoke({"messages": state["messages"][:1]}))["messages"][-1:]}

    graph: Any = StateGraph(MessagesState)
    nodes: dict[str, Any] = {"first": write if answered else wait, "review": lambda _: interrupt("good?") and None}
    for name, node in {**nodes, "wait": wait, "final": write}.items():
        graph.add_node(name, node)
    for before, after in pairwise((START, *nodes, "wait", "final")):
        graph.add_edge(before, after)
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    late = asyncio.create_task(compiled.ainvoke(Command(resume="yes"), config_of(late=True)))
    await waits.wait()
    first = await compiled.ainvoke(Command(resume="yes"), config_of())
    go_on.set()
    states = [[(one.id, one.text) for one in state["messages"]] for state in (first, await late)]
    assert states[0] == states[1]
    assert [content for _, content in await said(memory)] == ["q", *["draft"] * answered, "final"]


async def test_an_agent_with_its_own_state_answers_again_after_each_interrupt(memory: Memory) -> None:
    """LangGraph leaves the task out of the namespace of an agent with `checkpointer=True`."""
    model = ScriptedModel(["draft", "better", "best"])
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory)], name="writer", checkpointer=True)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("write", agent)
    graph.add_node("review", lambda _: interrupt("good?") and None)
    graph.add_edge(START, "write")
    graph.add_edge("review", "write")
    graph.add_conditional_edges("write", lambda state: END if len(state["messages"]) == 4 else "review")
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    await compiled.ainvoke(Command(resume="no"), config_of())
    state = await compiled.ainvoke(Command(resume="no"), config_of())
    assert texts(state["messages"]) == ["q", "draft", "better", "best"]
    assert [content for _, content in await said(memory)] == ["q", "draft", "better", "best"]


async def test_a_second_agent_of_a_run_that_is_continued_answers(memory: Memory) -> None:
    """A run that stopped before a node is continued with None; the node's agent has not answered before."""
    agent = writer(memory, "draft", "final", "another")

    async def write(state: MessagesState) -> dict[str, Any]:
        answer = (await agent.ainvoke({"messages": state["messages"][:1]}))["messages"][-1]
        return {"messages": [AIMessage(f"note: {answer.text}")]}

    graph = in_line(write, write, saver=InMemorySaver())
    await graph.ainvoke(input_of("q", "m1"), config_of(), interrupt_before=["n1"])
    states = await asyncio.gather(*(graph.ainvoke(None, config_of()) for _ in range(2)))
    assert [texts(state["messages"]) for state in states] == [["q", "note: draft", "note: final"]] * 2
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("writer", "final")]


async def test_a_task_after_an_interrupt_does_not_get_the_answer_of_a_task_before_it(memory: Memory) -> None:
    agent = writer(memory, "draft", "final")

    @task
    async def write(messages: list[AnyMessage]) -> str:
        return str((await agent.ainvoke({"messages": messages}))["messages"][-1].text)

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: dict[str, Any]) -> list[str]:
        return [await write(given["messages"]), interrupt("go on?"), await write(given["messages"])]

    await flow.ainvoke(input_of("q", "m1"), config_of())
    assert await flow.ainvoke(Command(resume="yes"), config_of()) == ["draft", "yes", "final"]
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("writer", "final")]


@pytest.mark.parametrize("as_nodes", [True, False], ids=["nodes", "functions"])
async def test_questions_to_parallel_branches_are_not_stored(memory: Memory, as_nodes: bool) -> None:
    worker: Any = writer(memory, *["found it"] * 6, name="worker")
    model = ScriptedModel(["x and y", "once more"])
    last: Any = create_agent(model, [], middleware=[SessionMemory(memory)], name="last")

    async def work(given: dict[str, Any]) -> dict[str, Any]:
        found = await worker.ainvoke({"messages": given["messages"]})
        return {"messages": [AIMessage(f"note: {found['messages'][-1].text}")]}

    def spread(state: MessagesState) -> list[Send]:
        return [Send("work", {"messages": [HumanMessage(f"research {topic}")]}) for topic in "xy"]

    graph = StateGraph(MessagesState)
    graph.add_node("work", worker if as_nodes else work)
    graph.add_node("last", last)
    graph.add_conditional_edges(START, spread, ["work"])
    graph.add_edge("work", "last")
    compiled: Any = graph.compile()
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    assert texts(model.calls[0])[0] == "q"
    await compiled.ainvoke(input_of("q", "m1"), config_of())
    await compiled.ainvoke(input_of("and z?"), config_of())
    assert len(model.calls) == 2
    assert texts(model.calls[1])[:3] == ["q", "x and y", "and z?"]
    assert await said(memory) == [(None, "q"), ("last", "x and y"), (None, "and z?"), ("last", "once more")]


async def test_an_interrupt_in_the_second_agent_stores_each_answer_once(memory: Memory) -> None:
    @tool
    def approve() -> str:
        """Ask a person."""
        return str(interrupt("may I?"))

    saver = InMemorySaver()
    call = AIMessage("", tool_calls=[{"name": "approve", "args": {}, "id": "c"}])

    def graph(*models: ScriptedModel) -> Any:
        first = create_agent(models[0], [], middleware=[SessionMemory(memory)], name="first")
        second = create_agent(models[1], [approve], middleware=[SessionMemory(memory)], name="second")
        return in_line(first, second, saver=saver)

    await graph(ScriptedModel(["one"]), ScriptedModel([call])).ainvoke(input_of("q"), config_of())
    rest = ScriptedModel(["two"])
    state = await graph(ScriptedModel([]), rest).ainvoke(Command(resume="yes"), config_of())
    assert state["messages"][-1].text == "two"
    assert texts(rest.calls[0])[:2] == ["q", "one"]
    assert await said(memory) == [(None, "q"), ("first", "one"), ("second", "two")]


async def test_an_interrupt_before_the_second_agent_s_model_is_resumed(memory: Memory) -> None:
    """An interrupt before the second agent's model call does not end its turn with the first agent's answer."""

    class Approving(AgentMiddleware[AgentState[Any], Any, Any]):
        """Middleware that interrupts the run before the model call."""

        async def abefore_model(self, state: AgentState[Any], runtime: Any) -> None:
            """Interrupt the run."""
            interrupt("may I?")

    model = ScriptedModel(["two"])
    second: Any = create_agent(model, [], middleware=[SessionMemory(memory), Approving()], name="second")
    graph = in_line(writer(memory, "one", name="first"), second, saver=InMemorySaver())
    await graph.ainvoke(input_of("q", "m1"), config_of())
    state = await graph.ainvoke(Command(resume="yes"), config_of())
    assert state["messages"][-1].text == "two"
    assert texts(model.calls[0]) == ["q", "one"]
    assert await said(memory) == [(None, "q"), ("first", "one"), ("second", "two")]


async def test_the_reply_to_an_interrupt_is_a_further_question(memory: Memory) -> None:
    async def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [HumanMessage(interrupt("which one?"))]}

    model = ScriptedModel(["the red one, then"])
    agent = create_agent(model, [], middleware=[SessionMemory(memory)], name="shop")
    saver = InMemorySaver()
    graph = in_line(ask, agent, saver=saver)
    await graph.ainvoke(input_of("a scarf"), config_of())
    await graph.ainvoke(Command(resume="red"), config_of())
    assert texts(model.calls[0]) == ["a scarf", "red"]
    assert await said(memory) == [(None, "a scarf"), (None, "red"), ("shop", "the red one, then")]


async def test_a_retry_calls_only_the_agent_that_failed(memory: Memory) -> None:
    first, second = ScriptedModel(["draft"]), ScriptedModel([ConnectionError("down"), "remarks"])
    graph = in_line(
        create_agent(first, [], middleware=[SessionMemory(memory)], name="writer"),
        create_agent(second, [], middleware=[SessionMemory(memory)], name="critic"),
    )
    with pytest.raises(ConnectionError):
        await graph.ainvoke(input_of("q", "m1"), config_of())
    await graph.ainvoke(input_of("q", "m1"), config_of())
    assert (len(first.calls), len(second.calls)) == (1, 2)
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]


async def test_consecutive_memory_nodes_answer_once_each(memory: Memory) -> None:
    first, second = ScriptedModel(["draft"]), ScriptedModel(["remarks"])
    graph = in_line(memory_node(memory, first), memory_node(memory, second))
    for _ in range(2):
        await graph.ainvoke(input_of("q", "m1"), config_of())
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert texts(second.calls[0]) == ["q", "draft"]
    assert await said(memory) == [(None, "q"), ("n0", "draft"), ("n1", "remarks")]


async def test_an_agent_without_scope_takes_no_part(memory: Memory) -> None:
    model = ScriptedModel(["score"])
    graph = in_line(
        writer(memory, "draft"), create_agent(model, [], middleware=[SessionMemory(memory, scope="none")], name="judge")
    )
    await graph.ainvoke(input_of("q"), config_of())
    assert await said(memory) == [(None, "q"), ("writer", "draft")]


@pytest.fixture(params=["tables", "graph store", "namespace"])
async def any_memory(
    request: pytest.FixtureRequest, database_url: str, memory_options: MemoryOptions
) -> AsyncIterator[Memory]:
    """Open a memory with tables, a graph store, or a namespace of a graph store without index rows."""
    options = replace(memory_options, transcripts="graph_store" if request.param == "graph store" else "tables")
    async with open_memory(database_url, options=options) as opened:
        yield await opened.namespace(GraphLayout(("agents",))) if request.param == "namespace" else opened


def _chief(memory: Memory, model: ScriptedModel) -> Any:
    """Return an agent whose tool calls a searcher with its own conversation; it searches for `a`, then for `b`."""
    searcher: Any = create_agent(model, [], middleware=[SessionMemory(memory, scope="own")], name="searcher")

    @tool
    async def search(q: str) -> str:
        """Ask another agent."""
        return str((await searcher.ainvoke({"messages": [("user", q)]}))["messages"][-1].text)

    chief = ScriptedModel([_calling("a"), "here is a", _calling("b"), "here is b"])
    return create_agent(chief, [search], middleware=[SessionMemory(memory)], name="main")


async def test_an_agents_own_conversation_is_below_the_session(any_memory: Memory) -> None:
    memory, model = any_memory, ScriptedModel(["found a", "found b"])
    agent = _chief(memory, model)
    await agent.ainvoke(input_of("a?"), config_of())
    await agent.ainvoke(input_of("b?"), config_of())
    assert texts(model.calls[1]) == ["a", "found a", "b"]
    assert [text for _, text in await said(memory)] == ["a?", "here is a", "b?", "here is b"]
    [own] = [info async for info in memory.sessions() if info.session_id != ROOM]
    assert (own.parent_session_id, own.agent, own.message_count) == (ROOM, "searcher", 4)
    await memory.session(ROOM).delete()
    assert [info async for info in memory.sessions()] == []
    assert await memory.session(own.session_id).count(view="history") == 0


async def test_a_conversation_that_was_pending_is_deleted_with_its_session(
    sqlite_url: str, memory_options: MemoryOptions
) -> None:
    """A session's deletion includes an agent's own conversation that another process delivered after an outage."""
    path, options = (
        parse_address(sqlite_url).path,
        replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05)),
    )
    assert path is not None
    async with open_memory(sqlite_url, options=replace(options, background=False)) as memory, Outage(path)():
        await _chief(memory, ScriptedModel(["found a"])).ainvoke(input_of("a?"), config_of())
        await memory.close()
    async with open_memory(sqlite_url, options=options) as memory:
        await memory.pending.deliver()
        assert {info.agent async for info in memory.sessions()} == {None, "searcher"}
        await memory.session(ROOM).delete()
        assert [info async for info in memory.sessions()] == []


def _calling(*questions: str, name: str = "search") -> AIMessage:
    """Return a message that calls a tool once for each question."""
    calls: list[Any] = [{"name": name, "args": {"q": q}, "id": f"call-{q}"} for q in questions]
    return AIMessage("", tool_calls=calls)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
async def test_parallel_calls_of_an_agent_with_its_own_conversation_are_sequential(
    memory: Memory, blocking: bool
) -> None:
    model = ScriptedModel(["one", "two"])
    searcher: Any = create_agent(model, [], middleware=[SessionMemory(memory, scope="own")], name="searcher")

    @tool
    async def search(q: str) -> str:
        """Ask another agent."""
        return str((await searcher.ainvoke(input_of(q)))["messages"][-1].text)

    @tool("search")
    def search_in_a_thread(q: str) -> str:
        """Ask another agent."""
        return str(searcher.invoke(input_of(q))["messages"][-1].text)

    chief = ScriptedModel([_calling("a", "b"), "here they are"])
    tools = [search_in_a_thread if blocking else search]
    agent: Any = create_agent(chief, tools, middleware=[SessionMemory(memory)], name="main")
    await agent.ainvoke(input_of("both?"), config_of())
    [own] = [info.session_id async for info in memory.sessions() if info.session_id != ROOM]
    assert [name for name, _ in await said(memory, own)] == [None, "searcher", None, "searcher"]
    assert texts(model.calls[1])[1] == "one"


async def test_agents_that_call_each_other_concurrently_do_not_deadlock(small_memory: Memory) -> None:
    agents: dict[str, Any] = {}

    @tool
    async def search(q: str) -> str:
        """Ask one agent, or the other."""
        name = "b" if q.startswith("b") else "a"
        return str((await agents[name].ainvoke(input_of(q)))["messages"][-1].text)

    for name, other in (("a", "b"), ("b", "a")):
        model = ScriptedModel([_calling(f"{other}?"), f"{name} is done", f"{name} says"])
        own = SessionMemory(small_memory, scope="own")
        agents[name] = create_agent(model, [search], middleware=[own], name=name)
    chief = ScriptedModel([_calling("a", "b"), "done"])
    agent: Any = create_agent(chief, [search], middleware=[SessionMemory(small_memory)], name="main")
    assert (await agent.ainvoke(input_of("both?"), config_of()))["messages"][-1].text == "done"


async def test_a_task_that_a_tool_starts_outside_of_its_context_is_a_turn_of_its_own(memory: Memory) -> None:
    """A task that a tool starts is a turn of the session only if it has a new context."""
    tasks: list[asyncio.Task[Any]] = []
    over = asyncio.Event()
    later: Any = create_agent(
        ScriptedModel(["aside", "reminded"]), [], middleware=[SessionMemory(memory)], name="later"
    )

    async def follow_up(words: str) -> None:
        await over.wait()
        await later.ainvoke(input_of(words), config_of())

    @tool
    async def search(q: str) -> str:
        """Do something, and something else later on."""
        tasks.append(asyncio.create_task(follow_up("in the tool")))
        tasks.append(asyncio.create_task(follow_up("outside"), context=contextvars.Context()))
        return "found"

    chief = ScriptedModel([_calling("a"), "done"])
    agent: Any = create_agent(chief, [search], middleware=[SessionMemory(memory)], name="main")
    await agent.ainvoke(input_of("q"), config_of())
    over.set()
    await asyncio.gather(*tasks)
    assert [name for name, _ in await said(memory)] == [None, "main", None, "later"]
    assert (await said(memory))[2] == (None, "outside")


async def test_a_question_may_be_stored_as_it_was_received(memory: Memory) -> None:
    """With `question_text="received"`, text that other middleware adds is sent to the model and not stored."""

    class Adding(AgentMiddleware[AgentState[Any], Any, Any]):
        """Middleware that adds text to the question."""

        async def abefore_model(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
            """Add to the newest message."""
            last = state["messages"][-1]
            return {"messages": [last.model_copy(update={"content": f"{last.text} (found: x)"})]}

    model = ScriptedModel(["fine"])
    middleware = [SessionMemory(memory, question_text="received"), Adding()]
    agent: Any = create_agent(model, [], middleware=middleware)
    await agent.ainvoke(input_of("q"), config_of())
    assert texts(model.calls[0]) == ["q (found: x)"]
    assert [text for _, text in await said(memory)] == ["q", "fine"]
    for stored in await memory.manifests.of_session(ROOM):
        assert texts(await rebuild(stored)) == ["q (found: x)"]


async def test_a_nested_call_with_a_thread_of_its_own_is_a_turn_of_its_own(memory: Memory) -> None:
    sub = writer(memory, "noted", name="clerk")

    @tool
    async def note(text: str) -> str:
        """Note something."""
        config: RunnableConfig = {"configurable": {"thread_id": "notes"}}
        return str((await sub.ainvoke({"messages": [("user", text)]}, config))["messages"][-1].text)

    call = AIMessage("", tool_calls=[{"name": "note", "args": {"text": "milk"}, "id": "c"}])
    agent: Any = create_agent(ScriptedModel([call, "done"]), [note], middleware=[SessionMemory(memory)], name="main")
    await agent.ainvoke(input_of("buy milk"), config_of())
    assert await said(memory) == [(None, "buy milk"), ("main", "done")]
    assert await said(memory, "notes") == [(None, "milk"), ("clerk", "noted")]


@pytest.mark.parametrize("kind", ["agent", "memory_node"])
async def test_an_agent_that_its_graph_retries_answers_once(memory: Memory, kind: str) -> None:
    model = ScriptedModel([ConnectionError("down"), "draft"])
    agent = create_agent(model, [], middleware=[SessionMemory(memory)], name="writer")
    graph: Any = StateGraph(MessagesState)
    retry = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=ConnectionError)
    graph.add_node("writer", agent if kind == "agent" else memory_node(memory, model), retry_policy=retry)
    graph.add_node("critic", writer(memory, "remarks", name="critic"))
    graph.add_edge(START, "writer")
    graph.add_edge("writer", "critic")
    compiled = graph.compile()
    for _ in range(2):
        await compiled.ainvoke(input_of("q", "m1"), config_of())
    assert len(model.calls) == 2
    assert await said(memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]
    assert [message.ordinal for message in await memory.session(ROOM).tail(2)] == [None, None]


@pytest.mark.parametrize("kind", ["agent", "alone", "memory_node"])
async def test_a_failed_graph_is_resumed_at_its_second_agent(memory: Memory, kind: str) -> None:
    model = ScriptedModel([ConnectionError("down"), "two"])
    remembering = [SessionMemory(memory)]
    second: Any = memory_node(memory, model)
    if kind != "memory_node":
        saver = None if kind == "agent" else False
        second = create_agent(model, [], middleware=remembering, name="second", checkpointer=saver)
    graph = in_line(writer(memory, "one", name="first"), second, saver=InMemorySaver())
    with pytest.raises(ConnectionError):
        await graph.ainvoke(input_of("q", "m1"), config_of())
    state = await graph.ainvoke(None, config_of())
    assert state["messages"][-1].text == "two"
    author = "n1" if kind == "memory_node" else "second"
    assert await said(memory) == [(None, "q"), ("first", "one"), (author, "two")]


async def test_after_a_turn_without_a_question_a_nodes_question_is_not_stored(small_memory: Memory) -> None:
    """After an answer without a question, a node's question to an agent is not part of the session."""
    model = ScriptedModel(["h1"])
    helper = create_agent(model, [], middleware=[SessionMemory(small_memory)], name="helper")

    async def ask_helper(state: MessagesState) -> dict[str, Any]:
        await helper.ainvoke({"messages": [HumanMessage("secret prompt")]})
        return {}

    graph = in_line(writer(small_memory, "hello"), ask_helper)
    await graph.ainvoke({"messages": [("system", "greet")]}, config_of())
    assert await said(small_memory) == [("writer", "hello")]
    assert texts(model.calls[0]) == ["secret prompt"]
