"""The tokens of OpenAI's models, exactly and without a network: the extra `threadkeep[tokens]`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Literal, Protocol

from threadkeep.errors import InvalidInput

type Encoding = Literal["o200k", "cl100k"]
"""`o200k` is that of gpt-4o and all since, `cl100k` that of gpt-4 and gpt-3.5."""


class _Vocabulary(Protocol):
    def count(self, text: str, /) -> int:
        """The tokens of a text that UTF-8 can hold; what looks like a special token is plain text."""
        ...


@dataclass(frozen=True, slots=True)
class ExactCounter:
    """Counts as the models of an encoding do; half of a surrogate pair counts as the character that stands for it."""

    name: Encoding
    vocabulary: _Vocabulary = field(repr=False, compare=False)

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        try:
            return self.vocabulary.count(text)
        except UnicodeEncodeError:
            return self.vocabulary.count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def exact_counter(encoding: Encoding) -> ExactCounter:
    """The exact counter of an encoding.

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
    """The exact counter of an encoding, or None without the extra; the first call takes half a second."""
    try:
        with warnings.catch_warnings():
            # The package reads its files in a way that Python 3.12, alone of all versions, calls deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Not its own `get_encoding`: that one refuses texts of a million characters or 200,000 tokens.
            bindings = import_module("bpe_openai._bindings")
    except ImportError:
        return None
    return ExactCounter(encoding, bindings.tokenizer_for_encoding(f"{encoding}_base"))
