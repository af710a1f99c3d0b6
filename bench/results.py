"""Results of measurements, as records that can be written to JSON and read back."""

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
    """A contender's result for one measure: milliseconds per operation, or turns per second (`throughput`).

    `stored` is the number of messages in the session; None for the throughput.
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
        """Return the cell for measured values."""
        return cls(engine, contender, measure, stored, median(values), len(values))


@dataclass(frozen=True)
class Results:
    """The results of a run: the machine, the measured values, and notes."""

    machine: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    def value(self, engine: Engine, contender: str, measure: Measure, stored: int | None = None) -> float | None:
        """Return the median of one cell; None if it was not measured."""
        for cell in self.cells:
            if (cell.engine, cell.contender, cell.measure, cell.stored) == (engine, contender, measure, stored):
                return cell.median
        return None

    def sizes(self, engine: Engine) -> list[int]:
        """Return the measured session lengths, ascending."""
        return sorted({cell.stored for cell in self.cells if cell.engine == engine and cell.stored is not None})

    def engines(self) -> list[Engine]:
        """Return the measured engines, in the order of the run."""
        return list(dict.fromkeys(cell.engine for cell in self.cells))

    def write_json(self, path: Path) -> None:
        """Write the results to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
