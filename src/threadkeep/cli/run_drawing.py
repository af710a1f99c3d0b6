"""Runs drawn for people: a table of them, one with all that is known of it, a tree, a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.run_messages import spoken
from threadkeep.cli.run_values import questions_of, said_by
from threadkeep.cli.terminal import Terminal, first_words, harmless
from threadkeep.cli.wording import counted, duration, relative
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunEvent, RunStatus, TokenUsage
from threadkeep.runs.failures import RUN_ERRORS

_STYLES: Mapping[RunStatus, str] = {
    "queued": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "magenta",
    "interrupted": "magenta",
}
_LABEL = 11
_KIND = 14
_ROLE = 9
_LEAST_WORDS = 20


def show_runs(terminal: Terminal, runs: Sequence[Run], now: datetime) -> None:
    """A row for each run; behind its status the kind of error it ended with."""
    rows = [
        (
            run.run_id,
            harmless(run.workflow),
            _status(run).append(f" ({harmless(run.error)})" if run.error else ""),
            harmless(run.session_id or ""),
            harmless(run.user_id or ""),
            relative(run.created_at, now),
            took(run, now),
        )
        for run in runs
    ]
    terminal.table(["run", "workflow", "status", "session", "user", "asked for", "took"], rows, right=["took"])


def show_run(terminal: Terminal, run: Run, usages: Sequence[TokenUsage], now: datetime) -> None:
    """One run: how it stands, what it took with its children, what it said or asks."""
    terminal.say(f"{harmless(run.workflow)}, run {run.run_id}", style="bold")
    for label, fact in _facts(run, usages, now):
        terminal.labelled(f"{label:<{_LABEL}}", harmless(fact))
    if text := said_by(run):
        terminal.say()
        terminal.say(harmless(text))
    show_questions(terminal, run)


def show_questions(terminal: Terminal, run: Run) -> None:
    """What a run asks a person, and how that person answers."""
    asked = questions_of(run)
    for question in asked:
        terminal.labelled(f"{question.get('id')}  ", harmless(_words(question.get("value"))), style="yellow")
    if asked:
        answer = "VALUE" if len(asked) == 1 else "'{\"…\": VALUE, …}'"
        beside = "" if len(asked) == 1 else ", with a VALUE for each id"
        terminal.note(f"It waits; answer with: threadkeep runs resume {run.run_id} {answer} --wait{beside}")


def show_tree(terminal: Terminal, runs: Sequence[Run], taken: Mapping[str, int], now: datetime, *, chosen: str) -> None:
    """All runs of a tree, each below the one that asked for it; `taken` are the tokens of each by itself."""
    drawn: dict[str, Tree] = {}
    for run in runs:
        label = _branch(run, taken.get(run.run_id, 0), now, chosen=run.run_id == chosen)
        above = drawn.get(run.parent_run_id or "") or drawn.get(run.root_run_id)
        drawn[run.run_id] = Tree(label) if above is None else above.add(label)
    terminal.out.print(drawn[runs[0].run_id])
    terminal.say(f"{counted(len(runs), 'run')}, {counted(sum(taken.values()), 'token')}")


def show_trace(terminal: Terminal, run: Run, events: Sequence[RunEvent]) -> None:
    """A line for each event: its number, the seconds since the run was asked for, its kind, its node, what it says.

    Below what an agent said a line for each message and each call of a tool.
    """
    digits = len(str(events[-1].number)) if events else 1
    node = max((len(event.node or "") for event in events), default=0)
    for event in events:
        seconds = (event.created_at - run.created_at).total_seconds()
        head = (
            f"{event.number:>{digits}} {seconds:>9.3f} s  {event.kind:<{_KIND}}  {harmless(event.node or ''):<{node}}  "
        )
        room = max(terminal.out.width - len(head) - 1, _LEAST_WORDS)
        said = spoken(event.data) if event.kind == "agent_messages" else []
        words = counted(len(said), "line") + " of its loop" if said else _short(event)
        terminal.say((head + first_words(words, room)).rstrip())
        for role, text in said:
            line = f"{'':<{len(head)}}{harmless(role):<{_ROLE}}  "
            terminal.say((line + first_words(text, max(room - _ROLE - 2, _LEAST_WORDS))).rstrip())


def took(run: Run, now: datetime) -> str:
    """How long a run took, or has taken until now; empty where it was not begun."""
    if run.started_at is None:
        return ""
    seconds = max(((run.ended_at or now) - run.started_at).total_seconds(), 0.0)
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _facts(run: Run, usages: Sequence[TokenUsage], now: datetime) -> Iterator[tuple[str, str]]:
    tried = f", tried {counted(run.attempts, 'time')}" if run.attempts > 1 else ""
    yield "status", f"{run.status}{tried}" + (f", took {took(run, now)}" if run.started_at else "")
    if run.error is not None:
        yield "error", run.error
        if run.error in RUN_ERRORS:
            yield "", RUN_ERRORS[run.error]
    if run.set_aside:
        yield "", f"It is not tried again by itself: threadkeep runs retry {run.run_id}"
    if run.cancel_requested_at is not None and not run.over:
        yield "", f"It is to be stopped ({run.cancel_reason})."
    yield "session", run.session_id or "none"
    if run.user_id is not None:
        yield "user", run.user_id
    yield "asked for", f"{relative(run.created_at, now)}, by {run.trigger}"
    if run.parent_run_id is not None:
        yield "child of", f"{run.parent_run_id}, node {run.node_id or 'unknown'}"
    yield "version", run.version or "unknown"
    if limits := [f"{name.removeprefix('max_')} {limit}" for name, limit in run.budget.to_dict().items()]:
        yield "budget", ", ".join(limits)
    for usage in usages:
        cost = "" if usage.cost is None else f", cost {usage.cost:.6g}"
        tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
        yield "used", f"{usage.model}: {counted(usage.calls, 'call')}, {tokens}{cost}"


def _branch(run: Run, tokens: int, now: datetime, *, chosen: bool) -> Text:
    node = f" at {harmless(run.node_id)}" if run.node_id else ""
    facts = [took(run, now), counted(tokens, "token") if tokens else "", run.error or "", run.run_id]
    name = (harmless(run.workflow) + node, "bold" if chosen else "")
    return Text.assemble(_status(run), " ", name, "  ", (", ".join(fact for fact in facts if fact), "dim"))


def _status(run: Run) -> Text:
    return Text(run.status, style=_STYLES[run.status])


def _short(event: RunEvent) -> str:
    """What an event says in a few words; the ids that programs need are left out."""
    if event.kind == "message":
        return _words(event.data.get("text"))
    told = {name: value for name, value in event.data.items() if name not in ("call", "message_id")}
    alone = next(iter(told.values())) if len(told) == 1 else None
    return " ".join(_pairs(told)) if alone is None or isinstance(alone, bool) else _words(alone)


def _pairs(values: Mapping[str, Json]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name}={_words(value)}"


def _words(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
