"""Tests of session and user ids that come from LangGraph's runtime context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel

from tests.agent.talking import add, adding, input_of, make_agent
from threadkeep import (
    InvalidInput,
    InvalidKey,
    Memory,
    SessionMemory,
    TurnOptions,
    WrongUser,
    history_tools,
    memory_node,
)
from threadkeep.testing import ScriptedModel


@dataclass
class Caller:
    """A context as in LangGraph's documentation."""

    user_id: str | None = None
    session_id: object = None
    thread_id: object = None


class Model(BaseModel):
    """A context with validation."""

    user_id: str
    session_id: str


@pytest.mark.parametrize(
    "context",
    [
        {"user_id": "ann", "session_id": "me@example.com"},
        {"user_id": "ann", "thread_id": "me@example.com"},
        Caller("ann", "me@example.com"),
        Caller("ann", thread_id="me@example.com"),
        Model(user_id="ann", session_id="me@example.com"),
    ],
    ids=["dict", "dict-thread", "dataclass", "dataclass-thread", "pydantic"],
)
async def test_a_context_names_session_and_user(small_memory: Memory, context: Any) -> None:
    model = ScriptedModel([adding(), "two", "again"])
    agent = make_agent(model, [SessionMemory(small_memory)], [add])
    await agent.ainvoke(input_of("1 + 1?"), context=context)
    await agent.ainvoke(input_of("and again?"), context=context)
    session = small_memory.session("me@example.com")
    assert [message.content for message in await session.tail(9)] == ["1 + 1?", "two", "and again?", "again"]
    assert (await session.info()).user_id == "ann"
    with pytest.raises(WrongUser):
        await agent.ainvoke(input_of("me too"), context={"session_id": "me@example.com", "user_id": "bob"})


async def test_the_config_comes_before_the_context(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["one", "two"]), [SessionMemory(small_memory)])
    await agent.ainvoke(
        input_of("hi"), {"configurable": {"thread_id": "a"}}, context={"session_id": "b", "user_id": "ann"}
    )
    await agent.ainvoke(
        input_of("hi"), {"configurable": {"user_id": "bob"}}, context={"session_id": "b", "user_id": "ann"}
    )
    owners = {info.session_id: info.user_id async for info in small_memory.sessions()}
    assert owners == {"a": "ann", "b": "bob"}


@pytest.mark.parametrize("context", [None, {}, {"user_id": "ann"}, Caller("ann"), {"session_id": ""}, object()])
async def test_a_context_without_a_session_id_is_refused(small_memory: Memory, context: Any) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(InvalidKey, match="session_id") as caught:
        await make_agent(model, [SessionMemory(small_memory)]).ainvoke(input_of("hi"), context=context)
    assert caught.value.reason == "empty"
    assert model.calls == []


@pytest.mark.parametrize("named", [{"a": 1}, ["a"], 1.5, True, b"a", object()])
async def test_ids_are_text_numbers_or_uuids(small_memory: Memory, named: object) -> None:
    """Other types are rejected, because their text form could be equal for different users."""
    agent = make_agent(ScriptedModel(["never"]), [SessionMemory(small_memory)])
    with pytest.raises(InvalidKey, match="a whole number or a UUID"):
        await agent.ainvoke(input_of("hi"), context={"session_id": named})
    with pytest.raises(InvalidInput, match="user_id"):
        await agent.ainvoke(input_of("hi"), context={"session_id": "a", "user_id": named})


async def test_the_empty_user_of_langgraphs_server_is_no_user(small_memory: Memory) -> None:
    """The empty user id of LangGraph's server without authentication is no user.

    Elsewhere an empty user id raises an error.
    """
    agent = make_agent(ScriptedModel(["one", "two", "three"]), [SessionMemory(small_memory)])
    nobody = {"thread_id": "a", "user_id": "", "langgraph_auth_user_id": ""}
    await agent.ainvoke(input_of("hi"), {"configurable": nobody})
    assert [info.user_id async for info in small_memory.sessions()] == [None]
    await agent.ainvoke(input_of("hi"), {"configurable": nobody | {"thread_id": "b"}}, context={"user_id": "ann"})
    assert [info.session_id async for info in small_memory.sessions(user_id="ann")] == ["b"]
    with pytest.raises(InvalidInput, match="user_id"):
        await agent.ainvoke(input_of("hi"), {"configurable": {"thread_id": "a", "user_id": ""}})


async def test_a_number_and_a_uuid_name_a_session(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["one", "two"]), [SessionMemory(small_memory)])
    await agent.ainvoke(input_of("hi"), context=Caller(session_id=UUID(int=7)))
    await agent.ainvoke(input_of("hi"), context=Caller(session_id=-100123))
    assert {info.session_id async for info in small_memory.sessions()} == {str(UUID(int=7)), "-100123"}


def of_both(config: RunnableConfig, runtime: Runtime[Any]) -> str | None:
    """Return an id from the config and the runtime."""
    return f"{config['configurable']['tenant']}/{runtime.context['chat']}"


def of_any(*arguments: Any) -> str | None:
    """Return an id from any arguments."""
    return of_both(*arguments)


class OfBoth:
    """A callable object."""

    def __call__(self, config: RunnableConfig, runtime: Runtime[Any]) -> str | None:
        """Return an id from the config and the runtime."""
        return of_both(config, runtime)


def of_config(config: RunnableConfig, separator: str = "/") -> str | None:
    """Return an id from the config, with an optional separator."""
    return f"acme{separator}{config['configurable']['chat']}"


@pytest.mark.parametrize("function", [of_both, of_any, OfBoth(), of_config], ids=["two", "any", "object", "default"])
async def test_functions_get_the_runtime_if_they_take_it(small_memory: Memory, function: Any) -> None:
    """A function receives the runtime as its second argument unless that parameter has a default."""
    options = SessionMemory(small_memory, session_id=function, user_id=lambda config, runtime: runtime.context["who"])
    agent = make_agent(ScriptedModel(["one"]), [options])
    await agent.ainvoke(
        input_of("hi"), {"configurable": {"tenant": "acme", "chat": 7}}, context={"chat": 7, "who": "ann"}
    )
    assert (await small_memory.session("acme/7").info()).user_id == "ann"


def test_an_id_option_that_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="session_id is a function"):
        TurnOptions(session_id="telegram:1")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="user_id is a function"):
        TurnOptions(user_id="ann")  # type: ignore[arg-type]


async def test_nodes_and_tools_use_the_session_of_the_context(small_memory: Memory) -> None:
    context: Any = {"session_id": "a/b", "user_id": "ann"}
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chat", memory_node(small_memory, ScriptedModel(["a parasol"])))
    graph.add_edge(START, "chat")
    graph.add_edge("chat", END)
    await graph.compile().ainvoke(input_of("what was it?"), context=context)
    assert await small_memory.session("a/b", user_id="ann").count() == 2
    tools = history_tools(small_memory)
    [search] = [one.name for one in tools if "search" in one.name]
    looking = AIMessage("", tool_calls=[{"name": search, "args": {"query": "parasol"}, "id": "call-1"}])
    model = ScriptedModel([looking, "it was that"])
    state = await make_agent(model, [SessionMemory(small_memory, max_messages=0)], tools).ainvoke(
        input_of("look it up"), context=context
    )
    assert "a parasol" in "".join(message.text for message in state["messages"] if message.type == "tool")
