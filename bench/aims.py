"""What Threadkeep aims at, and whether a run found it so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.contenders import FIELD, Engine, Entry, Measure
from bench.plan import TAIL_MESSAGES
from bench.results import Results

_SHORT = 100
_SAVER_STORED = 1_000
_TIMED: tuple[Measure, ...] = ("append", "tail")


@dataclass(frozen=True)
class Aim:
    """One aim on one engine: what was found must be at most, or at least, the bound.

    `raw` is what raw SQL reached at the same place, where that tells how much could be had at all.
    """

    engine: Engine
    sentence: str
    bound: float
    found: float
    at_most: bool = False
    raw: float | None = None

    @property
    def met(self) -> bool:
        """Whether the run found it so."""
        return self.found <= self.bound if self.at_most else self.found >= self.bound

    @property
    def verdict(self) -> str:
        """`met`, or by how much it was missed."""
        if self.met:
            return "met"
        missed = self.found / self.bound if self.at_most else self.bound / self.found
        return f"missed by {(missed - 1) * 100:.0f} %"


def aims_of(results: Results) -> list[Aim]:
    """All aims that the run has figures for."""
    return [aim for engine in results.engines() for aim in _aims(results, engine)]


def _aims(results: Results, engine: Engine) -> Iterator[Aim]:
    sizes = results.sizes(engine)
    to_raw = {
        "append": _worst(results, engine, "append", sizes),
        "tail(20)": _worst(results, engine, "tail", [stored for stored in sizes if stored >= TAIL_MESSAGES]),
    }
    for name, found in to_raw.items():
        if found is not None:
            yield Aim(engine, f"{name}: time relative to raw SQL, at the worst length", 1.5, found, at_most=True)
    if (flat := _ratio(results, engine, "append", (max(sizes), _SHORT))) is not None:
        yield Aim(engine, f"append: time at {max(sizes):,} messages relative to {_SHORT}", 1.1, flat, at_most=True)
    for entry in FIELD:
        if entry.kind == "session" and (leads := _leads(results, engine, entry, sizes)):
            least = min(leads)
            yield Aim(engine, f"speed relative to {entry.title}, worst of append and tail", 1.0, least[0], raw=least[1])
        if entry.kind == "saver":
            for measure in _TIMED:
                for lead in _leads(results, engine, entry, [_SAVER_STORED], measures=(measure,)):
                    sentence = f"{measure}: speed relative to the LangGraph saver at {_SAVER_STORED:,} messages"
                    yield Aim(engine, sentence, 50.0, lead[0], raw=lead[1])
    ours, raw = results.value(engine, "threadkeep", "throughput"), results.value(engine, "raw", "throughput")
    if ours is not None and raw is not None:
        yield Aim(engine, "turns a second of 16 sessions relative to raw SQL with one commit per turn", 3.0, ours / raw)


def _worst(results: Results, engine: Engine, measure: Measure, sizes: list[int]) -> float | None:
    """The worst ratio of Threadkeep to raw SQL."""
    found = [
        ours / raw
        for stored in sizes
        if (ours := results.value(engine, "threadkeep", measure, stored)) is not None
        and (raw := results.value(engine, "raw", measure, stored)) is not None
    ]
    return max(found, default=None)


def _ratio(results: Results, engine: Engine, measure: Measure, sizes: tuple[int, int]) -> float | None:
    """Threadkeep at one length beside itself at another."""
    long, short = (results.value(engine, "threadkeep", measure, stored) for stored in sizes)
    return None if long is None or short is None else long / short


def _leads(
    results: Results, engine: Engine, entry: Entry, sizes: list[int], *, measures: tuple[Measure, ...] = _TIMED
) -> list[tuple[float, float]]:
    """How many times faster than a contender Threadkeep is at each place, and beside it raw SQL."""
    found: list[tuple[float, float]] = []
    for measure in measures:
        for stored in sizes:
            theirs, ours, raw = (
                results.value(engine, name, measure, stored) for name in (entry.name, "threadkeep", "raw")
            )
            if theirs is not None and ours is not None and raw is not None:
                found.append((theirs / ours, theirs / raw))
    return found
