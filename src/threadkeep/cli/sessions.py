"""`threadkeep sessions`: list, show, search, reset, delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.cursors import Cursor, read_cursor, write_cursor
from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, Confirmed, SessionIdArgument, UserId
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import Terminal, first_words, harmless
from threadkeep.cli.wording import counted, relative

if TYPE_CHECKING:
    from threadkeep.records import Message, SearchResult, SessionInfo

commands = typer.Typer(
    help="List, show, search, export, import, prune, reset or delete them.", no_args_is_help=True, rich_markup_mode=None
)

_WORDS = 40
_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta"}


@commands.command("list")
def list_sessions(
    user: UserId = None,
    query: Annotated[str | None, typer.Option(help="Only those with this text in title, last message or id.")] = None,
    active: Annotated[
        bool | None, typer.Option("--active/--inactive", help="Only active ones, or only others.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where the last list ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest activity first."""
    from threadkeep.history.all_sessions import AllSessions
    from threadkeep.store.transcripts import SessionQuery

    wanted = SessionQuery(user, query, active, limit, None if cursor is None else read_cursor(cursor))

    async def listing() -> tuple[Sequence[SessionInfo], Cursor | None]:
        async with opened_memory() as memory:
            return await AllSessions(memory).page(wanted)

    infos, following = run(listing())
    text = None if following is None else write_cursor(following)
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json({"sessions": [_session_values(info) for info in infos], "next_cursor": text})
    elif not infos:
        terminal.note("There are no such sessions." if user or query or cursor else "There are no sessions yet.")
    else:
        _show_sessions(terminal, infos)
        if text is not None:
            terminal.note(f"More: threadkeep sessions list --cursor {text}")


@commands.command("show")
def show_session(
    session: SessionIdArgument,
    user: UserId = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many messages at most.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, metavar="SEQ", help="Only messages before this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages of a session, oldest first."""
    from threadkeep.history.all_sessions import AllSessions

    async def showing() -> tuple[SessionInfo, tuple[Message, ...], int | None]:
        async with opened_memory() as memory:
            handle, info = await AllSessions(memory).find(session, user_id=user)
            page = await handle.page(before=before, limit=limit)
            return info, page.messages, page.next_before

    info, messages, older = run(showing())
    terminal = Terminal(as_json=as_json)
    if as_json:
        values = [message.to_dict() for message in messages]
        terminal.json({**_session_values(info), "messages": values, "count": len(values), "next_before": older})
        return
    if older is not None:
        terminal.note(f"Older: threadkeep sessions show {session} --before {older}")
    for message in messages:
        if message.seq == info.archived_seq + 1 and info.archived_seq > info.deleted_seq:
            terminal.note("── archived until here ──")
        if message.seq == info.reset_seq + 1 and info.reset_seq:
            terminal.note("── reset ──")
        _show_message(terminal, message)
    if info.reset_seq and info.reset_seq == info.last_seq:
        terminal.note("── reset ──")


@commands.command("search")
def search_messages(
    query: Annotated[str, typer.Argument(help="Words that a message must all have.")],
    user: UserId = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, best first."""
    from threadkeep.history.all_sessions import AllSessions

    async def searching() -> SearchResult:
        async with opened_memory() as memory:
            return await AllSessions(memory).search(query, user_id=user, limit=limit)

    result = run(searching())
    hits = result.hits
    terminal = Terminal(as_json=as_json)
    if as_json:
        found = [{"session_id": key, "score": score, "message": message.to_dict()} for key, message, score in hits]
        terminal.json({"hits": found, "unindexed": result.unindexed})
    elif not hits:
        terminal.note("No message has all these words.")
    else:
        now = datetime.now(UTC)
        rows = [
            (key, str(message.seq), message.role, _around(message.content, query), _ago(message.created_at, now))
            for key, message, _ in hits
        ]
        terminal.table(["session", "seq", "role", "message", "when"], rows, right=["seq"])
    if result.unindexed:
        missing = counted(result.unindexed, "message")
        terminal.note(f"Not all was searched: the index still lacks {missing}. `threadkeep migrate` fills it.")


@commands.command("reset")
def reset_session(session: SessionIdArgument, user: UserId = None, as_json: AsJson = False) -> None:
    """Let later windows of a session start afresh; its transcript stays."""
    from threadkeep.history.all_sessions import AllSessions

    async def resetting() -> SessionInfo:
        async with opened_memory() as memory:
            handle, _ = await AllSessions(memory).find(session, user_id=user)
            await handle.reset()
            return await handle.info()

    info = run(resetting())
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json(_session_values(info))
    else:
        terminal.say(f"{session} starts afresh after message {info.reset_seq}; its transcript stays.")


@commands.command("delete")
def delete_sessions(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION…", help="The ids of the sessions.")],
    user: UserId = None,
    confirmed: Confirmed = False,
    as_json: AsJson = False,
) -> None:
    """Delete sessions with all their messages, for good."""
    from threadkeep.history.all_sessions import AllSessions

    terminal = Terminal(as_json=as_json)
    if not confirmed:
        _ask_before_deleting(terminal, sessions)

    async def deleting() -> tuple[list[str], list[str]]:
        async with opened_memory() as memory:
            outcomes = {key: await AllSessions(memory).erase(key, user_id=user) for key in sessions}
        return [key for key, gone in outcomes.items() if gone], [key for key, gone in outcomes.items() if not gone]

    deleted, missing = run(deleting())
    if as_json:
        terminal.json({"deleted": deleted, "not_found": missing})
    for key in [] if as_json else deleted:
        terminal.say(f"{key} is deleted.")
    for key in [] if as_json else missing:
        terminal.error(f"There is no session {key} here; list what there is with: threadkeep sessions list")
    if missing:
        raise typer.Exit(1)


def _ask_before_deleting(terminal: Terminal, sessions: Sequence[str]) -> None:
    if not terminal.interactive:
        raise WrongUse("Deleting is for good: say --yes to do it without being asked.")
    typer.confirm(f"Delete {', '.join(sessions)} with all messages, for good?", abort=True, err=True)


def _session_values(info: SessionInfo) -> dict[str, object]:
    return {
        "session_id": info.session_id,
        "user_id": info.user_id,
        "title": info.title,
        "last_message": info.last_message,
        "message_count": info.message_count,
        "last_seq": info.last_seq,
        "reset_seq": info.reset_seq,
        "archived_seq": info.archived_seq,
        "deleted_seq": info.deleted_seq,
        "active": info.active,
        "tags": list(info.tags),
        "metadata": dict(info.metadata),
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        **({"namespace": list(info.namespace)} if info.namespace else {}),
    }


def _show_sessions(terminal: Terminal, infos: Sequence[SessionInfo]) -> None:
    now = datetime.now(UTC)
    rows = [
        (
            info.session_id,
            harmless(info.user_id or ""),
            first_words(info.title or "", _WORDS),
            first_words(info.last_message or "", _WORDS),
            f"{info.message_count:,}",
            relative(info.updated_at, now) + ("" if info.active else ", inactive"),
        )
        for info in infos
    ]
    terminal.table(["session", "user", "title", "last message", "messages", "activity"], rows, right=["messages"])


def _show_message(terminal: Terminal, message: Message) -> None:
    from rich.text import Text

    told = [f"#{message.seq}", _ago(message.created_at, datetime.now(UTC))]
    told += [message.status] if message.status != "complete" else []
    told += [f"confidence {message.confidence:g}"] if message.confidence is not None else []
    told += ["escalated"] if message.escalated else []
    head = Text.assemble((message.role, _STYLES[message.role]), "  ", (" · ".join(told), "dim"))
    terminal.say(head)
    terminal.say(harmless(message.content))
    terminal.say()


def _around(content: str, query: str) -> str:
    """The part of a text where the first word of a query is."""
    place = content.lower().find(query.lower().split()[0]) if query.split() else 0
    start = max(place - _WORDS // 2, 0)
    return ("…" if start else "") + first_words(content[start:], 2 * _WORDS)


def _ago(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else relative(moment, now)
