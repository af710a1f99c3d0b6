"""`threadkeep knowledge`: consent to sending data to Graphiti, promoted facts, deliveries, and maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.facts import By, OfSession, OfUser, OfWorkspace, decider, needed_scope
from threadkeep.cli.shared import Confirmed, Limit, one_of, opened_memory
from threadkeep.cli.terminal import WrongUse, counted, terminal
from threadkeep.records.graphiti import DATA_CLASSES, DELIVERY_STATUSES, DeliveryStatus

if TYPE_CHECKING:
    from threadkeep.knowledge.graphiti.maintenance import Check
    from threadkeep.knowledge.graphiti.service import Graphiti, GraphitiStatus

_PAUSE_SECONDS = 1.0
_SAY_YES = "Add --yes to do it without confirmation."


async def show_status() -> None:
    """Show which kinds of data may be sent to Graphiti, and how many messages wait, were delivered, or failed."""
    status = await _with_graphiti(lambda graphiti: graphiti.status())
    terminal.result(status, lambda: terminal.facts(_status_lines(status), width=10))


async def decide_consent(
    *,
    grant: Annotated[bool, typer.Option("--grant", help="Allow sending the data to the endpoint.")] = False,
    decline: Annotated[
        bool, typer.Option("--decline", help="Withdraw consent; waiting messages are not sent.")
    ] = False,
    data: Annotated[
        list[str] | None, typer.Option("--data", help=f"Data: {', '.join(DATA_CLASSES)}; by default all in use.")
    ] = None,
    by: By = None,
    confirmed: Confirmed = False,
) -> None:
    """Allow sending data to the Graphiti endpoint, or decline it. Without options, show the newest 20 decisions."""
    if grant and decline:
        raise WrongUse("Use --grant or --decline, not both.")
    if data and not grant:
        raise WrongUse("--data names the data to allow; add --grant.")
    classes = [name for one in data or () if (name := one_of("--data", one, DATA_CLASSES))]
    if grant:
        terminal.confirm(
            "All new data of these kinds will be sent to the endpoint. Allow it?", _SAY_YES, confirmed=confirmed
        )
    async with opened_memory() as memory:
        graphiti = memory.graphiti
        if grant:
            in_use = graphiti.options.needed_classes() if graphiti.options else ()
            consents = [await graphiti.grant(classes or in_use, by=decider(by))]
        elif decline:
            consents = [await graphiti.decline(by=decider(by))]
        else:
            consents = await graphiti.consents.decisions()
    terminal.listing(
        {"consents": consents},
        ("endpoint", "decision", "data", "by", "at"),
        [
            (
                one.endpoint,
                one.decision,
                ", ".join(one.data_classes),
                one.decided_by,
                f"{one.decided_at:%Y-%m-%d %H:%M}",
            )
            for one in consents
        ],
        nothing="There is no decision yet; allow it with: threadkeep knowledge consent --grant",
    )


async def trust_workspace(
    workspace: Annotated[
        str | None, typer.Argument(metavar="WORKSPACE", help="Its name; by default the one of the settings.")
    ] = None,
    *,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the trust.")] = False,
    by: By = None,
) -> None:
    """Trust a workspace. Messages of other workspaces are never sent to Graphiti."""
    async with opened_memory() as memory:
        consents, name = memory.graphiti.consents, workspace or memory.graphiti.workspace
        await (consents.distrust(name) if withdraw else consents.trust(name, by=decider(by)))
        trusted = await consents.trusted()
    terminal.result({"trusted": trusted}, f"Trusted: {_workspaces(trusted)}.")


async def check_server(
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Also write a test message, wait for it, and delete it.")
    ] = False,
) -> None:
    """Test the Graphiti server without sending text that people wrote."""
    with terminal.waiting("Asking the server"):
        checks: list[Check] = await _with_graphiti(lambda graphiti: graphiti.test(smoke=smoke))
    is_ok = all(one.ok for one in checks)
    lines: list[tuple[str, str]] = []
    for one in checks:
        lines.append((f"{'ok' if one.ok else 'FAILED':<8}{one.milliseconds:>8.0f} ms  ", one.name))
        lines += [(" " * 8, one.problem)] if one.problem else []
    terminal.result({"ok": is_ok, "checks": checks}, lambda: terminal.facts(lines), failed=not is_ok)


async def promote_fact(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind, such as decision or preference.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The fact in a sentence.")],
    *,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    key: Annotated[str | None, typer.Option(help="The key of the fact; by default derived from its words.")] = None,
) -> None:
    """Store a fact in the database, and queue it for Graphiti if it may be sent there."""
    from threadkeep.knowledge.graphiti.views import PromotedView
    from threadkeep.knowledge.promotion import Promotion

    scope = needed_scope(session, workspace, user)
    promotion = Promotion(kind, text, scope.kind, key)  # type: ignore[arg-type]  # `Promotion` checks it
    promoted = await _with_graphiti(lambda graphiti: graphiti.promote(promotion, scope.owner))
    outcome = "it is sent to the graph" if promoted.queued else "the graph has it already"
    if promoted.closed:
        outcome = f"it is not sent to the graph ({promoted.closed})"
    terminal.result(PromotedView.of(promoted), f"Stored as {promoted.fact.key}; {outcome}.")


async def undo_promotion(
    fact_id: Annotated[str, typer.Argument(metavar="FACT", help="The id of the fact, as shown by `facts show`.")],
) -> None:
    """Undo the promotion of a fact to Graphiti: retract the fact in the database and in Graphiti."""
    retracted = await _with_graphiti(lambda graphiti: graphiti.undo_promotion(fact_id))
    sentence = "Retracted here and in the graph."
    if retracted.remains:
        sentence = f"Retracted here; the graph still has {retracted.remains}."
    terminal.result(retracted, sentence, failed=bool(retracted.remains))


async def backfill_turns(
    *,
    session: Annotated[list[str] | None, typer.Option("--session", metavar="ID", help="Only of this session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only of this user's sessions.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number of turns.")] = 1_000,
    everything: Annotated[
        bool, typer.Option("--all", help="Continue until no turns remain; Ctrl-C loses nothing.")
    ] = False,
) -> None:
    """Queue older, stored turns for Graphiti; new turns are sent first. Repeat the command to continue.

    Stored messages have no workspace, so all turns go to the workspace of the settings. If the database has sessions of
    other workspaces, name the sessions to send.
    """
    total, left = 0, 1
    async with opened_memory() as memory:
        while left:
            one = await memory.graphiti.backfill(session, user_id=user, limit=limit)
            total, left = total + one.queued, one.left
            if not everything:
                break
            if left:
                terminal.note(f"{counted(total, 'turn')} queued; more turns remain.")
                await asyncio.sleep(_PAUSE_SECONDS)
    more = "; more turns remain, repeat the command" if left else ""
    terminal.result({"queued": total, "left": left}, f"{counted(total, 'earlier turn')} queued{more}.")


async def list_deliveries(
    action: Annotated[
        str, typer.Argument(metavar="list|retry|drop", help="List messages, retry dead ones, or drop some.")
    ] = "list",
    number: Annotated[
        int | None, typer.Argument(metavar="NUMBER", help="The number of the message in the list.")
    ] = None,
    *,
    status: Annotated[str | None, typer.Option(help=f"Only {', '.join(DELIVERY_STATUSES)}.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry or drop all of them.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only numbers after this one.")] = 0,
    limit: Limit = 50,
) -> None:
    """List messages to Graphiti, retry dead ones (which are no longer sent), or drop some permanently."""
    wanted = one_of("--status", status, DELIVERY_STATUSES)
    if action not in ("list", "retry", "drop"):
        raise WrongUse("The action must be list, retry or drop.")
    if action == "list":
        await _list(wanted, after, limit)
        return
    if (number is None) != everything:
        raise WrongUse(f"Give the number of the message to {action}, or --all for all of them.")
    changed = await _with_graphiti(
        lambda graphiti: graphiti.retry(number) if action == "retry" else graphiti.drop(number, status=wanted)
    )
    terminal.result(
        {"changed": changed},
        f"{counted(changed, 'message')} {'will be sent again' if action == 'retry' else 'dropped'}.",
    )


async def purge_group(
    *,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    confirmed: Confirmed = False,
) -> None:
    """Delete the data of a session, workspace or user on the Graphiti server, and check that it is gone."""
    scope = needed_scope(session, workspace, user, what="group")
    terminal.confirm(
        f"Delete Graphiti's data of {scope.kind} {scope.owner} permanently?", _SAY_YES, confirmed=confirmed
    )
    with terminal.waiting("Deleting"):
        purged = await _with_graphiti(lambda graphiti: graphiti.purge(scope))
    sentence = f"{purged.group_id} is deleted; {counted(purged.dropped, 'waiting message')} dropped."
    if purged.remains:
        sentence = (
            f"The server reports that it deleted {purged.group_id}, but still has {purged.remains}. With FalkorDB, its "
            "REST server deletes nothing: use THREADKEEP_GRAPHITI_TRANSPORT=mcp."
        )
    terminal.result(purged, sentence, failed=bool(purged.remains))


async def _with_graphiti[T](work: Callable[[Graphiti], Awaitable[T]]) -> T:
    async with opened_memory() as memory:
        return await work(memory.graphiti)


async def _list(status: DeliveryStatus | None, after: int, limit: int) -> None:
    found = await _with_graphiti(lambda graphiti: graphiti.deliveries(status=status, after=after, limit=limit))
    following = found[-1].number if len(found) == limit else None
    terminal.listing(
        {"deliveries": found, "next_after": following},
        ("number", "scope", "session", "role", "status", "sent", "again", "queued at"),
        [
            (
                one.number,
                one.scope,
                one.session_id or "-",
                one.role,
                one.status + (f": {one.reason}" if one.reason else ""),
                one.attempts,
                one.repeats,
                f"{one.created_at:%Y-%m-%d %H:%M}",
            )
            for one in found
        ],
        right=["number", "sent", "again"],
        nothing="There are no such messages.",
        more="--after",
    )


def _status_lines(status: GraphitiStatus) -> list[tuple[str, str]]:
    if not status.enabled:
        return [("graphiti", "off; turn it on with THREADKEEP_GRAPHITI_ENABLED=true")]
    missing = sorted(set(status.wanted) - set(status.granted))
    allowed = ", ".join(status.granted) or "nothing"
    counts = {name: count for name, count in status.counts.items() if count}
    lines = [
        ("endpoint", f"{status.endpoint} ({status.transport})"),
        ("allowed", allowed + (f"; not allowed: {', '.join(missing)}" if missing else "")),
        ("trusted", _workspaces(status.trusted)),
        ("messages", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"),
        ("again", f"{status.repeats} sent again, because the server did not store them"),
    ]
    if status.dead:
        lines.append(("dead", ", ".join(f"{count} {reason}" for reason, count in status.dead.items())))
    if status.troubles:
        lines.append(("trouble", ", ".join(f"{count} groups: {what}" for what, count in status.troubles.items())))
    return lines


def _workspaces(trusted: Sequence[str | None]) -> str:
    return ", ".join(name or "runs without a workspace" for name in trusted) or "no workspace"
