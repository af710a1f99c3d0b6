"""Output about runs: a list, the details of a run, a tree of runs, a trace, and answers as they arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from threadkeep.cli.commands import Problem
from threadkeep.cli.shared import on_this_database
from threadkeep.cli.terminal import Styled, counted, duration, first_words, relative, styled, terminal
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunEvent, RunResult, RunStatus, TokenUsage
from threadkeep.runs.views import RUN_ERRORS, RunBody, RunSummary

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text
    from rich.tree import Tree

    from threadkeep.runs.chat_turns import ChatAnswer, ChatTurn
    from threadkeep.runs.service import RunService

_STYLES: Mapping[RunStatus, str] = {
    "queued": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "magenta",
    "interrupted": "magenta",
}
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_CALLS = ("tool_use", "tool_call", "function_call")
_LABEL = 11
_KIND = 14
_ROLE = 9
_LEAST_WORDS = 20


def show_run(run: Run, usages: Sequence[TokenUsage]) -> None:
    """Show a run: its status, its usage including children, and its answer or questions."""
    if terminal.as_json:
        terminal.json(RunBody.whole(run, usages))
        return
    terminal.say(f"{run.workflow}, run {run.run_id}", style="bold")
    terminal.facts(_facts(run, usages), width=_LABEL)
    if text := RunResult.of(run).text:
        terminal.say()
        terminal.say(text)
    _show_questions(run)


def show_tree(runs: Sequence[Run], usages: Mapping[str, Sequence[TokenUsage]], *, chosen: str) -> None:
    """Show the runs of a tree, each below its parent. `usages` do not include the child runs."""
    if terminal.as_json:
        rows = []
        for run in runs:
            estimated = {"estimated": True} if any(usage.estimated for usage in usages[run.run_id]) else {}
            tokens = sum(usage.tokens for usage in usages[run.run_id])
            rows.append({**RunSummary.model_validate(run).model_dump(), "tokens": tokens, **estimated})
        terminal.json({"root_run_id": runs[0].root_run_id, "runs": rows})
        return
    from rich.tree import Tree

    drawn: dict[str, Tree] = {}
    for run in runs:
        label = _branch(run, _tokens(usages.get(run.run_id, ())), chosen=run.run_id == chosen)
        above = drawn.get(run.parent_run_id or "") or drawn.get(run.root_run_id)
        drawn[run.run_id] = Tree(label) if above is None else above.add(label)
    terminal.out.print(drawn[runs[0].run_id])
    total = _tokens([usage for each in usages.values() for usage in each]) or counted(0, "token")
    terminal.say(f"{counted(len(runs), 'run')}, {total}")


def show_trace(run: Run, events: Sequence[RunEvent]) -> None:
    """Show a line for each event. The messages and tool calls of an agent follow below the line of its event."""
    digits = len(str(events[-1].number)) if events else 1
    node = max((len(event.node or "") for event in events), default=0)
    for event in events:
        seconds = (event.created_at - run.created_at).total_seconds()
        head = f"{event.number:>{digits}} {seconds:>9.3f} s  {event.kind:<{_KIND}}  {event.node or '':<{node}}  "
        width = max(terminal.width - len(head) - 1, _LEAST_WORDS)
        messages = _messages(event.data) if event.kind == "agent_messages" else []
        words = counted(len(messages), "line") + " of its loop" if messages else _short(event)
        terminal.say((head + first_words(words, width)).rstrip())
        for role, text in messages:
            line = f"{'':<{len(head)}}{role:<{_ROLE}}  "
            terminal.say((line + first_words(text, max(width - _ROLE - 2, _LEAST_WORDS))).rstrip())


async def follow(service: RunService, run_id: str, user_id: str | None) -> bool:
    """Show the output of a run until it ends or waits for a person. Return False if it failed. Ctrl-C cancels it."""
    from threadkeep.runs.streams import RunPiece

    answer = Answer()
    try:
        async for event in service.follow(run_id, user_id=user_id):
            if isinstance(event, RunPiece) and event.text:
                answer.piece(event.text, event.message_id)
            elif isinstance(event, Run):
                break
    except asyncio.CancelledError:
        await service.cancel(run_id, user_id=user_id)
        raise
    run = await service.run(run_id, user_id=user_id)
    usages = await service.usage(run_id, user_id=user_id)
    if terminal.as_json:
        show_run(run, usages)
    else:
        answer.end(RunResult.of(run).text)
        _show_end(run, usages)
    return run.status in ("done", "waiting")


async def show_queued(service: RunService, run_id: str, user_id: str | None) -> None:
    """Show the id and the state of a run that another process executes."""
    run = await service.run(run_id, user_id=user_id)
    if terminal.as_json:
        show_run(run, await service.usage(run_id, user_id=user_id))
        return
    terminal.say(run_id)
    if not run.over:
        # After a person has answered a child run, it stays `waiting` until its parent run passes the answer to it.
        state = "The run has its answer" if run.status == "waiting" else f"The run is {run.status}"
        terminal.note(f"{state}; `threadkeep serve` or `threadkeep worker` on this database executes it.")
    terminal.note(f"See its state with: {on_this_database(f'threadkeep runs show {run_id}')}")


def _show_end(run: Run, usages: Sequence[TokenUsage]) -> None:
    _show_questions(run)
    if run.status == "waiting":
        return
    if run.status == "done":
        # Omit the duration and the usage of an old run if they are already deleted.
        tokens = _tokens(usages) or counted(0, "token")
        facts = f": {_duration(run)}, {tokens}" if run.started_at is not None else ""
        terminal.note(f"Run {run.run_id} is done{facts}.")
        return
    why = f" ({run.error})" if run.error else ""
    trace = on_this_database(f"threadkeep runs trace {run.run_id}")
    retry = on_this_database(f"threadkeep runs retry {run.root_run_id} --wait")
    terminal.error(f"Run {run.run_id} is {run.status}{why}. See its events: {trace}; retry it: {retry}")


def _show_questions(run: Run) -> None:
    """Show a run's questions to a person, and the commands to answer them."""
    questions = RunResult.of(run).interrupts
    for question in questions:
        terminal.labelled(f"{question.get('id')}  ", _words(question.get("value")), style="yellow")
    if questions:
        answer = "VALUE" if len(questions) == 1 else "'{\"…\": VALUE, …}'"
        each = "" if len(questions) == 1 else ", with a VALUE for each id"
        command = on_this_database(f"threadkeep runs resume {run.run_id} {answer} --wait")
        terminal.note(f"The run waits; answer with: {command}{each}")


def _tokens(usages: Sequence[TokenUsage]) -> str:
    """Return the number of tokens in words, marked if some are estimated."""
    tokens = sum(usage.tokens for usage in usages)
    estimated = " (estimated)" if any(usage.estimated for usage in usages) else ""
    return f"{counted(tokens, 'token')}{estimated}" if tokens else ""


def _duration(run: Run) -> str:
    """Return the duration of a run, up to now if it is running, in words.

    It includes the time that a person took to answer. Only the trace shows this time separately.
    """
    if run.started_at is None or run.status in ("queued", "waiting"):
        return ""
    seconds = max(((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds(), 0.0)
    asked = "" if run.interrupt is None else " including the wait"
    return (f"{seconds:.1f} s" if seconds < 60 else duration(seconds)) + asked


RUN_COLUMNS = ("run", "workflow", "status", "session", "user", "asked for", "took")


def run_row(run: Run) -> Sequence[object]:
    """Return the cells of a run's row in a table with the columns `RUN_COLUMNS`."""
    status = (run.status + (f" ({run.error})" if run.error else ""), _STYLES[run.status])
    return [run.run_id, run.workflow, status, run.session_id, run.user_id, run.created_at, _duration(run)]


def _facts(run: Run, usages: Sequence[TokenUsage]) -> Iterator[tuple[str, str]]:
    tried = f", tried {counted(run.attempts, 'time')}" if run.attempts > 1 else ""
    yield "status", f"{run.status}{tried}" + (f", took {took}" if (took := _duration(run)) else "")
    if run.error is not None:
        yield "error", run.error
        if run.error in RUN_ERRORS:
            yield "", RUN_ERRORS[run.error]
    if run.set_aside:
        yield "", f"Not retried automatically; retry it with: threadkeep runs retry {run.root_run_id}"
    if run.cancel_requested_at is not None and not run.over:
        yield "", f"Being cancelled ({run.cancel_reason})."
    yield "session", run.session_id or "none"
    if run.user_id is not None:
        yield "user", run.user_id
    yield "asked for", f"{relative(run.created_at)}, by {run.trigger}"
    if run.parent_run_id is not None:
        yield "child of", f"{run.parent_run_id}, node {run.node_id or 'unknown'}"
    yield "version", run.version or "unknown"
    if limits := [f"{name.removeprefix('max_')} {limit}" for name, limit in run.budget.to_dict().items()]:
        yield "budget", ", ".join(limits)
    for usage in usages:
        cost = "" if usage.cost is None else f", cost {usage.cost:.6g}"
        tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
        estimated = " (estimated)" if usage.estimated else ""
        yield "used", f"{usage.model}: {counted(usage.calls, 'call')}, {tokens}{estimated}{cost}"


def _branch(run: Run, tokens: str, *, chosen: bool) -> Text:
    node = f" at {run.node_id}" if run.node_id else ""
    facts = ", ".join(filter(None, (_duration(run), tokens, run.error, run.run_id)))
    parts: list[Styled] = [(run.status, _STYLES[run.status]), " ", (run.workflow + node, "bold" if chosen else "")]
    return styled(*parts, "  ", (facts, "dim"))


def _short(event: RunEvent) -> str:
    """Return the content of an event in a few words, without ids that only programs need."""
    if event.kind == "message":
        return _words(event.data.get("text"))
    values = {name: value for name, value in event.data.items() if name not in ("call", "message_id")}
    only = next(iter(values.values())) if len(values) == 1 else None
    if only is not None and not isinstance(only, bool):
        return _words(only)
    return " ".join(f"{name}={_words(value)}" for name, value in values.items())


def _words(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _messages(data: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return the role and the text of each message and of each tool call in an event."""
    messages = data.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return []
    return [line for message in messages if isinstance(message, Mapping) for line in _lines(message)]


def _lines(message: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    kind, found = str(message.get("type", "")), message.get("data")
    data = found if isinstance(found, Mapping) else {}
    calls = data.get("tool_calls")
    called = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    content = data.get("content")
    text = " ".join(filter(None, map(_block, content if isinstance(content, list) else [content])))
    if kind == "tool" and data.get("name"):
        text = f"{data['name']}: {text}"
    role = _ROLES.get(kind, kind)
    if text or not called:
        yield role, text
    for call in called:
        args = call.get("args")
        yield role, f"calls {call.get('name')} {'' if args is None else _words(args)}".rstrip()


def _block(block: Json) -> str:
    """Return the text of a content block. If it has no text, return its type, or an empty text for a tool call."""
    if not isinstance(block, Mapping):
        return "" if block is None else _words(block)
    text = block.get("text")
    if isinstance(text, str):
        return text
    return "" if block.get("type") in _CALLS else f"[{block.get('type')}]"


class Answer:
    """The output of a chat's answers: text as it arrives, or one JSON object per answer with `--json`."""

    def __init__(self) -> None:
        self._shown = ""
        self._message_id: str | None = None
        self._spinner: Status | None = None

    async def show(self, turn: ChatTurn) -> ChatAnswer | None:
        """Show the answer of a turn as it arrives, and return it; None if the turn ends without an answer."""
        from threadkeep.runs.chat_turns import ChatAnswer, ChatToken

        async for event in turn.follow():
            if isinstance(event, ChatToken) and event.text:
                self.piece(event.text)
            elif isinstance(event, ChatAnswer):
                terminal.result(event.to_dict(), partial(self.end, "" if self._shown else event.response))
                return event
        return None

    def begin(self) -> None:
        """Start the output of an answer. On a terminal a spinner is shown until the first piece arrives."""
        self._shown = ""
        if terminal.interactive:
            self._spinner = terminal.out.status("thinking", spinner="dots")
            self._spinner.start()

    def piece(self, text: str, message_id: str | None = None) -> None:
        """Show a piece of an answer at once, except with `--json`."""
        if terminal.as_json:
            return
        if self._spinner is not None:
            self._stop_spinner()
            terminal.say(("assistant ", "bold green"), "› ", end="")
        if self._shown and message_id != self._message_id:
            terminal.say()
            self._shown = ""
        self._message_id = message_id
        self._shown += text
        terminal.say(text, end="")

    def end(self, text: str) -> None:
        """End the output of an answer. If its whole `text` differs from the pieces that were shown, show all of it."""
        if text and text.strip() != self._shown.strip():
            if self._shown:
                terminal.say()
            self.piece(text, self._message_id)
        self._stop_spinner()
        if self._shown:
            terminal.say()
        if terminal.interactive:
            terminal.say()

    def fail(self, problem: Problem) -> None:
        """Show why an answer has failed."""
        self._stop_spinner()
        if terminal.as_json:
            terminal.json(problem.to_dict())
            return
        if self._shown:
            terminal.say()
        terminal.error(problem.sentence)

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
