"""Output of contexts: the sections of the budget, included and excluded messages, and differences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from threadkeep.agent.context_view import ContextView, Difference, SeenMessage
from threadkeep.agent.explanations import describe_left_out, in_words, recall_in_words
from threadkeep.cli.opening import on_this_database
from threadkeep.cli.terminal import counted, first_words, terminal
from threadkeep.context.manifest import ContextManifest, Entry, LeftOut
from threadkeep.context.tokens import TokenFactor
from threadkeep.context.window import join_ranges

type Row = tuple[str, ...]
_COLORS = {
    "system": "magenta",
    "summary": "yellow",
    "window": "cyan",
    "earlier_steps": "red",
    "input": "green",
    "facts": "blue",
    "snippets": "blue",
    "selected": "blue",
    "steps": "red",
    "free": "dim",
}
_BAR = 40
_BESIDE_THE_BAR = 34
_LABEL = 9
_COLUMNS = ("seq", "section", "role", "tokens", "text")
_RIGHT = ("seq", "tokens")
_GAP = "  "
_SUMMARY_TAGS = re.compile(r"</?summary\b[^>]*> ?")


def show_view(view: ContextView, factor: TokenFactor | None = None) -> None:
    """Show the whole context. `factor` is the learned correction of token estimates."""
    _show_bars(view)
    for label, fact in _facts(view.manifest, factor):
        terminal.labelled(f"{label:<{_LABEL}}", fact)
    terminal.say()
    show_rows([("", "", [row_of(message, view.manifest) for message in view.messages])])
    if view.manifest.session_id and not any(message.entry.seq is not None for message in view.messages):
        terminal.say("No message of the session is included.")
    show_excluded(view.manifest)


def show_excluded(manifest: ContextManifest) -> None:
    """Show a line for each range of excluded messages."""
    for gap in join_ranges(manifest.excluded):
        terminal.labelled(
            "out: ",
            f"{ranges([gap.first_seq, gap.last_seq], joined=True)}, {in_words(gap.reason, manifest)}",
            style="dim",
        )
    for one in manifest.left_out:
        terminal.labelled("out: ", f"{_range_of_run(one)}, {in_words(one.reason, manifest)}", style="dim")


def show_next(view: ContextView) -> None:
    """Summarise the next model call without its input, which is not known yet."""
    seqs = [message.entry.seq for message in view.messages if message.entry.seq is not None]
    terminal.say()
    seen = f"messages {seqs[0]} to {seqs[-1]}" if seqs else "no message of the session"
    tokens = f"{view.manifest.tokens:,} of {counted(view.budget, 'token')}"
    terminal.labelled("", f"The built-in chat's next call would see {seen} and its input: {tokens}.")
    session = shlex.quote(view.manifest.session_id or "")
    command = on_this_database(f"threadkeep context show --session {session} --next")
    terminal.say(f"In full: {command}", style="dim")
    show_excluded(view.manifest)


def show_whole_next(view: ContextView) -> None:
    """Show the chat's next model call in full, except for its input."""
    terminal.labelled("", "The built-in chat's next call, without its input")
    terminal.labelled("in ", _location(view.manifest))
    show_view(view)


def show_title(manifest: ContextManifest, label: str = "") -> None:
    """Show the title of a recorded model call, in two lines."""
    at = f", {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}" if manifest.created_at else ""
    node = f", node {manifest.node}" if manifest.node else ""
    terminal.labelled(label, f"Call {manifest.call} of run {manifest.run_id}{node}")
    terminal.labelled(" " * len(label), f"in {_location(manifest)}{at}")


def show_rows(groups: Iterable[tuple[str, str, Sequence[Row]]], *, marked: bool = False) -> None:
    """Print groups of rows, each with a mark and an optional heading, in columns.

    Rows are cut to the width of the terminal. `marked` adds a column for the marks.
    """
    filled = [(mark, heading, rows) for mark, heading, rows in groups if rows]
    every = [_COLUMNS, *(row for _, _, rows in filled for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(_COLUMNS) - 1)]
    if filled:
        _show_row(_COLUMNS, widths, " " if marked else "", style="bold")
    for mark, heading, rows in filled:
        if heading:
            terminal.say(heading, style="dim")
        for row in rows:
            _show_row(row, widths, mark)


def row_of(message: SeenMessage, manifest: ContextManifest) -> Row:
    """Return the row of a message, with the beginning of its text."""
    entry = message.entry
    words = _SUMMARY_TAGS.sub("", message.words) if entry.section == "summary" else message.words
    cut = "" if entry.tokens_before is None else f"(cut from {entry.tokens_before:,})"
    text = first_words(" ".join(filter(None, (cut, _content(entry, manifest), words))), terminal.width)
    return "" if entry.seq is None else str(entry.seq), entry.section, message.role or "", f"{entry.tokens:,}", text


def ranges(seqs: Iterable[int], *, joined: bool = False) -> str:
    """Return `seq` numbers as ranges, such as 1–4, 17; with `joined`, as one range."""
    found: list[list[int]] = []
    for seq in sorted(seqs):
        if found and (joined or seq <= found[-1][1] + 1):
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in found)


def _show_bars(view: ContextView) -> None:
    """Draw a bar for each section and for the free tokens, then the budget."""
    total = max(view.budget, view.manifest.tokens, 1)
    widest = min(max(terminal.width - _BESIDE_THE_BAR, 0), _BAR)
    parts = [(str(name), tokens) for name, tokens, _ in view.sections]
    label = max(_LABEL, *(len(name) + 1 for name, _ in parts))
    for name, tokens in [*parts, ("free", view.free)]:
        bar = "█" * -(-widest * tokens // total)
        share = f" {tokens:>9,} tokens {100 * tokens / total:>4.0f} %"
        terminal.say(f"{name:<{label}}", (f"{bar:<{widest}}", _COLORS[name]), share)
    terminal.say(f"{'budget':<{label}}{'':<{widest}} {view.budget:>9,} tokens")


def _show_row(row: Row, widths: Sequence[int], mark: str, *, style: str = "") -> None:
    *cells, text = row
    columns = zip(_COLUMNS, cells, widths, strict=False)  # the text has no column
    aligned = [cell.rjust(width) if name in _RIGHT else cell.ljust(width) for name, cell, width in columns]
    line = Text(_GAP.join(filter(None, (mark, *aligned, text))))
    line.truncate(terminal.width, overflow="ellipsis")
    terminal.say(line.plain, style=style)


def _location(manifest: ContextManifest) -> str:
    """Return the name of a model call's session or conversation."""
    if manifest.conversation is not None:
        return f"{manifest.conversation.key} of {'.'.join(manifest.conversation.namespace)}"
    return manifest.session_id or "no session"


def _facts(manifest: ContextManifest, factor: TokenFactor | None) -> Iterator[tuple[str, str]]:
    """Yield the labels and values that describe a recorded model call."""
    learned = ""
    if factor is not None and factor.samples:
        learned = f"; learned by now: {factor.label} from {counted(factor.samples, 'call')}"
    yield "model", f"{manifest.model or 'not named'}, counted by {manifest.counter}{learned}"
    if manifest.tools:
        yield "tools", f"{counted(manifest.tools, 'token')} on top, for their descriptions"
    if (reported := manifest.reported) is not None:
        share = 100 * reported.cached_tokens / max(reported.input_tokens, 1)
        cached = (
            f", {reported.cached_tokens:,} of them from its cache ({share:.0f} %)" if reported.cached_tokens else ""
        )
        estimated = f"{manifest.tokens + manifest.tools:,} tokens were estimated"
        counts = f"{estimated}, the provider counted {reported.input_tokens:,}{cached}"
        yield "reported", f"{counts}; the reply had {reported.output_tokens:,}"
    most = "" if manifest.max_messages is None else f", at most {counted(manifest.max_messages, 'earlier message')}"
    begins = f", begins at message {manifest.anchor_seq}" if manifest.anchor_seq else ""
    yield "window", f"{manifest.window}{most}{begins}"
    if (prefix := manifest.prefix) is not None:
        leading = f"the first {counted(prefix.messages, 'message')}, {counted(prefix.tokens, 'token')}"
        yield "stable", f"{leading}: they do not depend on the input"
    for one in manifest.graph:
        yield "graphiti", recall_in_words(one)
    for facts in manifest.facts_left_out:
        yield "no facts", describe_left_out(facts)
    if manifest.notes:
        yield "notes", ", ".join(manifest.notes).replace("_", " ")


def _range_of_run(one: LeftOut) -> str:
    if one.last_id is not None:
        return f"{one.count:,} messages of the run, {one.id} to {one.last_id}"
    if one.id is None:
        return counted(one.count, "message") + " of the run"
    return f"the run's message {one.id}"


def _content(entry: Entry, manifest: ContextManifest) -> str:
    """Describe the messages, facts or passages that a message quotes or replaces."""
    if entry.turns:
        home = manifest.session_id or ""
        quoted = _by_session((home, None), *((turn.session_id, turn.seq) for turn in entry.turns))
        return f"quotes {'; '.join(_of_sessions(quoted, home))}:"
    if entry.summaries:
        gaps = [gap for gap in manifest.excluded if gap.reason == "summarised"]
        seqs = (seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1))
        return f"{'summary' if len(entry.summaries) == 1 else 'summaries'} of {ranges(seqs)}:"
    if entry.facts:
        return f"{counted(len(entry.facts), 'fact')} ({'; '.join(_origins(entry))}):"
    return f"passages {', '.join(entry.snippets)}:" if entry.snippets else ""


def _origins(entry: Entry) -> Iterator[str]:
    """Yield a phrase about the facts of each scope, with the messages that are their evidence."""
    for scope in dict.fromkeys(fact.scope for fact in entry.facts):
        facts = [fact for fact in entry.facts if fact.scope == scope]
        cited = _by_session(*((turn.session_id, turn.seq) for fact in facts for turn in fact.evidence))
        messages = ", ".join(_of_sessions(cited, None))
        yield f"{len(facts)} of the {scope}" + (f" from {messages}" if messages else "")


def _by_session(*messages: tuple[str, int | None]) -> dict[str, list[int]]:
    """Return the `seq` numbers of messages by session."""
    found: dict[str, list[int]] = {}
    for session_id, seq in messages:
        found.setdefault(session_id, []).extend([] if seq is None else [seq])
    return found


def _of_sessions(seqs: Mapping[str, Sequence[int]], home: str | None) -> Iterator[str]:
    for session_id, found in seqs.items():
        if found:
            yield ranges(found) if session_id == home else f"{ranges(found)} of {session_id}"


def show_difference(difference: Difference) -> None:
    """Show the differences between two model calls."""
    before, after = difference.before.manifest, difference.after.manifest
    show_title(before, "from  ")
    show_title(after, "to    ")
    terminal.say()
    for line in _sharing(difference):
        terminal.labelled("", line)
    terminal.say()
    if not difference.came and not difference.went:
        terminal.say("Nothing changed.")
        return
    came = [row_of(message, after) for message in difference.came]
    removed = {why: [row_of(message, before) for message in went] for why, went in difference.gone.items()}
    show_rows([("+", "", came), *(("-", f"- {why}:", rows) for why, rows in removed.items())], marked=True)


def _sharing(difference: Difference) -> list[str]:
    before, after = difference.before.manifest, difference.after.manifest
    share = 100 * difference.shared_tokens / max(after.tokens, 1)
    tokens = f"{difference.shared_tokens:,} of {counted(after.tokens, 'token')} ({share:.0f} %)"
    same = f"Both begin with the same {counted(difference.shared, 'message')}"
    lines = [f"{same}: {tokens}, which a provider's prompt cache can reuse."]
    if after.reported is not None:
        lines.append(f"The provider took {counted(after.reported.cached_tokens, 'token')} from its cache.")
    if difference.stable:
        lines.append("All parts that do not depend on the input are also at the beginning of the later call.")
    elif before.anchor_seq != after.anchor_seq:
        lines.append(
            f"The window was shortened: it began at message {max(before.anchor_seq, 1)}, now at {after.anchor_seq}."
        )
    else:
        lines.append("A part that does not depend on the input changed; the first line below shows it.")
    return lines
