"""A context drawn for people: a bar of the budget for each section, what is in, what is out and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from threadkeep.cli.context_reasons import in_words
from threadkeep.cli.context_view import ContextView, SeenMessage
from threadkeep.cli.terminal import Terminal, first_words
from threadkeep.cli.wording import counted
from threadkeep.context.calibration import TokenFactor
from threadkeep.context.manifest import ContextManifest, Exclusion, LeftOut

_BAR = 40
_WORDS = 60
_COLORS = {
    "system": "magenta",
    "summary": "yellow",
    "window": "cyan",
    "input": "green",
    "facts": "blue",
    "snippets": "blue",
    "selected": "blue",
    "steps": "red",
    "free": "dim",
}
COLUMNS = ("seq", "section", "role", "tokens", "text")
NUMBERS = ("seq", "tokens")


def show_context(terminal: Terminal, view: ContextView, factor: TokenFactor | None = None) -> None:
    """Draw all of it; `factor` is what was learned of the model's tokens until now."""
    show_bars(terminal, view)
    for line in _facts(view.manifest, factor):
        terminal.say(line)
    terminal.say()
    if view.messages:
        terminal.table(COLUMNS, [row_of(message) for message in view.messages], right=NUMBERS)
    if not any(message.entry.seq is not None for message in view.messages):
        terminal.say("Nothing of the session is in.")
    show_what_is_out(terminal, view.manifest)


def show_bars(terminal: Terminal, view: ContextView) -> None:
    """A bar for each section and for what is free, then the budget."""
    total = max(view.budget, view.manifest.tokens, 1)
    parts = [(str(name), tokens) for name, tokens, _ in view.sections]
    for name, tokens in [*parts, ("free", view.free)]:
        bar = "█" * -(-_BAR * tokens // total)
        share = f"{100 * tokens / total:>4.0f} %"
        terminal.say(Text.assemble(f"{name:<9}", (f"{bar:<{_BAR}}", _COLORS[name]), f" {tokens:>9,} tokens {share}"))
    places = "" if view.manifest.max_messages is None else f", {view.manifest.max_messages:,} earlier messages"
    terminal.say(f"{'budget':<9}{'':<{_BAR}} {view.budget:>9,} tokens{places}")


def show_what_is_out(terminal: Terminal, manifest: ContextManifest) -> None:
    """A line for each range of the transcript, and for each stretch of the run, that was not sent."""
    for gap in _joined(manifest.excluded):
        terminal.say(f"out: {_range(gap)}, {in_words(gap.reason, manifest)}", style="dim")
    for one in manifest.left_out:
        terminal.say(f"out: {_stretch(one)}, {in_words(one.reason, manifest)}", style="dim")


def show_next(terminal: Terminal, view: ContextView) -> None:
    """In a few lines what the next call would see beside its input; all of it is a command of its own."""
    seqs = [message.entry.seq for message in view.messages if message.entry.seq is not None]
    terminal.say()
    seen = f"messages {seqs[0]} to {seqs[-1]}" if seqs else "nothing of the session"
    tokens = f"{view.manifest.tokens:,} of {counted(view.budget, 'token')}"
    terminal.say(f"The next call would see {seen} beside its input: {tokens}.")
    terminal.say(f"All of it: threadkeep context show --session {view.manifest.session_id} --next", style="dim")
    show_what_is_out(terminal, view.manifest)


def title_of(manifest: ContextManifest) -> str:
    """Which call it is."""
    at = f", {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}" if manifest.created_at else ""
    return f"Call {manifest.call} of run {manifest.run_id} in {manifest.session_id}{at}"


def row_of(message: SeenMessage) -> tuple[str, ...]:
    """A message as a row of `COLUMNS`."""
    entry = message.entry
    words = first_words(message.words, _WORDS)
    if entry.tokens_before is not None:
        words += f" (cut from {entry.tokens_before:,})"
    seq = "" if entry.seq is None else str(entry.seq)
    return seq, entry.section, message.role or "", f"{entry.tokens:,}", words


def _facts(manifest: ContextManifest, factor: TokenFactor | None) -> Iterator[str]:
    """What else the record says: who counted, what the provider says, where the window begins."""
    learned = ""
    if factor is not None and factor.samples:
        learned = f"; learned by now: ×{factor.value:.2f} from {counted(factor.samples, 'call')}"
    yield f"model    {manifest.model or 'not named'}, counted by {manifest.counter}{learned}"
    if manifest.tools:
        yield f"tools    {counted(manifest.tools, 'token')} on top, of what the model is told of them"
    if (reported := manifest.reported) is not None:
        estimated = manifest.tokens + manifest.tools
        share = 100 * reported.cached_tokens / max(reported.input_tokens, 1)
        cached = (
            f", {reported.cached_tokens:,} of them from its cache ({share:.0f} %)" if reported.cached_tokens else ""
        )
        yield (
            f"reported {estimated:,} tokens were estimated, the provider counted {reported.input_tokens:,}"
            f"{cached}; the reply had {reported.output_tokens:,}"
        )
    begins = f", begins at message {manifest.anchor_seq}" if manifest.anchor_seq else ""
    yield f"window   {manifest.window}{begins}"
    if (prefix := manifest.prefix) is not None:
        yield (
            f"stable   the first {counted(prefix.messages, 'message')}, {counted(prefix.tokens, 'token')}: "
            "they do not depend on the input"
        )
    if manifest.notes:
        yield f"notes    {', '.join(manifest.notes).replace('_', ' ')}"


def _joined(gaps: Sequence[Exclusion]) -> list[Exclusion]:
    """Ranges that follow each other and are out for the same reason as one."""
    joined: list[Exclusion] = []
    for gap in gaps:
        last = joined[-1] if joined else None
        if last is not None and last.reason == gap.reason != "summarised" and last.last_seq + 1 == gap.first_seq:
            joined[-1] = replace(last, last_seq=gap.last_seq)
        else:
            joined.append(gap)
    return joined


def _range(gap: Exclusion) -> str:
    return str(gap.first_seq) if gap.first_seq == gap.last_seq else f"{gap.first_seq}–{gap.last_seq}"


def _stretch(one: LeftOut) -> str:
    if one.last_id is not None:
        return f"{one.count:,} messages of the run, {one.id} to {one.last_id}"
    if one.id is None:
        return counted(one.count, "message") + " of the run"
    return f"the run's message {one.id}"
