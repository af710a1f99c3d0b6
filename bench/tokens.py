"""`python -m bench tokens`: errors of the token estimates against real tokenizers, and the speed of all counters."""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from bench.machine import machine_line
from bench.tables import Sheet, markdown
from bench.token_families import real_counts
from bench.token_samples import Half, rows
from threadkeep.context.estimates import FAMILIES, Family
from threadkeep.context.tokens import FAMILY_ESTIMATES, TokenCounter, counter_named, estimate, estimate_cl100k

PAGE = "explanation/tokens.md"
LEAST_ERROR, GREATEST_ERROR = -0.10, 0.35
"""The aim: no row's error is below the first at the 5th percentile, or above the second at the 95th."""

EXACT: tuple[Family, ...] = ("o200k", "cl100k")
"""The tokenizers of OpenAI. The page shows all rows for these, and for each other tokenizer only one line."""
_ROUNDS = 15  # rounds of each counter in turn; the fastest one counts, because other work on the machine only slows it


@dataclass(frozen=True)
class Errors:
    """The errors of an estimate over the samples of a row, as parts of the real count; below 0 is too few."""

    p5: float
    median: float
    p95: float

    @property
    def is_within(self) -> bool:
        """True if the row meets the aim."""
        return self.p5 >= LEAST_ERROR and self.p95 <= GREATEST_ERROR


@dataclass(frozen=True)
class Row:
    """A row of the table: a language or a kind of content."""

    title: str
    samples: int
    errors: Mapping[Family, Errors]


def measure(half: Half = "published", estimates: Mapping[Family, TokenCounter] = FAMILY_ESTIMATES) -> list[Row]:
    """Return the errors of the estimates in each row of the table, against the real counts of their tokenizers."""
    real = real_counts()[half]
    return [
        Row(title, len(texts), {e: _errors(texts, counter, real[e][title]) for e, counter in estimates.items()})
        for title, texts in rows(half).items()
    ]


def error_sheet(measured: Sequence[Row]) -> Sheet:
    """Return the table of errors in per cent."""
    header = ["text", "samples"]
    for family in EXACT:
        header += [f"{family}: p5", "median", "p95"]
    lines = [
        (row.title, str(row.samples), *(cell for family in EXACT for cell in _cells(row.errors[family])))
        for row in measured
    ]
    return Sheet("Error of the estimate in per cent", tuple(header), tuple(lines))


def misses(measured: Sequence[Row]) -> str:
    """Return a sentence with the rows that miss the aim for a tokenizer of OpenAI."""
    found = [(row, family) for row in measured for family in EXACT if family in row.errors]
    missed = [f"{row.title} ({family})" for row, family in found if not row.errors[family].is_within]
    cells = len(found)
    if not missed:
        return f"All {cells} meet it."
    return f"{cells - len(missed)} of {cells} meet it; these miss it: {', '.join(missed)}."


def family_sheet(measured: Sequence[Row]) -> Sheet:
    """Return the table of the lowest errors over whole languages, by `estimate` and by the tokenizer's own estimate."""
    real, texts = real_counts()["published"], rows("published")
    languages = [title for title in texts if title.endswith((": prose", ": chat"))]
    plain = {title: sum(map(estimate, texts[title])) for title in languages}
    lines = []
    for family in FAMILIES:
        own = {title: sum(map(FAMILY_ESTIMATES[family], texts[title])) for title in languages}
        before, now = (
            {title: counted[title] / sum(real[family][title]) - 1 for title in languages} for counted in (plain, own)
        )
        within = sum(row.errors[family].is_within for row in measured)
        lines.append((family, *_worst(before), *_worst(now), f"{within} of {len(measured)}"))
    header = ("tokenizer", "`estimate`: lowest", "of", "its own: lowest", "of", "rows within the aim")
    return Sheet("Whole languages", header, tuple(lines))


def _worst(errors: Mapping[str, float]) -> tuple[str, str]:
    title = min(errors, key=lambda one: errors[one])
    return f"{100 * errors[title]:+.0f}", title


def speed_sheet() -> Sheet:
    """Return the table of tokens per second of each counter, over all samples, one by one."""
    texts = [text for own in rows("published").values() for text in own]
    tokens = sum(map(counter_named("o200k"), texts))
    with _reference() as reference:
        counters = {
            "`estimate`": estimate,
            "`estimate_cl100k`": estimate_cl100k,
            "`o200k` (bpe-openai)": counter_named("o200k"),
            "tiktoken": reference,
        }
        seconds = dict.fromkeys(counters, float("inf"))
        for _ in range(_ROUNDS):
            for name, counter in counters.items():
                seconds[name] = min(seconds[name], _seconds(counter, texts))
    lines = [
        (name, f"{tokens / spent / 1e6:.1f}", f"{1e6 * spent / len(texts):.0f}") for name, spent in seconds.items()
    ]
    return Sheet("Speed", ("counter", "million tokens a second", "µs a sample"), tuple(lines))


def write_page(measured: Sequence[Row], speed: Sheet, docs: Path) -> None:
    """Write the page of the docs: the prose of `tokens.md` with the tables."""
    template = Template(Path(__file__).with_name("tokens.md").read_text(encoding="utf-8"))
    page = template.substitute(
        errors=markdown(error_sheet(measured)),
        misses=misses(measured),
        families=markdown(family_sheet(measured)),
        speed=markdown(speed),
        machine=machine_line(None),
    )
    (docs / PAGE).write_text(page, encoding="utf-8")


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure, print, write the page, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench tokens", description=main.__doc__)
    parser.add_argument("--write-docs", action=argparse.BooleanOptionalAction, default=True, help=f"write docs/{PAGE}")
    given = parser.parse_args(arguments)
    measured, speed = measure(), speed_sheet()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for sheet in (error_sheet(measured), family_sheet(measured), speed):
        table = Table(title=sheet.title, title_justify="left")
        for number, name in enumerate(sheet.header):
            table.add_column(name, justify="right" if number else "left")
        for line in sheet.rows:
            table.add_row(*(cell.replace("**", "").replace("`", "") for cell in line))
        console.print(table)
    console.print(f"Never under by more than 10 % at p5, nor over by more than 35 % at p95: {misses(measured)}")
    if given.write_docs:
        write_page(measured, speed, docs)
    return 0


def _errors(texts: Sequence[str], counter: TokenCounter, real: Sequence[int]) -> Errors:
    found = [counter(text) / tokens - 1 for text, tokens in zip(texts, real, strict=True)]
    twentieths = statistics.quantiles(found, n=20, method="inclusive")
    return Errors(twentieths[0], statistics.median(found), twentieths[-1])


def _cells(errors: Errors) -> tuple[str, str, str]:
    """Return the figures; figures that miss the aim are bold."""
    low, high = f"{100 * errors.p5:+.0f}", f"{100 * errors.p95:+.0f}"
    return (
        low if errors.p5 >= LEAST_ERROR else f"**{low}**",
        f"{100 * errors.median:+.0f}",
        high if errors.p95 <= GREATEST_ERROR else f"**{high}**",
    )


def _seconds(counter: Callable[[str], int], texts: Sequence[str]) -> float:
    """Return the CPU time of one round over the texts."""
    started = time.process_time()
    for text in texts:
        counter(text)
    return time.process_time() - started


@contextmanager
def _reference() -> Iterator[Callable[[str], int]]:
    """Yield tiktoken's counter with its vocabulary in its cache, so that it downloads nothing."""
    import tiktoken

    address = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    packed = files("bpe_openai.data").joinpath("o200k_base.tiktoken.gz").read_bytes()
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    with TemporaryDirectory() as folder:
        (Path(folder) / sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(gzip.decompress(packed))
        os.environ["TIKTOKEN_CACHE_DIR"] = folder
        try:
            encoding = tiktoken.get_encoding("o200k_base")
        finally:
            del os.environ["TIKTOKEN_CACHE_DIR"]
            if before is not None:
                os.environ["TIKTOKEN_CACHE_DIR"] = before
    yield lambda text: len(encoding.encode_ordinary(text))
