"""Tests of the context's guarantees over whole sessions with turns, resets, summaries, notes and retention."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.context_laws import check_call, check_state, rows_of, sent_calls
from tests.agent.shared_beginnings import told
from tests.agent.talking import ROOM, Agent, add, adding, config_of, make_agent
from threadkeep import (
    Compression,
    Memory,
    Message,
    ModelSummarizer,
    RecalledTurns,
    Retention,
    RetentionLimits,
    SessionMemory,
    count_tokens,
    open_memory,
    rebuild,
)
from threadkeep.context.manifest import WindowKind
from threadkeep.context.plan import ContextPlan
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.records import Summary
from threadkeep.testing import ScriptedModel

pytestmark = pytest.mark.slow

_TEXTS = ("a word or two ", "ein paar Dinge ", "几个字", "несколько слов ", "🎉 ")
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40}}

texts = st.builds(lambda text, times: text * times, st.sampled_from(_TEXTS), st.sampled_from((1, 1, 3, 9, 40, 900)))


@dataclass(frozen=True)
class Act:
    """An action in a session, with its text and number of tool calls."""

    kind: str
    text: str
    calls: int


@dataclass(frozen=True)
class Session:
    """The actions of a session and the options of its agent."""

    acts: tuple[Act, ...]
    budget: int
    max_messages: int | None
    window: WindowKind
    checkpointed: bool = False
    originals: bool = False
    recalling: bool = False
    folding: bool = False
    compressing: bool = False


SMALL = Compression(
    trigger=("messages", 8),
    keep=("messages", 4),
    summarizer=ModelSummarizer(ScriptedModel(itertools.repeat("They spoke of a few things."))),
)


class NamedModel(ScriptedModel):
    """A model with a name, so that a token factor can be learned for it."""

    def __init__(self, replies: Sequence[AIMessage]) -> None:
        super().__init__(replies)

    @property
    def model_name(self) -> str:
        """Return the name that is sent to the provider."""
        return "some-model"


_TURNS = ("ask", "show")
_KINDS = ("ask", "ask", "ask", "ask", "show", "reset", "summarise", "note", "archive", "delete", "greet")
acts = st.builds(Act, st.sampled_from(_KINDS), texts, st.integers(0, 3))
sessions = st.builds(
    Session,
    acts=st.lists(acts, min_size=2, max_size=14).map(tuple),
    budget=st.integers(1_100, 3_000),
    max_messages=st.none() | st.integers(1, 12),
    window=st.sampled_from(("anchored", "sliding")),
    checkpointed=st.booleans(),
    originals=st.booleans(),
    recalling=st.booleans(),
    folding=st.booleans(),
    compressing=st.booleans(),
)


async def summarise(memory: Memory) -> None:
    """Add a summary of all but the newest four messages without a summary."""
    uncovered = await memory.summaries.uncovered(ROOM)
    last = uncovered.last_seq - 4
    if last > uncovered.after_seq:
        text = f"They spoke of much, {last - uncovered.after_seq} times."
        summary = Summary(ROOM, uncovered.after_seq + 1, last, text, "by hand", "1", count_tokens(text))
        await memory.summaries.add(summary)


async def happen(memory: Memory, act: Act) -> None:
    """Perform an action that is not a turn of the agent."""
    session = memory.session(ROOM)
    match act.kind:
        case "reset":
            await session.reset()
        case "summarise":
            await summarise(memory)
        case "note":
            await session.append([Message("system", act.text)])
        case "greet":
            await session.append([Message("assistant", act.text)])
        case "archive":
            await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=5)))
        case "delete":
            await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=7)))


def asked(act: Act, number: int) -> HumanMessage:
    """Return the question of a turn, with an image for `show`."""
    text = f"{number}: {act.text}"
    content: Any = [{"type": "text", "text": text}, _IMAGE] if act.kind == "show" else text
    return HumanMessage(content, id=f"question-{number}")


def model_of(session: Session) -> ScriptedModel:
    """Return a model that makes the tool calls of each action, then answers."""
    replies: list[AIMessage] = []
    usage = UsageMetadata(input_tokens=900, output_tokens=5, total_tokens=905)
    for number, act in enumerate(session.acts):
        if act.kind in _TURNS:
            replies += [adding(f"{number}-{n}", content=act.text[:40]) for n in range(act.calls)]
            replies.append(AIMessage(f"answer {number} {act.text}", usage_metadata=usage))
    return NamedModel(replies)


async def check_turn(
    memory: Memory, model: ScriptedModel, state: Sequence[BaseMessage], before: int, session: Session
) -> None:
    """Check that each call of the turn keeps the guarantees and is rebuilt from its manifest."""
    question = next(message for message in reversed(state) if isinstance(message, HumanMessage))
    rows = await rows_of(memory, ROOM)
    summaries = [range(s.first_seq, s.last_seq + 1) for s in await memory.summaries.all_of(ROOM)]
    for sent in await sent_calls(memory, model.calls, ROOM, newest=len(model.calls) - before):
        counter: TokenCounter = counter_named(sent.manifest.counter)
        await check_call(memory, sent, question, budget=session.budget, counter=counter, summaries=summaries)
        check_state(sent, state, question, rows)
        assert told(await rebuild(sent.manifest, memory)) == told(sent.messages)


async def play(url: str, session: Session) -> None:
    """Perform all actions and check each turn."""
    async with open_memory(url) as memory:
        model = model_of(session)
        remembering = SessionMemory(
            memory,
            max_messages=session.max_messages,
            max_tokens=session.budget,
            keep_originals=session.originals,
            plan=ContextPlan(window=session.window, fold_repeats=session.folding),
            sources=[RecalledTurns(memory)] if session.recalling else (),
            compression=SMALL if session.compressing else None,
        )
        saver = InMemorySaver() if session.checkpointed else None
        agent: Agent = make_agent(model, [remembering], [add], system_prompt="Be brief.", checkpointer=saver)
        for number, act in enumerate(session.acts):
            if act.kind not in _TURNS:
                await happen(memory, act)
                continue
            before = len(model.calls)
            result = await agent.ainvoke({"messages": [asked(act, number)]}, config_of())
            await check_turn(memory, model, result["messages"], before, session)
            await memory.compressor.idle()


@given(session=sessions)
async def test_every_call_of_a_random_session_keeps_the_guarantees(session: Session) -> None:
    await play("sqlite://", session)


async def test_every_call_of_one_session_keeps_the_guarantees_on_every_database(database_url: str) -> None:
    kinds = ("ask", "ask", "note", "show", "greet", "ask", "summarise", "ask", "archive", "ask", "ask", "delete", "ask")
    acts = [
        Act(kind, _TEXTS[number % 5] * (1, 9, 40, 3)[number % 4], number % 3)
        for number, kind in enumerate([*kinds, "reset", *kinds])
    ]
    for checkpointed in (False, True):
        more = not checkpointed
        session = Session(tuple(acts), 1_500, None, "anchored", checkpointed, checkpointed, more, more, more)
        await play(database_url, session)
        async with open_memory(database_url) as memory:
            await memory.session(ROOM).delete()
