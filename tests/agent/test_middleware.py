"""Tests of `SessionMemory` with agents of `create_agent`: what the model receives and what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import (
    ROOM,
    add,
    adding,
    ask,
    config_of,
    input_of,
    kept,
    kept_with_status,
    make_agent,
    numbered,
    seen,
)
from tests.recorded_events import RecordedEvents
from threadkeep import InvalidInput, Memory, SessionMemory, history_tools, knowledge_tools, open_memory, recorded
from threadkeep.agent.provider_messages import OPENING
from threadkeep.observe import ContextBuilt, HistoryTruncated
from threadkeep.testing import ScriptedModel


@pytest.mark.parametrize("wrong", [open_memory("sqlite://"), "sqlite://", Memory, None])
def test_a_memory_that_is_not_open_is_refused(wrong: Any) -> None:
    """If a program passes an address or forgets `async with`, it gets an error that says how to open a memory."""
    graph = make_agent(ScriptedModel(), [])
    uses: list[Callable[[], object]] = [
        lambda: SessionMemory(wrong),
        lambda: recorded(graph, wrong),
        lambda: history_tools(wrong),
        lambda: knowledge_tools(wrong),
    ]
    for use in uses:
        with pytest.raises(InvalidInput, match="async with open_memory"):
            use()


async def test_an_agent_remembers_the_turn_before(memory: Memory) -> None:
    model = ScriptedModel(["hello Ann", "you are Ann"])
    agent = make_agent(model, [SessionMemory(memory)])
    assert await ask(agent, "I am Ann") == "hello Ann"
    assert await ask(agent, "who am I?") == "you are Ann"
    assert seen(model.calls[1]) == [("human", "I am Ann"), ("ai", "hello Ann"), ("human", "who am I?")]
    assert await kept_with_status(memory) == [
        ("user", "I am Ann", "complete"),
        ("assistant", "hello Ann", "complete"),
        ("user", "who am I?", "complete"),
        ("assistant", "you are Ann", "complete"),
    ]


async def test_of_25_messages_the_model_sees_the_newest_20_and_the_question(memory: Memory) -> None:
    await memory.session(ROOM).append(numbered(25))
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [SessionMemory(memory)], system_prompt="be kind"), "and now?")
    said = seen(model.calls[0])
    assert said[0] == ("system", "be kind")
    assert [text for _, text in said[1:-1]] == [OPENING, *(f"message {n}" for n in range(6, 26))]
    assert said[-1] == ("human", "and now?")
    assert await memory.session(ROOM).count() == 27


async def test_omitted_messages_are_counted(small_memory: Memory, events: RecordedEvents) -> None:
    await small_memory.session(ROOM).append(numbered(25))
    await ask(make_agent(ScriptedModel(["fine"]), [SessionMemory(small_memory)], system_prompt="be kind"), "and now?")
    (built,) = events.of(ContextBuilt)
    assert (built.messages, built.dropped, built.session_id) == (22, 5, ROOM)
    assert built.run_id == (await small_memory.session(ROOM).tail(1))[0].run_id
    assert [event.dropped for event in events.of(HistoryTruncated)] == [5]


async def test_a_loop_with_tools_sees_history_and_its_own_steps(memory: Memory) -> None:
    model = ScriptedModel(["hello", adding(content="Let me add."), "3"])
    agent = make_agent(model, [SessionMemory(memory)], [add])
    await ask(agent, "hi")
    assert await ask(agent, "1 + 2?") == "3"
    before = [("human", "hi"), ("ai", "hello"), ("human", "1 + 2?")]
    assert seen(model.calls[1]) == before
    assert seen(model.calls[2]) == [*before, ("ai", "Let me add."), ("tool", "3")]
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello"), ("user", "1 + 2?"), ("assistant", "3")]


async def test_sessions_do_not_see_each_other(small_memory: Memory) -> None:
    model = ScriptedModel(["one", "two"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    await ask(agent, "first room", thread_id="telegram:1")
    await ask(agent, "second room", thread_id="telegram:2")
    assert seen(model.calls[1]) == [("human", "second room")]
    assert await kept(small_memory, "telegram:2") == [("user", "second room"), ("assistant", "two")]


@pytest.mark.parametrize(("max_messages", "max_tokens"), [(0, 4000), (20, 0), (0, None), (0, 0), (None, 0)])
async def test_a_limit_of_zero_sends_only_the_question(
    small_memory: Memory, max_messages: int | None, max_tokens: int | None
) -> None:
    await small_memory.session(ROOM).append(numbered(4))
    model = ScriptedModel(["fine"])
    await ask(
        make_agent(model, [SessionMemory(small_memory, max_messages=max_messages, max_tokens=max_tokens)]), "and now?"
    )
    assert seen(model.calls[0]) == [("human", "and now?")]
    assert await small_memory.session(ROOM).count() == 6


async def test_without_limits_the_model_receives_all_messages(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(250))
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [SessionMemory(small_memory, max_messages=None, max_tokens=None)]), "and now?")
    assert [text for _, text in seen(model.calls[0])] == [*(f"message {n}" for n in range(1, 251)), "and now?"]


async def test_a_reset_is_honoured(memory: Memory) -> None:
    """After a reset the model receives nothing older, and the transcript keeps all messages."""
    model = ScriptedModel(["hello", "who are you?"])
    agent = make_agent(model, [SessionMemory(memory)])
    await ask(agent, "I am Ann")
    await memory.session(ROOM).reset()
    await ask(agent, "who am I?")
    assert seen(model.calls[1]) == [("human", "who am I?")]
    assert await memory.session(ROOM).count() == 4


async def test_the_text_of_a_message_with_images_is_stored(small_memory: Memory) -> None:
    """The model receives the image once; the transcript has the text and a mark."""
    model = ScriptedModel(["a cat", "yes"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    question = HumanMessage([{"type": "text", "text": "what is it?"}, image])
    await agent.ainvoke({"messages": [question]}, config_of())
    assert model.calls[0][-1].content == [{"type": "text", "text": "what is it?"}, image]
    assert await kept(small_memory) == [("user", "what is it?\n[image]"), ("assistant", "a cat")]
    await ask(agent, "sure?")
    assert [message.content for message in model.calls[1]] == ["what is it?\n[image]", "a cat", "sure?"]


async def test_an_image_without_text_is_answered_and_stored(small_memory: Memory) -> None:
    model = ScriptedModel(["a cat"])
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    await make_agent(model, [SessionMemory(small_memory)]).ainvoke({"messages": [HumanMessage([image])]}, config_of())
    assert model.calls[0][-1].content == [image]
    assert await kept(small_memory) == [("user", "[image]"), ("assistant", "a cat")]


async def test_original_messages_are_restored(small_memory: Memory) -> None:
    """With `keep_originals`, later calls contain images and metadata of earlier turns."""
    said = AIMessage("a cat", response_metadata={"model_provider": "scripted"}, additional_kwargs={"mood": "sure"})
    model = ScriptedModel([said, "yes"])
    agent = make_agent(model, [SessionMemory(small_memory, keep_originals=True)])
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    question = HumanMessage([{"type": "text", "text": "what is it?"}, image], id="telegram:7", name="Ann")
    await agent.ainvoke({"messages": [question]}, config_of())
    await ask(agent, "sure?")
    first, second, _ = model.calls[1]
    assert (first.content, first.id, first.name) == (question.content, "telegram:7", "Ann")
    assert (second.text, second.additional_kwargs["mood"]) == ("a cat", "sure")
    assert await kept(small_memory) == [
        ("user", "what is it?\n[image]"),
        ("assistant", "a cat"),
        ("user", "sure?"),
        ("assistant", "yes"),
    ]


async def test_messages_are_stored_with_their_ids_and_run(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["hello"]), [SessionMemory(small_memory)])
    config = config_of(message_metadata={"chat_type": "group"})
    state = await agent.ainvoke(input_of("hi", "telegram:42"), config)
    question, answer = await small_memory.session(ROOM).tail(2)
    assert (question.id, question.metadata) == ("telegram:42", {"chat_type": "group"})
    assert (answer.id, answer.metadata) == (state["messages"][-1].id, {})
    assert question.run_id is not None
    assert question.run_id == answer.run_id


async def test_several_messages_of_one_input_are_one_question(small_memory: Memory) -> None:
    model = ScriptedModel(["hello Ann"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    await agent.ainvoke({"messages": [HumanMessage("hi"), HumanMessage("I am Ann")]}, config_of())
    assert seen(model.calls[0]) == [("human", "hi"), ("human", "I am Ann")]
    assert await kept(small_memory) == [("user", "hi"), ("user", "I am Ann"), ("assistant", "hello Ann")]


async def test_example_turns_in_the_input_are_no_part_of_the_session(small_memory: Memory) -> None:
    model = ScriptedModel(["4"])
    examples = [SystemMessage("count"), HumanMessage("one and one"), AIMessage("2"), HumanMessage("two and two")]
    await make_agent(model, [SessionMemory(small_memory)]).ainvoke({"messages": examples}, config_of())
    assert seen(model.calls[0]) == [
        ("system", "count"),
        ("human", "one and one"),
        ("ai", "2"),
        ("human", "two and two"),
    ]
    assert await kept(small_memory) == [("user", "two and two"), ("assistant", "4")]


async def test_an_empty_answer_is_not_stored(small_memory: Memory) -> None:
    await ask(make_agent(ScriptedModel([AIMessage("")]), [SessionMemory(small_memory)]), "hi")
    assert await kept(small_memory) == [("user", "hi")]


async def test_a_proactive_message_is_part_of_the_history(small_memory: Memory) -> None:
    model = ScriptedModel(["hello", "the news"])
    agent = make_agent(model, [SessionMemory(small_memory)])
    await ask(agent, "hi")
    await small_memory.session(ROOM).append([numbered(2)[1].with_fields(content="Breaking: rain")])
    await ask(agent, "what was that?")
    assert seen(model.calls[1]) == [
        ("human", "hi"),
        ("ai", "hello"),
        ("ai", "Breaking: rain"),
        ("human", "what was that?"),
    ]


async def test_two_agents_over_one_memory_share_the_session(small_memory: Memory) -> None:
    first, second = ScriptedModel(["one"]), ScriptedModel(["two"])
    await ask(make_agent(first, [SessionMemory(small_memory)]), "to the first")
    await ask(make_agent(second, [SessionMemory(small_memory)]), "to the second")
    assert seen(second.calls[0]) == [("human", "to the first"), ("ai", "one"), ("human", "to the second")]


async def test_the_final_state_has_only_the_runs_own_messages(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(4))
    agent = make_agent(ScriptedModel([adding(), "3"]), [SessionMemory(small_memory)], [add])
    state: dict[str, Any] = await agent.ainvoke(input_of("1 + 2?"), config_of())
    assert [type(message) for message in state["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_answer_to_a_system_message_is_stored(memory: Memory, checkpointed: bool) -> None:
    model = ScriptedModel(["hello", "good morning", "rain"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=saver)
    await ask(agent, "hi")
    await agent.ainvoke({"messages": [SystemMessage("Wish a good morning.")]}, config_of())
    assert {("human", "hi"), ("ai", "hello"), ("system", "Wish a good morning.")} == set(seen(model.calls[1]))
    await ask(agent, "and the weather?")
    said = [(kind, text) for kind, text in seen(model.calls[2]) if kind != "system"]
    assert said == [("human", "hi"), ("ai", "hello"), ("ai", "good morning"), ("human", "and the weather?")]
    assert [role for role, _ in await kept(memory)] == ["user", "assistant", "assistant", "user", "assistant"]
