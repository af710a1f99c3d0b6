"""`threadkeep facts proposals|accept|reject|undo`: facts that were proposed from what people said."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.facts import OfSession, OfUser, OfWorkspace, scope_named
from threadkeep.cli.opening import opened_memory
from threadkeep.cli.options import CursorOption, Limit, one_of, read_cursor, write_cursor
from threadkeep.cli.terminal import first_words, relative, terminal
from threadkeep.records.knowledge import PROPOSAL_STATUSES, Proposal, ProposalQuery

if TYPE_CHECKING:
    from threadkeep.knowledge.proposals import Proposals

_WORDS = 60

_Id = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The id of the proposal, as the list names it.")]
_By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; by default the user's login.")]


async def list_proposals(
    *,
    status: Annotated[str | None, typer.Option(help=f"Only those that are {', '.join(PROPOSAL_STATUSES)}.")] = None,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List facts that were proposed from messages, the last changed first."""
    from threadkeep.knowledge.views import ProposalView

    wanted = one_of("--status", status, PROPOSAL_STATUSES)
    scope = scope_named(session, workspace, user)
    async with opened_memory() as memory:
        query = ProposalQuery(wanted, scope, limit=limit, cursor=read_cursor(cursor))
        found, following = await memory.proposals.page(query)
    if terminal.as_json:
        values = [ProposalView.of(one) for one in found]
        terminal.json({"proposals": values, "next_cursor": write_cursor(following)})
    elif not found:
        terminal.note("No fact is proposed; THREADKEEP_LEARNING=true has a model propose facts.")
    else:
        rows = [
            (
                one.id,
                f"{one.scope.kind} {one.scope.owner}",
                one.key,
                first_words(str(one.value), _WORDS),
                f"{one.confidence:.2f}",
                one.status,
                one.origin,
                relative(one.updated_at),
            )
            for one in found
        ]
        head = ["proposal", "of", "key", "value", "sure", "status", "origin", "changed"]
        terminal.table(head, rows, right=["sure"])
        terminal.more("threadkeep facts proposals --cursor", write_cursor(following))


async def accept_proposal(proposal: _Id, by: _By = None) -> None:
    """Accept a proposed fact: it is remembered with its message as evidence."""
    await _decide(lambda proposals: proposals.accept(proposal, by=_name(by)))


async def reject_proposal(proposal: _Id, by: _By = None) -> None:
    """Reject a proposed fact for good."""
    await _decide(lambda proposals: proposals.reject(proposal, by=_name(by)))


async def undo_proposal(proposal: _Id, by: _By = None) -> None:
    """Undo an accepted proposal: the value before it is valid again."""
    await _decide(lambda proposals: proposals.undo(proposal, by=_name(by)))


async def _decide(work: Callable[[Proposals], Awaitable[Proposal]]) -> None:
    from threadkeep.knowledge.views import ProposalView

    async with opened_memory() as memory:
        decided = await work(memory.proposals)
    if terminal.as_json:
        terminal.json(ProposalView.of(decided))
    else:
        owner = f"{decided.scope.kind} {decided.scope.owner}"
        terminal.say(f"{decided.key} of {owner}, {decided.origin}, is {decided.status}.")


def _name(by: str | None) -> str:
    return by or getpass.getuser()
