"""`threadkeep sessions`: list, show, search, change, reset and delete sessions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.commands import problem_of
from threadkeep.cli.shared import (
    Confirmed,
    CursorOption,
    Limit,
    SessionIdArgument,
    UserId,
    ViewOption,
    check_exists,
    command_settings,
    naming_the_database,
    on_this_database,
    opened_app,
    opened_session,
    opened_sessions,
    opened_tables,
    read_cursor,
    session_ids,
    write_cursor,
)
from threadkeep.cli.terminal import WrongUse, counted, first_words, relative, repeated, terminal
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep.records import Message, SessionInfo

_WORDS = 40
_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta"}


async def list_sessions(
    user: UserId = None,
    query: Annotated[str | None, typer.Option(help="Only with this text in title, last message or id.")] = None,
    active: Annotated[
        bool | None, typer.Option("--active/--inactive", help="Only active sessions, or only inactive ones.")
    ] = None,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List sessions, newest activity first."""
    from threadkeep.store.transcripts import SessionQuery, sessions_page

    wanted = SessionQuery(user, query, active, limit, read_cursor(cursor))
    damaged: Sequence[str] = ()
    async with opened_tables() as tables:
        page = None if tables is None else await sessions_page(tables, wanted)
    if page is None:
        async with opened_sessions() as sessions:
            page = await sessions.page(wanted)
            damaged = sorted({error.session_id for error in await sessions.damaged(user)})
    infos, following = page
    narrowed = user or query or cursor or active is not None
    values = {"sessions": [session_values(info) for info in infos], "next_cursor": write_cursor(following)}
    terminal.listing(
        {**values, "damaged": damaged} if damaged else values,
        ("session", "user", "title", "last message", "messages", "activity"),
        [
            (
                info.session_id,
                info.user_id,
                first_words(info.title or "", _WORDS),
                first_words(info.last_message or "", _WORDS),
                f"{info.message_count:,}",
                relative(info.updated_at) + ("" if info.active else ", inactive"),
            )
            for info in infos
        ],
        right=["messages"],
        nothing=f"There are no {'such sessions' if narrowed else 'sessions yet'}.",
    )
    _name_damaged(damaged)


async def show_session(
    session: SessionIdArgument,
    user: UserId = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number of messages.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, metavar="SEQ", help="Only messages before this one.")] = None,
    view: ViewOption = "active",
) -> None:
    """Show the newest messages of a session, oldest first."""
    async with opened_session(session, user) as (handle, info):
        page = await handle.page(before=before, limit=limit, view=view)
    messages, older = page.messages, page.next_before
    if terminal.as_json:
        values = [message.to_dict() for message in messages]
        terminal.json({**session_values(info), "messages": values, "count": len(values), "next_before": older})
        return
    if older is not None:
        terminal.note(f"Older: {repeated('--before', older)}")
    if not messages:
        terminal.note("There are no such messages." if before else f"{session} has no messages in this view.")
    last = info.deleted_seq if older is None else older - 1
    for message in messages:
        seq = message.seq or 0
        if last <= info.archived_seq < seq and info.archived_seq > info.deleted_seq:
            terminal.note("── archived until here ──")
        if last <= info.reset_seq < seq and info.reset_seq:
            terminal.note("── reset ──")
        _show_message(message)
        last = seq
    if info.reset_seq >= last and info.reset_seq and before is None:
        terminal.note("── reset ──")


async def search_messages(
    query: Annotated[str, typer.Argument(help="Words that must all be in a message.")],
    user: UserId = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The maximum number.")] = 10,
) -> None:
    """Find messages by their words, best first."""
    async with opened_sessions() as sessions:
        result = await sessions.search(query, user_id=user, limit=limit)
    found = [{"session_id": key, "score": score, "message": message.to_dict()} for key, message, score in result.hits]
    damaged = {"damaged": result.damaged} if result.damaged else {}
    terminal.listing(
        {"hits": found, "unindexed": result.unindexed, **damaged},
        ("session", "seq", "role", "message", "when"),
        [
            (key, message.seq, message.role, _around(message.content, query), message.created_at)
            for key, message, _ in result.hits
        ],
        right=["seq"],
        nothing="No message contains all these words.",
    )
    if result.unindexed:
        missing = counted(result.unindexed, "message")
        terminal.note(f"Not all messages were searched: {missing} not indexed yet. `threadkeep migrate` indexes them.")
    _name_damaged(result.damaged)


async def reset_session(session: SessionIdArgument, user: UserId = None) -> None:
    """Hide all existing messages from the model. The transcript keeps them."""
    async with opened_session(session, user) as (handle, _):
        await handle.reset()
        info = await handle.info()
    terminal.result(
        session_values(info), f"{session} starts afresh after message {info.reset_seq}; its transcript stays."
    )


async def delete_sessions(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION", help="The ids of the sessions.", autocompletion=session_ids)
    ],
    user: UserId = None,
    confirmed: Confirmed = False,
) -> None:
    """Delete sessions with all their messages, permanently."""
    terminal.confirm(
        f"Delete {', '.join(sessions)} with all messages permanently?",
        "Sessions are deleted permanently; add --yes to do it without confirmation.",
        confirmed=confirmed,
    )
    async with opened_sessions() as everything:
        outcomes = {key: await everything.erase(key, user_id=user) for key in dict.fromkeys(sessions)}
    missing = [key for key, deleted in outcomes.items() if not deleted]

    def show() -> None:
        for key, deleted in outcomes.items():
            if deleted:
                terminal.say(f"{key} is deleted.")
            else:
                terminal.error(f"There is no session {key}; list the sessions with: threadkeep sessions list")

    values = {"deleted": [key for key, deleted in outcomes.items() if deleted], "not_found": missing}
    terminal.result(values, show, failed=bool(missing))


def session_values(info: SessionInfo) -> dict[str, object]:
    """Return the metadata of a session as JSON values."""
    return {
        name: value for name, value in vars(info).items() if name != "retention" and (name, value) != ("namespace", ())
    }


def _show_message(message: Message) -> None:
    facts = [f"#{message.seq}", relative(message.created_at)]
    facts += [message.status] if message.status != "complete" else []
    facts += [f"confidence {message.confidence:g}"] if message.confidence is not None else []
    facts += ["escalated"] if message.escalated else []
    if message.superseded_at is not None:
        facts.append(f"superseded by {message.superseded_by}" if message.superseded_by else "superseded")
    speaker = f"{message.role} {message.author}" if message.author else message.role
    terminal.say((speaker, _STYLES[message.role]), "  ", (" · ".join(facts), "dim"))
    terminal.say(message.content)
    terminal.say()


def _name_damaged(session_ids: Sequence[str]) -> None:
    if session_ids:
        names = ", ".join(session_ids)
        terminal.note(f"Skipped, because an item in the graph store cannot be read: {names}. Details: doctor.")


def _around(content: str, query: str) -> str:
    """Return an excerpt of a message: the text around the first word of the search query."""
    position = content.lower().find(query.lower().split()[0]) if query.split() else 0
    start = max(position - _WORDS // 2, 0)
    return ("…" if start else "") + first_words(content[start:], 2 * _WORDS)


async def take_back_messages(
    session: SessionIdArgument,
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="The number of newest messages.")] = 1,
    user: UserId = None,
) -> None:
    """Take back the newest messages of a session. They stay in its history, but the model no longer gets them."""
    async with opened_session(session, user) as (handle, _):
        taken = await handle.take_back(number)
    if terminal.as_json:
        terminal.json({"session_id": session, "messages": [message.to_dict() for message in taken]})
        return
    for message in taken:
        terminal.say(f"#{message.seq}  {message.role}: {first_words(message.content, _WORDS)}")
    terminal.note(f"Took back {counted(len(taken), 'message')}." if taken else "There is no message to take back.")


async def edit_message(
    session: SessionIdArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id, or its number.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text.")],
    new_id: Annotated[str | None, typer.Option(metavar="ID", help="The id of the new version.")] = None,
    user: UserId = None,
) -> None:
    """Replace a message with a new version. Later messages stay in the history, but the model no longer gets them."""
    async with opened_session(session, user) as (handle, _):
        # A number is a `seq`, unless a message has this number as its id.
        if message.isdecimal() and await handle.find(message) is None:
            message = next((found.id for found in await handle.at([int(message)]) if found.id), message)
        edited = await handle.edit(message, text, new_id=new_id)
    terminal.result(
        {"session_id": session, "message": edited.to_dict()},
        f"The new version is message {edited.seq}, with the id {edited.id}.",
    )


async def branch_session(
    session: SessionIdArgument,
    at: Annotated[
        int | None, typer.Option(min=1, metavar="SEQ", help="The number of its last message; by default the newest.")
    ] = None,
    branch_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The id of the branch; by default a new one.")
    ] = None,
    user: UserId = None,
) -> None:
    """Create a session with copies of another session's messages up to --at. Both continue independently."""
    async with opened_session(session, user) as (handle, _):
        info = await (await handle.branch(at, session_id=branch_id)).info()
    names = ("session_id", "message_count", "parent_session_id", "parent_seq")
    terminal.result(
        {name: getattr(info, name) for name in names},
        f"{info.session_id} begins with {counted(info.message_count, 'message')} of {session}.",
    )
    command = f"threadkeep chat --session {shlex.quote(info.session_id)}"
    terminal.note(f"Continue with: {on_this_database(command)}")


async def regenerate_answer(
    session: SessionIdArgument,
    *,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN", help="The run of the question.")] = None,
    message: Annotated[
        str | None, typer.Option("--message", metavar="ID", help="The question's id; by default the newest.")
    ] = None,
    user: UserId = None,
) -> None:
    """Answer a question again. Later messages stay in the history, but the model no longer gets them."""
    if run_id is not None and message is not None:
        raise WrongUse("Name the run or the message, not both.")
    settings = command_settings()
    check_exists(settings.database)
    async with opened_app(settings, works=False) as app:
        from threadkeep.cli.run_output import Answer
        from threadkeep.history.all_sessions import AllSessions
        from threadkeep.runs.chat import RegenerationRequest

        with naming_the_database(settings):
            handle, _ = await AllSessions(app.memory).find(session, user_id=user)
            request = RegenerationRequest(run_id, message, trigger="cli")
            turn = await app.chat.regenerate(handle, request)
        answer = Answer()
        answer.begin()
        try:
            await answer.show(turn)
        except ThreadkeepError as error:
            answer.fail(problem_of(error))
            raise typer.Exit(1) from None
