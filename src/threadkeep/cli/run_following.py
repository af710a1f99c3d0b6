"""A run as a command follows it: its answer as it comes, how it ended, or who carries it out instead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from threadkeep.cli.run_drawing import show_questions, took
from threadkeep.cli.run_values import run_values, said_by
from threadkeep.cli.terminal import Terminal, harmless
from threadkeep.cli.wording import counted

if TYPE_CHECKING:
    from threadkeep.records.runs import Run, TokenUsage
    from threadkeep.runs.service import RunService

_WELL = ("done", "waiting")


async def follow_to_its_end(terminal: Terminal, service: RunService, run_id: str, user_id: str | None) -> bool:
    """Show what a run says until it is over or waits; whether it went well. To be broken off stops the run."""
    from threadkeep.records.runs import Run
    from threadkeep.runs.live import RunPiece

    answer = _Answer(terminal)
    try:
        async for told in service.follow(run_id, user_id=user_id):
            match told:
                case RunPiece():
                    answer.piece(told.message_id, told.text)
                case Run():
                    break
    except asyncio.CancelledError:
        await service.cancel(run_id, user_id=user_id)
        raise
    run = await service.run(run_id, user_id=user_id)
    usages = await service.usage(run_id, user_id=user_id)
    if terminal.as_json:
        terminal.json(run_values(run, usages))
    else:
        answer.end(said_by(run))
        _tell_end(terminal, run, usages)
    return run.status in _WELL


async def leave_to_others(terminal: Terminal, service: RunService, run_id: str, user_id: str | None) -> None:
    """Say which run it is that another process carries out."""
    run = await service.run(run_id, user_id=user_id)
    if terminal.as_json:
        terminal.json(run_values(run, await service.usage(run_id, user_id=user_id)))
        return
    terminal.say(run_id)
    if not run.over:
        # A child waits on until its parent hands the answer down.
        stands = "It has its answer" if run.status == "waiting" else f"It is {run.status}"
        terminal.note(f"{stands}: `threadkeep serve` or `threadkeep worker` on this database carries it out.")
    terminal.note(f"How it stands: threadkeep runs show {run_id}")


class _Answer:
    """What a run says, as it comes: a message a paragraph."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._message_id: str | None = None
        self._said = ""

    def piece(self, message_id: str | None, text: str) -> None:
        """Show a piece at once."""
        if self._terminal.as_json:
            return
        if self._said and message_id != self._message_id:
            self._terminal.say()
            self._said = ""
        self._message_id = message_id
        self._said += text
        self._terminal.out.print(harmless(text), end="", markup=False, highlight=False, soft_wrap=True)
        self._terminal.out.file.flush()

    def end(self, text: str) -> None:
        """Show what did not come in pieces."""
        if self._said:
            self._terminal.say()
        if text and text.strip() != self._said.strip():
            self._terminal.say(harmless(text))


def _tell_end(terminal: Terminal, run: Run, usages: Sequence[TokenUsage]) -> None:
    show_questions(terminal, run)
    tokens = counted(sum(usage.tokens for usage in usages), "token")
    if run.status == "waiting":
        return
    if run.status == "done":
        # Of one that was asked for long ago neither is known any more.
        facts = f": {took(run, datetime.now(UTC))}, {tokens}" if run.started_at is not None else ""
        terminal.note(f"Run {run.run_id} is done{facts}.")
        return
    why = f" ({run.error})" if run.error else ""
    terminal.error(
        f"Run {run.run_id} is {run.status}{why}. See why: threadkeep runs trace {run.run_id}; "
        f"try it again: threadkeep runs retry {run.run_id} --wait"
    )
