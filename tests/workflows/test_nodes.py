"""Tests of the built-in nodes, each in a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.retrievers import BaseRetriever
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from tests.workflows import tools
from tests.workflows.desk import Desk, spoken
from threadkeep import InvalidInput, InvalidKey
from threadkeep.agent.provider_messages import OPENING
from threadkeep.observe import ContextBuilt, ExtraNotFound, KeyResolutionFailed
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.definition import python_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, answer_of, initial_state
from threadkeep.workflows.turn_ends import add_node

AGENT = "schema: 1\nname: one\nnodes:\n  answer: {kind: agent, tools: ['tests.workflows.tools:both'], next: end}"
CALL = AIMessage("", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])


async def test_an_agent_adds_its_final_message_and_nothing_else(desk: Desk) -> None:
    """The messages of the tool loop are in the trace, not in the state or the transcript."""
    desk.model = ScriptedModel([CALL, "It is on its way."])
    desk.use(AGENT)
    context = desk.context("one", session_id="room:1")
    graph = desk.compiler.compiled(desk.workflows.get("one"))
    config: Any = {"configurable": {"thread_id": context.run_id}}
    state: dict[str, Any] = {}
    traced: list[Any] = []
    modes: Any = ["values", "custom"]
    streamed: Any = graph.astream(initial_state("Where is 7?"), config, context=context, stream_mode=modes)
    async for mode, chunk in streamed:
        if mode == "values":
            state = chunk
        else:
            traced.append(chunk)
    assert spoken(state["messages"]) == [("human", "Where is 7?"), ("ai", "It is on its way.")]
    assert "CANARY-TOOL-RESULT" not in str(state)
    assert state["node_outputs"] == {"answer": "It is on its way."}
    assert [(one["kind"], one["node"], len(one["data"]["messages"])) for one in traced] == [
        ("agent_messages", "answer", 3)
    ]
    assert await desk.transcript("room:1") == [("user", "Where is 7?"), ("assistant", "It is on its way.")]


async def test_every_call_of_the_loop_goes_through_the_context_engine(desk: Desk) -> None:
    """Each model call of the tool loop has a manifest under the id of the run, and contains the earlier turns."""
    desk.model = ScriptedModel([CALL, "On its way.", CALL, "Still."])
    desk.use(AGENT)
    await desk.run("one", "Where is 7?", session_id="room:1")
    context = desk.context("one", session_id="room:1")
    await desk.run("one", "And now?", context=context)
    manifests = await desk.memory.manifests.of_run(context.run_id)
    assert [manifest.call for manifest in manifests] == [1, 2]
    assert spoken(desk.model.calls[2])[0] == ("human", "Where is 7?")
    assert [message.run_id for message in await desk.memory.session("room:1").tail(2)] == [context.run_id] * 2


@pytest.mark.parametrize("steps", [1, 3])
async def test_an_agent_makes_at_most_max_steps_model_calls(desk: Desk, steps: int) -> None:
    desk.use(AGENT.replace("next: end", f"max_steps: {steps}, next: end"))
    desk.model = ScriptedModel([*[CALL] * (steps - 1), "It is on its way."])
    answer = answer_of(await desk.run("one", "Where is my order?"))
    assert answer is not None
    assert answer.text == "It is on its way."
    desk.model = ScriptedModel(repeat(CALL))
    with pytest.raises(GraphRecursionError):
        await desk.run("one", "Where is my order?")
    assert len(desk.model.calls) == steps


async def test_a_run_without_a_session_stores_nothing(desk: Desk) -> None:
    desk.use(AGENT)
    for _ in range(2):
        await desk.run("one", "Hello")
    assert spoken(desk.model.calls[1]) == [("human", "Hello")]
    assert [info async for info in desk.memory.sessions()] == []
    assert len(desk.events.of(ContextBuilt)) == 2


async def test_an_answered_message_is_not_answered_again(desk: Desk) -> None:
    desk.use(AGENT)
    await desk.run("one", "Hello", session_id="room:1", message_id="telegram:42")
    state = await desk.run("one", "Hello", session_id="room:1", message_id="telegram:42")
    assert spoken(state["messages"])[-1] == ("ai", "reply 1")
    assert len(desk.model.calls) == 1


async def test_an_agent_is_shown_the_tool_calls_of_its_last_turn(desk: Desk) -> None:
    call = AIMessage("", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])
    desk.model = ScriptedModel([call, "It is on its way.", "Number 7."])
    desk.use(AGENT)
    await desk.run("one", "Where is my order?", session_id="room:1")
    await desk.run("one", "Which one was that?", session_id="room:1")
    assert [message.type for message in desk.model.calls[2]] == ["human", "ai", "tool", "ai", "human"]
    assert await desk.transcript("room:1") == [
        ("user", "Where is my order?"),
        ("assistant", "It is on its way."),
        ("user", "Which one was that?"),
        ("assistant", "Number 7."),
    ]


async def test_answers_of_earlier_nodes_are_not_stored(desk: Desk) -> None:
    """The answer of the last node is stored.

    Answers of earlier nodes are in its context, before the user message.
    """
    desk.use(
        """
        schema: 1
        name: two
        nodes:
          draft: {kind: model, system_prompt: "Draft for {{text}}", next: answer}
          answer: {kind: agent, next: end}
        """
    )
    await desk.run("two", "Why?", session_id="room:1")
    assert spoken(desk.model.calls[0]) == [("system", "Draft for Why?"), ("human", "Why?")]
    assert spoken(desk.model.calls[1]) == [("human", OPENING), ("ai", "reply 1"), ("human", "Why?")]
    assert await desk.transcript("room:1") == [("user", "Why?"), ("assistant", "reply 2")]


async def test_a_model_node_may_have_its_own_input(desk: Desk) -> None:
    """A node with its own `input` sends only that. Its answer is stored as the answer of the run."""
    desk.use(
        """
        schema: 1
        name: shorter
        nodes:
          answer: {kind: agent, next: shorten}
          shorten: {kind: model, input: "Shorten: {{results.answer.text}}", next: end}
        """
    )
    await desk.run("shorter", "Why?", session_id="room:1")
    assert spoken(desk.model.calls[1]) == [("human", "Shorten: reply 1")]
    assert await desk.transcript("room:1") == [("user", "Why?"), ("assistant", "reply 2")]


async def test_a_loop_ends_with_one_answer(desk: Desk) -> None:
    desk.use(
        """
        schema: 1
        name: loop
        nodes:
          answer: {kind: agent, next: check}
          check:
            kind: router
            rules: [{path: results.answer.text, matches: "reply 3$", next: end}]
            otherwise: answer
        """
    )
    await desk.run("loop", "Why?", session_id="room:1")
    assert len(desk.model.calls) == 3
    assert await desk.transcript("room:1") == [("user", "Why?"), ("assistant", "reply 3")]


async def test_parallel_branches_meet_in_one_node(desk: Desk) -> None:
    """A node with several predecessors waits for the longest branch, and is executed once."""
    desk.use(
        """
        schema: 1
        name: fan
        nodes:
          begin: {kind: template, text: x, next: [one, two]}
          one: {kind: model, next: more}
          more: {kind: template, text: "{{results.one.text}}!", next: last}
          two: {kind: model, next: last}
          last: {kind: template, text: "{{results.more.text}} {{results.two.text}}", as_message: true, next: end}
        """
    )
    state = await desk.run("fan", "Why?", session_id="room:1")
    assert sorted(state["results"]["last"]["text"].replace("!", "").split()) == ["1", "2", "reply", "reply"]
    transcript = await desk.transcript("room:1")
    assert transcript == [("user", "Why?"), ("assistant", state["results"]["last"]["text"])]


RETRIEVE = """
schema: 1
name: knowing
nodes:
  search: {kind: retrieve, retriever: 'tests.workflows.tools:make_shelf', next: answer}
  answer: {kind: agent, next: end}
"""


@pytest.mark.parametrize("session_id", ["room:1", None])
async def test_passages_are_in_the_state_and_in_the_context(desk: Desk, session_id: str | None) -> None:
    """Retrieved passages are in the results and in the context, with and without a session."""
    state = await desk.use(RETRIEVE).run("knowing", "How long does it take?", session_id=session_id)
    passages = state["results"]["search"]["passages"]
    assert passages[0] == {"id": "shipping-1", "text": "Parcels take three days.", "metadata": {"page": 3}}
    assert state["results"]["search"]["count"] == 2
    context, question = [str(message.text) for message in desk.model.calls[0]]
    assert "> Parcels take three days." in context
    assert "> Returns are free." in context
    assert question == "How long does it take?"


async def test_a_retriever_is_asked_with_the_turns_before(desk: Desk) -> None:
    desk.use(RETRIEVE)
    await desk.run("knowing", "I sent a parcel to Oslo.", session_id="room:1")
    await desk.run("knowing", "How long does it take?", session_id="room:1")
    assert tools.ASKED[-1] == "I sent a parcel to Oslo.\nreply 1\nHow long does it take?"


async def test_a_retriever_is_made_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that creates a retriever is called when its workflow is read, not in each run."""
    made: list[BaseRetriever] = []

    def make() -> BaseRetriever:
        made.append(tools.shelf)
        return tools.shelf

    monkeypatch.setattr(tools, "make_shelf", make)
    desk.use(RETRIEVE)
    read = len(made)
    await desk.run("knowing", "I sent a parcel to Oslo.", session_id="room:1")
    await desk.run("knowing", "How long does it take?", session_id="room:1")
    assert (read, len(made)) == (1, 1)


async def test_an_agent_answers_without_a_failing_retriever(desk: Desk) -> None:
    desk.use(RETRIEVE.replace("make_shelf", "broken"))
    state = await desk.run("knowing", "How long?", session_id="room:1")
    assert spoken(state["messages"])[-1] == ("ai", "reply 1")
    assert [event.error for event in desk.events.of(ExtraNotFound)] == ["ConnectionError"]


APPEND = """
schema: 1
name: news
nodes:
  tell: {kind: append_message, text: 'News: {{inputs.news}}', next: end}
"""


async def test_an_appended_message_is_stored_once(desk: Desk) -> None:
    desk.use(APPEND, AGENT)
    context = desk.context("news", session_id="room:1")
    for _ in range(2):
        await desk.run("news", context=context, inputs={"news": "we are open"})
    assert await desk.transcript("room:1") == [("assistant", "News: we are open")]
    await desk.run("one", "Really?", session_id="room:1")
    assert spoken(desk.model.calls[0]) == [("human", OPENING), ("ai", "News: we are open"), ("human", "Really?")]


async def test_a_message_may_go_to_another_session(desk: Desk) -> None:
    """The session of a message may be a template. A template that gives no key is refused and reported."""
    desk.use(APPEND.replace("next: end", "session: 'telegram:{{inputs.chat}}', next: end"))
    await desk.run("news", inputs={"news": "x", "chat": 7}, trigger="schedule")
    assert await desk.transcript("telegram:7") == [("assistant", "News: x")]
    with pytest.raises(InvalidKey, match="not a valid key in this run"):
        await desk.run("news", inputs={"news": "x"}, trigger="schedule")
    assert [event.reason for event in desk.events.of(KeyResolutionFailed)] == ["unresolved_template"]
    desk.use(APPEND)
    with pytest.raises(InvalidKey, match="no session to append to"):
        await desk.run("news", inputs={"news": "x"})


async def test_a_message_is_delivered_through_the_channel_of_its_session(desk: Desk) -> None:
    desk.use(APPEND.replace("next: end", "deliver: true, next: end"))
    outbox = desk.memory.channels.outbox
    await outbox.add("support", "telegram:1:7", "m1", address={"chat_id": "7"}, content="hello", waits=False)
    context = desk.context("news", session_id="telegram:1:7")
    for _ in range(2):
        state = await desk.run("news", context=context, inputs={"news": "we are open"})
        assert state["results"]["tell"]["delivery"] == "queued"
    assert await desk.transcript("telegram:1:7") == [("assistant", "News: we are open")]
    _, sent = await outbox.entries()
    assert (sent.channel, sent.content, sent.address) == ("support", "News: we are open", {"chat_id": "7"})
    state = await desk.run("news", session_id="room:1", inputs={"news": "x"})
    assert state["results"]["tell"]["delivery"] == "none"


async def test_a_message_may_go_to_a_session_of_any_id(desk: Desk) -> None:
    """A `session` without a template is used as the id."""
    desk.use(APPEND.replace("next: end", "session: 'C024.1700/me@example.com', next: end"))
    await desk.run("news", inputs={"news": "x"}, trigger="schedule")
    assert await desk.transcript("C024.1700/me@example.com") == [("assistant", "News: x")]


WAITING = "schema: 1\nname: wait\nnodes:\n  answer: {kind: agent, tools: ['tests.workflows.tools:waiting'], next: end}"


def calling(name: str, **arguments: str) -> AIMessage:
    """Return a model answer that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}"}])


async def test_a_resumed_agent_repeats_no_calls(desk: Desk) -> None:
    desk.model = ScriptedModel([calling("plain", text="a"), calling("ask_person", question="May I?"), "Thank you."])
    desk.use(WAITING)
    tools.RAN.clear()
    context = desk.context("wait", session_id="room:1")
    state = await desk.run("wait", "Do it", context=context)
    assert [one.value for one in state["__interrupt__"]] == [{"question": "May I?"}]
    assert await desk.transcript("room:1") == [("user", "Do it")]
    graph: Any = desk.compiler.compiled(desk.workflows.get("wait"))
    config = {"configurable": {"thread_id": context.run_id}}
    state = await graph.ainvoke(Command(resume="yes"), config, context=context)
    assert "The person says yes." in [str(message.text) for message in desk.model.calls[-1]]
    assert (tools.RAN, len(desk.model.calls)) == (["plain", "asked", "asked"], 3)
    assert await desk.transcript("room:1") == [("user", "Do it"), ("assistant", "Thank you.")]


async def test_nodes_work_in_a_custom_graph(desk: Desk) -> None:
    """A node works in any `StateGraph` with the workflow state.

    Without a run context it raises an error with the cure.
    """
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    add_node(builder, "answer", AgentNode(system_prompt="Be kind."))
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    desk.use(python_workflow("mine", builder))
    await desk.run("mine", "Hi", session_id="room:1")
    assert spoken(desk.model.calls[0]) == [("system", "Be kind."), ("human", "Hi")]
    graph = builder.compile()
    with pytest.raises(InvalidInput, match="context=RunContext"):
        await graph.ainvoke({"messages": []})


async def test_twenty_runs_at_once_of_one_graph_keep_apart(desk: Desk) -> None:
    def echo(messages: Sequence[BaseMessage]) -> str:
        return f"You said: {messages[-1].text}"

    desk.model = ScriptedModel([echo] * 40)
    desk.use(AGENT)
    for turn in range(2):
        await asyncio.gather(
            *(desk.run("one", f"I am {number} in turn {turn}", session_id=f"room:{number}") for number in range(20))
        )
    for number in range(20):
        texts = [content for _, content in await desk.transcript(f"room:{number}")]
        assert len(texts) == 4
        assert all(f"I am {number} in" in text for text in texts)
    for call in desk.model.calls:
        assert len({str(message.text).split(" in turn")[0].rpartition(" ")[2] for message in call}) == 1
