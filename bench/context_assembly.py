"""Time to assemble one model call, compared with langchain-core's `trim_messages` over the same messages.

Threadkeep reads new messages in the transaction that stores the question. This is not measured; the choice of the
window and the record of the call are. `trim_messages` has all messages in memory already. The contenders alternate, so
that a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately, trim_messages

from bench.contenders import ENGINES, Engine
from bench.lanes import Tell
from bench.postgres_server import postgres_server
from bench.texts import turns
from threadkeep import Memory, MemoryOptions, Message, PendingOptions, TurnOptions, count_tokens, open_memory
from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.turns import OpenTurn
from threadkeep.testing import ScriptedModel

MAX_TOKENS = 4_000
LARGE_TOKENS = 32_000
NEWEST_20, ALL_THAT_FITS = "the newest 20 messages", f"all messages that fit {MAX_TOKENS:,} tokens"
ALL_THAT_FITS_LARGE = f"all messages that fit {LARGE_TOKENS:,} tokens"
APPROXIMATE, ESTIMATE = "its own approximate counter", "Threadkeep's estimate"
_LIMITS = {
    NEWEST_20: TurnOptions(),
    ALL_THAT_FITS: TurnOptions(max_messages=None),
    ALL_THAT_FITS_LARGE: TurnOptions(max_messages=None, max_tokens=LARGE_TOKENS),
}
_SYSTEM = SystemMessage("You help the customers of a shop. Be brief.")
_QUESTION = "My parcel has not come yet, what can I do now?"
_MESSAGES_AT_ONCE = 5_000

type Operation = Callable[[], Awaitable[float]]
"""A function that runs a contender once and returns the measured milliseconds."""


@dataclass(frozen=True)
class AssemblyPlan:
    """A run: in each round every contender is measured `repeats` times, until its `seconds` at a length are used up."""

    engines: tuple[Engine, ...] = ENGINES
    stored: tuple[int, ...] = (1_000, 10_000, 100_000)
    rounds: int = 40
    repeats: int = 3
    seconds: float = 6.0


@dataclass(frozen=True)
class Contest:
    """A contender: Threadkeep with an engine and limits, or `trim_messages` with a counter (without an engine)."""

    engine: Engine | None
    kind: str
    stored: int


@dataclass
class _Track:
    contest: Contest
    operation: Operation
    times: list[float] = field(default_factory=list)

    async def run(self, plan: AssemblyPlan) -> None:
        for _ in range(plan.repeats):
            if sum(self.times) <= plan.seconds * 1_000:
                self.times.append(await self.operation())


async def measure(plan: AssemblyPlan, folder: Path, tell: Tell) -> dict[Contest, float]:
    """Return the median milliseconds of each contest."""
    async with AsyncExitStack() as stack:
        tracks = [_Track(contest, operation) for contest, operation in _trimming(plan)]
        for engine in plan.engines:
            tell(f"{engine}: filling")
            memory = await stack.enter_async_context(_filled(engine, plan, folder))
            tracks += [_Track(contest, operation) for contest, operation in _calling(engine, memory, plan)]
        gc.collect()
        gc.freeze()
        order = Random(1)
        for number in range(plan.rounds):
            if number % 10 == 0:
                tell(f"assembly, round {number + 1} of {plan.rounds}")
            for track in order.sample(tracks, len(tracks)):
                await track.run(plan)
        gc.unfreeze()
    return {track.contest: median(track.times) for track in tracks}


@asynccontextmanager
async def _filled(engine: Engine, plan: AssemblyPlan, folder: Path) -> AsyncIterator[Memory]:
    """Open a memory with a session of each length for each of the limits."""
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{folder}/context.db"
        if engine == "postgres":
            server = await stack.enter_async_context(postgres_server())
            url = await server.database("context")
        options = MemoryOptions(pending=PendingOptions(folder=folder / f"pending-{engine}"), background=False)
        memory = await stack.enter_async_context(open_memory(url, options=options))
        for stored in plan.stored:
            messages = _messages(stored)
            for kind in _LIMITS:
                for start in range(0, stored, _MESSAGES_AT_ONCE):
                    await memory.session(_session_id(kind, stored)).append(messages[start : start + _MESSAGES_AT_ONCE])
        yield memory


def _messages(count: int) -> list[Message]:
    texts = islice(turns(), count // 2)
    return [m for turn in texts for m in (Message("user", turn.user), Message("assistant", turn.assistant))]


def _session_id(kind: str, stored: int) -> str:
    return f"room:{list(_LIMITS).index(kind)}:{stored}"


def _calling(engine: Engine, memory: Memory, plan: AssemblyPlan) -> list[tuple[Contest, Operation]]:
    """Return Threadkeep's contests on an engine, each with the function that runs it."""
    model = ScriptedModel()

    def calling(kind: str, stored: int) -> Operation:
        async def call() -> float:
            question = HumanMessage(_QUESTION, id=str(uuid4()))
            turn = OpenTurn(memory, memory.session(_session_id(kind, stored)), _LIMITS[kind], [question])
            await turn.begin()
            started = time.perf_counter()
            await turn.context([question], _SYSTEM, ModelUse(model))
            turn.report(None)
            spent = time.perf_counter() - started
            await turn.close("You can wait for it until Friday, then we send it again.")
            await memory.manifests.flush()
            return 1_000 * spent

        return call

    return [(Contest(engine, kind, stored), calling(kind, stored)) for kind in _LIMITS for stored in plan.stored]


def _trimming(plan: AssemblyPlan) -> list[tuple[Contest, Operation]]:
    """Return the contests of `trim_messages`, each with the function that runs it."""
    counters: dict[str, Callable[[Sequence[BaseMessage]], int]] = {
        APPROXIMATE: count_tokens_approximately,
        ESTIMATE: lambda messages: count_tokens(list(messages)),
    }

    def trimming(counter: Callable[[Sequence[BaseMessage]], int], messages: list[BaseMessage]) -> Operation:
        async def trim() -> float:
            started = time.perf_counter()
            trim_messages(messages, max_tokens=MAX_TOKENS, token_counter=counter, strategy="last", include_system=True)
            return 1_000 * (time.perf_counter() - started)

        return trim

    contests: list[tuple[Contest, Operation]] = []
    for stored in plan.stored:
        said = [(AIMessage if m.role == "assistant" else HumanMessage)(m.content) for m in _messages(stored)]
        messages: list[BaseMessage] = [_SYSTEM, *said, HumanMessage(_QUESTION)]
        contests += [(Contest(None, kind, stored), trimming(counter, messages)) for kind, counter in counters.items()]
    return contests
