"""Fits the weights of the token estimates: `python -m bench.fit_tokens` prints what they reach, `--write` keeps them.

The estimate of a text is a sum over its patterns. Their weights are fitted so that estimates lie between the real count
and a fifth above it: below is punished most, each row of the table weighs alike, and a ridge keeps rare patterns small.
Own texts of the half that is not published are always fitted to; `--texts FILE` adds others, one JSON object a line
with `row`, `text` and the row's `weight` beside the own ones' 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.token_patterns import all_patterns, pattern_counts
from bench.token_samples import rows
from bench.tokens import ENCODINGS, Row, measure, misses
from threadkeep.context import estimates
from threadkeep.context.estimates import Encoding
from threadkeep.context.tokens import TokenCounter, counter_named

type Floats = NDArray[np.float64]

_LEAST, _MIDDLE, _MOST = 0.99, 1.09, 1.21
_UNDER, _NEAR, _OVER = 6.0, 0.3, 2.0
_RIDGE = 0.01
_ROUNDS, _SETTLED, _LENGTHS = 100, 1e-9, (1.0, 0.5, 0.2, 0.05)
_FIGURES = re.compile(r"(, )-?\d+\.\d+(, )-?\d+\.\d+(\])")


@dataclass(frozen=True, slots=True)
class Problem:
    """Counts of patterns for each text, the shares of texts in the whole, and their real tokens."""

    counts: Floats
    shares: Floats
    tokens: dict[Encoding, Floats]


def problem(extra: Path | None) -> Problem:
    """The texts to fit to, as numbers."""
    weighted = [(text, 1 / len(texts)) for texts in rows("fit").values() for text in texts]
    if extra is not None:
        others = [json.loads(line) for line in extra.read_text(encoding="utf-8").splitlines()]
        sizes: dict[str, int] = {}
        for other in others:
            sizes[other["row"]] = sizes.get(other["row"], 0) + 1
        weighted += [(other["text"], other["weight"] / sizes[other["row"]]) for other in others]
    width = len(all_patterns())
    counts = np.zeros((len(weighted), width))
    for place, (text, _) in enumerate(weighted):
        counts[place] = pattern_counts(text)
    shares = np.array([share for _, share in weighted])
    exact = {encoding: counter_named(encoding) for encoding in ENCODINGS}
    tokens = {e: np.array([float(exact[e](text)) for text, _ in weighted]) for e in ENCODINGS}
    return Problem(counts, shares / shares.sum(), tokens)


def fitted(given: Problem, encoding: Encoding) -> Floats:
    """The weights for an encoding, by Newton's method: the loss is quadratic in pieces."""
    ratios = given.counts / given.tokens[encoding][:, None]
    scale = np.sqrt((given.shares[:, None] * ratios**2).sum(axis=0)) + 1e-9
    ratios = ratios / scale
    weights = np.zeros(ratios.shape[1])
    loss = _loss(ratios @ weights, weights, given.shares)
    for _ in range(_ROUNDS):
        slope, bend = _bends(ratios @ weights, given.shares)
        hessian = (ratios * bend[:, None]).T @ ratios + 2 * _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(hessian, ratios.T @ slope + 2 * _RIDGE * weights)
        tries = [weights - length * step for length in _LENGTHS]
        losses = [_loss(ratios @ tried, tried, given.shares) for tried in tries]
        best = int(np.argmin(losses))
        if loss - losses[best] < _SETTLED:
            break
        weights, loss = tries[best], losses[best]
    return np.asarray(weights / scale)


def estimator(weights: Floats) -> TokenCounter:
    """The estimate with these weights."""

    def counted(text: str) -> int:
        return max(1, round(float(weights @ np.array(pattern_counts(text)))))

    return counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print what is reached on the texts that were left out, and keep the weights where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_tokens", description=main.__doc__)
    parser.add_argument("--texts", type=Path, metavar="FILE", help="more texts to fit to")
    parser.add_argument("--write", action="store_true", help="keep the weights in the package")
    given = parser.parse_args(arguments)
    stated = problem(given.texts)
    found = {encoding: fitted(stated, encoding) for encoding in ENCODINGS}
    for half in ("fit", "published"):
        measured = measure(half, {encoding: estimator(weights) for encoding, weights in found.items()})
        print(f"{half}: {misses(measured)}")
        _print(measured)
    if given.write:
        _write(found)
    return 0


def _loss(found: Floats, weights: Floats, shares: Floats) -> float:
    under, over = np.minimum(found - _LEAST, 0), np.maximum(found - _MOST, 0)
    near = found - _MIDDLE
    spread = (shares * (_UNDER * under**2 + _OVER * over**2 + _NEAR * near**2)).sum()
    return float(spread + _RIDGE * (weights**2).sum())


def _bends(found: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """The first and second derivative of the loss by each ratio."""
    under, over = np.minimum(found - _LEAST, 0), np.maximum(found - _MOST, 0)
    slope = 2 * shares * (_UNDER * under + _OVER * over + _NEAR * (found - _MIDDLE))
    bend = 2 * shares * (_UNDER * (under < 0) + _OVER * (over > 0) + _NEAR)
    return slope, bend


def _print(measured: Sequence[Row]) -> None:
    for row in measured:
        figures = [
            f"{100 * found.p5:+5.0f} {100 * found.median:+5.0f} {100 * found.p95:+5.0f}{'!'[: not found.is_within]:1}"
            for found in row.errors.values()
        ]
        print(f"  {row.title:<22} {'   '.join(figures)}")


def _write(found: dict[Encoding, Floats]) -> None:
    """Put the figures in place of those that are there, in the order of the patterns."""
    path = Path(estimates.__file__).with_name("token_costs.json")
    pairs = iter(zip(*(found[encoding] for encoding in ENCODINGS), strict=True))

    def renewed(match: re.Match[str]) -> str:
        current, former = next(pairs)
        return f"{match[1]}{current:.3f}{match[2]}{former:.3f}{match[3]}"

    path.write_text(_FIGURES.sub(renewed, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
