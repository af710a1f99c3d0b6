"""Exact, offline token counts of OpenAI's models; needs the extra `threadkeep[tokens]`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Literal, Protocol

from threadkeep.errors import InvalidInput

type Encoding = Literal["o200k", "cl100k"]
"""`o200k` belongs to gpt-4o and later models, `cl100k` to gpt-4 and gpt-3.5."""


class _Vocabulary(Protocol):
    def count(self, text: str, /) -> int:
        """Return the tokens of a text that is valid in UTF-8; special tokens in it count as plain text."""
        ...


@dataclass(frozen=True, slots=True)
class ExactCounter:
    """A counter that matches an encoding exactly; a lone surrogate counts as its replacement character."""

    name: Encoding
    vocabulary: _Vocabulary = field(repr=False, compare=False)

    def __call__(self, text: str, /) -> int:
        """Return the tokens of this text."""
        try:
            return self.vocabulary.count(text)
        except UnicodeEncodeError:
            return self.vocabulary.count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def exact_counter(encoding: Encoding) -> ExactCounter:
    """Return the exact counter of an encoding.

    Raises:
        InvalidInput: the extra is not installed.
    """
    if (counter := installed_counter(encoding)) is None:
        raise InvalidInput(
            f"The token counter {encoding!r} needs the extra `tokens`: pip install 'threadkeep[tokens]', "
            "or choose the counter 'estimate'."
        )
    return counter


@cache
def installed_counter(encoding: Encoding) -> ExactCounter | None:
    """Return the exact counter of an encoding, or None without the extra; the first call takes half a second."""
    try:
        with warnings.catch_warnings():
            # The package reads its files with a function that only Python 3.12 reports as deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            # The package's own `get_encoding` rejects texts of a million characters or 200,000 tokens.
            bindings = import_module("bpe_openai._bindings")
    except ImportError:
        return None
    return ExactCounter(encoding, bindings.tokenizer_for_encoding(f"{encoding}_base"))
