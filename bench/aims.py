"""The performance aims of Threadkeep, and whether a run met them."""

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
    """An aim on one engine: the measured value must be at most, or at least, the bound.

    `raw` is the same value for raw SQL, if that shows the best value that is possible.
    """

    engine: Engine
    sentence: str
    bound: float
    found: float
    at_most: bool = False
    raw: float | None = None

    @property
    def met(self) -> bool:
        """True if the run met the aim."""
        return self.found <= self.bound if self.at_most else self.found >= self.bound

    @property
    def verdict(self) -> str:
        """`met`, or the percentage by which the aim was missed."""
        if self.met:
            return "met"
        missed = self.found / self.bound if self.at_most else self.bound / self.found
        return f"missed by {(missed - 1) * 100:.0f} %"


def aims_of(results: Results) -> list[Aim]:
    """Return all aims for which the run has figures."""
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
    """Return the worst ratio of Threadkeep's time to that of raw SQL; None if no length has both."""
    found = [
        ours / raw
        for stored in sizes
        if (ours := results.value(engine, "threadkeep", measure, stored)) is not None
        and (raw := results.value(engine, "raw", measure, stored)) is not None
    ]
    return max(found, default=None)


def _ratio(results: Results, engine: Engine, measure: Measure, sizes: tuple[int, int]) -> float | None:
    """Return the ratio of Threadkeep's times at two session lengths; None if one of them was not measured."""
    long, short = (results.value(engine, "threadkeep", measure, stored) for stored in sizes)
    return None if long is None or short is None else long / short


def _leads(
    results: Results, engine: Engine, entry: Entry, sizes: list[int], *, measures: tuple[Measure, ...] = _TIMED
) -> list[tuple[float, float]]:
    """Return how many times faster Threadkeep, and raw SQL, are than a contender, for each measure and length."""
    found: list[tuple[float, float]] = []
    for measure in measures:
        for stored in sizes:
            theirs, ours, raw = (
                results.value(engine, name, measure, stored) for name in (entry.name, "threadkeep", "raw")
            )
            if theirs is not None and ours is not None and raw is not None:
                found.append((theirs / ours, theirs / raw))
    return found
