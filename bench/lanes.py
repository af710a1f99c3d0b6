"""The contenders of one engine, open at the same time, with the same content. Some share a database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contenders import FIELD, Contender, Conversation, Engine, Entry, Measure, Place
from bench.plan import Plan
from bench.texts import turns

if TYPE_CHECKING:
    from bench.postgres_server import PostgresServer

type Tell = Callable[[str], None]

_ALWAYS = ("ours", "raw")


@dataclass
class Lane:
    """An open contender with its conversations by length."""

    entry: Entry
    contender: Contender
    place: Place
    conversations: dict[int, list[Conversation]] = field(default_factory=dict)
    writers: list[Conversation] = field(default_factory=list)

    def takes_part(self, measure: Measure) -> bool:
        """Return True if the contender takes part in this measure."""
        return measure in self.entry.measures


def entries_for(engine: Engine, only: tuple[str, ...]) -> list[Entry]:
    """Return the participants: all, or Threadkeep, raw SQL and the named ones."""
    return [
        entry for entry in FIELD if engine in entry.opens and (not only or entry.kind in _ALWAYS or entry.name in only)
    ]


@asynccontextmanager
async def open_lanes(
    engine: Engine, plan: Plan, folder: Path, server: PostgresServer | None, tell: Tell
) -> AsyncIterator[list[Lane]]:
    """Open all contenders of an engine, filled and ready."""
    async with AsyncExitStack() as stack:
        lanes: list[Lane] = []
        for entry in entries_for(engine, plan.only):
            place = next((lane.place for lane in lanes if lane.entry.name == entry.data_of), None)
            if place is None:
                place = await _new_place(entry, folder / engine, server)
            try:
                lane = Lane(entry, await stack.enter_async_context(entry.open(engine, place)), place)
            except ImportError as error:
                tell(f"{engine}: {entry.title} is left out: {error.name} is not installed")
                continue
            if entry.data_of is None:
                tell(f"{engine}: filling {entry.title}")
                await _fill(lane, plan)
                if server is not None and place.dsn is not None:
                    await server.tidy(place.dsn)
            await _open_conversations(lane, plan, stack)
            lanes.append(lane)
        yield lanes


async def _new_place(entry: Entry, folder: Path, server: PostgresServer | None) -> Place:
    own = folder / entry.name
    own.mkdir(parents=True)
    return Place(own, None if server is None else await server.database(entry.name))


async def _fill(lane: Lane, plan: Plan) -> None:
    texts = list(islice(turns(), plan.largest // 2))
    for stored in plan.stored:
        if stored:
            for name in _names(stored, plan):
                await lane.contender.fill(name, texts[: stored // 2])
    await lane.contender.settle()


async def _open_conversations(lane: Lane, plan: Plan, stack: AsyncExitStack) -> None:
    for stored in plan.stored:
        lane.conversations[stored] = [
            await stack.enter_async_context(lane.contender.conversation(name)) for name in _names(stored, plan)
        ]
    if lane.takes_part("throughput"):
        lane.writers = [
            await stack.enter_async_context(lane.contender.conversation(f"writer:{number}"))
            for number in range(plan.sessions)
        ]


def _names(stored: int, plan: Plan) -> list[str]:
    """Return the names of the sessions of a length; one for the longest, which a few turns hardly lengthen."""
    return [f"stored-{stored}:{copy}" for copy in range(1 if stored == plan.largest else plan.copies)]
