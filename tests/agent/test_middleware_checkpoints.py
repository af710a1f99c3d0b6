"""Tests of `SessionMemory` with a checkpointer: the transcript has the history, the state has the steps."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.agent.context_laws import check_state, rows_of, sent_calls
from tests.agent.talking import ROOM, add, adding, ask, config_of, input_of, kept, make_agent, numbered, seen
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, Message, SessionMemory
from threadkeep.agent.provider_messages import OPENING
from threadkeep.observe import ContextBuilt
from threadkeep.testing import ScriptedModel


async def test_history_is_not_doubled(memory: Memory) -> None:
    model = ScriptedModel([adding(), "3", "I added"])
    agent = make_agent(model, [SessionMemory(memory)], [add], checkpointer=InMemorySaver())
    await ask(agent, "1 + 2?")
    await ask(agent, "how?")
    assert seen(model.calls[2]) == [
        ("human", "1 + 2?"),
        ("ai", ""),
        ("tool", "3"),
        ("ai", "3"),
        ("human", "how?"),
    ]
    assert len(await kept(memory)) == 4


async def test_messages_of_other_channels_are_merged_in_order(small_memory: Memory) -> None:
    session = small_memory.session(ROOM)
    model = ScriptedModel([adding(), "3", "fine", "yes"])
    agent = make_agent(model, [SessionMemory(small_memory)], [add], checkpointer=InMemorySaver())
    await session.append([Message(role="assistant", content="welcome")])
    await ask(agent, "1 + 2?")
    await session.append([Message(role="assistant", content="the news"), Message(role="user", content="thanks")])
    await ask(agent, "and now?")
    await session.append([Message(role="assistant", content="more news")])
    await ask(agent, "still there?")
    assert seen(model.calls[3]) == [
        ("human", OPENING),
        ("ai", "welcome"),
        ("human", "1 + 2?"),
        ("ai", ""),
        ("tool", "3"),
        ("ai", "3"),
        ("ai", "the news"),
        ("human", "thanks"),
        ("human", "and now?"),
        ("ai", "fine"),
        ("ai", "more news"),
        ("human", "still there?"),
    ]
    state = await agent.aget_state(config_of())
    assert len(state.values["messages"]) == 8


async def test_an_empty_state_receives_the_whole_transcript(small_memory: Memory) -> None:
    limits = SessionMemory(small_memory)
    first = make_agent(ScriptedModel(["hello"]), [limits], checkpointer=InMemorySaver())
    await ask(first, "I am Ann")
    model = ScriptedModel(["Ann"])
    await ask(make_agent(model, [limits], checkpointer=InMemorySaver()), "who am I?")
    assert seen(model.calls[0]) == [("human", "I am Ann"), ("ai", "hello"), ("human", "who am I?")]


async def test_after_a_reset_older_messages_of_the_state_are_not_sent(memory: Memory) -> None:
    model = ScriptedModel(["hello", adding(), "3", "who?", "the same"])
    agent = make_agent(model, [SessionMemory(memory)], [add], checkpointer=InMemorySaver(), system_prompt="be kind")
    await ask(agent, "I am Ann")
    await ask(agent, "1 + 2?")
    await memory.session(ROOM).append([Message(role="assistant", content="the news")])
    await memory.session(ROOM).reset()
    await ask(agent, "who am I?")
    assert seen(model.calls[3]) == [("system", "be kind"), ("human", "who am I?")]
    await ask(agent, "again?")
    assert seen(model.calls[4])[1:] == [("human", "who am I?"), ("ai", "who?"), ("human", "again?")]
    assert await memory.session(ROOM).count() == 9


async def test_a_reset_in_the_middle_of_a_run_leaves_its_question(small_memory: Memory) -> None:
    @tool
    async def forget() -> str:
        """Forget what was said."""
        await small_memory.session(ROOM).reset()
        return "forgotten"

    call = AIMessage("", tool_calls=[{"name": "forget", "args": {}, "id": "call-1"}])
    model = ScriptedModel(["hello", call, "done", "who?"])
    agent = make_agent(model, [SessionMemory(small_memory)], [forget], checkpointer=InMemorySaver())
    await ask(agent, "I am Ann")
    await ask(agent, "forget me")
    assert ("human", "forget me") in seen(model.calls[2])
    await ask(agent, "who am I?")
    assert ("human", "I am Ann") not in seen(model.calls[3])


async def test_system_messages_of_the_state_outlive_a_reset(small_memory: Memory) -> None:
    model = ScriptedModel(["hello", "who?"])
    agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": [SystemMessage("be kind"), HumanMessage("I am Ann")]}, config_of())
    await small_memory.session(ROOM).reset()
    await ask(agent, "who am I?")
    assert seen(model.calls[1]) == [("system", "be kind"), ("human", "who am I?")]


async def test_omitted_messages_are_counted_once(small_memory: Memory, events: RecordedEvents) -> None:
    await small_memory.session(ROOM).append(numbered(3))
    model = ScriptedModel(["one", "two", "three", "four"])
    agent = make_agent(model, [SessionMemory(small_memory, max_messages=4)], checkpointer=InMemorySaver())
    for n in range(4):
        await ask(agent, f"question {n}")
    assert [(event.messages, event.dropped) for event in events.of(ContextBuilt)] == [(4, 0), (5, 1), (3, 5), (5, 5)]


async def test_a_long_state_makes_no_long_record(small_memory: Memory) -> None:
    """The manifest lists omitted messages of the state as ranges with their sizes."""
    steps = [
        message
        for n in range(400)
        for message in (
            HumanMessage(f"sum {n}?", id=f"q{n}"),
            adding(f"call-{n}").model_copy(update={"id": f"c{n}"}),
            ToolMessage("3", tool_call_id=f"call-{n}", id=f"t{n}"),
        )
    ]
    question = HumanMessage("and now?", id="q")
    state: list[BaseMessage] = [*steps, AIMessage("3", id="a"), question]
    model = ScriptedModel(["four"])
    agent = make_agent(model, [SessionMemory(small_memory, max_messages=20, max_tokens=500)], [add])
    await agent.ainvoke({"messages": state}, config_of())
    [sent] = await sent_calls(small_memory, model.calls, ROOM)
    check_state(sent, state, question, await rows_of(small_memory, ROOM))
    [stretch] = sent.manifest.left_out
    assert (stretch.id, stretch.reason) == ("q0", "over_limit")
    assert stretch.count + len(sent.manifest.entries) == len(state)
    assert len(json.dumps(sent.manifest.to_dict())) < 12_000


async def test_a_tool_may_put_a_human_message_after_the_question(small_memory: Memory) -> None:
    @tool
    def take_photo() -> Command[str]:
        """Take a photo."""
        photo = HumanMessage([{"type": "image", "base64": "aGk=", "mime_type": "image/png"}])
        return Command(update={"messages": [ToolMessage("taken", tool_call_id="call-1"), photo]})

    call = AIMessage("", tool_calls=[{"name": "take_photo", "args": {}, "id": "call-1"}])
    model = ScriptedModel([call, "a cat", "a dog"])
    memory_of = SessionMemory(small_memory)
    agent = make_agent(model, [memory_of], [take_photo])
    await agent.ainvoke(input_of("what is there?", "telegram:1"), config_of())
    assert [message.type for message in model.calls[1]] == ["human", "ai", "tool", "human"]
    question, answer = await small_memory.session(ROOM).tail(10)
    assert (question.content, answer.content) == ("what is there?", "a cat")
    assert question.run_id == answer.run_id
    assert await ask(agent, "what is there?", message_id="telegram:1") == "a cat"
    assert len(model.calls) == 2


async def test_an_agent_that_is_called_without_new_messages_speaks_again(small_memory: Memory) -> None:
    """As without a memory, the model is called; both answers belong to the question."""
    model = ScriptedModel(["one", "two", "three"])
    agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=InMemorySaver())
    await ask(agent, "hi", message_id="m1")
    state = await agent.ainvoke({"messages": []}, config_of())
    assert [message.text for message in state["messages"]] == ["hi", "one", "two"]
    assert await ask(agent, "hi", message_id="m1") == "two"
    assert await ask(agent, "and?") == "three"
    assert await kept(small_memory) == [
        ("user", "hi"), ("assistant", "one"), ("assistant", "two"), ("user", "and?"), ("assistant", "three")
    ]  # fmt: skip
