"""`python -m bench.fit_tokens`: fit the weights of the token estimates and print their errors; `--write` stores them.

The estimate of a text is a sum over its patterns. Their weights are fitted so that estimates lie between the real count
and a fifth above it, closer for English. Estimates below the count are penalised most, each row of the table weighs the
same, and a ridge keeps the weights of rare patterns small. The project's texts of the half `fit` are always used;
`--texts FILE` adds others, one JSON object a line with `row`, `text` and `weight` (the project's texts have 1). Real
tokenizers count these; `--vocabularies` is the folder of their vocabularies (see `bench.token_families`). `--near`
keeps the weights near the present ones.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.token_families import real_counter, real_counts
from bench.token_patterns import all_patterns, pattern_counts
from bench.token_samples import rows
from bench.tokens import Row, measure, misses
from threadkeep.context import estimates
from threadkeep.context.estimates import FAMILIES, Family
from threadkeep.context.tokens import TokenCounter

type Floats = NDArray[np.float64]

_AIM, _LATIN_AIM, _ENGLISH_AIM = (0.99, 1.09, 1.21), (0.98, 1.06, 1.17), (0.97, 1.03, 1.08)
"""The least, the middle and the greatest estimate that are wanted, as multiples of the real count."""

_LATIN = ("German", "French", "Spanish", "Portuguese", "Polish", "Turkish", "Vietnamese", "Swahili")
_UNDER, _NEAR, _OVER = 6.0, 0.3, 2.0
_RIDGE, _NEAR_RIDGE = 0.01, 0.4
_ROUNDS, _SETTLED, _LENGTHS = 100, 1e-9, (1.0, 0.5, 0.2, 0.05)
_FIGURES = re.compile(r"(?:, -?\d+\.\d+)+\]")


@dataclass(frozen=True, slots=True)
class Problem:
    """Counts of patterns for each text, the shares of texts in the whole, their aims, and their real tokens."""

    counts: Floats
    shares: Floats
    aims: Floats
    tokens: dict[Family, Floats]


def problem(extra: Path | None, vocabularies: Path, families: Sequence[Family]) -> Problem:
    """Return the texts for the fit as a numerical problem."""
    weighted = [(text, 1 / len(texts), title) for title, texts in rows("fit").items() for text in texts]
    tokens = {family: [n for own in real_counts()["fit"][family].values() for n in own] for family in families}
    if extra is not None:
        others = [json.loads(line) for line in extra.read_text(encoding="utf-8").splitlines()]
        sizes = Counter(other["row"] for other in others)
        weighted += [(other["text"], other["weight"] / sizes[other["row"]], other["row"]) for other in others]
        for family in families:
            tokens[family] += map(real_counter(family, vocabularies), [other["text"] for other in others])
    width = len(all_patterns())
    counts = np.zeros((len(weighted), width))
    for place, (text, _, _) in enumerate(weighted):
        counts[place] = pattern_counts(text)
    shares = np.array([share for _, share, _ in weighted])
    aims = np.array([_aim(row) for _, _, row in weighted]).T
    return Problem(counts, shares / shares.sum(), aims, {e: np.array(own, dtype=float) for e, own in tokens.items()})


def _aim(row: str) -> tuple[float, float, float]:
    if row.startswith("English"):
        return _ENGLISH_AIM
    return _LATIN_AIM if row.startswith(_LATIN) else _AIM


def fitted(given: Problem, family: Family, *, near: bool = False) -> Floats:
    """Return the weights for a tokenizer, by Newton's method: the loss is piecewise quadratic."""
    ratios = given.counts / given.tokens[family][:, None]
    start = _present(family) if near else np.zeros(ratios.shape[1])
    ridge, before = _NEAR_RIDGE if near else _RIDGE, ratios @ start
    scale = np.sqrt((given.shares[:, None] * ratios**2).sum(axis=0)) + 1e-9
    ratios = ratios / scale
    moved = np.zeros(ratios.shape[1])
    loss = _loss(before, moved, given, ridge)
    for _ in range(_ROUNDS):
        slope, bend = _bends(before + ratios @ moved, given)
        hessian = (ratios * bend[:, None]).T @ ratios + 2 * ridge * np.eye(len(moved))
        step = np.linalg.solve(hessian, ratios.T @ slope + 2 * ridge * moved)
        tries = [moved - length * step for length in _LENGTHS]
        losses = [_loss(before + ratios @ tried, tried, given, ridge) for tried in tries]
        best = int(np.argmin(losses))
        if loss - losses[best] < _SETTLED:
            break
        moved, loss = tries[best], losses[best]
    return np.asarray(start + moved / scale)


def _present(family: Family) -> Floats:
    """Return the weights that are in the package."""
    column = FAMILIES.index(family)
    return np.array([costs[column] for _, costs in all_patterns()])


def estimator(weights: Floats) -> TokenCounter:
    """Return a token counter that estimates with these weights."""

    def counted(text: str) -> int:
        return max(1, round(float(weights @ np.array(pattern_counts(text)))))

    return counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the errors on left-out texts, and store the weights if requested."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_tokens", description=main.__doc__)
    parser.add_argument("--texts", type=Path, metavar="FILE", help="more texts to fit to")
    parser.add_argument("--vocabularies", type=Path, default=Path(), metavar="FOLDER", help="count those with these")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, help="tokenizers to fit to")
    parser.add_argument("--near", action="store_true", help="stay near the weights that are there")
    parser.add_argument("--write", action="store_true", help="keep the weights in the package")
    given = parser.parse_args(arguments)
    stated = problem(given.texts, given.vocabularies, given.families)
    found = {family: fitted(stated, family, near=given.near) for family in given.families}
    for half in ("fit", "published"):
        measured = measure(half, {family: estimator(weights) for family, weights in found.items()})
        print(f"{half}: {misses(measured)}")
        _print(measured)
    if given.write:
        _write(found)
    return 0


def _loss(found: Floats, weights: Floats, given: Problem, ridge: float) -> float:
    least, middle, most = given.aims
    under, over, near = np.minimum(found - least, 0), np.maximum(found - most, 0), found - middle
    spread = (given.shares * (_UNDER * under**2 + _OVER * over**2 + _NEAR * near**2)).sum()
    return float(spread + ridge * (weights**2).sum())


def _bends(found: Floats, given: Problem) -> tuple[Floats, Floats]:
    """Return the first and second derivatives of the loss with respect to each ratio."""
    least, middle, most = given.aims
    under, over = np.minimum(found - least, 0), np.maximum(found - most, 0)
    slope = 2 * given.shares * (_UNDER * under + _OVER * over + _NEAR * (found - middle))
    bend = 2 * given.shares * (_UNDER * (under < 0) + _OVER * (over > 0) + _NEAR)
    return slope, bend


def _print(measured: Sequence[Row]) -> None:
    for row in measured:
        figures = [
            f"{100 * found.p5:+5.0f} {100 * found.median:+5.0f} {100 * found.p95:+5.0f}{'!'[: not found.is_within]:1}"
            for found in row.errors.values()
        ]
        print(f"  {row.title:<22} {'   '.join(figures)}")


def _write(found: dict[Family, Floats]) -> None:
    """Store the weights in the order of the patterns; families that were not fitted keep theirs."""
    path = Path(estimates.__file__).with_name("token_costs.json")
    rows_of_costs = zip(*(found.get(family, _present(family)) for family in FAMILIES), strict=True)

    def renewed(_: re.Match[str]) -> str:
        return "".join(f", {cost:.3f}" for cost in next(rows_of_costs)) + "]"

    path.write_text(_FIGURES.sub(renewed, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
