"""Summaries of the demo model: the first words of each message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from threadkeep.context.cut import cut_end
from threadkeep.context.tokens import estimate

MAX_LINE_CHARACTERS = 80

_LEAST_LINE_CHARACTERS = 20
_REQUEST = re.compile(
    r"(?:<known>\n(?P<known>[^\n]*)\n</known>\n\n)?<record>\n(?P<record>.*)\n</record>\n\n(?P<task>[^\n]+)", re.DOTALL
)
_CONTINUATION = "The known text is your summary"
_MOST_TOKENS = re.compile(r"(\d+) characters")


def summary_of(messages: Sequence[BaseMessage]) -> str | None:
    """The summary that `ModelSummarizer` asks for with these messages; None where no summary is asked for."""
    match messages:
        case [SystemMessage(), HumanMessage() as asked]:
            found = _REQUEST.fullmatch(str(asked.text))
        case _:
            return None
    most = _MOST_TOKENS.search(found["task"]) if found else None
    if found is None or most is None:
        return None
    try:
        lines = [*_lines_of_record(found["record"])]
        if found["task"].startswith(_CONTINUATION):
            lines = json.loads(found["known"])["known"].splitlines() + lines
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # somebody else's tags
    return _bounded(lines, int(most[1]))


def statements_in(summary: str) -> list[str]:
    """Return what the user said according to a summary of the demo model."""
    lines = (line.partition(": ") for line in summary.splitlines())
    return [said for speaker, _, said in lines if speaker == "user"]


def _lines_of_record(record: str) -> Iterator[str]:
    for line in record.split("\n"):  # a text may hold other ends of lines, which JSON leaves as they are
        told = json.loads(line)
        if "from" in told:
            yield f"{told['from']}: {' '.join(told['text'].split())}"
        else:
            yield from told["text"].splitlines()


def _bounded(lines: Sequence[str], most_tokens: int) -> str:
    """The lines with fewer and fewer words of each; where that is not enough, the newest."""
    characters = MAX_LINE_CHARACTERS
    text = "\n".join(_beginning(line, characters) for line in lines)
    while estimate(text) > most_tokens and characters > _LEAST_LINE_CHARACTERS:
        characters //= 2
        text = "\n".join(_beginning(line, characters) for line in lines)
    if estimate(text) <= most_tokens:
        return text
    newest_first = text.splitlines()[::-1]
    sizes = accumulate(estimate(line) + 1 for line in newest_first)
    fitting = max(sum(1 for _ in takewhile(lambda size: size <= most_tokens, sizes)), 1)
    return cut_end("\n".join(newest_first[:fitting][::-1]), most_tokens, estimate)


def _beginning(line: str, characters: int) -> str:
    """The first words, with a mark for the rest; where no spaces part the words, the first characters."""
    if len(line) <= characters:
        return line
    cut = line[:characters]
    words = cut.rpartition(" ")[0]
    return f"{words if len(words) > characters // 2 else cut}…"
