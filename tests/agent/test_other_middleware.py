"""Tests of LangChain's own middleware with `SessionMemory`, in both orders.

docs/how-to/other-middleware.md has the table.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import langchain.agents.middleware as middlewares
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    FilesystemFileSearchMiddleware,
    HostExecutionPolicy,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ProviderToolSearchMiddleware,
    ShellToolMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from tests.agent.talking import ROOM, add, adding, config_of, input_of
from tests.docs.pages import DOCS
from threadkeep import Memory, Message, SessionMemory
from threadkeep.testing import ScriptedModel

DOWN = ConnectionError("the provider is down")
QUIET: dict[str, Any] = {"max_retries": 1, "initial_delay": 0.0, "jitter": False}


class Tooled(ScriptedModel):
    """A scripted model that accepts tools and names a provider."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model itself; the script determines its tool calls."""
        return self

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": "openai"}


class Picking(ScriptedModel):
    """A model that selects the tool `add`."""

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        """Return a runnable that selects the tool `add`."""
        return RunnableLambda(lambda _: {"tools": ["add"]})


class ClosingPipe:
    """A shell's pipe that closes itself at its end."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe

    def readline(self) -> str:
        """Return the next line, or an empty text at the end."""
        line = self._pipe.readline()
        if not line:
            self._pipe.close()
        return line


class ClosingPolicy(HostExecutionPolicy):
    """An execution policy whose shells close their pipes.

    LangChain leaves them to the garbage collector, which may run in any later test.
    """

    def spawn(self, **options: Any) -> subprocess.Popen[str]:
        """Start a shell and return its process."""
        process = super().spawn(**options)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout = cast("IO[str]", ClosingPipe(process.stdout))
        process.stderr = cast("IO[str]", ClosingPipe(process.stderr))
        return process


# Middleware that does not change two plain turns with a tool call in the first one.
TRANSPARENT: dict[str, Callable[[], Any]] = {
    "ContextEditingMiddleware": ContextEditingMiddleware,
    "FilesystemFileSearchMiddleware": lambda: FilesystemFileSearchMiddleware(root_path=str(Path(__file__).parent)),
    "HumanInTheLoopMiddleware": lambda: HumanInTheLoopMiddleware({"other": True}),
    "LLMToolEmulator": lambda: LLMToolEmulator(model=ScriptedModel(["3"])),
    "LLMToolSelectorMiddleware": lambda: LLMToolSelectorMiddleware(model=Picking()),
    "ModelCallLimitMiddleware": lambda: ModelCallLimitMiddleware(run_limit=5),
    "ModelFallbackMiddleware": lambda: ModelFallbackMiddleware(ScriptedModel(["never"])),
    "ModelRetryMiddleware": lambda: ModelRetryMiddleware(**QUIET),
    "PIIMiddleware": lambda: PIIMiddleware("email"),
    "ProviderToolSearchMiddleware": lambda: ProviderToolSearchMiddleware(searchable_tools=["add"]),
    "ShellToolMiddleware": lambda: ShellToolMiddleware(execution_policy=ClosingPolicy()),
    "SummarizationMiddleware": lambda: SummarizationMiddleware(ScriptedModel(["never"]), trigger=("messages", 50)),
    "TodoListMiddleware": TodoListMiddleware,
    "ToolCallLimitMiddleware": lambda: ToolCallLimitMiddleware(run_limit=5),
    "ToolErrorMiddleware": lambda: ToolErrorMiddleware(lambda error, request: None),
    "ToolRetryMiddleware": lambda: ToolRetryMiddleware(max_retries=1),
}
# Middleware of LangChain 1.5, which test_decision_middleware.py tests.
TESTED_APART = {"AutoModeMiddleware", "ModelRefusalMiddleware", "ModelRouterMiddleware"}
pytestmark = [
    # test_middleware_warnings.py tests these warnings.
    pytest.mark.filterwarnings("ignore::threadkeep.MiddlewareWarning"),
]


def agent_of(memory: Memory, model: ScriptedModel, other: Any, first: bool, **options: Any) -> Any:
    """Return an agent with the other middleware before or after the memory."""
    remembering = SessionMemory(memory)
    order = [other, remembering] if first else [remembering, other]
    return create_agent(model, options.pop("tools", [add]), middleware=order, **options)


async def said(memory: Memory) -> list[tuple[str, str, str]]:
    """Return role, status and text of the stored messages."""
    return [(one.role, one.status, one.content) for one in await memory.session(ROOM).tail(50)]


def test_the_documentation_lists_every_middleware() -> None:
    members = {name: getattr(middlewares, name) for name in dir(middlewares)}
    classes = {name for name, one in members.items() if isinstance(one, type) and issubclass(one, AgentMiddleware)}
    names = classes - {"AgentMiddleware"}
    assert names - TESTED_APART == set(TRANSPARENT)
    page = (DOCS / "how-to" / "other-middleware.md").read_text()
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointer", "none"])
@pytest.mark.parametrize("name", TRANSPARENT)
async def test_each_message_is_stored_and_sent_once(
    small_memory: Memory, name: str, checkpointed: bool, first: bool
) -> None:
    model = Tooled(replies=[adding(), "3", "fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = agent_of(small_memory, model, TRANSPARENT[name](), first, checkpointer=saver)
    await agent.ainvoke(input_of("1 + 2?"), config_of())
    await agent.ainvoke(input_of("and now?"), config_of())
    texts = [text for _, _, text in await said(small_memory)]
    assert texts == ["1 + 2?", "3", "and now?", "fine"]
    sent = [message.text for message in model.calls[2] if message.type in ("human", "ai") and message.text]
    assert sent == ["1 + 2?", "3", "and now?"]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_redacted_messages_are_stored_and_sent_redacted(small_memory: Memory, first: bool) -> None:
    model = ScriptedModel(["write to c@d.co", "fine"])
    pii = PIIMiddleware("email", apply_to_output=True)
    agent = agent_of(small_memory, model, pii, first, tools=[])
    await agent.ainvoke(input_of("I am a@b.co"), config_of())
    await agent.ainvoke(input_of("and now?"), config_of())
    hidden = ["I am [REDACTED_EMAIL]", "write to [REDACTED_EMAIL]", "and now?"]
    assert [text for _, _, text in await said(small_memory)] == [*hidden, "fine"]
    assert [message.text for message in model.calls[1]] == hidden


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_an_apology_for_a_failed_model_is_stored_as_failed(small_memory: Memory, first: bool) -> None:
    model = ScriptedModel([DOWN, DOWN, "hello"])
    agent = agent_of(small_memory, model, ModelRetryMiddleware(**QUIET), first, tools=[])
    state = await agent.ainvoke(input_of("hi"), config_of())
    apology = state["messages"][-1].text
    assert await said(small_memory) == [("user", "complete", "hi"), ("assistant", "failed", apology)]
    await agent.ainvoke(input_of("are you there?"), config_of())
    assert apology not in [message.text for message in model.calls[2]]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_the_answer_of_a_fallback_is_complete(small_memory: Memory, first: bool) -> None:
    fallback = ModelFallbackMiddleware(ScriptedModel(["from the other"]))
    await agent_of(small_memory, ScriptedModel([DOWN]), fallback, first, tools=[]).ainvoke(input_of("hi"), config_of())
    assert (await said(small_memory))[-1] == ("assistant", "complete", "from the other")


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(
    "limit",
    [
        lambda: ModelCallLimitMiddleware(run_limit=1),
        lambda: ToolCallLimitMiddleware(run_limit=1, exit_behavior="end"),
        lambda: ToolCallLimitMiddleware(tool_name="add", run_limit=1, exit_behavior="end"),
    ],
    ids=["model calls", "tool calls", "calls of a tool"],
)
async def test_the_notice_of_a_call_limit_is_stored_as_failed(
    small_memory: Memory, limit: Callable[[], Any], first: bool
) -> None:
    second = adding().model_copy(update={"tool_calls": [{**adding().tool_calls[0], "id": "call-2"}]})
    agent = agent_of(small_memory, Tooled(replies=[adding(), second, "never"]), limit(), first)
    state = await agent.ainvoke(input_of("1 + 2?"), config_of())
    notice = state["messages"][-1].text
    assert "limit" in notice
    assert await said(small_memory) == [("user", "complete", "1 + 2?"), ("assistant", "failed", notice)]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointer", "none"])
async def test_a_summary_of_other_middleware_is_no_question(
    small_memory: Memory, checkpointed: bool, first: bool
) -> None:
    summarizing = SummarizationMiddleware(
        ScriptedModel([f"summary {n}" for n in range(9)]), trigger=("messages", 4), keep=("messages", 2)
    )
    model = ScriptedModel([f"answer {n}" for n in range(6)])
    saver = InMemorySaver() if checkpointed else None
    agent = agent_of(small_memory, model, summarizing, first, tools=[], checkpointer=saver)
    for number in range(6):
        await agent.ainvoke(input_of(f"question {number}"), config_of())
    texts = [text for _, _, text in await said(small_memory)]
    assert texts == [words for n in range(6) for words in (f"question {n}", f"answer {n}")]
    for call in model.calls:
        sent = [message.text for message in call if not message.additional_kwargs.get("lc_source")]
        assert len(sent) == len(set(sent))


class ChangingInPlace(AgentMiddleware[Any, Any, Any]):
    """Middleware that adds a word to the messages of a call in place."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Change the messages, and call the model."""
        for message in request.messages:
            message.content = f"{message.content} (Ann)"
        return await handler(request)


async def test_messages_that_middleware_changes_in_place_reach_no_other_turn(small_memory: Memory) -> None:
    """A mark for a missing answer is in the calls of both sessions."""
    model = ScriptedModel(["a", "b"])
    for name, others in (("ann", [ChangingInPlace()]), ("bob", [])):
        unanswered = [Message("user", word, id=f"{name}-{word}", run_id=word) for word in ("first", "second")]
        await small_memory.session(name).append(unanswered)
        agent: Any = create_agent(model, [], middleware=[SessionMemory(small_memory), *others])
        await agent.ainvoke(input_of("third", f"{name}-3"), config_of(name))
    texts = [[str(message.content) for message in call] for call in model.calls]
    assert any("Ann" in text for text in texts[0])
    assert len(texts[1]) > 3
    assert not any("Ann" in text for text in texts[1])


class Score(BaseModel):
    """A structured response."""

    points: int


async def test_a_repeated_message_gives_the_structured_response_again(memory: Memory) -> None:
    call = AIMessage("", tool_calls=[{"name": "Score", "args": {"points": 3}, "id": "c"}])
    model = Tooled(replies=[call])
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory)], response_format=Score)
    first = await agent.ainvoke(input_of("rate it", "m1"), config_of())
    again = await agent.ainvoke(input_of("rate it", "m1"), config_of())
    assert first["structured_response"] == again["structured_response"] == Score(points=3)
    assert len(model.calls) == 1
