"""Tests of repeated message ids, repeated texts and concurrent turns of one session."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from tests.agent.talking import ROOM, add, adding, ask, config_of, input_of, kept, make_agent, seen
from threadkeep import (
    Memory,
    MemoryOptions,
    Message,
    Retention,
    RetentionLimits,
    SessionMemory,
    StoreUnavailable,
    open_memory,
)
from threadkeep.history.session import Session
from threadkeep.testing import Gate, ScriptedModel


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_repeated_message_id_returns_the_stored_answer(memory: Memory, checkpointed: bool) -> None:
    model = ScriptedModel([adding(), "3"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(memory)], [add], checkpointer=saver)
    assert await ask(agent, "1 + 2?", message_id="telegram:42") == "3"
    state = await agent.ainvoke(input_of("1 + 2?", "telegram:42"), config_of())
    assert state["messages"][-1].text == "3"
    assert len(model.calls) == 2
    assert await kept(memory) == [("user", "1 + 2?"), ("assistant", "3")]
    assert state["messages"][-1].id == (await memory.session(ROOM).tail(1))[0].id


class WithContext(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that adds a human message of the program behind the question."""

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Add the message."""
        return {"messages": [HumanMessage("Today is Monday.")]}


@pytest.mark.parametrize("by_node", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_human_message_that_the_program_adds_is_not_part_of_the_question(
    memory: Memory, checkpointed: bool, by_node: bool
) -> None:
    model = ScriptedModel(["one", "two"])
    saver = InMemorySaver() if checkpointed else None
    graph: Any = make_agent(model, [*([] if by_node else [WithContext()]), SessionMemory(memory)], checkpointer=saver)
    if by_node:
        builder = StateGraph(MessagesState)
        builder.add_node("add", lambda _: {"messages": [HumanMessage("Today is Monday.")]})
        builder.add_node("agent", make_agent(model, [SessionMemory(memory)]))
        builder.add_edge(START, "add")
        builder.add_edge("add", "agent")
        graph = builder.compile(checkpointer=saver)
    for words, message_id in (("q1", "m1"), ("q1", "m1"), ("q2", "m2")):
        state = await graph.ainvoke(input_of(words, message_id), config_of())
        assert state["messages"][-1].text == ("one" if words == "q1" else "two")
    assert seen(model.calls[1])[-2:] == [("human", "q2"), ("human", "Today is Monday.")]
    assert await kept(memory) == [("user", "q1"), ("assistant", "one"), ("user", "q2"), ("assistant", "two")]


@pytest.mark.parametrize("words", [("user", "q2"), {"role": "user", "content": "q2"}], ids=["pair", "dict"])
async def test_a_human_message_that_the_program_adds_to_a_whole_chat_is_not_stored(
    small_memory: Memory, words: Any
) -> None:
    """The caller sends the whole chat, in forms without ids."""
    model = ScriptedModel(["one", "two", "three"])
    agent = make_agent(model, [WithContext(), SessionMemory(small_memory)])
    chat: list[Any] = []
    for message in (("user", "q1"), words, ("user", "q3")):
        chat += [message]
        state: Any = await agent.ainvoke({"messages": list(chat)}, config_of())
        chat += [("assistant", state["messages"][-1].text)]
    turns = [("q1", "one"), ("q2", "two"), ("q3", "three")]
    assert await kept(small_memory) == [row for q, answer in turns for row in (("user", q), ("assistant", answer))]
    assert [text for _, text in seen(model.calls[2])] == ["q1", "one", "q2", "two", "q3", "Today is Monday."]


async def test_a_resumed_run_that_fails_stores_no_added_message(memory: Memory) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        raise ConnectionError("down")

    call = AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "call-1"}])
    middleware: list[Any] = [WithContext(), SessionMemory(memory), HumanInTheLoopMiddleware(interrupt_on={"pay": True})]
    agent = make_agent(ScriptedModel([call]), middleware, [pay], checkpointer=InMemorySaver())
    await agent.ainvoke(input_of("q1", "m1"), config_of())
    with pytest.raises(ConnectionError):
        await agent.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), config_of())
    assert await kept(memory) == [("user", "q1")]


class Improved(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that asks the model once more if its answer is a draft."""

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Jump back to the model with a request."""
        if state["messages"][-1].text != "draft":
            return None
        return {"messages": [HumanMessage("Improve that.")], "jump_to": "model"}


async def test_an_agent_answers_again_if_middleware_jumps_to_the_model_after_its_end(memory: Memory) -> None:
    model = ScriptedModel(["draft", "final"])
    agent = make_agent(model, [Improved(), SessionMemory(memory)])
    for _ in range(2):
        state = await agent.ainvoke(input_of("q", "m1"), config_of())
        assert [message.text for message in state["messages"]] == ["q", "draft", "Improve that.", "final"]
    assert len(model.calls) == 2
    assert await kept(memory) == [("user", "q"), ("assistant", "draft"), ("assistant", "final")]


class Signed(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that adds text to each answer, under the same id or in a new message."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way

    def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Add the text."""
        said = state["messages"][-1]
        signed = AIMessage(f"{said.text} (a machine)", id=said.id if self._way == "changed" else None)
        return {"messages": [*([RemoveMessage(str(said.id))] if self._way == "replaced" else []), signed]}


@pytest.mark.parametrize("way", ["changed", "replaced", "appended"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("listed_first", [False, True])
async def test_middleware_does_not_change_a_repeated_answer_again(
    memory: Memory, checkpointed: bool, way: str, listed_first: bool
) -> None:
    model = ScriptedModel(["one", "two", "three"])
    saver = InMemorySaver() if checkpointed else None
    middleware = [SessionMemory(memory), Signed(way)]
    agent = make_agent(model, middleware[::-1] if listed_first else middleware, checkpointer=saver)
    for words in ("q1", "q1", "q1", "q2", "q1", "q3"):
        told = await ask(agent, words, message_id=words)
        rows = await memory.session(ROOM).tail(9)
        assert told == next(row.content for row in rows if row.answers == words)
    before = [("human", "q1"), ("ai", "one (a machine)"), ("human", "q2"), ("ai", "two (a machine)")]
    if checkpointed and way == "appended":  # the state also has the unsigned answers
        before = [*before[:1], ("ai", "one"), *before[1:3], ("ai", "two"), *before[3:]]
    assert seen(model.calls[-1]) == [*before, ("human", "q3")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_middleware_that_deletes_answers_does_not_delete_a_repeated_one(
    memory: Memory, checkpointed: bool
) -> None:
    class Deleting(AgentMiddleware[AgentState[Any], Any, Any]):
        """Middleware that deletes the model's reply."""

        def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
            """Delete it."""
            return {"messages": [RemoveMessage(str(state["messages"][-1].id))]}

    saver = InMemorySaver() if checkpointed else None
    await ask(make_agent(ScriptedModel(["hello"]), [SessionMemory(memory)], checkpointer=saver), "hi", message_id="m1")
    agent = make_agent(ScriptedModel([]), [Deleting(), SessionMemory(memory)], checkpointer=saver)
    assert await ask(agent, "hi", message_id="m1") == "hello"
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_another_agent_gives_the_same_answer_to_the_same_message(memory: Memory) -> None:
    await ask(make_agent(ScriptedModel(["hello"]), [SessionMemory(memory)]), "hi", message_id="telegram:42")
    model = ScriptedModel(["never"])
    assert await ask(make_agent(model, [SessionMemory(memory)]), "hi", message_id="telegram:42") == "hello"
    assert model.calls == []


async def test_an_unanswered_message_from_before_the_window_is_answered(memory: Memory) -> None:
    model = ScriptedModel([ConnectionError(), *(f"answer {number}" for number in range(9))])
    agent = make_agent(model, [SessionMemory(memory, max_messages=4)])
    with pytest.raises(ConnectionError):
        await ask(agent, "first", message_id="m0")
    for number in range(8):
        await ask(agent, f"question {number}")
    assert await ask(agent, "first", message_id="m0") == "answer 8"
    assert seen(model.calls[-1]) == [("human", "first")]


@pytest.mark.parametrize("reply", ["two", ConnectionError()])
async def test_an_unanswered_message_directly_before_the_newest_one_is_answered(
    memory: Memory, reply: str | ConnectionError
) -> None:
    """An unanswered message is answered on repeat, although the checkpointed state has no answer after it."""
    model = ScriptedModel([ConnectionError(), reply, "one"])
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=InMemorySaver())
    for message_id in ("m1", "m2"):
        with contextlib.suppress(ConnectionError):
            await ask(agent, message_id, message_id=message_id)
    assert await ask(agent, "m1", message_id="m1") == "one"
    assert seen(model.calls[-1]) == [("human", "m1")]
    assert (await memory.session(ROOM).tail(1))[0].answers == "m1"


async def test_a_newer_message_is_repeated_after_an_older_one(memory: Memory) -> None:
    """A repeated message is answered although the checkpointed state has an older message's answer after it."""
    model = ScriptedModel([ConnectionError(), ConnectionError(), adding(), "one", adding("call-2", 2, 2), "two"])
    agent = make_agent(model, [SessionMemory(memory, tool_memory=0)], [add], checkpointer=InMemorySaver())
    for message_id in ("m1", "m2", "m1"):
        with contextlib.suppress(ConnectionError):
            await ask(agent, message_id, message_id=message_id)
    assert await ask(agent, "m2", message_id="m2") == "two"
    asked = [("human", "m1"), ("ai", "[This message has no answer.]"), ("human", "m2")]
    assert [seen(call) for call in model.calls[-2:]] == [asked, [*asked, ("ai", ""), ("tool", "4")]]
    assert [(row.content, row.answers) for row in await memory.session(ROOM).tail(2)] == [("one", "m1"), ("two", "m2")]


async def test_a_repeated_message_that_was_deleted_is_answered_and_not_stored(memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["hello", "what else?", "hello again"]), [SessionMemory(memory)])
    await ask(agent, "hi", message_id="telegram:42")
    await ask(agent, "more", message_id="telegram:43")
    await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=2)))
    assert await ask(agent, "hi", message_id="telegram:42") == "hello again"
    assert await kept(memory) == [("user", "more"), ("assistant", "what else?")]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("one_middleware", [False, True])
async def test_two_unordered_concurrent_runs_of_one_message_id_are_one_turn(
    memory: Memory, checkpointed: bool, one_middleware: bool
) -> None:
    gates = [Gate(), Gate()]
    model = ScriptedModel([["hell", gates[0], "o"], ["hell", gates[1], "o"]])
    middlewares = [SessionMemory(memory, ordered=False) for _ in range(2)]
    middlewares = middlewares[:1] * 2 if one_middleware else middlewares
    saver = InMemorySaver() if checkpointed else None
    agents = [make_agent(model, [middleware], checkpointer=saver) for middleware in middlewares]
    tasks: list[asyncio.Task[str]] = []
    for agent, gate in zip(agents, gates, strict=True):
        tasks.append(asyncio.create_task(ask(agent, "hi", message_id="telegram:42")))
        await gate.reached()
    for gate in gates:
        gate.open()
    assert await asyncio.gather(*tasks) == ["hello", "hello"]
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]
    question, answer = await memory.session(ROOM).tail(2)
    assert question.run_id == answer.run_id
    await ask(agents[0], "hi", message_id="telegram:42")
    assert len(model.calls) == 2


async def test_of_two_concurrent_runs_the_first_to_end_is_stored(small_memory: Memory) -> None:
    gates = [Gate(), Gate()]
    model = ScriptedModel([[gates[0], "first"], [gates[1], "second"]])
    agent = make_agent(model, [SessionMemory(small_memory, ordered=False)])
    tasks: list[asyncio.Task[str]] = []
    for gate in gates:
        tasks.append(asyncio.create_task(ask(agent, "hi", message_id="telegram:42")))
        await gate.reached()
    gates[1].open()
    await tasks[1]
    gates[0].open()
    assert await tasks[0] == "second"
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "second")]


async def test_turns_of_a_session_are_sequential(small_memory: Memory) -> None:
    model = ScriptedModel([f"answer {n}" for n in range(5)])
    agents = [make_agent(model, [SessionMemory(small_memory)]) for _ in range(2)]
    await asyncio.gather(*(ask(agents[n % 2], f"question {n}") for n in range(5)))
    said = [text for n in range(5) for text in (f"question {n}", f"answer {n}")]
    assert [text for _, text in await kept(small_memory)] == said
    assert [text for _, text in seen(model.calls[4])] == said[:-1]


async def test_two_concurrent_runs_of_one_message_id_call_the_model_once(small_memory: Memory) -> None:
    model = ScriptedModel(["hello"])
    agents = [make_agent(model, [SessionMemory(small_memory)]) for _ in range(2)]
    answers = await asyncio.gather(*(ask(agent, "hi", message_id="telegram:42") for agent in agents))
    assert (answers, len(model.calls)) == (["hello", "hello"], 1)
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "hello")]


async def test_a_repeated_text_is_a_new_turn(memory: Memory) -> None:
    model = ScriptedModel(["Done."] * 3)
    agent = make_agent(model, [SessionMemory(memory)])
    for _ in range(3):
        await ask(agent, "ok")
    assert await kept(memory) == [("user", "ok"), ("assistant", "Done.")] * 3
    assert len(model.calls[2]) == 5


async def test_twenty_concurrent_turns_lose_nothing(memory: Memory) -> None:
    everybody = asyncio.Event()
    waiting = 0

    async def answer(messages: Sequence[BaseMessage]) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 20:
            everybody.set()
        await everybody.wait()
        return f"answer to {messages[-1].text}"

    agent = make_agent(ScriptedModel([answer] * 20), [SessionMemory(memory, ordered=False)])
    answers = await asyncio.gather(*(ask(agent, f"question {n}") for n in range(20)))
    assert answers == [f"answer to question {n}" for n in range(20)]
    messages = await memory.session(ROOM).tail(100)
    assert [message.seq for message in messages] == list(range(1, 41))
    said = Counter(message.content for message in messages)
    assert said == Counter([f"question {n}" for n in range(20)] + [f"answer to question {n}" for n in range(20)])
    run_of = {message.content: message.run_id for message in messages}
    assert len(set(run_of.values())) == 20
    assert all(run_of[f"question {n}"] == run_of[f"answer to question {n}"] for n in range(20))


async def test_concurrent_turns_do_not_receive_later_turns(small_memory: Memory) -> None:
    gate = Gate()

    def answer(messages: Sequence[BaseMessage]) -> list[str | AIMessage | BaseException | Gate]:
        slow = messages[-1].text == "slow"
        return [gate, adding()] if slow else ["done"]

    model = ScriptedModel([answer, "quick answer", "slow answer"])
    agent = make_agent(model, [SessionMemory(small_memory, ordered=False)], [add])
    slow = asyncio.create_task(ask(agent, "slow"))
    await gate.reached()
    await ask(agent, "quick")
    gate.open()
    await slow
    assert seen(model.calls[2]) == [("human", "slow"), ("ai", ""), ("tool", "3")]
    assert [text for _, text in await kept(small_memory)] == ["slow", "quick", "quick answer", "slow answer"]


async def test_a_known_message_among_new_ones_is_not_stored_again(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["one", "two"]), [SessionMemory(small_memory)])
    await ask(agent, "first", message_id="telegram:1")
    both = [HumanMessage("first", id="telegram:1"), HumanMessage("second", id="telegram:2")]
    await agent.ainvoke({"messages": both}, config_of())
    assert await kept(small_memory) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
    ]


async def test_messages_without_an_id_get_one_each(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["a", "b"]), [SessionMemory(small_memory)])
    await ask(agent, "hi")
    await ask(agent, "hi")
    ids = [message.id for message in await small_memory.session(ROOM).tail(10)]
    assert len(set(ids)) == 4
    assert all(message_id and re.fullmatch(r"[\w-]+", message_id) for message_id in ids)


async def test_a_client_may_send_the_whole_conversation(memory: Memory) -> None:
    model = ScriptedModel(["one", "ok then", "ok then", "four"])
    agent = make_agent(model, [SessionMemory(memory)])
    history: list[tuple[str, str]] = []
    for words in ("hi", "ok", "ok", "bye"):
        history.append(("user", words))
        state = await agent.ainvoke({"messages": list(history)}, config_of())
        history.append(("assistant", state["messages"][-1].text))
    assert [text for _, text in await kept(memory)] == ["hi", "one", "ok", "ok then", "ok", "ok then", "bye", "four"]
    assert [text for _, text in seen(model.calls[3])] == ["hi", "one", "ok", "ok then", "ok", "ok then", "bye"]


async def test_an_earlier_message_with_the_text_of_the_question_is_sent(small_memory: Memory) -> None:
    """An unknown history is sent to the model even if one of its messages equals the question."""
    model = ScriptedModel(["fine"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    history = [HumanMessage("yes", id="a"), AIMessage("Sure?", id="b"), HumanMessage("yes", id="c")]
    await agent.ainvoke({"messages": history}, config_of())
    assert [text for _, text in seen(model.calls[0])] == ["yes", "Sure?", "yes"]


async def test_one_message_object_in_two_calls_is_a_repeat(small_memory: Memory) -> None:
    """A message object that is sent twice is a repeat, because LangGraph sets its id; a dictionary is not."""
    model = ScriptedModel(["a", "b", "c"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    message = HumanMessage("hi")
    for _ in range(2):
        await agent.ainvoke({"messages": [message]}, config_of())
    for _ in range(2):
        await agent.ainvoke({"messages": [{"role": "user", "content": "ho"}]}, config_of())
    assert [text for _, text in await kept(small_memory)] == ["hi", "a", "ho", "b", "ho", "c"]


@pytest.mark.parametrize("failures", [1, 99])
async def test_a_run_that_ends_second_returns_the_first_answer(
    memory: Memory, memory_options: MemoryOptions, database_url: str, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A run that ends second returns the first answer; if it cannot be read after retries, the run fails."""
    monkeypatch.setattr("threadkeep.agent.turns._READ_PAUSES", (0.0, 0.01))
    gate, tell = Gate(), Session.tell
    left = iter(range(failures))

    async def failing(session: Session, message_id: str) -> Message | None:
        if next(left, None) is not None:
            raise StoreUnavailable("down")
        return await tell(session, message_id)

    slow = make_agent(ScriptedModel([[gate, "second"]]), [SessionMemory(memory)])
    asking = asyncio.create_task(ask(slow, "hi", message_id="m1"))
    await gate.reached()
    async with open_memory(database_url, options=memory_options) as other:
        faster = make_agent(ScriptedModel(["first"]), [SessionMemory(other, ordered=False)])  # as in another process
        assert await ask(faster, "hi", message_id="m1") == "first"
    monkeypatch.setattr(Session, "tell", failing)
    gate.open()
    if failures == 1:
        assert await asking == "first"
    else:
        with pytest.raises(StoreUnavailable, match="send the message again"):
            await asking
    monkeypatch.undo()
    assert await memory.pending.deliver()  # the database is available again
    assert await kept(memory) == [("user", "hi"), ("assistant", "first")]
    again = make_agent(ScriptedModel([]), [SessionMemory(memory)])
    assert await ask(again, "hi", message_id="m1") == "first"
