"""The part of a model call that repeats the beginning of the previous call, so that a prompt cache can reuse it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, SummarizationMiddleware
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately, trim_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from bench.lanes import Tell
from threadkeep import Compression, Memory, ModelSummarizer, RecalledTurns, SessionMemory, open_memory
from threadkeep.agent.extras import SECTION_KEY
from threadkeep.testing import ScriptedModel

MAX_TOKENS = 4_000
_LARGE_WINDOW = 32_000
_LARGE = f"Threadkeep, anchored, with older turns, {_LARGE_WINDOW:,} tokens"
type Kind = Literal["plain", "tools"]
KINDS: tuple[Kind, ...] = ("plain", "tools")

type Middleware = AgentMiddleware[Any, Any, Any]


@dataclass(frozen=True)
class Reuse:
    """The part of a contender's model calls that repeats the beginning of the previous call.

    `calls` are the shares of calls that begin with the whole previous call, except the blocks recalled for its input.
    `characters` are the shares of the characters of all calls.
    """

    title: str
    calls: dict[Kind, float]
    characters: dict[Kind, float]


@tool
def look_up(term: str) -> str:
    """Look something up."""
    return f"{term}: " + "it was found on the second shelf " * 12


class _Trimmed(AgentMiddleware[Any, Any, Any]):
    """A middleware that trims the checkpointed messages before each model call."""

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Trim as LangChain's guides do."""
        trimmed = trim_messages(
            request.messages,
            max_tokens=MAX_TOKENS,
            token_counter=count_tokens_approximately,
            strategy="last",
            start_on="human",
        )
        return await handler(request.override(messages=cast("list[AnyMessage]", trimmed)))


def _ours(memory: Memory) -> dict[str, Middleware]:
    summarizer = ModelSummarizer(ScriptedModel(itertools.repeat("They spoke of parcels and shelves. " * 8)))
    compression = Compression(summarizer=summarizer)
    older = [RecalledTurns(memory)]
    return {
        "Threadkeep, anchored": SessionMemory(memory, max_messages=None),
        "Threadkeep, anchored, the newest 20": SessionMemory(memory),
        "Threadkeep, anchored, with older turns": SessionMemory(memory, max_messages=None, sources=older),
        _LARGE: SessionMemory(memory, max_messages=None, context_window=_LARGE_WINDOW, sources=older),
        "Threadkeep, anchored, with summaries": SessionMemory(memory, max_messages=None, compression=compression),
        "Threadkeep, sliding": SessionMemory(memory, max_messages=None, window="sliding"),
    }


def _theirs() -> dict[str, Middleware]:
    writer = ScriptedModel(itertools.repeat("They spoke of parcels and shelves. " * 8))
    return {
        "LangChain's SummarizationMiddleware": SummarizationMiddleware(writer, trigger=("tokens", MAX_TOKENS)),
        "langchain-core's trim_messages": _Trimmed(),
    }


async def measure(turns: int, tell: Tell) -> list[Reuse]:
    """Measure every contender over a number of turns."""
    found: list[Reuse] = []
    async with open_memory("sqlite://") as memory:
        for ours, contenders in ((True, _ours(memory)), (False, _theirs())):
            for title, middleware in contenders.items():
                tell(f"prefix reuse: {title}")
                count = 2 * turns if title == _LARGE else turns  # it takes longer to fill
                calls = {kind: await _calls_of(memory, middleware, kind, count, ours=ours) for kind in KINDS}
                found.append(
                    Reuse(
                        title,
                        {kind: shared(each) for kind, each in calls.items()},
                        {kind: shared_characters(each) for kind, each in calls.items()},
                    )
                )
    return found


async def _calls_of(
    memory: Memory, middleware: Middleware, kind: Kind, turns: int, *, ours: bool
) -> Sequence[Sequence[BaseMessage]]:
    model = ScriptedModel(_replies(kind))
    agent = create_agent(
        model,
        [look_up],
        system_prompt="You help the customers of a shop. Be brief.",
        middleware=[middleware],
        checkpointer=None if ours else InMemorySaver(),
    )
    room = f"{type(middleware).__name__}:{id(middleware)}:{kind}"
    for number in range(turns):
        question = f"Question {number}: " + "and then there is this " * (1 + number * 7 % 12)
        await agent.ainvoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": room}})
        await memory.compressor.idle()
    return model.calls


def _replies(kind: Kind) -> Iterator[str | AIMessage]:
    for number in itertools.count():
        if kind == "tools":
            terms = [f"{number}-{place}" for place in range(1 + number % 3)]
            yield AIMessage("", tool_calls=[{"name": "look_up", "args": {"term": t}, "id": t} for t in terms])
        yield f"Answer {number}: " + "that is how it is done here " * (1 + number * 11 % 24)


def shared(calls: Sequence[Sequence[BaseMessage]]) -> float:
    """Return the share of calls that begin with the previous call, not counting blocks recalled for its input."""
    pairs = [(_told(_up_to_input(before)), _told(after)) for before, after in itertools.pairwise(calls)]
    return sum(after[: len(before)] == before for before, after in pairs) / len(pairs)


def shared_characters(calls: Sequence[Sequence[BaseMessage]]) -> float:
    """Return the share of the calls' characters that repeat the beginning of the previous call."""
    texts = ["\n".join(map(repr, _told(call))) for call in calls]
    common = sum(_common(before, after) for before, after in itertools.pairwise(texts))
    return common / sum(map(len, texts[1:]))


def _common(before: str, after: str) -> int:
    pairs = zip(before, after, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


def _up_to_input(call: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    inputs = [n for n, m in enumerate(call) if isinstance(m, HumanMessage) and SECTION_KEY not in m.additional_kwargs]
    found = [n for n, m in enumerate(call) if m.additional_kwargs.get(SECTION_KEY) in ("snippets", "selected")]
    return call[: min(inputs[-1] + 1, *found, len(call))]


def _told(messages: Sequence[BaseMessage]) -> list[tuple[str, object, object]]:
    return [(m.type, m.content, m.tool_calls if isinstance(m, AIMessage) else None) for m in messages]
