"""Tests of agents with memory for synchronous and asynchronous callers and memories."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelRetryMiddleware, PIIDetectionError, PIIMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from tests.agent.talking import ROOM, add, adding, config_of, input_of, make_agent, seen
from tests.agent.ways import WAYS, Way, WayName, opened
from tests.conftest import url_of
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import (
    InvalidKey,
    KnownFacts,
    MemoryOptions,
    RecalledTurns,
    SessionMemory,
    StoreClosed,
    SyncMemory,
    WrongUser,
    history_tools,
    knowledge_tools,
    memory_node,
    recorded,
    session_turn,
)
from threadkeep.records.knowledge import Scope
from threadkeep.testing import Gate, ScriptedModel

ON_DISK: list[Any] = [("async", "postgres"), ("sync", "sqlite-file")]
ON_DISK += [pytest.param(("sync-in-loop", "sqlite-file"), marks=pytest.mark.slow)]
ON_DISK += [pytest.param((name, "postgres"), marks=pytest.mark.slow) for name in WAYS if name != "async"]
WAYS_AND_DATABASES = [(name, "sqlite-memory") for name in WAYS] + ON_DISK


@pytest.fixture(params=WAYS_AND_DATABASES, ids="-on-".join)
def way(request: pytest.FixtureRequest, memory_options: MemoryOptions, events: RecordedEvents) -> Iterator[Way]:
    """Return a way to call agents, over an empty database."""
    name, kind = request.param
    with opened(name, url_of(request, kind), memory_options, [events]) as opened_way:
        yield opened_way


@pytest.fixture(params=WAYS)
def small_way(request: pytest.FixtureRequest, memory_options: MemoryOptions, events: RecordedEvents) -> Iterator[Way]:
    """Return a way to call agents, over SQLite in memory, for tests that do not depend on the database."""
    with opened(request.param, "sqlite://", memory_options, [events]) as opened_way:
        yield opened_way


def agent_of(way: Way, *replies: Any, tools: tuple[Any, ...] = (), **options: Any) -> tuple[Any, ScriptedModel]:
    """Return an agent with memory, and its model."""
    model = ScriptedModel(list(replies))
    return make_agent(model, [SessionMemory(way.memory, **options)], tools), model


def in_line(*agents: Any) -> Any:
    """Return a graph that runs agents one after the other."""
    graph: Any = StateGraph(MessagesState)
    names = [f"n{number}" for number in range(len(agents))]
    for name, agent in zip(names, agents, strict=True):
        graph.add_node(name, agent)
    for one, two in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, two)
    return graph.compile()


def test_a_turn_is_stored_once_and_sent_with_the_next(way: Way) -> None:
    """A turn is stored and sent with the next one, but its messages enter neither state nor stream."""
    agent, model = agent_of(way, "hello", "as I said")
    assert way.say(agent, "hi") == "hello"
    state = way.ask(agent, input_of("again?"))
    assert [message.text for message in state["messages"]] == ["again?", "as I said"]
    assert seen(model.calls[1]) == [("human", "hi"), ("ai", "hello"), ("human", "again?")]
    assert way.kept() == [("user", "hi"), ("assistant", "hello"), ("user", "again?"), ("assistant", "as I said")]


def test_a_repeated_message_id_is_answered_from_the_transcript(way: Way) -> None:
    agent, model = agent_of(way, "hello")
    states = [way.ask(agent, input_of("hi", "m1")) for _ in range(2)]
    assert [(m.id, m.text) for m in states[0]["messages"]] == [(m.id, m.text) for m in states[1]["messages"]]
    assert len(model.calls) == 1
    assert way.kept() == [("user", "hi"), ("assistant", "hello")]


def test_turns_of_one_session_are_sequential(way: Way) -> None:
    model = ScriptedModel([lambda messages: f"re {messages[-1].text}"] * 8)
    agent = make_agent(model, [SessionMemory(way.memory)])
    way.together([lambda number=number: way.say(agent, f"q{number}") for number in range(8)])  # type: ignore[misc]
    kept = way.kept()
    assert [role for role, _ in kept] == ["user", "assistant"] * 8
    assert all(answer == f"re {question}" for (_, question), (_, answer) in zip(kept[::2], kept[1::2], strict=True))


def test_concurrent_sessions_are_separate(way: Way) -> None:
    model = ScriptedModel([lambda messages: f"re {messages[-1].text}"] * 24)
    agent = make_agent(model, [SessionMemory(way.memory)])

    def talk(room: int) -> None:
        for number in range(3):
            assert way.say(agent, f"{room}:{number}", thread_id=f"room:{room}") == f"re {room}:{number}"

    way.together([lambda room=room: talk(room) for room in range(8)])  # type: ignore[misc]
    for room in range(8):
        said = [(("user", f"{room}:{number}"), ("assistant", f"re {room}:{number}")) for number in range(3)]
        assert way.kept(f"room:{room}") == [message for turn in said for message in turn]


def test_a_batch_of_sessions(way: Way) -> None:
    """Each input of a batch has its own session, and an error of one input does not affect the others."""
    model = ScriptedModel([lambda messages: f"re {messages[-1].text}"] * 5)
    agent = make_agent(model, [SessionMemory(way.memory)])
    inputs = [input_of(f"q{number}") for number in range(6)]
    configs = [config_of(f"room:{number}") for number in range(5)]
    states = way.batch(agent, inputs, [*configs, {}], return_exceptions=True)
    assert [state["messages"][-1].text for state in states[:5]] == [f"re q{number}" for number in range(5)]
    assert isinstance(states[5], InvalidKey)
    for number in range(5):
        assert way.kept(f"room:{number}") == [("user", f"q{number}"), ("assistant", f"re q{number}")]


@pytest.mark.parametrize("mode", ["updates", "values", "messages", "custom"])
def test_streams_have_the_turn_and_no_history(small_way: Way, mode: str) -> None:
    """A stream contains no history, also in modes whose nodes LangGraph runs in threads."""
    agent, model = agent_of(small_way, "good morning", "two words")
    small_way.say(agent, "hi")
    parts = small_way.stream(agent, input_of("and now?"), stream_mode=mode)
    assert "good" not in str(parts)
    if mode == "messages":
        pieces = [message.text for message, _ in parts if isinstance(message, AIMessageChunk)]
        assert "".join(pieces) == "two words"
    assert seen(model.calls[1]) == [("human", "hi"), ("ai", "good morning"), ("human", "and now?")]
    assert small_way.kept()[2:] == [("user", "and now?"), ("assistant", "two words")]


def test_a_closed_stream_stores_an_interrupted_answer(small_way: Way) -> None:
    agent, _ = agent_of(small_way, "one two three", "fine")
    small_way.stream(agent, input_of("hi"), most=2, stream_mode="updates")
    assert small_way.say(agent, "still there?") == "fine"
    first = [("user", "hi"), ("assistant (interrupted)", "one two three")]
    assert small_way.kept() == [*first, ("user", "still there?"), ("assistant", "fine")]


def test_several_agents_answer_one_question(way: Way) -> None:
    first, second = ScriptedModel(["draft"]), ScriptedModel(["remarks"])
    graph = in_line(
        create_agent(first, [], middleware=[SessionMemory(way.memory)], name="writer"),
        create_agent(second, [], middleware=[SessionMemory(way.memory)], name="critic"),
    )
    for _ in range(2):
        assert way.ask(graph, input_of("q", "m1"))["messages"][-1].text == "remarks"
    assert [message.text for message in second.calls[0]] == ["q", "draft"]
    assert way.said() == [
        (None, "q"),
        ("writer", "draft"),
        ("critic", "remarks"),
    ]


def test_a_synchronous_node_of_an_asynchronous_graph_takes_part(small_way: Way) -> None:
    first, second = ScriptedModel(["draft"]), ScriptedModel(["remarks"])
    writer = create_agent(first, [], middleware=[SessionMemory(small_way.memory)], name="writer")
    critic: Any = create_agent(second, [], middleware=[SessionMemory(small_way.memory)], name="critic")
    graph = in_line(writer, lambda state: critic.invoke({"messages": state["messages"]}))
    for _ in range(2):
        assert small_way.ask(graph, input_of("q", "m1"))["messages"][-1].text == "remarks"
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert small_way.said() == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]


async def test_an_agent_that_an_async_node_calls_by_invoke_takes_part(memory_options: MemoryOptions) -> None:
    """An agent that blocks the memory's event loop with `invoke` still takes part in the turn."""
    from threadkeep import open_memory

    async with open_memory("sqlite://", options=memory_options) as memory:
        first, second = ScriptedModel(["draft"]), ScriptedModel(["remarks"])
        writer = create_agent(first, [], middleware=[SessionMemory(memory)], name="writer")
        critic: Any = create_agent(second, [], middleware=[SessionMemory(memory)], name="critic")

        async def node(state: MessagesState) -> Any:
            return critic.invoke({"messages": state["messages"]})

        await in_line(writer, node).ainvoke(input_of("q"), config_of())
        assert [message.text for message in second.calls[0]] == ["q", "draft"]
        said = [(one.author, one.content) for one in await memory.session(ROOM).tail(9)]
        assert said == [(None, "q"), ("writer", "draft"), ("critic", "remarks")]


def test_tools_are_called_and_not_stored(way: Way) -> None:
    calls = AIMessage("", tool_calls=[*adding("c1", 1, 2).tool_calls, *adding("c2", 3, 4).tool_calls])
    agent, model = agent_of(way, calls, "3 and 7", tools=(add,))
    assert way.say(agent, "add") == "3 and 7"
    assert [message.text for message in model.calls[1] if message.type == "tool"] == ["3", "7"]
    assert way.kept() == [("user", "add"), ("assistant", "3 and 7")]


def asking(agent: Any) -> BaseTool:
    """Return a tool that calls an agent synchronously or asynchronously, as the tool itself is called."""

    def ask(q: str) -> str:
        """Ask another agent."""
        return str(agent.invoke({"messages": [("user", q)]})["messages"][-1].text)

    async def aask(q: str) -> str:
        return str((await agent.ainvoke({"messages": [("user", q)]}))["messages"][-1].text)

    return StructuredTool.from_function(ask, aask, name="ask")


def test_an_agent_called_by_a_tool_takes_no_part_in_the_turn(way: Way) -> None:
    child, child_model = agent_of(way, "at nine")
    call = AIMessage("", tool_calls=[{"name": "ask", "args": {"q": "flights"}, "id": "c"}])
    agent, _ = agent_of(way, call, "done", tools=(asking(child),))
    way.say(agent, "my card is 4111")
    assert [seen(one) for one in child_model.calls] == [[("human", "flights")]]
    assert way.kept() == [("user", "my card is 4111"), ("assistant", "done")]


def test_an_interrupted_run_stores_one_turn(way: Way) -> None:
    model = ScriptedModel([adding(), "3"])
    asks = HumanInTheLoopMiddleware({"add": True})
    agent = make_agent(model, [SessionMemory(way.memory), asks], [add], checkpointer=InMemorySaver())
    state = way.ask(agent, input_of("1 + 2?"))
    assert state["__interrupt__"]
    assert way.kept() == [("user", "1 + 2?")]
    state = way.ask(agent, Command(resume={"decisions": [{"type": "approve"}]}))
    assert state["messages"][-1].text == "3"
    assert way.kept() == [("user", "1 + 2?"), ("assistant", "3")]


def test_a_retry_with_the_same_id_answers_the_stored_question(way: Way) -> None:
    agent, model = agent_of(way, ConnectionError("down"), "hello")
    with pytest.raises(ConnectionError, match="down"):
        way.say(agent, "hi", "m1")
    assert way.say(agent, "hi", "m1") == "hello"
    assert len(model.calls) == 2
    assert way.kept() == [("user", "hi"), ("assistant", "hello")]


@pytest.mark.parametrize("memory_first", [True, False])
def test_a_model_call_that_other_middleware_retries_stores_one_answer(small_way: Way, memory_first: bool) -> None:
    model = ScriptedModel([ConnectionError("down"), ConnectionError("down"), "hello"])
    both = [SessionMemory(small_way.memory), ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)]
    agent = make_agent(model, both if memory_first else both[::-1])
    assert small_way.say(agent, "hi") == "hello"
    assert small_way.kept() == [("user", "hi"), ("assistant", "hello")]


def test_a_question_that_other_middleware_rejects_is_stored_without_text(small_way: Way) -> None:
    model = ScriptedModel(["fine"])
    agent = make_agent(model, [PIIMiddleware("email", strategy="block"), SessionMemory(small_way.memory)])
    with pytest.raises(PIIDetectionError):
        small_way.say(agent, "mail a@b.co")
    assert small_way.say(agent, "hi") == "fine"
    assert small_way.kept() == [("user (failed)", ""), ("user", "hi"), ("assistant", "fine")]


def test_errors_are_the_same_in_every_way(small_way: Way) -> None:
    agent, model = agent_of(small_way, "hello")
    with pytest.raises(InvalidKey, match="thread_id"):
        small_way.ask(agent, input_of("hi"), {})
    small_way.ask(agent, input_of("hi"), config_of(user_id="ann"))
    with pytest.raises(WrongUser):
        small_way.ask(agent, input_of("hi"), config_of(user_id="bob"))
    assert len(model.calls) == 1


def test_the_context_names_session_and_user(small_way: Way) -> None:
    agent, _ = agent_of(small_way, "one", "two")
    small_way.ask(agent, input_of("hi"), {}, context={"session_id": "me@example.com", "user_id": "ann"})
    assert small_way.kept("me@example.com") == [("user", "hi"), ("assistant", "one")]
    by_function, _ = agent_of(
        small_way, "three", session_id=lambda _, runtime: f"of/{runtime.context['chat']}", user_id=lambda _: "bob"
    )
    small_way.ask(by_function, input_of("hi"), {}, context={"chat": 7})
    assert small_way.kept("of/7") == [("user", "hi"), ("assistant", "three")]


def test_a_node_with_memory(way: Way) -> None:
    """A graph with `memory_node` stores its turns, and a repeated message id calls no model."""
    model = ScriptedModel(["hello", "as I said"])
    graph = in_line(memory_node(way.memory, model, system_prompt="be kind"))
    for message_id, words in (("m1", "hi"), ("m1", "hi"), ("m2", "again?")):
        way.say(graph, words, message_id)
    assert seen(model.calls[1])[1:] == [("human", "hi"), ("ai", "hello"), ("human", "again?")]
    assert way.kept() == [("user", "hi"), ("assistant", "hello"), ("user", "again?"), ("assistant", "as I said")]


@pytest.mark.parametrize("failing", [False, True])
def test_a_turn_in_a_function(way: Way, failing: bool) -> None:
    """The context manager `session_turn` stores the answer, also the part before an error."""
    model = ScriptedModel([["one two", ConnectionError("down")] if failing else "hello"], disable_streaming=False)
    question = [HumanMessage("hi", id="m1")]

    def talk() -> None:
        with session_turn(way.memory, question, config_of()) as turn:
            turn.answer("".join(part.text for part in model.stream(turn.messages())))

    async def atalk() -> None:
        async with session_turn(way.memory, question, config_of()) as turn:
            turn.answer("".join([part.text async for part in model.astream(await turn.messages())]))

    try:
        way.loop.run(atalk()) if way.is_async else way.loop.call(talk) if not way.may_overlap else talk()
    except ConnectionError:
        assert failing
    assert way.kept() == [("user", "hi"), ("assistant (failed)", "one two") if failing else ("assistant", "hello")]


def test_a_recorded_graph(way: Way) -> None:
    """A graph in `recorded` receives the earlier turns through `invoke`, `stream` and `batch`."""
    model = ScriptedModel([lambda messages: f"answer {len(messages)}"] * 4)
    graph = recorded(create_agent(model, []), way.memory)
    assert way.say(graph, "one") == "answer 1"
    parts = way.stream(graph, input_of("two"), stream_mode="values")
    assert parts[-1]["messages"][-1].text == "answer 3"
    way.batch(graph, [input_of("a"), input_of("b")], [config_of("room:a"), config_of("room:b")])
    assert way.kept() == [("user", "one"), ("assistant", "answer 1"), ("user", "two"), ("assistant", "answer 3")]
    assert way.kept("room:b") == [("user", "b"), ("assistant", "answer 1")]


def test_agents_inside_of_a_recorded_graph_store_their_answers_once(small_way: Way) -> None:
    writer = create_agent(ScriptedModel(["draft"]), [], middleware=[SessionMemory(small_way.memory)], name="writer")
    graph = recorded(in_line(writer, create_agent(ScriptedModel(["final"]), [], name="plain")), small_way.memory)
    small_way.ask(graph, input_of("q"))
    assert small_way.said() == [
        (None, "q"),
        ("writer", "draft"),
        ("plain", "final"),
    ]


def test_history_tools_work(way: Way) -> None:
    first, _ = agent_of(way, "a parasol")
    way.say(first, "what did I lend you?")
    calls = [
        {"name": "search_history", "args": {"query": "parasol"}, "id": "c1"},
        {"name": "read_history", "args": {"from_seq": 1, "to_seq": 2}, "id": "c2"},
        {"name": "read_tool_result", "args": {"tool_call_id": "c9"}, "id": "c3"},
    ]
    agent, model = agent_of(
        way, AIMessage("", tool_calls=calls), "that", tools=tuple(history_tools(way.memory)), max_messages=0
    )
    way.say(agent, "look it up")
    found, read, nothing = [message.text for message in model.calls[1] if message.type == "tool"]
    assert "a parasol" in found
    assert "what did I lend you?" in read
    assert "No tool has answered" in nothing


def test_remembered_facts_are_in_the_next_agents_context(way: Way) -> None:
    calls = [{"name": "remember", "args": {"key": "city", "value": "lives in Porto"}, "id": "c1"}]
    agent, _ = agent_of(way, AIMessage("", tool_calls=calls), "noted", tools=tuple(knowledge_tools(way.memory)))
    way.ask(agent, input_of("I live in Porto"), config_of("a", user_id="ann"))
    second, model = agent_of(way, "in Porto", sources=[KnownFacts(way.memory, scopes=["user"])])
    way.ask(second, input_of("where do I live?"), config_of("b", user_id="ann"))
    assert "Porto" in str(model.calls[0][:-1])
    facts: Any = way.memory.knowledge.facts(Scope("user", "ann"))
    assert [fact.key for fact in (facts if isinstance(way.memory, SyncMemory) else way.loop.run(facts))] == ["city"]


def test_older_turns_are_recalled(way: Way) -> None:
    agent, model = agent_of(way, *["fine"] * 7, sources=[RecalledTurns(way.memory)], max_messages=2, max_tokens=2000)
    way.say(agent, "my sister plays the accordion in Lisbon")
    for number in range(5):
        way.say(agent, f"something else {number}")
    way.say(agent, "which instrument does my sister play?")
    assert "accordion" in str(model.calls[-1])


def test_an_agent_of_its_own_conversation(small_way: Way) -> None:
    """An agent with `scope="own"` remembers its turns, and one with `scope="none"` stores nothing."""
    own, model = agent_of(small_way, "one", "two", scope="own")
    for words in ("a", "b"):
        small_way.say(own, words)
    assert seen(model.calls[1]) == [("human", "a"), ("ai", "one"), ("human", "b")]
    silent, _ = agent_of(small_way, "three", scope="none")
    small_way.say(silent, "c")
    assert small_way.kept() == []


def test_a_call_after_closing_raises_an_error(way: Way) -> None:
    agent, model = agent_of(way, "hello", "never")
    way.say(agent, "hi")
    way.close()
    with pytest.raises(StoreClosed):
        way.say(agent, "still there?")
    assert len(model.calls) == 1


@pytest.mark.parametrize("way", ON_DISK, ids="-on-".join, indirect=True)
def test_closing_stores_the_answer_of_an_open_stream(way: Way, memory_options: MemoryOptions, request: Any) -> None:
    agent, _ = agent_of(way, "hello")
    _, kind = request.node.callspec.params["way"]
    url = request.getfixturevalue("postgres_url" if kind == "postgres" else "sqlite_url")
    with way.open_stream(agent, input_of("hi"), parts=2, stream_mode="updates"):
        way.close()
        with opened("sync", url, memory_options) as later:
            assert later.kept() == [("user", "hi"), ("assistant (interrupted)", "hello")]


@pytest.mark.parametrize("name", ["sync", "sync-beside-loop", "sync-in-loop"])
def test_a_keyboard_interrupt_stores_the_partial_answer(name: WayName, memory_options: MemoryOptions) -> None:
    with opened(name, "sqlite://", memory_options) as way:
        agent, _ = agent_of(way, ["one two", KeyboardInterrupt()], "fine")
        agent_config = config_of()

        def stopped() -> None:
            with pytest.raises(KeyboardInterrupt):
                list(agent.stream(input_of("hi"), agent_config, stream_mode="messages"))

        way.loop.call(stopped) if name == "sync-in-loop" else stopped()
        assert way.say(agent, "still there?") == "fine"
        kept = way.kept()
    assert kept == [
        ("user", "hi"), ("assistant (interrupted)", "one two"), ("user", "still there?"), ("assistant", "fine")
    ]  # fmt: skip


def test_turns_of_synchronous_and_asynchronous_callers_share_one_order(memory_options: MemoryOptions) -> None:
    with opened("sync", "sqlite://", memory_options) as way:
        begun, go_on = threading.Event(), threading.Event()

        def reply(messages: Any) -> str:
            if messages[-1].text == "first":
                begun.set()
                assert go_on.wait(HANG_SECONDS)
            return f"re {messages[-1].text}"

        agent = make_agent(ScriptedModel([reply] * 2), [SessionMemory(way.memory)])
        first = threading.Thread(target=lambda: agent.invoke(input_of("first"), config_of()))
        first.start()
        assert begun.wait(HANG_SECONDS)
        second = threading.Thread(target=lambda: way.loop.run(agent.ainvoke(input_of("second"), config_of())))
        second.start()
        go_on.set()
        first.join()
        second.join()
        assert [text for _, text in way.kept()] == ["first", "re first", "second", "re second"]


def test_a_call_that_blocks_an_awaited_turn_does_not_deadlock(
    memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocking call gets the session although a task of the loop that it blocks holds it."""
    monkeypatch.setattr("threadkeep.agent.root_runs._IDLE_SECONDS", 0.2)
    with opened("async-over-sync", "sqlite://", memory_options) as way:
        gate = Gate()
        awaited = make_agent(ScriptedModel([[gate, "late"]]), [SessionMemory(way.memory)])
        blocking, _ = agent_of(way, "at once")

        async def begin() -> Any:
            task = asyncio.create_task(awaited.ainvoke(input_of("first"), config_of()))
            await gate.reached()
            return task

        task = way.loop.run(begin())
        way.loop.call(lambda: blocking.invoke(input_of("second"), config_of()))
        gate.open()
        way.loop.run(task)
        assert way.kept() == [("user", "first"), ("user", "second"), ("assistant", "at once"), ("assistant", "late")]


def test_a_stream_closed_after_its_memory_logs_nothing(
    memory_options: MemoryOptions, caplog: pytest.LogCaptureFixture
) -> None:
    with opened("sync", "sqlite://", memory_options) as way:
        agent, _ = agent_of(way, "hello")
        parts = agent.stream(input_of("hi"), config_of(), stream_mode="updates")
        next(parts)
        next(parts)
        way.close()
        parts.close()
    assert caplog.records == []


def test_parallel_agents_answer_once_each(way: Way) -> None:
    graph: Any = StateGraph(MessagesState)
    for name in ("a", "b"):
        agent = create_agent(ScriptedModel([f"from {name}"]), [], middleware=[SessionMemory(way.memory)], name=name)
        graph.add_node(name, agent)
        graph.add_edge(START, name)
    compiled = graph.compile()
    for _ in range(2):
        way.ask(compiled, input_of("q", "m1"))
    assert sorted(way.said(), key=str) == [("a", "from a"), ("b", "from b"), (None, "q")]


def test_all_cells_share_one_thread(memory_options: MemoryOptions) -> None:
    with opened("sync-in-loop", "sqlite://", memory_options) as way:
        before = Counter(thread.name for thread in threading.enumerate())
        agent, _ = agent_of(way, "one", "two", "three")
        other, _ = agent_of(way, "four")
        for each in (agent, agent, other):
            way.say(each, "hi")
        after = Counter(thread.name for thread in threading.enumerate())
        assert (after - before)["threadkeep-memory"] == 1
        way.close()
        assert (Counter(thread.name for thread in threading.enumerate()) - before)["threadkeep-memory"] == 0
