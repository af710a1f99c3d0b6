"""Tests of session and user ids from the run's config, and of the separation of users."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Literal

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, ask, config_of, input_of, kept, make_agent, seen
from threadkeep import (
    InvalidInput,
    InvalidKey,
    Memory,
    MemoryOptions,
    SessionMemory,
    WrongUser,
    open_memory,
)
from threadkeep.testing import Gate, ScriptedModel


async def test_two_users_of_one_agent_do_not_see_each_other(memory: Memory) -> None:
    gate = Gate()
    model = ScriptedModel(itertools.cycle([["fi", gate, "ne"]]))
    agent = make_agent(model, [SessionMemory(memory)])

    async def talk(user: str) -> None:
        for n in range(3):
            await agent.ainvoke(input_of(f"{user} says {n}"), config_of(f"telegram:{user}", user_id=user))

    async with asyncio.TaskGroup() as tasks:
        for user in ("ann", "bob"):
            tasks.create_task(talk(user))
        await gate.reached()
        gate.open()
    assert len(model.calls) == 6
    for call in model.calls:
        assert len({text.split()[0] for kind, text in seen(call) if kind == "human"}) == 1
    for user in ("ann", "bob"):
        assert [text for role, text in await kept(memory, f"telegram:{user}") if role == "user"] == [
            f"{user} says {n}" for n in range(3)
        ]
        assert (await memory.session(f"telegram:{user}").info()).user_id == user


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_another_users_session_is_refused_before_the_model_is_called(memory: Memory, checkpointed: bool) -> None:
    model = ScriptedModel(["hello", "never"])
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=InMemorySaver() if checkpointed else None)
    await agent.ainvoke(input_of("I am Ann"), config_of(user_id="ann"))
    with pytest.raises(WrongUser, match=ROOM):
        await agent.ainvoke(input_of("who is there?"), config_of(user_id="bob"))
    assert len(model.calls) == 1
    assert len(await kept(memory)) == 2


async def test_a_session_without_a_user_rejects_a_run_with_one(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["hello"]), [SessionMemory(small_memory)])
    await ask(agent, "hi")
    with pytest.raises(WrongUser):
        await agent.ainvoke(input_of("hi"), config_of(user_id="bob"))


@pytest.mark.parametrize("configurable", [{}, {"thread_id": ""}, {"thread_id": None}])
async def test_a_run_without_a_thread_id_raises_an_error_with_the_cure(
    small_memory: Memory, configurable: dict[str, object]
) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(InvalidKey, match="thread_id") as caught:
        await make_agent(model, [SessionMemory(small_memory)]).ainvoke(
            input_of("hi"), {"configurable": dict(configurable)}
        )
    assert caught.value.reason == "empty"
    assert model.calls == []
    assert [info async for info in small_memory.sessions()] == []


@pytest.mark.parametrize(
    ("thread_id", "reason"),
    [
        ("telegram:", "empty_part"),
        ("a" * 257, "too_long"),
        ("telegram:1\n", "invalid_chars"),
    ],
)
async def test_an_invalid_thread_id_is_refused(small_memory: Memory, thread_id: str, reason: str) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(InvalidKey) as caught:
        await ask(make_agent(model, [SessionMemory(small_memory)]), "hi", thread_id=thread_id)
    assert caught.value.reason == reason
    assert model.calls == []


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_any_valid_text_is_used_as_the_session_id(
    memory_options: MemoryOptions, transcripts: Literal["tables", "graph_store"]
) -> None:
    threads = ["me@example.com", "C024.1700000000.12", "+351912345678", "a/b", "🙂"]
    async with open_memory("sqlite://", options=replace(memory_options, transcripts=transcripts)) as memory:
        for thread_id in threads:
            model = ScriptedModel(["one", "two"])
            agent = make_agent(model, [SessionMemory(memory)])
            await ask(agent, f"I am {thread_id}", thread_id=thread_id)
            await ask(agent, "who am I?", thread_id=thread_id)
            assert [message.text for message in model.calls[1]] == [f"I am {thread_id}", "one", "who am I?"]
            assert await memory.session(thread_id).count() == 4
        assert {info.session_id async for info in memory.sessions()} == set(threads)


async def test_an_empty_user_id_is_refused(small_memory: Memory) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(InvalidInput, match="user_id"):
        await make_agent(model, [SessionMemory(small_memory)]).ainvoke(input_of("hi"), config_of(user_id=""))
    assert model.calls == []


async def test_functions_may_derive_ids_from_the_config(small_memory: Memory) -> None:
    def session_id(config: RunnableConfig) -> str:
        return f"telegram:{config['configurable']['chat_id']}"

    def user_id(config: RunnableConfig) -> str:
        return str(config["metadata"]["who"])

    middleware = SessionMemory(small_memory, session_id=session_id, user_id=user_id)
    agent = make_agent(ScriptedModel(["hello", "hello"]), [middleware])
    config: RunnableConfig = {"configurable": {"chat_id": -100123}, "metadata": {"who": "ann"}}
    await agent.ainvoke(input_of("hi"), config)
    assert (await small_memory.session("telegram:-100123").info()).user_id == "ann"
    await make_agent(ScriptedModel(["hi"]), [SessionMemory(small_memory)]).ainvoke(
        input_of("hi"), {"configurable": {"thread_id": 12345}}
    )
    assert await small_memory.session("12345").count() == 2


async def test_a_function_that_finds_no_session_is_an_error(small_memory: Memory) -> None:
    model = ScriptedModel(["never"])
    agent = make_agent(model, [SessionMemory(small_memory, session_id=lambda config: None)])
    with pytest.raises(InvalidKey):
        await ask(agent, "hi")
    assert model.calls == []
