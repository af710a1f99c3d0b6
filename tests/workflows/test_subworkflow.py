"""Tests of child workflows: their input, their isolation, their depth, cycles, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage

from tests.workflows.desk import Desk, spoken
from threadkeep import ChildFailed, InvalidWorkflow
from threadkeep.agent.provider_messages import OPENING
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.resources import ChildRequest, ChildResult
from threadkeep.workflows.state import initial_state

CHILD = """
schema: 1
name: child
nodes:
  think: {kind: agent, tools: ['tests.workflows.tools:find_order'], next: end}
"""
PARENT = """
schema: 1
name: parent
nodes:
  first: {kind: model, input: 'Look into {{text}}', next: ask}
  ask: {kind: subworkflow, workflow: child, %s next: last}
  last: {kind: agent, next: end}
"""


class KeptRequests:
    """A runner of children that returns a fixed result and records the requests."""

    def __init__(self, **result: Any) -> None:
        self.requests: list[ChildRequest] = []
        self._result = {"run_id": "c1", "output": {"verdict": 7}, "summary": "It is seven.", "status": "done", **result}

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Record the request, and return the result."""
        self.requests.append(request)
        return ChildResult(**self._result)


async def asked(desk: Desk, options: str, children: KeptRequests, **given: Any) -> dict[str, Any]:
    """Run the parent with this runner of children."""
    desk.use(CHILD, PARENT % options)
    resources = replace(desk.resources, children=children)
    context = replace(desk.context("parent", resources=resources), user_context={"plan": "gold"})
    return await desk.run("parent", "the order", context=context, **given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", "reply 1"),
        ("input_source: last_message,", "reply 1"),
        ("input_source: node_output, source_node_id: first,", "reply 1"),
        ("input_source: nothing,", ""),
        ("input_source: '',", ""),
    ],
)
async def test_a_child_gets_a_text_and_the_user_context_and_no_messages(desk: Desk, options: str, text: str) -> None:
    children = KeptRequests()
    state = await asked(desk, options, children, user_context={"language": "de"})
    [request] = children.requests
    assert request.input == {
        "text": text,
        "parent_execution_id": request.parent_run_id,
        "user_context": {"language": "de"},
    }
    assert (request.workflow, request.node_id, request.depth) == ("child", "ask", 1)
    assert (request.with_session, request.deadline_seconds, request.ancestors) == (False, None, ("parent",))
    assert state["node_outputs"]["ask"] == {"verdict": 7}
    assert ("ai", "It is seven.") in spoken(state["messages"])
    assert state["results"]["ask"]["status"] == "done"


class Heard(AsyncCallbackHandler):
    """A callback handler that records what a caller of the parent receives."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **more: Any) -> None:
        """Record the input of a model call."""
        self.texts += [str(message.text) for one in messages for message in one]

    async def on_tool_end(self, output: Any, **more: Any) -> None:
        """Record the output of a tool."""
        self.texts.append(str(output))


async def test_parent_and_child_do_not_see_each_others_messages(desk: Desk) -> None:
    """The child sees no message of the parent, and the caller and the parent see no inner message of the child."""
    call = AIMessage("CANARY-CHILD-THOUGHT", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])
    desk.model = ScriptedModel(["A step.", call, "The order is on its way.", "Done."])
    desk.use(CHILD, PARENT % "")
    context = desk.context("parent", session_id="room:1")
    heard = Heard()
    config: Any = {"configurable": {"thread_id": context.run_id}, "callbacks": [heard]}
    state = initial_state("CANARY-QUESTION", inputs={"note": "CANARY-INPUT"})
    graph: Any = desk.compiler.compiled(desk.workflows.get("parent"))
    modes = ["values", "updates", "messages", "custom", "debug"]
    streamed = [
        chunk async for chunk in graph.astream(state, config, context=context, stream_mode=modes, subgraphs=True)
    ]
    child_calls = [call for call in desk.model.calls if not any("CANARY-QUESTION" in str(one.text) for one in call)]
    assert [spoken(call)[0] for call in child_calls] == [("human", "A step.")] * 2
    assert "CANARY" not in "".join(str(one.text) for one in child_calls[0])
    parent_calls = [call for call in desk.model.calls if call not in child_calls]
    assert len(parent_calls) == 2
    for text in (str(streamed), *heard.texts, *(str(one.text) for call in parent_calls for one in call)):
        assert "CANARY-CHILD" not in text
        assert "CANARY-TOOL-RESULT" not in text
    assert spoken(parent_calls[-1]) == [
        ("human", OPENING),
        ("ai", "A step."),
        ("ai", "The order is on its way."),
        ("human", "CANARY-QUESTION"),
    ]
    assert await desk.transcript("room:1") == [("user", "CANARY-QUESTION"), ("assistant", "Done.")]


def nested(name: str, child: str, more: str = "") -> str:
    """Return a workflow that runs another."""
    return f"schema: 1\nname: {name}\n{more}\nnodes:\n  ask: {{kind: subworkflow, workflow: {child}, next: end}}"


LEAF = "schema: 1\nname: leaf\nnodes:\n  say: {kind: template, text: 'leaf: {{text}}', as_message: true, next: end}"


async def test_workflows_nest_as_deep_as_is_allowed(desk: Desk) -> None:
    """Three levels of children are allowed by default, and the answer of the lowest is returned."""
    desk.use(LEAF, nested("c", "leaf"), nested("b", "c"), nested("a", "b"))
    state = await desk.run("a", "hello")
    assert spoken(state["messages"])[-1] == ("ai", "leaf: hello")


def test_too_deep_a_nesting_is_refused_when_it_is_built(desk: Desk) -> None:
    """A workflow may raise or lower the limit with `max_depth`."""
    chain = [LEAF, nested("c", "leaf"), nested("b", "c"), nested("a", "b")]
    with pytest.raises(InvalidWorkflow, match=r"top → a → b → c → leaf is 4 levels deep, but only 3 are allowed"):
        desk.use(*chain, nested("top", "a"))
    desk.use(*chain, nested("top", "a", "options: {max_depth: 4}"))
    with pytest.raises(InvalidWorkflow, match="1 are allowed"):
        desk.use(LEAF, nested("c", "leaf"), nested("b", "c", "options: {max_depth: 1}"))


def test_a_cycle_is_refused_when_it_is_built(desk: Desk) -> None:
    with pytest.raises(InvalidWorkflow, match="its own workflow, which is a cycle"):
        desk.use(nested("a", "a"))
    with pytest.raises(InvalidWorkflow, match=r"in a cycle \(a → b → c → a\)") as caught:
        desk.use(nested("a", "b"), nested("b", "c"), nested("c", "a"))
    assert len(caught.value.problems) == 1


async def test_depth_and_cycles_are_checked_at_run_time(desk: Desk) -> None:
    """A child that would be too deep or in a cycle at run time is refused before it starts."""
    desk.use(LEAF, nested("b", "leaf"))
    deep = replace(desk.context("b"), depth=3)
    with pytest.raises(ChildFailed, match="4 levels below") as caught:
        await desk.run("b", "x", context=deep)
    assert caught.value.status == "refused"
    below = replace(desk.context("b"), depth=1, ancestors=("leaf",))
    with pytest.raises(ChildFailed, match="in a cycle \\(leaf → b → leaf\\)"):
        await desk.run("b", "x", context=below)
    alone = desk.context("b", resources=replace(desk.resources, children=None))
    with pytest.raises(ChildFailed, match="no runner of children"):
        await desk.run("b", "x", context=alone)


@pytest.mark.parametrize("status", ["failed", "cancelled", "deadline", "interrupted"])
async def test_a_child_without_a_result_is_reported_as_such(desk: Desk, status: str) -> None:
    """The run fails with the status of the child, or continues without a result with `on_failure: continue`."""
    with pytest.raises(ChildFailed, match=f"ended with status {status}") as caught:
        await asked(desk, "", KeptRequests(status=status, output=None, summary=""))
    assert (caught.value.status, caught.value.run_id, caught.value.workflow) == (status, "c1", "child")
    state = await asked(desk, "on_failure: continue,", KeptRequests(status=status, output=None, summary=""))
    assert state["results"]["ask"] == {"status": status, "run_id": "c1", "output": None, "summary": ""}
    assert state["node_outputs"]["ask"] is None
    assert [kind for kind, _ in spoken(state["messages"])] == ["human", "ai", "ai"]


async def test_the_error_of_a_child_is_not_quoted(desk: Desk) -> None:
    desk.model = ScriptedModel(["A step.", ConnectionError("CANARY-ERROR")])
    desk.use(CHILD, PARENT % "")
    with pytest.raises(ChildFailed) as caught:
        await desk.run("parent", "x")
    assert caught.value.status == "failed"
    assert "CANARY" not in str(caught.value)


async def test_a_child_that_asks_a_person_fails_in_process(desk: Desk) -> None:
    """A child in the parent's process that asks a person fails the run. The question cannot be answered there."""
    call = AIMessage("", tool_calls=[{"name": "ask_person", "args": {"question": "May I?"}, "id": "c1"}])
    desk.model = ScriptedModel(["A step.", call])
    desk.use(CHILD.replace("find_order", "ask_person"), PARENT % "")
    with pytest.raises(ChildFailed, match="ended with status waiting"):
        await desk.run("parent", "x")


@pytest.mark.parametrize(
    ("of_child", "of_node"), [("", "deadline_seconds: 0.05,"), ("options: {deadline_seconds: 0.05}\n", "")]
)
async def test_a_child_has_a_deadline(desk: Desk, of_child: str, of_node: str) -> None:
    """The node or the child's own workflow sets the deadline."""
    gate = Gate()
    desk.model = ScriptedModel(["A step.", ["slow ", gate]])
    desk.use(CHILD + of_child, PARENT % of_node)
    with pytest.raises(ChildFailed, match="deadline"):
        await desk.run("parent", "x")


async def test_a_cancelled_parent_cancels_its_child(desk: Desk) -> None:
    gate = Gate()
    desk.model = ScriptedModel(["A step.", ["slow ", gate], "never"])
    desk.use(CHILD, PARENT % "")
    running = asyncio.create_task(desk.run("parent", "x"))
    await gate.reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [task for task in asyncio.all_tasks() if "InProcessChildren._execute" in repr(task.get_coro())]


async def test_a_child_with_a_session_does_not_use_its_parents(desk: Desk) -> None:
    desk.use(CHILD, PARENT % "session: true,")
    await desk.run("parent", "Hello", session_id="room:1")
    ids = [info.session_id async for info in desk.memory.sessions()]
    assert len(ids) == 2
    [own] = [one for one in ids if one.startswith("child:")]
    assert await desk.transcript(own) == [("user", "reply 1"), ("assistant", "reply 2")]


async def test_simultaneous_parents_get_the_results_of_their_own_children(desk: Desk) -> None:
    def echo(messages: Sequence[BaseMessage]) -> str:
        return f"<{messages[-1].text}>"

    desk.model = ScriptedModel([echo] * 60)
    desk.use(CHILD, PARENT % "")
    states = await asyncio.gather(*(desk.run("parent", f"q{number}") for number in range(20)))
    for number, state in enumerate(states):
        assert state["node_outputs"]["ask"] == {"text": f"<<Look into q{number}>>"}
