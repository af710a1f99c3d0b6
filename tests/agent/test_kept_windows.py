"""Tests of the window that a process caches between model calls: calls are the same without it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, add, adding, config_of, input_of, make_agent
from threadkeep import ContextPlan, Memory, MemoryOptions, Message, SessionMemory, TurnOptions, open_memory, rebuild
from threadkeep.agent.assembly import Assembler
from threadkeep.agent.context_view import PreviewOptions, preview
from threadkeep.context.manifest import ContextManifest
from threadkeep.records import Role, Status
from threadkeep.testing import ScriptedModel

_OPTIONS = (
    TurnOptions(),
    TurnOptions(max_messages=None, max_tokens=600),
    TurnOptions(max_messages=8, max_tokens=3_000, plan=ContextPlan(window="sliding")),
    TurnOptions(max_messages=None, max_tokens=20_000, plan=ContextPlan(fold_repeats=True)),
)


@pytest.fixture
async def two(shared_url: str, memory_options: MemoryOptions) -> AsyncIterator[tuple[Memory, Memory]]:
    """Open a memory with cached windows and one without, over one database."""
    options = replace(memory_options, background=False)
    async with (
        open_memory(shared_url, options=options) as keeping,
        open_memory(shared_url, options=replace(options, context_cache_bytes=0)) as forgetful,
    ):
        yield keeping, forgetful


class Conversation:
    """A random conversation with all changes that a cached window has to notice."""

    def __init__(self, memory: Memory, random: Random) -> None:
        self._session = memory.session(ROOM)
        self._random = random
        self._number = 0

    async def begin(self) -> None:
        """Store the first turn."""
        await self._turn()

    async def go_on(self) -> None:
        """Perform one action, mostly a plain turn."""
        acts = (self._turn, self._turn, self._turn, self._turn, self._odd_turn, self._note, self._change)
        await self._random.choice(acts)()

    def _message(self, role: Role, text: str, *, run: int, status: Status = "complete") -> Message:
        self._number += 1
        return Message(role, text, id=f"m-{self._number}", run_id=f"run-{run}", status=status)

    async def _turn(self) -> None:
        text = "something " * self._random.choice((1, 3, 20))
        run = self._number
        await self._session.append([self._message("user", text, run=run), self._message("assistant", text, run=run)])

    async def _odd_turn(self) -> None:
        """Add an unusual turn: unanswered, in two parts, failed, late, or without a question."""
        statuses: tuple[Status, ...] = ("failed", "interrupted", "complete")
        run, status = self._number, self._random.choice(statuses)
        asked = [self._message("user", "a question", run=run) for _ in range(self._random.choice((1, 2)))]
        answer = self._message("assistant", "an answer", run=run, status=status)
        await self._session.append(self._random.choice(([*asked], [*asked, answer], [answer])))

    async def _note(self) -> None:
        await self._session.append([self._message("system", "a note", run=self._number)])

    async def _change(self) -> None:
        if self._random.random() < 0.3:
            await self._session.reset()
        elif self._random.random() < 0.5:
            await self._session.take_back(self._random.choice((1, 2)))


@pytest.mark.parametrize("newest", [["three"], [adding(), ConnectionError()]], ids=["answered", "failed"])
async def test_an_older_question_is_asked_without_later_turns(
    two: tuple[Memory, Memory], newest: list[str | AIMessage | BaseException]
) -> None:
    """A repeated older question is sent without the later turns of the state and the cached window."""
    calls = []
    for memory, thread in zip(two, ("kept", "fresh"), strict=True):
        model = ScriptedModel(["zero", ConnectionError(), "two", *newest, "one"])
        agent = make_agent(model, [SessionMemory(memory)], [add], checkpointer=InMemorySaver())
        for message_id in ("m0", "m1", "m2", "m3", "m1"):
            with contextlib.suppress(ConnectionError):
                await agent.ainvoke(input_of(message_id, message_id), config_of(thread))
        calls.append([(message.type, message.text) for message in model.calls[-1]])
        assert [text for _, text in calls[-1]] == ["m0", "zero", "m1"]
        rebuilt = [await rebuild(manifest) for manifest in await memory.manifests.of_session(thread)]
        assert calls[-1] in [[(message.type, message.text) for message in messages] for messages in rebuilt]
    assert calls[0] == calls[1]


@pytest.mark.parametrize("options", [{}, {"max_tokens": 400}, {"max_messages": 4, "tool_memory": 2}])
async def test_calls_after_tool_calls_are_the_same_without_a_whole_beginning(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The messages before the first stored tool call are sent as a whole, and so that nothing differs."""
    answers: list[str | AIMessage] = [
        "one",
        "two " * 30,
        adding("a"),
        adding("b"),
        "three",
        "four",
        adding("c"),
        "five",
    ]
    found = []
    for thread, is_whole in (("whole", True), ("planned", False)):
        if not is_whole:
            monkeypatch.setattr(Assembler, "_unchanged", lambda *_: None)
        model = ScriptedModel(answers)
        agent = make_agent(model, [SessionMemory(memory, **options)], [add], system_prompt="Be brief.")
        for number in range(5):
            await agent.ainvoke(input_of(f"question {number}", f"m{number}"), config_of(thread))
        stored = [ContextManifest.from_dict(one.manifest) for one in await memory.manifests.of_session(thread)]
        entries = [[(entry.section, entry.tokens, entry.seq) for entry in one.entries] for one in stored]
        found.append(([[(one.type, one.text) for one in call] for call in model.calls], entries))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
async def test_a_call_is_the_same_with_and_without_a_kept_window(two: tuple[Memory, Memory], seed: int) -> None:
    conversation = Conversation(two[1], Random(seed))
    await conversation.begin()
    for _ in range(40):
        for options in _OPTIONS:
            parameters = PreviewOptions(options, system_prompt="Be brief.")
            kept, fresh = [await preview(each, each.session(ROOM), parameters) for each in two]
            # The digest of all messages includes the id of the placeholder for the question.
            assert replace(kept.manifest, created_at=None, digest="") == replace(
                fresh.manifest, created_at=None, digest=""
            )
            assert kept.messages == fresh.messages
        await conversation.go_on()
