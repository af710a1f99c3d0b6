"""`threadkeep facts`: list, show, add, delete, export and import facts, and decide on proposed facts."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.shared import (
    Confirmed,
    CursorOption,
    Limit,
    Output,
    json_or_text,
    lines_of,
    one_of,
    opened_input,
    opened_memory,
    opened_output,
    read_cursor,
    session_ids,
    show_exported,
    write_cursor,
)
from threadkeep.cli.terminal import NotDone, WrongUse, counted, first_words, relative, terminal
from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.records.knowledge import FACT_KINDS, PROPOSAL_STATUSES, Fact, FactQuery, Proposal, ProposalQuery, Scope

if TYPE_CHECKING:
    from threadkeep.knowledge.proposals import Proposals
    from threadkeep.knowledge.views import FactView, ProposalView
    from threadkeep.memory import Memory

_WORDS = 60
_PAGE = 500
OfSession = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Scope: this session.", autocompletion=session_ids)
]
OfWorkspace = Annotated[str | None, typer.Option("--workspace", metavar="NAME", help="Scope: this workspace.")]
OfUser = Annotated[str | None, typer.Option("--user", metavar="ID", help="Scope: this person, by any id.")]
_Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the fact, such as home_city.")]
_Kind = Annotated[str | None, typer.Option("--kind", help=f"One of {', '.join(FACT_KINDS)}.")]

_Id = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The id of the proposal in the list.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; by default the login name.")]


def scope_named(session: str | None, workspace: str | None, user: str | None) -> Scope | None:
    """Return the scope (session, workspace or user) in the options, or None. Raise `WrongUse` if they name several."""
    named = [("session", session), ("workspace", workspace), ("user", user)]
    scopes = [Scope(kind, owner) for kind, owner in named if owner is not None]  # type: ignore[arg-type]
    if len(scopes) > 1:
        raise WrongUse("Name one of --session, --workspace and --user.")
    return scopes[0] if scopes else None


def needed_scope(session: str | None, workspace: str | None, user: str | None, *, what: str = "fact") -> Scope:
    """Return the scope in the options. Raise `WrongUse`, with `what` as the noun, if they name none or several."""
    scope = scope_named(session, workspace, user)
    if scope is None:
        raise WrongUse(f"Name the scope of the {what}: --session ID, --workspace NAME or --user ID.")
    return scope


async def list_facts(
    *,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    kind: _Kind = None,
    text: Annotated[str | None, typer.Option(help="Only facts with this text in key or value.")] = None,
    past: Annotated[bool, typer.Option("--past", help="Include values that are no longer valid.")] = False,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List facts, most recently changed first."""
    scope = scope_named(session, workspace, user)
    wanted = one_of("--kind", kind, FACT_KINDS)
    query = FactQuery(scope, None, wanted, None, text, past, limit=limit, cursor=read_cursor(cursor))

    async with opened_memory() as memory:
        facts, following = await memory.knowledge.facts_page(query)
    terminal.listing(
        {"facts": [_view(fact) for fact in facts], "next_cursor": write_cursor(following)},
        ("of", "key", "value", "kind", "confirmed", "changed"),
        [
            (
                _owner(fact),
                fact.key,
                first_words(fact.text.removeprefix(f"{fact.key}: "), _WORDS),
                fact.kind,
                fact.confirmed,
                relative(fact.updated_at) + ("" if fact.valid_to is None else ", past"),
            )
            for fact in facts
        ],
        right=["confirmed"],
        nothing="There are no such facts.",
    )


async def show_fact(
    key: _Key,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
) -> None:
    """Show a fact with its earlier values, and the messages that it comes from."""
    scope = needed_scope(session, workspace, user)

    async with opened_memory() as memory:
        facts = await memory.knowledge.facts(scope, key=key, past=True, limit=1000)
    if not facts:
        raise NotDone("There is no such fact; list the facts with: threadkeep facts list")
    terminal.result({"facts": [_view(fact) for fact in facts]}, lambda: _show_facts(facts))


async def add_fact(
    key: _Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value: JSON, or else plain text.")],
    *,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    kind: _Kind = None,
    confidence: Annotated[float, typer.Option(min=0, max=1, help="The confidence, from 0 to 1.")] = 1.0,
) -> None:
    """Store a fact: the value of a key. The same value confirms a stored fact; another value replaces it."""
    scope = needed_scope(session, workspace, user)
    fact_kind = one_of("--kind", kind, FACT_KINDS)

    async with opened_memory(creates=True) as memory:
        fact = await memory.knowledge.remember(scope, key, json_or_text(value), kind=fact_kind, confidence=confidence)
    sentence = f"{fact.key} of {_owner(fact)} is remembered."
    if fact.confirmed > 1:
        sentence = f"{fact.key} was known, and is confirmed ({counted(fact.confirmed, 'time')})."
    terminal.result(_view(fact), sentence)


async def forget_facts(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="The keys of the facts.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All facts of the scope.")] = False,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    confirmed: Confirmed = False,
) -> None:
    """Delete facts with all their earlier values, permanently."""
    scope = needed_scope(session, workspace, user)
    if bool(keys) == everything:
        raise WrongUse("Name the keys to forget, or add --all for all of them.")
    what = "everything" if everything else ", ".join(keys or ())
    terminal.confirm(
        f"Forget {what} of {scope.kind} {scope.owner} permanently?",
        "Facts are deleted permanently; add --yes to do it without confirmation.",
        confirmed=confirmed,
    )
    async with opened_memory() as memory:
        known = memory.knowledge
        counts = await known.forget_keys(scope, keys) if keys else {"": await known.forget_all(scope)}
    missing = [key for key in keys or () if not counts[key]]

    def show() -> None:
        terminal.say(f"{counted(sum(counts.values()), 'value')} forgotten.")
        for key in missing:
            terminal.error(f"There is no fact {key}; list the facts with: threadkeep facts list")

    terminal.result({"forgotten": sum(counts.values()), "not_found": missing}, show, failed=bool(missing))


def _view(known: Fact | Proposal) -> FactView | ProposalView:
    from threadkeep.knowledge.views import FactView, ProposalView

    return FactView.of(known) if isinstance(known, Fact) else ProposalView.of(known)


def _owner(known: Fact | Proposal) -> str:
    return f"{known.scope.kind} {known.scope.owner}"


def _show_facts(facts: Sequence[Fact]) -> None:
    for fact in facts:
        until = "now" if fact.valid_to is None else f"{fact.valid_to:%Y-%m-%d %H:%M}"
        terminal.say(fact.text, style="bold" if fact.valid_to is None else "")
        terminal.say(f"  of {_owner(fact)}, {fact.kind}, id {fact.id}")
        terminal.say(f"  valid {fact.valid_from:%Y-%m-%d %H:%M} to {until} (UTC), confidence {fact.confidence:g}")
        terminal.say(
            f"  confirmed {counted(fact.confirmed, 'time')}, contradicted {counted(fact.contradicted, 'time')}"
        )
        for origin in fact.evidence:
            message = "" if origin.seq is None else f"message {origin.seq} of "
            session = "" if origin.session_id is None else f"{message}{origin.session_id}"
            run_id = "" if origin.run_id is None else f"run {origin.run_id}"
            terminal.say(f"  from {', '.join(filter(None, (session, run_id)))}")


async def list_proposals(
    *,
    status: Annotated[str | None, typer.Option(help=f"Only {', '.join(PROPOSAL_STATUSES)}.")] = None,
    session: OfSession = None,
    workspace: OfWorkspace = None,
    user: OfUser = None,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List facts that were proposed from messages, most recently changed first."""
    wanted = one_of("--status", status, PROPOSAL_STATUSES)
    scope = scope_named(session, workspace, user)
    async with opened_memory() as memory:
        query = ProposalQuery(wanted, scope, limit=limit, cursor=read_cursor(cursor))
        found, following = await memory.proposals.page(query)
    terminal.listing(
        {"proposals": [_view(proposal) for proposal in found], "next_cursor": write_cursor(following)},
        ("proposal", "of", "key", "value", "sure", "status", "origin", "changed"),
        [
            (
                one.id,
                _owner(one),
                one.key,
                first_words(str(one.value), _WORDS),
                f"{one.confidence:.2f}",
                one.status,
                one.origin,
                one.updated_at,
            )
            for one in found
        ],
        right=["sure"],
        nothing="No fact is proposed; THREADKEEP_LEARNING=true has a model propose facts.",
    )


async def accept_proposal(proposal: _Id, by: By = None) -> None:
    """Accept a proposed fact: store it, with the message that it comes from as evidence."""
    await _decide(lambda proposals: proposals.accept(proposal, by=decider(by)))


async def reject_proposal(proposal: _Id, by: By = None) -> None:
    """Reject a proposed fact permanently."""
    await _decide(lambda proposals: proposals.reject(proposal, by=decider(by)))


async def undo_proposal(proposal: _Id, by: By = None) -> None:
    """Undo an accepted proposal. The fact's previous value becomes valid again."""
    await _decide(lambda proposals: proposals.undo(proposal, by=decider(by)))


async def _decide(work: Callable[[Proposals], Awaitable[Proposal]]) -> None:
    async with opened_memory() as memory:
        decided = await work(memory.proposals)
    terminal.result(_view(decided), f"{decided.key} of {_owner(decided)}, {decided.origin}, is {decided.status}.")


def decider(by: str | None) -> str:
    """Return the name to record as the person who decided: the option `--by`, or the login name."""
    return by or getpass.getuser()


async def export_facts(
    output: Output = None, session: OfSession = None, workspace: OfWorkspace = None, user: OfUser = None
) -> None:
    """Write all facts, or the facts of one scope, as JSONL. Each line is a value of a fact; past values are included.

    A file appears only when it is complete.
    """
    scope, done = scope_named(session, workspace, user), 0
    with opened_output(output) as stream:
        async with opened_memory() as memory:
            with terminal.progress("Exporting", None) as reach:
                async for facts in _pages_of(memory, scope):
                    stream.writelines(f"{_view(fact).model_dump_json()}\n".encode() for fact in facts)
                    done += len(facts)
                    reach(done, counted(done, "value"))
    show_exported({"facts": done}, counted(done, "value"), output)


async def _pages_of(memory: Memory, scope: Scope | None) -> AsyncIterator[list[Fact]]:
    """Yield each value of the facts once, in pages. Read again until none is new: a changed value moves to page 1."""
    seen: set[str] = set()
    since = None
    while True:
        count, cursor, newest = len(seen), None, None
        while True:
            facts, cursor = await memory.knowledge.facts_page(FactQuery(scope, past=True, limit=_PAGE, cursor=cursor))
            newest = newest or (facts[0].updated_at if facts else None)
            yield [fact for fact in facts if fact.id not in seen]
            seen.update(fact.id for fact in facts)
            if cursor is None or (since is not None and facts[-1].updated_at < since):
                break
        if len(seen) == count:
            return
        since = newest


async def import_facts(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The file to read; - is stdin.")],
) -> None:
    """Store exported facts, with their ids, times and counts. Existing facts are skipped.

    If two values of a key are valid, the newer one stays valid. The lines are stored in groups of 500; the import stops
    at a group with a line that cannot be stored.
    """
    read, stored = 0, 0
    async with opened_memory(creates=True) as memory:
        with terminal.progress("Importing", None) as reach:
            for batch in batched(_facts(source), _PAGE):
                try:
                    stored += await memory.knowledge.restore([fact for _, fact in batch])
                except (SessionNotFound, InvalidInput) as error:
                    lines = f"Lines {batch[0][0]} to {batch[-1][0]}"
                    raise NotDone(f"{lines}: {error} None of these lines is stored.") from None
                read += len(batch)
                reach(read, counted(read, "value"))
    terminal.result({"read": read, "stored": stored}, f"{counted(stored, 'value')} stored of {read:,}.")


def _facts(source: Path) -> Iterator[tuple[int, Fact]]:
    """Yield the facts of an exported file with their line numbers. Errors do not quote the lines."""
    from pydantic import ValidationError

    from threadkeep.knowledge.views import FactView

    with opened_input(str(source)) as stream:
        for number, line in enumerate(lines_of(stream), start=1):
            if not line.strip():
                continue
            try:
                yield number, FactView.model_validate_json(line.removeprefix(b"\xef\xbb\xbf")).record()
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False)[0]
                where = "".join(f" ({part})" for part in first["loc"][:1])
                raise NotDone(f"Line {number} is not an exported fact{where}; export it again.") from None
            except InvalidInput as error:
                raise NotDone(f"Line {number} cannot be stored: {error}") from None
