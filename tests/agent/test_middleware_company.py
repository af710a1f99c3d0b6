"""Tests of `SessionMemory` with structured answers, tools with `return_direct`, and other middleware."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import langsmith
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ContextEditingMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRequest,
    ModelResponse,
    PIIMiddleware,
    SummarizationMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    dynamic_prompt,
    hook_config,
)
from langchain.agents.middleware.types import ExtendedModelResponse
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel

from tests.agent.context_laws import check_shape
from tests.agent.talking import (
    ROOM,
    Agent,
    add,
    adding,
    ask,
    config_of,
    input_of,
    kept,
    make_agent,
    numbered,
    seen,
    stream,
)
from threadkeep import ContextManifest, Memory, SessionMemory, count_tokens, rebuild
from threadkeep.errors import MiddlewareWarning
from threadkeep.testing import ScriptedModel


class City(BaseModel):
    """A city."""

    name: str
    people: int


@dataclasses.dataclass
class Town:
    """A town."""

    name: str


def structured(memory: Memory, model: ScriptedModel, form: Any, saver: InMemorySaver | None = None) -> Agent:
    """Return an agent with a structured response."""
    return create_agent(model, [], middleware=[SessionMemory(memory)], response_format=form, checkpointer=saver)


def calling(tool_name: str, content: str = "", /, **arguments: object) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage(content, tool_calls=[{"name": tool_name, "args": arguments, "id": "call-1"}])


async def test_calls_are_not_moved_to_threads_of_langsmith(small_memory: Memory) -> None:
    """The middleware's hooks do not run in the threads that LangSmith uses for traced coroutine functions."""
    moved: list[object] = []

    async def in_thread(_: object, context: Context, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        moved.append(function)
        return context.run(function, *args, **named)

    langsmith.set_runtime_overrides(aio_to_thread=in_thread)
    try:
        agent = make_agent(ScriptedModel([adding(), "3"]), [SessionMemory(small_memory)], [add])
        assert await ask(agent, "1 and 2?") == "3"
    finally:
        langsmith.set_runtime_overrides(aio_to_thread=None)
    assert not moved


async def test_a_structured_answer_is_stored_as_json(small_memory: Memory) -> None:
    model = ScriptedModel([calling("City", name="Rome", people=3), calling("City", name="Oslo", people=1)])
    agent = structured(small_memory, model, ToolStrategy(City))
    state = await agent.ainvoke(input_of("a big city?"), config_of())
    assert state["structured_response"] == City(name="Rome", people=3)
    (_, answer) = await kept(small_memory)
    assert json.loads(answer[1]) == {"name": "Rome", "people": 3}
    await agent.ainvoke(input_of("a small one?"), config_of())
    assert seen(model.calls[1]) == [("human", "a big city?"), ("ai", answer[1]), ("human", "a small one?")]


async def test_a_structured_answer_beside_a_tool_call_is_sent_to_later_calls(small_memory: Memory) -> None:
    both = AIMessage("", tool_calls=[*adding().tool_calls, *calling("City", name="Rome", people=3).tool_calls])
    both.tool_calls[1]["id"] = "call-2"
    model = ScriptedModel([both, "fine"])
    agent: Agent = create_agent(
        model, [add], middleware=[SessionMemory(small_memory)], response_format=ToolStrategy(City)
    )
    await agent.ainvoke(input_of("a city?"), config_of())
    await agent.ainvoke(input_of("and now?"), config_of())
    answer = (await kept(small_memory))[1][1]
    assert json.loads(answer) == {"name": "Rome", "people": 3}
    assert [message.type for message in model.calls[1]] == ["human", "ai", "tool", "ai", "human"]
    assert [message.text for message in model.calls[1]][3:] == [answer, "and now?"]
    check_shape(model.calls[1])
    (newest, *_) = await small_memory.manifests.of_session(ROOM)
    assert seen(await rebuild(newest)) == seen(model.calls[1])


@pytest.mark.parametrize(
    ("schema", "name"),
    [(Town, "Town"), ({"title": "Place", "type": "object", "properties": {"name": {"type": "string"}}}, "Place")],
)
async def test_structured_answers_of_other_kinds_are_json_too(small_memory: Memory, schema: Any, name: str) -> None:
    agent = structured(small_memory, ScriptedModel([calling(name, name="Rome")]), ToolStrategy(schema))
    await agent.ainvoke(input_of("a city?"), config_of())
    assert json.loads((await kept(small_memory))[1][1]) == {"name": "Rome"}


@pytest.mark.parametrize("keep", [False, True])
async def test_a_structured_answer_with_text_is_stored_and_sent_as_its_text(small_memory: Memory, keep: bool) -> None:
    """With `keep_originals`, the original has the call of the structured response, which later calls do not get."""
    model = ScriptedModel([calling("City", "Rome, of course.", name="Rome", people=3), "yes"])
    memory = SessionMemory(small_memory, keep_originals=keep)
    agent: Agent = create_agent(model, middleware=[memory], response_format=ToolStrategy(City))
    await agent.ainvoke(input_of("a city?"), config_of())
    assert await kept(small_memory) == [("user", "a city?"), ("assistant", "Rome, of course.")]
    await agent.ainvoke(input_of("sure?"), config_of())
    assert [message.type for message in model.calls[1]] == ["human", "ai", "human"]
    answer = model.calls[1][1]
    assert isinstance(answer, AIMessage)
    assert answer.tool_calls == []


async def test_a_structured_answer_is_sent_once_with_a_checkpointer(small_memory: Memory) -> None:
    model = ScriptedModel([calling("City", name="Rome", people=3), calling("City", name="Oslo", people=1)])
    agent = structured(small_memory, model, ToolStrategy(City), InMemorySaver())
    await agent.ainvoke(input_of("a big city?"), config_of())
    await agent.ainvoke(input_of("a small one?"), config_of())
    assert [message.type for message in model.calls[1]] == ["human", "ai", "tool", "human"]


async def test_a_providers_structured_answer_is_stored(small_memory: Memory) -> None:
    model = ScriptedModel(['{"name": "Rome", "people": 3}'])
    agent = structured(small_memory, model, ProviderStrategy(City))
    state = await agent.ainvoke(input_of("a city?"), config_of())
    assert state["structured_response"] == City(name="Rome", people=3)
    assert (await kept(small_memory))[1] == ("assistant", '{"name": "Rome", "people": 3}')


async def test_an_invalid_structured_answer_is_requested_again(small_memory: Memory) -> None:
    model = ScriptedModel([calling("City", name="Rome"), calling("City", name="Rome", people=3)])
    agent = structured(small_memory, model, AutoStrategy(City))
    await agent.ainvoke(input_of("a city?"), config_of())
    assert len(model.calls) == 2
    assert [role for role, _ in await kept(small_memory)] == ["user", "assistant"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_direct_result_of_a_tool_is_stored_as_the_answer(small_memory: Memory, checkpointed: bool) -> None:
    @tool(return_direct=True)
    def price(thing: str) -> str:
        """Say what a thing costs."""
        return f"a {thing} is 3 euros"

    model = ScriptedModel([calling("price", thing="tea"), "yes"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory)], [price], checkpointer=saver)
    await ask(agent, "tea?")
    assert await kept(small_memory) == [("user", "tea?"), ("assistant", "a tea is 3 euros")]
    await ask(agent, "really?")
    told = [str(message.text) for message in model.calls[1]]
    assert told.count("a tea is 3 euros") == 1


@pytest.mark.parametrize("first", [False, True])
async def test_the_error_of_a_direct_tool_is_stored_as_the_answer(small_memory: Memory, first: bool) -> None:
    @tool(return_direct=True)
    def price(thing: str) -> str:
        """Say what a thing costs."""
        raise ValueError(thing)

    others = [ToolErrorMiddleware(lambda _, __: "no price"), SessionMemory(small_memory)]
    agent = make_agent(ScriptedModel([calling("price", thing="tea")]), others[:: 1 if first else -1], [price])
    assert await ask(agent, "tea?") == "no price"
    assert await kept(small_memory) == [("user", "tea?"), ("assistant", "no price")]


@pytest.mark.parametrize("checkpointed", [True, False])
async def test_all_direct_results_of_a_message_are_stored_in_one_answer(
    small_memory: Memory, checkpointed: bool
) -> None:
    @tool(return_direct=True)
    def price(thing: str) -> str:
        """Say what a thing costs."""
        return f"a {thing} is 3 euros"

    calls = [{"name": "price", "args": {"thing": thing}, "id": thing} for thing in ("tea", "cake")]
    model = ScriptedModel([AIMessage("", tool_calls=calls), "yes"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory)], [price], checkpointer=saver)
    await ask(agent, "tea and cake?", message_id="m1")
    both = "a tea is 3 euros\n\na cake is 3 euros"
    assert await kept(small_memory) == [("user", "tea and cake?"), ("assistant", both)]
    assert await ask(agent, "tea and cake?", message_id="m1") == both
    await ask(agent, "really?")
    between = ["", *both.split("\n\n")] if checkpointed else [both]
    assert [str(message.text) for message in model.calls[1]] == ["tea and cake?", *between, "really?"]


class Counting(AgentMiddleware):
    """Middleware that records the number of messages of each model call."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Any) -> Any:
        """Record the number of messages."""
        self.lengths.append(len(request.messages))
        return await handler(request)


@pytest.mark.filterwarnings("ignore::threadkeep.MiddlewareWarning")
@pytest.mark.parametrize("first", [True, False])
async def test_other_middleware_may_be_listed_before_or_after(memory: Memory, first: bool) -> None:
    """Other middleware may be listed before or after the memory; after it, middleware receives the history."""
    await memory.session(ROOM).append(numbered(4))
    counting = Counting()

    @dynamic_prompt
    def prompt(request: ModelRequest[Any]) -> str:
        return "be kind"

    company: list[AgentMiddleware[Any, Any, Any]] = [
        counting,
        prompt,
        ModelFallbackMiddleware(ScriptedModel(["never"])),
        ToolRetryMiddleware(max_retries=1, initial_delay=0.0),
        ContextEditingMiddleware(),
        ModelCallLimitMiddleware(run_limit=5),
    ]
    remembering = SessionMemory(memory, max_tokens=100)
    model = ScriptedModel([adding(), "3"])
    agent = make_agent(model, [remembering, *company] if first else [*company, remembering], [add])
    assert await stream(agent, "1 + 2?") == "3"
    assert counting.lengths == ([5, 7] if first else [1, 3])
    for call in model.calls:
        assert call[0].text == "be kind"
        assert [message.text for message in call[1:5]] == [f"message {n}" for n in range(1, 5)]
        assert count_tokens(call) <= 100
    assert (await kept(memory))[4:] == [("user", "1 + 2?"), ("assistant", "3")]


async def test_a_fallback_model_has_the_same_memory(small_memory: Memory) -> None:
    await small_memory.session(ROOM).append(numbered(2))
    second = ScriptedModel(["fine"])
    fallback = ModelFallbackMiddleware(second)
    await ask(make_agent(ScriptedModel([ConnectionError("down")]), [SessionMemory(small_memory), fallback]), "hi")
    assert [text for _, text in seen(second.calls[0])] == ["message 1", "message 2", "hi"]
    assert (await kept(small_memory))[-1] == ("assistant", "fine")


async def test_the_answer_of_middleware_that_ends_the_run_is_stored(small_memory: Memory) -> None:
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    agent = make_agent(ScriptedModel([adding()]), [SessionMemory(small_memory), limit], [add])
    said = await ask(agent, "1 + 2?")
    assert "limit" in said
    assert await kept(small_memory) == [("user", "1 + 2?"), ("assistant", said)]


@pytest.mark.parametrize("first", [True, False])
async def test_redacted_text_stays_redacted_in_later_calls(small_memory: Memory, first: bool) -> None:
    """A question that other middleware redacts in the state is stored and later sent redacted, in both orders."""
    hiding = PIIMiddleware("email", strategy="redact")

    class Early(AgentMiddleware):
        """Middleware that redacts once at the start of the run."""

        async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
            return await hiding.abefore_model(state, runtime)

    model = ScriptedModel(["noted", "fine"])
    remembering = SessionMemory(small_memory)
    agent = make_agent(model, [Early(), remembering] if first else [remembering, Early()])
    await ask(agent, "I am ann@example.org")
    hidden = "I am [REDACTED_EMAIL]"
    assert model.calls[0][0].text == hidden
    assert (await kept(small_memory))[0] == ("user", hidden)
    await ask(agent, "and now?")
    assert model.calls[1][0].text == hidden


class Newest(AgentMiddleware):
    """Middleware that keeps only the two newest messages of the state, as in LangChain's documentation."""

    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Remove the others."""
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-2:]]}


def summarizing() -> SummarizationMiddleware:
    """Return middleware that replaces all but the two newest messages of the state by a summary."""
    return SummarizationMiddleware(ScriptedModel(["summary"] * 9), trigger=("messages", 4), keep=("messages", 2))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("shortening", [Newest, summarizing])
@pytest.mark.filterwarnings("ignore:SummarizationMiddleware and SessionMemory")
async def test_a_question_that_other_middleware_removes_from_the_state_is_sent(
    memory: Memory, shortening: Callable[[], AgentMiddleware], checkpointed: bool, first: bool
) -> None:
    """Each model call contains the redacted question once, before its steps, and the manifest lists it as input."""
    model = ScriptedModel(["hello", adding("c1"), adding("c2"), adding("c3"), "3"])
    shorten = [PIIMiddleware("email"), shortening()]
    middleware = [SessionMemory(memory), *shorten] if first else [*shorten, SessionMemory(memory)]
    agent = make_agent(model, middleware, [add], checkpointer=InMemorySaver() if checkpointed else None)
    await ask(agent, "hi")
    await ask(agent, "1 + 2? ann@example.org")
    question = ("human", "1 + 2? [REDACTED_EMAIL]")
    for call in model.calls[1:]:
        check_shape(call)
        assert seen(call).count(question) == 1
        steps = seen(call)[seen(call).index(question) + 1 :]
        assert steps[-2:] == ([] if call is model.calls[1] else [("ai", ""), ("tool", "3")])
        assert len(steps) == len([kind for kind, _ in steps if kind in ("ai", "tool")])
    for stored, call in zip(await memory.manifests.of_session(ROOM), reversed(model.calls), strict=True):
        assert seen(await rebuild(stored)) == seen(call)
        assert "input" in [entry.section for entry in ContextManifest.from_dict(stored.manifest).entries]
    assert (await kept(memory))[2:] == [("user", question[1]), ("assistant", "3")]


class Guard(AgentMiddleware):
    """Middleware that ends the run of a forbidden question, as in LangChain's documentation."""

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Answer in place of the model."""
        if "forbidden" not in state["messages"][-1].text:
            return None
        return {"messages": [AIMessage("I may not answer that.")], "jump_to": "end"}


async def test_a_question_that_a_guard_answers_is_stored(small_memory: Memory) -> None:
    agent: Any = create_agent(ScriptedModel(["hello"]), [], middleware=[Guard(), SessionMemory(small_memory)])
    for words in ("forbidden 1", "hi", "forbidden 2"):
        await agent.ainvoke(input_of(words), config_of())
    refusal = ("assistant", "I may not answer that.")
    assert await kept(small_memory) == [
        ("user", "forbidden 1"), refusal, ("user", "hi"), ("assistant", "hello"), ("user", "forbidden 2"), refusal
    ]  # fmt: skip


class Refusal(AgentMiddleware):
    """Middleware that adds another answer at the end of the run."""

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Append an answer."""
        return {"messages": [AIMessage("I cannot say that.")]}


async def test_an_answer_that_is_appended_after_the_memory_causes_a_warning(small_memory: Memory) -> None:
    agent: Any = create_agent(ScriptedModel(["secret"]), [], middleware=[Refusal(), SessionMemory(small_memory)])
    with pytest.warns(MiddlewareWarning, match="list SessionMemory before it"):
        await agent.ainvoke(input_of("q"), config_of())
    cured: Any = create_agent(ScriptedModel(["secret"]), [], middleware=[SessionMemory(small_memory), Refusal()])
    await cured.ainvoke(input_of("q"), config_of("room:2"))
    assert await kept(small_memory, "room:2") == [("user", "q"), ("assistant", "I cannot say that.")]


class NoteWithReply(AgentMiddleware):
    """Middleware that adds a human message to each model response with a command."""

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """Return the reply and a command that adds the message."""
        command: Command[Any] = Command(update={"messages": [HumanMessage("note")]})
        return ExtendedModelResponse(model_response=await handler(request), command=command)


class NoteAfterModel(AgentMiddleware):
    """Middleware that adds a human message in its `after_model` hook."""

    async def aafter_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Return the message."""
        return {"messages": [HumanMessage("note")]}


@pytest.mark.parametrize("note", [NoteWithReply, NoteAfterModel])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_an_answer_before_an_added_human_message_is_stored(
    small_memory: Memory, note: type[AgentMiddleware], first: bool
) -> None:
    model, memory = ScriptedModel([adding(), "one", "two"]), SessionMemory(small_memory)
    agent = make_agent(model, [note(), memory] if first else [memory, note()], [add])
    for words in ("first", "first", "second"):
        await agent.ainvoke(input_of(words, words), config_of())
    assert await kept(small_memory) == [
        ("user", "first"), ("assistant", "one"), ("user", "second"), ("assistant", "two")
    ]  # fmt: skip
