"""The parts of the time that the context of one model call takes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from uuid import uuid4

from langchain_core.messages import HumanMessage, SystemMessage

from bench.texts import turns
from threadkeep import ContextPlan, MemoryOptions, Message, PendingOptions, TurnOptions, open_memory
from threadkeep.agent.assembly import Assembler
from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.model_call import Call
from threadkeep.agent.turns import OpenTurn
from threadkeep.context.tokens import estimate
from threadkeep.context.window import Limits
from threadkeep.history.recollection import Past, Recollection
from threadkeep.testing import ScriptedModel

_ROUNDS = 100
_SYSTEM = SystemMessage("You help the customers of a shop. Be brief.")


async def measure_parts(folder: Path, stored: int) -> dict[str, float]:
    """Return the median milliseconds of reading, composing, both together, and storing the manifest, on SQLite."""
    options = MemoryOptions(pending=PendingOptions(folder=folder / "pending-parts"), background=False)
    model = ScriptedModel()
    async with open_memory(f"sqlite:///{folder}/parts.db", options=options) as memory:
        session = memory.session("room")
        texts = turns()
        for _ in range(stored // 2):
            turn = next(texts)
            await session.append([Message("user", turn.user), Message("assistant", turn.assistant)])
        found = Recollection(())
        counter = memory.remembered_counts.remembering(estimate)

        async def read() -> None:
            nonlocal found
            found = await session.recall(Past(Limits(20, 4_000), "nobody", stored + 1, profile="20/4000"))

        async def lay_out() -> None:
            question = HumanMessage("And now?", id="now")
            call = Call([question], [question], _SYSTEM, counter, 4_000, 20)
            assembler = Assembler(found, ContextPlan(), counter)
            assembler.build(assembler.draft(call))

        async def call() -> None:
            question = HumanMessage("And now?", id=str(uuid4()))
            turn = OpenTurn(memory, session, TurnOptions(), [question])
            turn.question_seq = stored + 1
            await turn.context([question], _SYSTEM, ModelUse(model))
            turn.keep()

        async def store() -> None:
            await memory.manifests.flush()

        return {
            "reading the session": await _median(read),
            "composing the call": await _median(lay_out),
            "the whole call": await _median(call, store),
            "storing its manifest, later": await _median(store, before=call),
        }


async def _median(
    operation: Callable[[], Awaitable[None]],
    after: Callable[[], Awaitable[None]] | None = None,
    *,
    before: Callable[[], Awaitable[None]] | None = None,
) -> float:
    times: list[float] = []
    for _ in range(_ROUNDS):
        if before is not None:
            await before()
        started = time.perf_counter()
        await operation()
        times.append(1_000 * (time.perf_counter() - started))
        if after is not None:
            await after()
    return median(times)
