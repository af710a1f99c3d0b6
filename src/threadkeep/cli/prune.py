"""`threadkeep sessions prune`: archive and delete what is beyond the limits, or say what would go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, Confirmed, UserId
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.pruning import MOST_SHOWN, ask_before_deleting, round_of_pruning
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted

if TYPE_CHECKING:
    from threadkeep.history.pruning import Amount, PlannedRemoval, Pruned
    from threadkeep.records import Retention


@dataclass(frozen=True)
class _Scope:
    """Which limits hold for which sessions; without `rules` those of the settings do."""

    rules: Retention | None
    sessions: tuple[str, ...]
    user: str | None


def prune_sessions(
    sessions: Annotated[list[str] | None, typer.Argument(metavar="[SESSION…]", help="Only these sessions.")] = None,
    *,
    delete: Annotated[
        bool | None, typer.Option("--delete/--archive", help="What becomes of messages beyond the limits below.")
    ] = None,
    max_age_days: Annotated[float | None, typer.Option(help="Messages stored longer ago go.")] = None,
    max_messages: Annotated[int | None, typer.Option(help="Only so many of the newest stay.")] = None,
    max_idle_days: Annotated[float | None, typer.Option(help="Sessions that were idle for longer go.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and write nothing.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the room back to the disk (SQLite).")] = False,
    user: UserId = None,
    confirmed: Confirmed = False,
    as_json: AsJson = False,
) -> None:
    """Archive or delete what is beyond the limits: those given here, or else those of the settings.

    Sessions that have limits of their own keep to those. Broken off, it can simply be begun again.
    """
    terminal = Terminal(as_json=as_json)
    scope = _Scope(_rules(delete, max_age_days, max_messages, max_idle_days), tuple(sessions or ()), user)
    plan = run(_plan(terminal, scope))
    if dry_run:
        _tell_plan(terminal, plan)
        return
    total = _total(plan)
    if total.deleted.sessions and not confirmed:
        ask_before_deleting(terminal, f"{_amount(total.deleted)}{_whole(total)}")
    done, vacuumed = run(_prune(terminal, scope, total, vacuum=vacuum))
    if as_json:
        terminal.json({"dry_run": False, **done.to_dict(), "vacuumed": vacuumed})
    else:
        _tell(terminal, done, vacuum=vacuum, vacuumed=vacuumed)
    if done.busy:
        raise typer.Exit(1)


def _rules(
    delete: bool | None, max_age_days: float | None, max_messages: int | None, max_idle_days: float | None
) -> Retention | None:
    """The limits of the command itself; None without any.

    Raises:
        WrongUse: there are limits without what becomes of messages beyond them, or the other way round.
    """
    from threadkeep.records import Retention, RetentionLimits

    limits = RetentionLimits(max_age_days, max_messages, max_idle_days)
    if limits.nothing and delete is None:
        return None
    if delete is None:
        raise WrongUse("Say --archive or --delete: what becomes of messages beyond these limits.")
    if limits.nothing:
        raise WrongUse("Say what may stay: --max-age-days, --max-messages or --max-idle-days.")
    return Retention(delete=limits) if delete else Retention(archive=limits)


async def _plan(terminal: Terminal, scope: _Scope) -> list[PlannedRemoval]:
    from threadkeep.history.all_retention import AllRetention

    async with opened_memory() as memory:
        with terminal.waiting("Looking for what is beyond the limits"):
            return [
                removal
                async for removal in AllRetention(memory).plan(
                    scope.rules, session_ids=scope.sessions, user_id=scope.user
                )
            ]


async def _prune(terminal: Terminal, scope: _Scope, total: Pruned, *, vacuum: bool) -> tuple[Pruned, bool]:
    """Do it, with progress; the room is given back after it."""
    from threadkeep.history.all_retention import AllRetention
    from threadkeep.history.pruning import Pruned

    async with opened_memory() as memory:
        with round_of_pruning(terminal, total.messages, _words(Pruned())) as reach:
            done = await AllRetention(memory).prune(
                scope.rules,
                session_ids=scope.sessions,
                user_id=scope.user,
                told=lambda done: reach(done.messages, _words(done)),
            )
        if not vacuum:
            return done, False
        with terminal.waiting("Giving the room back to the disk"):
            return done, await memory.retention.give_back_room()


def _total(plan: Sequence[PlannedRemoval]) -> Pruned:
    from threadkeep.history.pruning import Amount, Pruned

    total = Pruned()
    for removal in plan:
        amount = Amount(1, removal.messages, removal.tokens)
        if removal.action == "archive":
            total = replace(total, archived=total.archived + amount)
        else:
            whole = total.whole_sessions + removal.whole_session
            total = replace(total, deleted=total.deleted + amount, whole_sessions=whole)
    return total


def _tell_plan(terminal: Terminal, plan: Sequence[PlannedRemoval]) -> None:
    total = _total(plan)
    if terminal.as_json:
        terminal.json({"dry_run": True, **total.to_dict(), "sessions": [asdict(removal) for removal in plan]})
        return
    if not plan:
        terminal.say("Nothing is beyond the limits.")
        return
    rows = [
        (
            removal.session_id,
            "delete the session" if removal.whole_session else removal.action,
            f"{removal.first_seq}–{removal.last_seq}" if removal.messages else "",
            f"{removal.messages:,}",
            f"{removal.tokens:,}",
        )
        for removal in plan[:MOST_SHOWN]
    ]
    terminal.table(["session", "what", "seq", "messages", "tokens"], rows, right=["messages", "tokens"])
    if len(plan) > MOST_SHOWN:
        terminal.note(f"And {len(plan) - MOST_SHOWN:,} more; --json has all.")
    terminal.say(f"Would be {_words(total)}. Nothing was changed.")


def _tell(terminal: Terminal, done: Pruned, *, vacuum: bool, vacuumed: bool) -> None:
    if done.archived.sessions or done.deleted.sessions:
        words = _words(done)
        terminal.say(f"{words[:1].upper()}{words[1:]}.")
    else:
        terminal.say("Nothing is beyond the limits.")
    if vacuumed:
        terminal.say("The file has shrunk to what it holds.")
    elif vacuum:
        terminal.note("PostgreSQL gives room back by itself (autovacuum).")
    if done.busy:
        terminal.error(f"{counted(done.busy, 'session')} were busy and stay as they are; prune again to go on.")


def _words(done: Pruned) -> str:
    """What was done, or would be, in words."""
    parts = []
    if done.archived.sessions:
        parts.append(f"archived {_amount(done.archived)}")
    if done.deleted.sessions:
        parts.append(f"deleted {_amount(done.deleted)}{_whole(done)}")
    return "; ".join(parts) or "nothing yet"


def _amount(amount: Amount) -> str:
    messages, tokens = counted(amount.messages, "message"), counted(amount.tokens, "token")
    return f"{messages} ({tokens}) of {counted(amount.sessions, 'session')}"


def _whole(done: Pruned) -> str:
    return f", {done.whole_sessions:,} of them as a whole" if done.whole_sessions else ""
