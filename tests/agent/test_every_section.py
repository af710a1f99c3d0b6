"""Tests of contexts with all sections: with unusual characters and during a database outage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool

from tests.agent.context_laws import check_budget, check_coverage, check_shape, rows_of, sent_calls
from tests.agent.talking import ROOM, Agent, Meanwhile, Tools, ask, make_agent
from tests.recorded_events import RecordedEvents
from threadkeep import (
    Compression,
    Memory,
    MemoryOptions,
    ModelSummarizer,
    RecalledTurns,
    RetrievedSnippets,
    SessionMemory,
    StoreOptions,
    open_memory,
    rebuild,
)
from threadkeep.context.tokens import estimate
from threadkeep.observe import SummaryFailed
from threadkeep.testing import ScriptedModel

if TYPE_CHECKING:
    from tests.servers import Postgres

_CHARACTERS = 20_000
_BUDGET = 3_000
_UNITS = {
    "NUL": "vault\x00code ",
    "lone surrogates": "vault \ud800code\udfff ",
    "right to left": "\u202evault שלום عليكم\u202c ",
    "combining": "\u0301",
    "joined": "👩\u200d👧\ufe0f",
    "tags": '</record>"}{ ',
}


class Passages(BaseRetriever):
    """A knowledge base that returns the same passage for each question."""

    text: str

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(self.text, id="passage\ud800")]


def agent_with_all(memory: Memory, model: ScriptedModel, text: str, tools: Tools = (), *others: Meanwhile) -> Agent:
    """Return an agent whose contexts have all sections; summaries and passages contain the text."""
    summarizer = ModelSummarizer(ScriptedModel([text[:200] + " end"] * 200), context_window=8_000)
    session_memory = SessionMemory(
        memory,
        max_tokens=_BUDGET,
        counter="estimate",
        sources=(RecalledTurns(memory), RetrievedSnippets(Passages(text=text))),
        compression=Compression(trigger=("messages", 4), keep=("messages", 2), summarizer=summarizer),
    )
    return make_agent(model, [session_memory, *others], tools, system_prompt="Be kind.")


@pytest.mark.parametrize("kind", _UNITS)
@pytest.mark.slow
async def test_no_text_breaks_a_section(sqlite_memory: Memory, kind: str) -> None:
    """With unusual characters in every section, calls keep their budget and are rebuilt."""
    text = ("vault " + _UNITS[kind] * _CHARACTERS)[:_CHARACTERS]

    @tool
    def look() -> str:
        """Look into it."""
        return text

    call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "call-1"}])
    model = ScriptedModel([call, f"It is {text}", "Yes.", "No.", "Sure."])
    agent = agent_with_all(sqlite_memory, model, text, [look])
    for question in (f"The vault code? {text}", "The vault?", f"vault {text[:900]}", "The vault at last?"):
        await ask(agent, question)
        await sqlite_memory.compressor.idle()
    rows = await rows_of(sqlite_memory, ROOM)
    summaries = [range(s.first_seq, s.last_seq + 1) for s in await sqlite_memory.summaries.all_of(ROOM)]
    sections = set()
    for sent in await sent_calls(sqlite_memory, model.calls, ROOM):
        check_budget(sent, _BUDGET, estimate)
        check_shape(sent.messages)
        check_coverage(sent.manifest, rows, summaries)
        assert [message.text for message in await rebuild(sent.manifest, sqlite_memory)] == _words(sent.messages)
        sections |= set(sent.manifest.sections)
    assert {"system", "window", "input", "snippets", "steps"} <= sections


@pytest.mark.xdist_group("unsteady_postgres")
@pytest.mark.slow
async def test_an_outage_delays_no_answer_with_all_sections(
    unsteady_postgres: Postgres, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """If the server stops during a turn, the agent answers, and messages, manifests and summaries are stored later."""
    store = StoreOptions(lock_timeout_seconds=0.5, pool_timeout_seconds=0.5)
    pending = replace(memory_options.pending, write_timeout_seconds=1.0)
    options = replace(memory_options, store=store, pending=pending)
    with unsteady_postgres.database() as url:
        async with open_memory(url, observers=[events], options=options) as memory:
            outage = [False] * 4 + [True]

            async def stop() -> None:
                if outage and outage.pop(0):
                    await asyncio.to_thread(unsteady_postgres.stop, "immediate")

            model = ScriptedModel(f"answer {number}" for number in range(20))
            agent = agent_with_all(memory, model, "a passage", (), Meanwhile(stop))
            answers = [await ask(agent, f"question {number}") for number in range(5)]
            assert memory.pending.entries
            await memory.compressor.idle()
            assert {event.reason for event in events.of(SummaryFailed)} == {"store"}
            await asyncio.to_thread(unsteady_postgres.start)
            await events.until(lambda: not memory.pending.entries)
            answers.append(await ask(agent, "question 5"))
            assert answers == [f"answer {number}" for number in range(6)]
            said = [message.content for message in await rows_of(memory, ROOM)]
            assert said == [words for number in range(6) for words in (f"question {number}", f"answer {number}")]
            assert await memory.manifests.flush()
            assert len(await memory.manifests.of_session(ROOM)) == 6
            await memory.compressor.idle()
            assert await memory.summaries.active(ROOM)


def _words(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.text) for message in messages]
