"""`python -m bench knowledge`: what Graphiti adds to a turn, how fast it is fed, and what recall of facts finds."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from langchain.agents import create_agent
from rich.console import Console
from rich.table import Table

from bench.knowledge_facts import PERSONS, Asked, facts_of_everybody, questions
from bench.machine import machine_line
from bench.sections import PAGE, put_section
from bench.tables import Sheet, markdown
from threadkeep import KnownFacts, Memory, MemoryOptions, Message, Scope, SessionMemory, open_memory
from threadkeep.observe import Event, GraphRecalled
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.testing import FakeGraphiti, ScriptedModel

OFF, HEALTHY, SLOW, GONE = "off", "healthy", "slow (5 s)", "gone"
STATES = (OFF, HEALTHY, SLOW, GONE)

_DEADLINE_SECONDS = 0.5
_MOST_MS = 1.0
_LOOKED_AT = 5
_BETWEEN_SECONDS = 0.02

type Tell = Callable[[str], object]


@dataclass(frozen=True)
class KnowledgePlan:
    """How much is measured."""

    turns: int = 200
    delivered: int = 500
    leaks: int = 10_000


FULL, QUICK = KnowledgePlan(), KnowledgePlan(turns=5, delivered=10, leaks=50)


@dataclass(frozen=True)
class Turns:
    """The lower quartile of turns' times, and of what of them is the recall, in milliseconds."""

    turn: float
    recall: float


@dataclass(frozen=True)
class Found:
    """All figures."""

    turns: Mapping[str, Turns]
    delivered_a_second: float
    first: float
    among: float
    asked: int
    leaks: int
    recalls: int


class _Waits:
    """How long turns waited for Graphiti."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []

    def notify(self, event: Event, /) -> None:
        """Keep the wait."""
        if isinstance(event, GraphRecalled):
            self.milliseconds.append(event.milliseconds)


async def run(plan: KnowledgePlan, tell: Tell) -> Found:
    """Measure all of it."""
    turns = await _turns(plan.turns)
    for state, one in turns.items():
        tell(f"turn with Graphiti {state}: {one.turn:.2f} ms")
    speed = await _delivered(plan.delivered)
    tell(f"delivered: {speed:.0f} messages a second")
    first, among, asked = await _recalled()
    tell(f"facts found first: {first:.0%}, among {_LOOKED_AT}: {among:.0%}")
    leaks = await _leaks(plan.leaks)
    tell(f"facts of others in {plan.leaks:,} recalls: {leaks}")
    return Found(turns, speed, first, among, asked, leaks, plan.leaks)


@asynccontextmanager
async def _memory(graphiti: GraphitiOptions | None, waits: _Waits | None = None) -> AsyncIterator[Memory]:
    with tempfile.TemporaryDirectory() as folder:
        options = MemoryOptions(graphiti=graphiti)
        observers = [waits] if waits is not None else []
        async with open_memory(f"sqlite:///{folder}/bench.db", observers=observers, options=options) as memory:
            if graphiti is not None:
                await memory.graphiti.grant(["chat_text"], by="bench")
                await memory.graphiti.gate.trust("shop", by="bench")
            yield memory


class _Talk:
    """An agent whose memory has Graphiti in one of the states."""

    def __init__(self, memory: Memory, waits: _Waits, turns: int) -> None:
        self._waits = waits
        self._times: list[float] = []
        self._agent: Any = create_agent(
            ScriptedModel("Noted." for _ in range(turns)),
            [],
            middleware=[SessionMemory(memory, sources=[KnownFacts(memory)])],
        )

    async def turn(self, number: int) -> None:
        """Time one turn."""
        question = {"messages": [{"role": "user", "content": f"Question {number} about the garden"}]}
        started = time.perf_counter()
        await self._agent.ainvoke(question, {"configurable": {"thread_id": "room:1", "workspace": "shop"}})
        self._times.append((time.perf_counter() - started) * 1000)

    def figures(self) -> Turns:
        """The figures, but for the first turn: it compiles, and with a server that fails it is the one that waits."""
        recalls = self._waits.milliseconds[1:] or [0.0]
        return Turns(_quartile(self._times[1:]), _quartile(recalls))


async def _turns(count: int) -> dict[str, Turns]:
    """Time the same turns in each state; they take turns, as what else the machine does goes on."""
    async with AsyncExitStack() as stack:
        talks = {state: await _talk(state, count + 1, stack) for state in STATES}
        for number in range(count + 1):
            for state in (*STATES[number % len(STATES) :], *STATES[: number % len(STATES)]):
                await talks[state].turn(number)
                await asyncio.sleep(_BETWEEN_SECONDS)
        return {state: talk.figures() for state, talk in talks.items()}


async def _talk(state: str, turns: int, stack: AsyncExitStack) -> _Talk:
    server = await stack.enter_async_context(FakeGraphiti())
    if state == SLOW:
        server.fail("slow_body", "/search", seconds=5)
    if state == GONE:
        await server.stop()
    options = GraphitiOptions(
        endpoint=server.url,
        workspace="shop",
        recall_enabled=True,
        recall_timeout_seconds=_DEADLINE_SECONDS,
    )
    waits = _Waits()
    memory = await stack.enter_async_context(_memory(None if state == OFF else options, waits))
    return _Talk(memory, waits, turns)


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


async def _recalled() -> tuple[float, float, int]:
    async with _memory(None) as memory:
        await _filled(memory)
        asked = list(questions())
        first = among = 0
        for one in asked:
            found = await memory.knowledge.recall(one.text, [Scope("user", one.person)], limit=_LOOKED_AT)
            keys = [fact.key for fact in found]
            first += keys[:1] == [one.key]
            among += one.key in keys
        return first / len(asked), among / len(asked), len(asked)


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


def _quartile(times: Sequence[float]) -> float:
    """The time below which a quarter is: what else the machine does is in the others."""
    return statistics.quantiles(times, n=4)[0] if len(times) > 1 else times[0]


def sheets(found: Found) -> dict[str, Sheet]:
    """The tables, by their places in the page."""
    off = found.turns[OFF].turn
    added = max(found.turns[state].turn for state in (SLOW, GONE)) - off
    rows = (
        ("a server that is slow or gone: milliseconds that a turn takes longer", f"≤ {_MOST_MS:g}", f"{added:.2f}"),
        ("facts of others in the recalls", "0", str(found.leaks)),
    )
    verdicts = (added <= _MOST_MS, found.leaks == 0)
    return {
        "aims": Sheet(
            "Aims",
            ("aim", "bound", "found", "verdict"),
            tuple((*row, "met" if met else "missed") for row, met in zip(rows, verdicts, strict=True)),
        ),
        "turns": Sheet(
            "A turn",
            ("Graphiti", "milliseconds", "of it the recall"),
            tuple((state, f"{one.turn:.2f}", f"{one.recall:.2f}") for state, one in found.turns.items()),
        ),
        "facts": Sheet(
            "Facts",
            ("questions", "the fact is first", f"the fact is among {_LOOKED_AT}"),
            ((str(found.asked), f"{found.first:.0%}", f"{found.among:.0%}"),),
        ),
    }


def write_section(found: Found, docs: Path) -> None:
    """Write the section of the page of benchmarks."""
    template = Template(Path(__file__).with_name("knowledge.md").read_text(encoding="utf-8"))
    text = template.substitute(
        {name: markdown(sheet) for name, sheet in sheets(found).items()},
        machine=machine_line(None),
        deadline=f"{_DEADLINE_SECONDS:g}",
        speed=f"{found.delivered_a_second:,.0f}",
        recalls=f"{found.recalls:,}",
        leaks=found.leaks,
    )
    put_section(docs / PAGE, "knowledge", text)


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure, print, and write the section; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench knowledge", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; the page stays")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    found = asyncio.run(run(QUICK if given.quick else FULL, tell))
    for sheet in sheets(found).values():
        table = Table(title=sheet.title, title_justify="left")
        for number, name in enumerate(sheet.header):
            table.add_column(name, justify="right" if number else "left")
        for row in sheet.rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    if not given.quick:
        write_section(found, docs)
    return 0
