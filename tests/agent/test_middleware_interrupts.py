"""Tests of runs that are interrupted for a person and resumed, in the same process or another one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from tests.agent.talking import ROOM, Agent, add, adding, ask, config_of, input_of, kept, make_agent, seen
from tests.conftest import url_of
from threadkeep import (
    Memory,
    MemoryOptions,
    Message,
    SessionMemory,
    WrongUser,
    create_checkpointer,
    load_settings,
    open_memory,
)
from threadkeep.history.pending import PendingOptions
from threadkeep.testing import ScriptedModel

APPROVE: Command[str] = Command(resume={"decisions": [{"type": "approve"}]})


@tool
def ask_person(question: str) -> str:
    """Ask the person something."""
    return f"they said {interrupt(question)}"


ASKING = AIMessage("One moment.", tool_calls=[{"name": "ask_person", "args": {"question": "sure?"}, "id": "call-1"}])


def with_approval(memory: Memory, model: ScriptedModel, saver: InMemorySaver) -> Agent:
    """Return an agent that requests approval of its tool calls."""
    approval = HumanInTheLoopMiddleware(interrupt_on={"add": True})
    return make_agent(model, [SessionMemory(memory), approval], [add], checkpointer=saver)


def with_question(memory: Memory, model: ScriptedModel, saver: InMemorySaver) -> Agent:
    """Return an agent whose tool interrupts the run."""
    return make_agent(model, [SessionMemory(memory)], [ask_person], checkpointer=saver)


CASES = [
    pytest.param(with_approval, adding(content="One moment."), APPROVE, "3", id="approval"),
    pytest.param(with_question, ASKING, Command(resume="yes"), "they said yes", id="interrupt"),
]
TURN = [("user", "hi"), ("assistant", "hello"), ("user", "do it"), ("assistant", "done")]


@pytest.mark.parametrize(("make", "calling", "resume", "result"), CASES)
async def test_a_resumed_run_is_one_turn(
    memory: Memory,
    make: Callable[[Memory, ScriptedModel, InMemorySaver], Agent],
    calling: AIMessage,
    resume: Command[str],
    result: str,
) -> None:
    model = ScriptedModel(["hello", calling, "done"])
    agent = make(memory, model, InMemorySaver())
    await ask(agent, "hi")
    state = await agent.ainvoke(input_of("do it"), config_of())
    assert state["__interrupt__"]
    assert await kept(memory) == TURN[:3]
    state = await agent.ainvoke(resume, config_of())
    assert state["messages"][-1].text == "done"
    assert await kept(memory) == TURN
    before = [("human", "hi"), ("ai", "hello"), ("human", "do it")]
    assert seen(model.calls[2]) == [*before, ("ai", "One moment."), ("tool", result)]


@pytest.mark.parametrize(("make", "calling", "resume", "result"), CASES)
async def test_another_process_resumes_a_run(
    memory_options: MemoryOptions,
    shared_url: str,
    make: Callable[[Memory, ScriptedModel, InMemorySaver], Agent],
    calling: AIMessage,
    resume: Command[str],
    result: str,
) -> None:
    saver = InMemorySaver()
    async with open_memory(shared_url, options=memory_options) as memory:
        agent = make(memory, ScriptedModel(["hello", calling]), saver)
        await ask(agent, "hi")
        await agent.ainvoke(input_of("do it"), config_of())
    async with open_memory(shared_url, options=memory_options) as memory:
        # The run was interrupted before this message, so its call does not contain it.
        await memory.session(ROOM).append([Message(role="assistant", content="the news")])
        model = ScriptedModel(["done"])
        await make(memory, model, saver).ainvoke(resume, config_of())
        before = [("human", "hi"), ("ai", "hello"), ("human", "do it")]
        assert seen(model.calls[0]) == [*before, ("ai", "One moment."), ("tool", result)]
        assert await kept(memory) == [*TURN[:3], ("assistant", "the news"), TURN[3]]
        messages = await memory.session(ROOM).tail(10)
        assert messages[2].run_id == messages[4].run_id != messages[0].run_id


@pytest.mark.filterwarnings("ignore:SummarizationMiddleware and SessionMemory")
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_another_process_finds_a_question_that_was_summarised(
    memory_options: MemoryOptions, shared_url: str, first: bool
) -> None:
    """A resumed run sends its question although `SummarizationMiddleware` removed it from the state."""
    saver = InMemorySaver()

    def agent_of(memory: Memory, replies: Sequence[AIMessage | str]) -> tuple[Agent, ScriptedModel]:
        summarizing = SummarizationMiddleware(
            ScriptedModel(["summary"] * 9), trigger=("messages", 4), keep=("messages", 2)
        )
        others = [summarizing, SessionMemory(memory)]
        model = ScriptedModel(replies)
        return make_agent(model, others if first else others[::-1], [add, ask_person], checkpointer=saver), model

    async with open_memory(shared_url, options=memory_options) as memory:
        agent, _ = agent_of(memory, ["hello", adding("c1"), adding("c2"), ASKING])
        await ask(agent, "hi")
        state = await agent.ainvoke(input_of("do it", "m1"), config_of())
        assert "do it" not in [message.text for message in state["messages"]]
    async with open_memory(shared_url, options=memory_options) as memory:
        agent, model = agent_of(memory, [adding("c3"), "done"])
        await agent.ainvoke(Command(resume="yes"), config_of())
        assert [[str(message.text) for message in call].count("do it") for call in model.calls] == [1, 1]
        assert await kept(memory) == TURN
        messages = await memory.session(ROOM).tail(2)
        assert (messages[1].answers, messages[1].run_id) == ("m1", messages[0].run_id)
        assert await ask(agent, "do it", message_id="m1") == "done"


@pytest.mark.parametrize("same_process", [True, False])
async def test_another_user_cannot_resume_a_run(
    memory_options: MemoryOptions, shared_url: str, same_process: bool
) -> None:
    saver, model = InMemorySaver(), ScriptedModel([ASKING, "done", "mine"])
    async with open_memory(shared_url, options=memory_options) as memory:
        agent = with_question(memory, model, saver)
        await agent.ainvoke(input_of("do it"), config_of(user_id="alice"))
        if not same_process:
            agent = with_question(memory, model, saver)
        with pytest.raises(WrongUser):
            await agent.ainvoke(Command(resume="yes"), config_of(user_id="mallory"))
        assert len(model.calls) == 1
        assert [role for role, _ in await kept(memory)] == ["user"]
        await agent.ainvoke(Command(resume="yes"), config_of(user_id="alice"))
        assert await kept(memory) == [("user", "do it"), ("assistant", "done")]


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
async def test_checkpoints_may_be_in_the_same_database(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    settings = load_settings(database_url=url_of(request, kind))
    options = dataclasses.replace(settings.memory_options(), pending=PendingOptions(folder=tmp_path / "pending"))
    url = settings.database_url.get_secret_value()
    for given, replies in ((input_of("do it"), [ASKING]), (Command(resume="yes"), ["done"])):
        async with open_memory(url, options=options) as memory, create_checkpointer(settings) as saver:
            agent = make_agent(ScriptedModel(replies), [SessionMemory(memory)], [ask_person], checkpointer=saver)
            await agent.ainvoke(given, config_of())
    async with open_memory(url, options=options) as memory:
        assert await kept(memory) == [("user", "do it"), ("assistant", "done")]


LATER: dict[str, list[AIMessage | str | BaseException]] = {
    "answered": ["two"],
    "failed": [ConnectionError()],
    "failed after tools": [adding(), ConnectionError()],
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
async def test_a_repeated_older_question_is_resumed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, later: str
) -> None:
    """A repeated older question that is interrupted is resumed in another process, without later turns in its call."""
    settings = load_settings(database_url=url_of(request, kind))
    options = dataclasses.replace(settings.memory_options(), pending=PendingOptions(folder=tmp_path / "pending"))
    url = settings.database_url.get_secret_value()
    asked = [input_of(name, name) for name in ("m0", "m1", "m2", "m1")]
    resume: Command[str] = Command(resume="yes")
    model = ScriptedModel(["zero", ConnectionError(), *LATER[later], ASKING, ASKING.model_copy(), "one"])
    for inputs in (asked, [resume], [resume, asked[1]]):
        async with open_memory(url, options=options) as memory, create_checkpointer(settings) as saver:
            agent = make_agent(model, [SessionMemory(memory)], [add, ask_person], checkpointer=saver)
            for one in inputs:
                with contextlib.suppress(ConnectionError):
                    await agent.ainvoke(one, config_of())
    asking = [("ai", "One moment."), ("tool", "they said yes")]
    assert seen(model.calls[-1]) == [("human", "m0"), ("ai", "zero"), ("human", "m1"), *asking, *asking]
    async with open_memory(url, options=options) as memory:
        stored = await memory.session(ROOM).tail(9)
    assert (stored[-1].content, stored[-1].answers, stored[-1].run_id) == ("one", "m1", stored[2].run_id)


async def test_a_run_that_is_never_resumed_does_not_block_the_next_question(small_memory: Memory) -> None:
    model = ScriptedModel([ASKING, "never mind", "fine"])
    agent = with_question(small_memory, model, InMemorySaver())
    await ask(agent, "do it")
    assert await ask(agent, "forget it") == "never mind"
    calls = {call["id"] for message in model.calls[1] if isinstance(message, AIMessage) for call in message.tool_calls}
    results = [message.tool_call_id for message in model.calls[1] if isinstance(message, ToolMessage)]
    assert results == list(calls)
    assert await kept(small_memory) == [("user", "do it"), ("user", "forget it"), ("assistant", "never mind")]


async def test_a_rejected_call_is_answered(small_memory: Memory) -> None:
    model = ScriptedModel([adding(), "as you wish"])
    agent = with_approval(small_memory, model, InMemorySaver())
    await ask(agent, "do it")
    await agent.ainvoke(Command(resume={"decisions": [{"type": "reject", "message": "no"}]}), config_of())
    assert seen(model.calls[1])[2] == ("tool", "User rejected the tool call for `add` with reason: no")
    assert await kept(small_memory) == [("user", "do it"), ("assistant", "as you wish")]
