"""`python -m bench knowledge`: the cost of Graphiti in a turn, its delivery rate, and recall of facts."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, Self

from langchain.agents import create_agent
from rich.console import Console
from rich.table import Table

from bench.knowledge_facts import KINDS, PARTS, PERSONS, Asked, Part, facts_of_everybody, questions
from bench.machine import machine_line
from bench.sections import PAGE, put_section
from bench.tables import Sheet, markdown
from threadkeep import KnownFacts, Memory, MemoryOptions, Message, Scope, SessionMemory, open_memory
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.testing import FakeGraphiti, ScriptedModel

BARE, OFF, HEALTHY, SLOW, GONE = "no facts", "facts, no Graphiti", "healthy", "slow (5 s)", "gone"
STATES = (BARE, OFF, HEALTHY, SLOW, GONE)

_DEADLINE_SECONDS = 0.5
_HEALTHY_SECONDS = 10.0
_MOST_MS = 1.0
_LOOKED_AT = 5
_BETWEEN_SECONDS = 0.02
_KNOWN_FACTS = 20

type Tell = Callable[[str], object]
type Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class KnowledgePlan:
    """The amount of work, and an embedding model for an additional measurement of facts."""

    turns: int = 200
    delivered: int = 500
    leaks: int = 10_000
    embed: Embed | None = None
    embedding: str = "a model that was not measured in this run"


FULL, QUICK = KnowledgePlan(), KnowledgePlan(turns=5, delivered=10, leaks=50)


@dataclass(frozen=True)
class Turns:
    """The lower quartiles of the turns of a state, in milliseconds.

    `turn` and `wait` (for the server) are wall times. `added` is the additional CPU time compared with a bare turn,
    without the time between the first search on the server and the end of the last one.
    """

    turn: float
    wait: float
    added: float


@dataclass(frozen=True)
class Recalled:
    """The shares of questions whose answering fact was ranked first, and among the first five."""

    facts: str
    ranking: str
    part: Part
    first: float
    among: float


@dataclass(frozen=True)
class Found:
    """All figures of a run."""

    turns: Mapping[str, Turns]
    delivered_a_second: float
    recalled: Sequence[Recalled]
    leaks: int
    recalls: int


async def run(plan: KnowledgePlan, tell: Tell) -> Found:
    """Measure everything in the plan."""
    turns = await _turns(plan.turns)
    for state, figures in turns.items():
        tell(f"turn with {state}: {figures.turn:.2f} ms, added {figures.added:.2f} ms")
    speed = await _delivered(plan.delivered)
    tell(f"delivered: {speed:.0f} messages a second")
    recalled = await _recalled(plan)
    for one in recalled:
        tell(f"{one.facts} facts, {one.ranking}, {one.part}: {one.first:.0%} first, {one.among:.0%} among {_LOOKED_AT}")
    leaks = await _leaks(plan.leaks)
    tell(f"facts of others in {plan.leaks:,} recalls: {leaks}")
    return Found(turns, speed, recalled, leaks, plan.leaks)


@asynccontextmanager
async def _memory(graphiti: GraphitiOptions | None) -> AsyncIterator[Memory]:
    with tempfile.TemporaryDirectory() as folder:
        options = MemoryOptions(graphiti=graphiti)
        async with open_memory(f"sqlite:///{folder}/bench.db", options=options) as memory:
            if graphiti is not None:
                await memory.graphiti.grant(["chat_text"], by="bench")
                await memory.graphiti.consents.trust("shop", by="bench")
            yield memory


class _Stopwatch(NamedTuple):
    """A stopwatch for wall time, and for CPU time of all threads of this process, in milliseconds."""

    clock: float
    cpu: float

    @classmethod
    def read(cls) -> Self:
        """Return the current times."""
        return cls(time.perf_counter() * 1000, time.process_time() * 1000)

    def since(self, start: _Stopwatch) -> _Stopwatch:
        """Return the times between two readings."""
        return _Stopwatch(self.clock - start.clock, self.cpu - start.cpu)


class _Conversation:
    """An agent whose memory has Graphiti in one of the states."""

    def __init__(self, memory: Memory, state: str, turns: int) -> None:
        self.times: list[_Stopwatch] = []
        self.waits: list[_Stopwatch] = []
        self._searches: list[_Stopwatch] = []
        if state in (HEALTHY, SLOW, GONE):
            self._time_searches(memory)
        sources = [] if state == BARE else [KnownFacts(memory)]
        middleware = [SessionMemory(memory, sources=sources)]
        self._agent: Any = create_agent(ScriptedModel("Noted." for _ in range(turns)), [], middleware=middleware)

    def _time_searches(self, memory: Memory) -> None:
        client: Any = memory.graphiti.client()
        search = client.search

        async def timed(*arguments: object, **options: object) -> object:
            self._searches.append(_Stopwatch.read())
            try:
                return await search(*arguments, **options)
            finally:
                self._searches.append(_Stopwatch.read())

        client.search = timed

    async def turn(self, number: int) -> None:
        """Time one turn."""
        question = {"messages": [{"role": "user", "content": f"Question {number} about the garden"}]}
        config = {"configurable": {"thread_id": "room:1", "user_id": "ann", "workspace": "shop"}}
        self._searches.clear()
        started = _Stopwatch.read()
        await self._agent.ainvoke(question, config)
        self.times.append(_Stopwatch.read().since(started))
        waited = self._searches[-1].since(self._searches[0]) if self._searches else _Stopwatch(0.0, 0.0)
        self.waits.append(waited)

    def figures(self, bare: Sequence[_Stopwatch]) -> Turns:
        """Return the figures without the first turn: it compiles the graph, and only it waits for a failing server."""
        own = [turn.cpu - wait.cpu for turn, wait in zip(self.times, self.waits, strict=True)]
        added = _quartile(own) - _quartile([turn.cpu for turn in bare])
        turn, wait = (_quartile([one.clock for one in times]) for times in (self.times, self.waits))
        return Turns(turn, wait, added)


def _quartile(times: Sequence[float]) -> float:
    """Return the lower quartile without the first time, because longer times contain other work of the machine."""
    return statistics.quantiles(times[1:], n=4)[0]


async def _turns(count: int) -> dict[str, Turns]:
    """Time the same turns in each state; the states alternate, because other work on the machine affects the times."""
    async with AsyncExitStack() as stack:
        talks = {state: await _conversation(state, count + 1, stack) for state in STATES}
        for number in range(count + 1):
            for state in (*STATES[number % len(STATES) :], *STATES[: number % len(STATES)]):
                await talks[state].turn(number)
                await asyncio.sleep(_BETWEEN_SECONDS)
        return {state: talk.figures(talks[BARE].times) for state, talk in talks.items()}


async def _conversation(state: str, turns: int, stack: AsyncExitStack) -> _Conversation:
    server = await stack.enter_async_context(FakeGraphiti())
    if state == SLOW:
        server.fail("slow_body", "/search", seconds=5)
    if state == GONE:
        await server.stop()
    options = GraphitiOptions(
        endpoint=server.url,
        workspace="shop",
        recall_enabled=True,
        # A healthy server must not appear slow because the machine is.
        recall_timeout_seconds=_HEALTHY_SECONDS if state == HEALTHY else _DEADLINE_SECONDS,
    )
    memory = await stack.enter_async_context(_memory(None if state in (BARE, OFF) else options))
    for number in range(_KNOWN_FACTS):
        await memory.knowledge.remember(Scope("user", "ann"), f"plant_{number}", f"bed {number} of the garden")
    return _Conversation(memory, state, turns)


async def _delivered(count: int) -> float:
    async with FakeGraphiti() as server:
        options = GraphitiOptions(endpoint=server.url, workspace="shop", poll_seconds=0.02)
        async with _memory(options) as memory:
            session = memory.session("room:1")
            for number in range(count):
                turn = [Message(role="user", content=f"q{number}"), Message(role="assistant", content=f"a{number}")]
                await session.append(turn)
            started = time.perf_counter()
            stored = sum(len(server.stored.get(group, [])) for group in server.stored)
            while True:
                if (await memory.graphiti.status()).counts.get("confirmed", 0) == 4 * count:
                    break
                await asyncio.sleep(0.02)
            return (4 * count - stored) / (time.perf_counter() - started)


async def _filled(memory: Memory) -> None:
    for person, facts in facts_of_everybody().items():
        for key, value in facts.items():
            await memory.knowledge.remember(Scope("user", person), key, value)


class _Embedder:
    """The embedding model of a plan."""

    def __init__(self, embed: Embed, name: str) -> None:
        self._embed = embed
        self.name = name

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        return self._embed(texts)

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a query."""
        return self._embed([text])[0]


async def _recalled(plan: KnowledgePlan) -> list[Recalled]:
    """Ask for each fact among the four facts of its person, and among one fact of each kind of a single person."""
    everybody = Scope("user", "everybody")
    models: dict[str, _Embedder | None] = {"words": None}
    if plan.embed is not None:
        models["words and embeddings"] = _Embedder(plan.embed, plan.embedding)
    async with _memory(None) as memory:
        await _filled(memory)
        for number, kind in enumerate(KINDS):
            await memory.knowledge.remember(everybody, kind.key, kind.values[number % len(kind.values)])
        recalled = []
        for facts, scope in ((f"{len(KINDS) * 4 // len(PERSONS)}", None), (f"{len(KINDS)}", everybody)):
            for ranking, embedder in models.items():
                for part in PARTS:
                    ranks = [
                        await _rank(memory, one, scope or Scope("user", one.person), embedder)
                        for one in questions()
                        if one.part == part
                    ]
                    first = sum(rank == 0 for rank in ranks) / len(ranks)
                    among = sum(rank is not None for rank in ranks) / len(ranks)
                    recalled.append(Recalled(facts, ranking, part, first, among))
        return recalled


async def _rank(memory: Memory, asked: Asked, scope: Scope, embedder: _Embedder | None) -> int | None:
    """Return the rank of the fact that answers a question, from 0; None if it is not among the first five."""
    found = await memory.knowledge.recall(asked.text, [scope], limit=_LOOKED_AT, embedder=embedder)
    keys = [fact.key for fact in found]
    return keys.index(asked.key) if asked.key in keys else None


async def _leaks(count: int) -> int:
    async with _memory(None) as memory:
        await _filled(memory)
        asked: Sequence[Asked] = list(questions())
        leaks = 0
        for number in range(count):
            one = asked[number % len(asked)]
            person = PERSONS[(number * 7) % len(PERSONS)]
            found = await memory.knowledge.recall(one.text, [Scope("user", person)], limit=10)
            leaks += sum(fact.scope.owner != person for fact in found)
        return leaks


def sheets(found: Found) -> dict[str, Sheet]:
    """Return the tables, by their names in the page."""
    added = {state: found.turns[state].added for state in (HEALTHY, SLOW, GONE)}
    rows = [
        (f"Graphiti {state}: milliseconds of CPU added to a turn without facts", _MOST_MS, ms)
        for state, ms in added.items()
    ]
    aims = [(what, f"≤ {most:g}", f"{ms:.2f}", "met" if ms <= most else "missed") for what, most, ms in rows]
    aims.append(("other persons' facts in the recalls", "0", str(found.leaks), "met" if not found.leaks else "missed"))
    return {
        "aims": Sheet("Aims", ("aim", "bound", "found", "verdict"), tuple(aims)),
        "turns": Sheet(
            "A turn",
            ("turn with", "milliseconds", "of which waiting for Graphiti", "CPU added, in milliseconds"),
            tuple(
                (state, f"{one.turn:.2f}", f"{one.wait:.2f}", "–" if state == BARE else f"{one.added:.2f}")
                for state, one in found.turns.items()
            ),
        ),
        "facts": Sheet(
            "Facts",
            ("facts of a person", "ranked by", "kinds of facts", "fact ranked first", f"among the first {_LOOKED_AT}"),
            tuple((one.facts, one.ranking, one.part, f"{one.first:.0%}", f"{one.among:.0%}") for one in found.recalled),
        ),
    }


def write_section(found: Found, docs: Path, embedding: str = FULL.embedding) -> None:
    """Write the section of the page of benchmarks."""
    template = Template(Path(__file__).with_name("knowledge.md").read_text(encoding="utf-8"))
    text = template.substitute(
        {name: markdown(sheet) for name, sheet in sheets(found).items()},
        machine=machine_line(None),
        deadline=f"{_DEADLINE_SECONDS:g}",
        speed=f"{found.delivered_a_second:,.0f}",
        embedding=embedding,
        recalls=f"{found.recalls:,}",
        leaks=found.leaks,
    )
    put_section(docs / PAGE, "knowledge", text)


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure and print; unless the run is quick, write the section. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench knowledge", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; the page stays")
    parser.add_argument("--embed", metavar="MODULE:FUNCTION", help="a function that returns a vector for each text")
    parser.add_argument("--embedding", default=FULL.embedding, help="the name of that model in the page")
    given = parser.parse_args(arguments)
    plan = replace(QUICK if given.quick else FULL, embedding=given.embedding)
    if given.embed:
        module, _, function = given.embed.partition(":")
        plan = replace(plan, embed=getattr(importlib.import_module(module), function))
    console = Console(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    found = asyncio.run(run(plan, tell))
    for sheet in sheets(found).values():
        table = Table(title=sheet.title, title_justify="left")
        for number, name in enumerate(sheet.header):
            table.add_column(name, justify="right" if number else "left")
        for row in sheet.rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    if not given.quick:
        write_section(found, docs, plan.embedding)
    return 0
