"""What was measured, as records that go into JSON and come back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Self

from bench.contenders import Engine, Measure


@dataclass(frozen=True)
class Cell:
    """One contender at one measure: milliseconds an operation, or turns a second (`throughput`).

    `stored` is how many messages the session had; None for the throughput.
    """

    engine: Engine
    contender: str
    measure: Measure
    stored: int | None
    median: float
    samples: int

    @classmethod
    def of(
        cls, engine: Engine, contender: str, measure: Measure, *, stored: int | None, values: Sequence[float]
    ) -> Self:
        """The cell of some measured values."""
        return cls(engine, contender, measure, stored, median(values), len(values))


@dataclass(frozen=True)
class Results:
    """A run: on which machine, what was found, and what is worth a remark."""

    machine: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    def value(self, engine: Engine, contender: str, measure: Measure, stored: int | None = None) -> float | None:
        """The median of one cell, None when it was not measured."""
        for cell in self.cells:
            if (cell.engine, cell.contender, cell.measure, cell.stored) == (engine, contender, measure, stored):
                return cell.median
        return None

    def sizes(self, engine: Engine) -> list[int]:
        """The session lengths that were measured, ascending."""
        return sorted({cell.stored for cell in self.cells if cell.engine == engine and cell.stored is not None})

    def engines(self) -> list[Engine]:
        """The engines that were measured, in the order of the run."""
        return list(dict.fromkeys(cell.engine for cell in self.cells))

    def write_json(self, path: Path) -> None:
        """Write all of it to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
