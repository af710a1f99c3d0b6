"""A context drawn for people: a bar of the budget for each section, what is in, what is out and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from threadkeep.cli.context_reasons import in_words
from threadkeep.cli.context_rows import row_of, say_rows
from threadkeep.cli.context_view import ContextView
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted
from threadkeep.context.calibration import TokenFactor
from threadkeep.context.manifest import ContextManifest, Exclusion, LeftOut

_BAR = 40
_BESIDE_THE_BAR = 34
_LABEL = 9
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


def show_context(terminal: Terminal, view: ContextView, factor: TokenFactor | None = None) -> None:
    """Draw all of it; `factor` is what was learned of the model's tokens until now."""
    show_bars(terminal, view)
    for label, fact in _facts(view.manifest, factor):
        terminal.labelled(f"{label:<{_LABEL}}", fact)
    terminal.say()
    rows = [row_of(message, view.manifest, characters=terminal.out.width) for message in view.messages]
    if rows:
        say_rows(terminal, [("", "", rows)])
    if view.manifest.session_id and not any(message.entry.seq is not None for message in view.messages):
        terminal.say("Nothing of the session is in.")
    show_what_is_out(terminal, view.manifest)


def show_bars(terminal: Terminal, view: ContextView) -> None:
    """A bar for each section and for what is free, then the budget."""
    total = max(view.budget, view.manifest.tokens, 1)
    widest = min(max(terminal.out.width - _BESIDE_THE_BAR, 0), _BAR)
    parts = [(str(name), tokens) for name, tokens, _ in view.sections]
    for name, tokens in [*parts, ("free", view.free)]:
        bar = "█" * -(-widest * tokens // total)
        told = f" {tokens:>9,} tokens {100 * tokens / total:>4.0f} %"
        terminal.say(Text.assemble(f"{name:<{_LABEL}}", (f"{bar:<{widest}}", _COLORS[name]), told))
    terminal.say(f"{'budget':<{_LABEL}}{'':<{widest}} {view.budget:>9,} tokens")


def show_what_is_out(terminal: Terminal, manifest: ContextManifest) -> None:
    """A line for each range of the transcript, and for each stretch of the run, that was not sent."""
    for gap in _joined(manifest.excluded):
        terminal.labelled("out: ", f"{_range(gap)}, {in_words(gap.reason, manifest)}", style="dim")
    for one in manifest.left_out:
        terminal.labelled("out: ", f"{_stretch(one)}, {in_words(one.reason, manifest)}", style="dim")


def show_next(terminal: Terminal, view: ContextView) -> None:
    """In a few lines what the chat's next call would see beside its input; all of it is a command of its own."""
    seqs = [message.entry.seq for message in view.messages if message.entry.seq is not None]
    terminal.say()
    seen = f"messages {seqs[0]} to {seqs[-1]}" if seqs else "nothing of the session"
    tokens = f"{view.manifest.tokens:,} of {counted(view.budget, 'token')}"
    terminal.labelled("", f"The built-in chat's next call would see {seen} beside its input: {tokens}.")
    terminal.say(f"All of it: threadkeep context show --session {view.manifest.session_id} --next", style="dim")
    show_what_is_out(terminal, view.manifest)


def show_title_of_next(terminal: Terminal, view: ContextView) -> None:
    """Which call it is that was not made yet."""
    terminal.labelled("", "The built-in chat's next call, beside its input")
    terminal.labelled("in ", _home(view.manifest))


def show_title(terminal: Terminal, manifest: ContextManifest, label: str = "") -> None:
    """Which call it is, in two lines."""
    at = f", {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}" if manifest.created_at else ""
    node = f", node {manifest.node}" if manifest.node else ""
    terminal.labelled(label, f"Call {manifest.call} of run {manifest.run_id}{node}")
    terminal.labelled(" " * len(label), f"in {_home(manifest)}{at}")


def _home(manifest: ContextManifest) -> str:
    """Where the earlier turns of a call are."""
    if manifest.conversation is not None:
        return f"{manifest.conversation.key} of {'.'.join(manifest.conversation.namespace)}"
    return manifest.session_id or "no session"


def _facts(manifest: ContextManifest, factor: TokenFactor | None) -> Iterator[tuple[str, str]]:
    """What else the record says, each with its label: the limits, who counted, where the window begins."""
    learned = ""
    if factor is not None and factor.samples:
        learned = f"; learned by now: ×{factor.value:.2f} from {counted(factor.samples, 'call')}"
    yield "model", f"{manifest.model or 'not named'}, counted by {manifest.counter}{learned}"
    if manifest.tools:
        yield "tools", f"{counted(manifest.tools, 'token')} on top, of what the model is told of them"
    if (reported := manifest.reported) is not None:
        estimated = manifest.tokens + manifest.tools
        share = 100 * reported.cached_tokens / max(reported.input_tokens, 1)
        cached = (
            f", {reported.cached_tokens:,} of them from its cache ({share:.0f} %)" if reported.cached_tokens else ""
        )
        counts = f"{estimated:,} tokens were estimated, the provider counted {reported.input_tokens:,}{cached}"
        yield "reported", f"{counts}; the reply had {reported.output_tokens:,}"
    most = "" if manifest.max_messages is None else f", at most {counted(manifest.max_messages, 'earlier message')}"
    begins = f", begins at message {manifest.anchor_seq}" if manifest.anchor_seq else ""
    yield "window", f"{manifest.window}{most}{begins}"
    if (prefix := manifest.prefix) is not None:
        leading = f"the first {counted(prefix.messages, 'message')}, {counted(prefix.tokens, 'token')}"
        yield "stable", f"{leading}: they do not depend on the input"
    if manifest.notes:
        yield "notes", ", ".join(manifest.notes).replace("_", " ")


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
