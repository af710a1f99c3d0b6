"""Tests of the context's guarantees for any transcript, state and tool loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from tests.agent.context_laws import check_call, check_newest_step, check_state, rows_of, sent_calls
from tests.agent.shared_beginnings import told
from tests.agent.talking import ROOM, config_of, make_agent
from threadkeep import Memory, Message, SessionMemory, open_memory, rebuild
from threadkeep.context.manifest import WindowKind
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.records import Role
from threadkeep.testing import ScriptedModel

SYSTEM = "be kind"
_SCRIPTS = ("word ", "слово ", "话", "ことば", "말씀 ", "كلمة ", "शब्द ", '{"a": 1} ', "12 ", "🎉", "e\u0301")

words = st.builds(lambda script, times: script * times, st.sampled_from(_SCRIPTS), st.integers(0, 300))
short = st.builds(lambda script, times: script * times, st.sampled_from(_SCRIPTS), st.integers(1, 12))
texts = st.one_of(short, short, words, st.just(""), st.just("long " * 6_000))


IMAGE: dict[str, object] = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40}}


@tool
def measure(size: int, note: str = "", pages: list[str] | None = None) -> str | list[dict[str, object]]:
    """Say many words, or show images."""
    return "word " * size if size >= 0 else [{"type": "text", "text": "shown: "}, *[IMAGE] * -size]


def calls_of(sizes: Sequence[int], name: str) -> list[dict[str, object]]:
    """Return tool calls with results of these sizes; a negative size means images and long arguments."""
    return [
        {"name": "measure", "args": {"size": size} | (_AT_LENGTH if size < 0 else {}), "id": f"{name}-{n}"}
        for n, size in enumerate(sizes)
    ]


_AT_LENGTH = {"note": "as I said, " * 900, "pages": ["one", "two" * 500]}


@dataclass(frozen=True)
class Scene:
    """The stored messages, the run's state, the tool calls and the limits of a case."""

    stored: tuple[Message, ...]
    state: tuple[AnyMessage, ...]
    loop: tuple[tuple[int, ...], ...]
    budget: int
    max_messages: int | None
    counter: str
    window: WindowKind


@st.composite
def stored_messages(draw: st.DrawFn) -> list[Message]:
    """Draw a transcript with roles in any order."""
    roles: list[Role] = ["user", "assistant", "user", "assistant", "system"]
    contents = draw(st.lists(texts, max_size=14))
    return [Message(draw(st.sampled_from(roles)), content, id=f"stored-{n}") for n, content in enumerate(contents)]


def looping(name: str, text: str, sizes: Sequence[int]) -> list[AnyMessage]:
    """Return an assistant message with tool calls, and their results."""
    said = AIMessage(text, id=name, tool_calls=calls_of(sizes, name))
    results = [
        ToolMessage("word " * size, tool_call_id=f"{name}-{n}", id=f"{name}-r{n}") for n, size in enumerate(sizes)
    ]
    return [said, *results]


def imagined(name: str, text: str, images: int = 1) -> HumanMessage:
    """Return a user message with images."""
    return HumanMessage([{"type": "text", "text": text}, *[IMAGE] * images], id=name)


def misspelt(name: str, text: str) -> AnyMessage:
    """Return an assistant message with an invalid tool call."""
    call = {"name": "measure", "args": "{", "id": "x", "error": None, "type": "invalid_tool_call"}
    return AIMessage(text, id=name, invalid_tool_calls=[call])


_KINDS: dict[str, Callable[[str, str, Sequence[int]], list[AnyMessage]]] = {
    "user": lambda name, text, _: [HumanMessage(text, id=name)],
    "answer": lambda name, text, _: [AIMessage(text, id=name)],
    "rule": lambda name, text, _: [SystemMessage(f"rule {name}", id=name)],
    "loop": looping,
    "unanswered": lambda name, text, sizes: looping(name, text, sizes)[:1],
    "half answered": lambda name, text, sizes: [m for n, m in enumerate(looping(name, text, sizes)) if n != 1],
    "orphan": lambda name, text, sizes: looping(name, text, sizes)[1:],
    "misspelt": lambda name, text, _: [misspelt(name, text)],
    "nothing": lambda name, text, _: [misspelt(name, "")],
    "image": lambda name, text, _: [imagined(name, text)],
}


@st.composite
def earlier_steps(draw: st.DrawFn, stored: Sequence[Message]) -> list[AnyMessage]:
    """Draw the earlier part of a checkpointed state: valid and incomplete tool calls, images and stored messages."""
    messages: list[AnyMessage] = []
    spoken = [row for row in stored if row.role != "system"]
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*_KINDS, "stored", "stored"]), max_size=8))):
        if kind != "stored":
            sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=3))
            messages += _KINDS[kind](f"earlier-{number}", draw(short), sizes)
        elif spoken:
            place = draw(st.integers(0, len(spoken) - 1))
            row = spoken[place]
            del spoken[: place + 1]
            messages.append((HumanMessage if row.role == "user" else AIMessage)(row.content, id=row.id))
    return messages


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw a case."""
    stored = draw(stored_messages())
    text = draw(texts.filter(str.strip))
    images = draw(st.sampled_from((0, 0, 1, 5)))
    question = imagined("question", text, images) if images else HumanMessage(text, id="question")
    state = draw(st.just([]) | earlier_steps(stored))
    return Scene(
        tuple(stored),
        (*state, *([AIMessage("so it is", id="said")] if state else []), question),
        tuple(draw(st.lists(st.lists(st.integers(-4, 2_000), min_size=1, max_size=3).map(tuple), max_size=3))),
        draw(st.integers(120, 3_000)),
        draw(st.none() | st.integers(1, 10)),
        draw(st.sampled_from(("estimate", "chars4", "o200k"))),
        draw(st.sampled_from(("anchored", "sliding"))),
    )


def model_of(scene: Scene) -> ScriptedModel:
    """Return a model that makes the tool calls of the case, then answers, twice."""
    loop = loop_of(scene)
    return ScriptedModel([*loop, "done", *loop, "done"])


def loop_of(scene: Scene) -> list[AIMessage]:
    """Return the messages with tool calls of the case."""
    return [AIMessage("", tool_calls=calls_of(sizes, f"step-{n}")) for n, sizes in enumerate(scene.loop)]


async def play(memory: Memory, scene: Scene, model: ScriptedModel) -> list[AnyMessage]:
    """Run the agent in a new session and return its final messages."""
    if scene.stored:
        await memory.session(ROOM).append(scene.stored)
    limits = SessionMemory(
        memory,
        max_messages=scene.max_messages,
        max_tokens=scene.budget,
        counter=scene.counter,
        window=scene.window,
    )
    agent = make_agent(model, [limits], [measure], system_prompt=SYSTEM)
    result = await agent.ainvoke({"messages": list(scene.state)}, config_of())
    return list(result["messages"])


async def check_scene(url: str, scene: Scene) -> None:
    """Check that each call of the run keeps the guarantees."""
    counter: TokenCounter = counter_named(scene.counter)
    model = model_of(scene)
    async with open_memory(url) as memory:
        state = await play(memory, scene, model)
        calls = await sent_calls(memory, model.calls, ROOM)
        rows = await rows_of(memory, ROOM)
        question = next(message for message in state if message.id == "question")
        for sent, asked in zip(calls, [None, *loop_of(scene)], strict=True):
            if asked is not None:
                check_newest_step(sent, asked)
            assert told(await rebuild(sent.manifest, memory)) == told(sent.messages)
            await check_call(memory, sent, question, budget=scene.budget, counter=counter)
            check_state(sent, state, question, rows)
            rules = [message.content for message in scene.state if isinstance(message, SystemMessage)]
            assert sent.messages[0].content == "\n\n".join([SYSTEM, *map(str, rules)])


@given(scene=scenes())
@pytest.mark.slow
async def test_every_call_keeps_the_guarantees(scene: Scene) -> None:
    await check_scene("sqlite://", scene)
