"""The messages of a context as rows: one line each, cut to the width of the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from threadkeep.cli.context_view import SeenMessage
from threadkeep.cli.terminal import Terminal, first_words
from threadkeep.context.manifest import ContextManifest, Entry

type Row = tuple[str, ...]

_COLUMNS = ("seq", "section", "role", "tokens", "text")
_RIGHT = ("seq", "tokens")
_GAP = "  "
_SUMMARY_TAGS = re.compile(r"</?summary\b[^>]*> ?")


def row_of(message: SeenMessage, manifest: ContextManifest, *, characters: int) -> Row:
    """A message of a call, with at most so many characters of what it says."""
    entry = message.entry
    words = _SUMMARY_TAGS.sub("", message.words) if entry.section == "summary" else message.words
    cut = "" if entry.tokens_before is None else f"(cut from {entry.tokens_before:,})"
    text = first_words(" ".join(filter(None, (cut, _made_of(entry, manifest), words))), characters)
    return "" if entry.seq is None else str(entry.seq), entry.section, message.role or "", f"{entry.tokens:,}", text


def say_rows(terminal: Terminal, groups: Iterable[tuple[str, str, Sequence[Row]]], *, marked: bool = False) -> None:
    """Rows under each other; of each group the mark of its rows, a line above them (if any), and the rows.

    They stay under each other in all groups. With `marked` there is a column for the marks.
    """
    told = [(mark, heading, rows) for mark, heading, rows in groups if rows]
    every = [_COLUMNS, *(row for _, _, rows in told for row in rows)]
    widths = [max(len(row[place]) for row in every) for place in range(len(_COLUMNS) - 1)]
    _say_row(terminal, _COLUMNS, widths, " " if marked else "", style="bold")
    for mark, heading, rows in told:
        if heading:
            terminal.say(heading, style="dim")
        for row in rows:
            _say_row(terminal, row, widths, mark)


def _say_row(terminal: Terminal, row: Row, widths: Sequence[int], mark: str, *, style: str = "") -> None:
    *cells, text = row
    placed = zip(_COLUMNS, cells, widths, strict=False)  # the text is as wide as the rest of the line
    aligned = [cell.rjust(width) if name in _RIGHT else cell.ljust(width) for name, cell, width in placed]
    line = Text(_GAP.join(filter(None, (mark, *aligned, text))))
    line.truncate(terminal.out.width, overflow="ellipsis")
    terminal.say(line, style=style)


def _made_of(entry: Entry, manifest: ContextManifest) -> str:
    """What a block holds: which messages it quotes or stands for, which passages it has."""
    if entry.turns:
        return f"quotes {'; '.join(_quoted(entry, manifest.session_id or ''))}:"
    if entry.summaries:
        places = (
            seq
            for gap in manifest.excluded
            if gap.reason == "summarised"
            for seq in range(gap.first_seq, gap.last_seq + 1)
        )
        return f"{'summary' if len(entry.summaries) == 1 else 'summaries'} of {ranges(places)}:"
    return f"passages {', '.join(entry.snippets)}:" if entry.snippets else ""


def _quoted(entry: Entry, home: str) -> Iterator[str]:
    """The places that are quoted, those of the session itself first."""
    places: dict[str, list[int]] = {home: []}
    for turn in entry.turns:
        places.setdefault(turn.session_id, []).append(turn.seq)
    for session_id, seqs in places.items():
        if seqs:
            yield ranges(seqs) if session_id == home else f"{ranges(seqs)} of {session_id}"


def ranges(places: Iterable[int]) -> str:
    """Places as a person says them: 1–4, 17."""
    found: list[list[int]] = []
    for place in sorted(places):
        if found and place <= found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in found)
