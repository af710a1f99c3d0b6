"""Tests that a manifest rebuilds the same request bytes, through a real client of OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from tests.agent.recorder import Recorder, recording
from tests.agent.talking import ROOM, Agent, config_of
from threadkeep import ContextManifest, Memory, Message, RecalledTurns, SessionMemory, rebuild
from threadkeep.records import Summary

pytestmark = pytest.mark.slow

_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40}}


@tool
def look_up(term: str) -> str:
    """Look something up."""
    return f"{term}: " + "many words, «quoted» “so”, 几个字 " * len(term) ** 3


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Start a provider whose model calls `look_up`."""
    with recording("look_up") as started:
        yield started


def model_at(recorder: Recorder) -> ChatOpenAI:
    """Return a real client of the recorder."""
    return ChatOpenAI(model="gpt-test", base_url=recorder.address, api_key=SecretStr("sk-test"), max_retries=0)


async def talk(
    memory: Memory,
    recorder: Recorder,
    inputs: Sequence[str | Sequence[AnyMessage]],
    *,
    originals: bool = False,
    checkpointed: bool = False,
) -> None:
    """Run a turn for each input, with a small window and recalled turns."""
    remembering = SessionMemory(
        memory, max_messages=None, max_tokens=1_500, keep_originals=originals, sources=[RecalledTurns(memory)]
    )
    agent: Agent = create_agent(
        model_at(recorder),
        [look_up],
        system_prompt="Be brief.",
        middleware=[remembering],
        checkpointer=InMemorySaver() if checkpointed else None,
    )
    for given in inputs:
        messages = [HumanMessage(given)] if isinstance(given, str) else list(given)
        await agent.ainvoke({"messages": messages}, config_of())


async def check(memory: Memory, recorder: Recorder) -> list[ContextManifest]:
    """Check that each rebuilt call sends the same bytes, and return the manifests."""
    sent = recorder.messages
    stored = [*reversed(await memory.manifests.of_session(ROOM, limit=200))]
    assert len(stored) == len(sent) > 0
    model = model_at(recorder)
    for manifest in stored:
        await model.ainvoke(await rebuild(manifest))
    assert recorder.messages[len(sent) :] == sent
    return [ContextManifest.from_dict(one.manifest) for one in stored]


def looking_up(*terms: str) -> list[dict[str, str]]:
    """Return the arguments of several calls in one step."""
    return [{"term": term} for term in terms]


def questions(count: int) -> list[str]:
    """Return questions about a few subjects, some of them long."""
    things = ("parcels", "invoices", "几个字", "the garden")
    return [f"question {n} about {things[n % 4]} " + "and more " * (n * 7 % 40) for n in range(count)]


async def test_sessions_with_tools_are_sent_again_byte_by_byte(memory: Memory, recorder: Recorder) -> None:
    """Calls with tools, cut results, cut windows and recalled turns are rebuilt byte by byte."""
    for number in range(18):
        steps = [looking_up("a", "of"), looking_up("a long one"), looking_up("x" * 20, "y" * 16)][: number % 4]
        recorder.replies += [*steps, f"answer {number} " + "as I said " * (20 + number * 5 % 30)]
    await talk(memory, recorder, ["My passport number is C01X0006H.", *questions(17), "What is my passport number?"])
    manifests = await check(memory, recorder)
    entries = [entry for manifest in manifests for entry in manifest.entries]
    assert {entry.source for entry in entries} == {"transcript", "text", "turns"}
    assert any(entry.tokens_before for entry in entries if entry.section == "steps")
    assert manifests[-1].anchor_seq > 1


async def test_contexts_with_summaries_are_sent_again_byte_by_byte(memory: Memory, recorder: Recorder) -> None:
    """Calls from before and after a summary was made or merged are rebuilt byte by byte."""
    await talk(memory, recorder, questions(4))
    first = Summary(ROOM, 1, 4, "They spoke of “parcels”.", "by hand", "1", 9)
    await memory.summaries.add(first)
    await talk(memory, recorder, questions(2))
    await memory.summaries.add(Summary(ROOM, 1, 8, "They spoke of much.", "by hand", "1", 9, level=2), [first.id])
    await memory.summaries.add(Summary(ROOM, 5, 8, "And of more.", "by hand", "1", 9))
    await talk(memory, recorder, questions(2))
    manifests = await check(memory, recorder)
    assert len({entry.summaries for manifest in manifests for entry in manifest.entries}) >= 3


@pytest.mark.parametrize("originals", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_contents_without_a_transcript_are_sent_again_byte_by_byte(
    memory: Memory, recorder: Recorder, originals: bool, checkpointed: bool
) -> None:
    """System messages, images, names, cut inputs and replaced characters are rebuilt byte by byte."""
    inputs: list[str | Sequence[AnyMessage]] = [
        [HumanMessage([{"type": "text", "text": "what is this?"}, _IMAGE])],
        [SystemMessage("Rule two."), HumanMessage("and now?")],
        "long " * 4_000,
        [HumanMessage("named", name="Ann"), HumanMessage("and another with a \0")],
        [SystemMessage([{"type": "text", "text": "Rule three."}]), HumanMessage("and then?")],
        "the end",
    ]
    recorder.replies += [looking_up("a long one"), "an answer", looking_up("it"), looking_up("a"), "so it is"]
    await memory.session(ROOM).append([Message("user", "hi"), Message("assistant", "hello")])
    await talk(memory, recorder, inputs, originals=originals, checkpointed=checkpointed)
    await check(memory, recorder)


async def test_cut_tool_results_are_sent_again_byte_by_byte(memory: Memory, recorder: Recorder) -> None:
    recorder.replies += [looking_up("x" * 20, "y" * 22), "read"]
    await talk(memory, recorder, ["read both"])
    [_, manifest] = await check(memory, recorder)
    cut = [entry for entry in manifest.entries if entry.tokens_before is not None]
    assert len(cut) == 2
    assert all(entry.tokens < (entry.tokens_before or 0) for entry in cut)
    assert recorder.messages[1].count(b"[cut ") == 2
