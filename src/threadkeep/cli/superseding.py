"""`threadkeep sessions take-back`, `edit`, `regenerate` and `branch`: changes that keep the history."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings, naming_the_database, opened_app, opened_session
from threadkeep.cli.options import SessionIdArgument, UserId
from threadkeep.cli.problems import WrongUse, problem_of
from threadkeep.cli.terminal import counted, first_words, terminal
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep.history.session import Session

_WORDS = 60


async def take_back_messages(
    session: SessionIdArgument,
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many of the newest messages.")] = 1,
    user: UserId = None,
) -> None:
    """Take back the newest messages of a session: they stay in its history, but are not active any more."""
    async with opened_session(session, user) as (handle, _):
        taken = await handle.take_back(number)
    if terminal.as_json:
        terminal.json({"session_id": session, "messages": [message.to_dict() for message in taken]})
        return
    for message in taken:
        terminal.say(f"#{message.seq}  {message.role}: {first_words(message.content, _WORDS)}")
    terminal.note(f"Took {counted(len(taken), 'message')} back." if taken else "There is no message to take back.")


async def edit_message(
    session: SessionIdArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id, or its number.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text.")],
    new_id: Annotated[str | None, typer.Option(metavar="ID", help="The id of the new version.")] = None,
    user: UserId = None,
) -> None:
    """Replace a message with a new version; later messages stay in the history, but are not active any more."""
    async with opened_session(session, user) as (handle, _):
        edited = await handle.edit(await _id_of(handle, message), text, new_id=new_id)
    if terminal.as_json:
        terminal.json({"session_id": session, "message": edited.to_dict()})
    else:
        terminal.say(f"The new version is message {edited.seq}, with the id {edited.id}.")


async def branch_session(
    session: SessionIdArgument,
    at: Annotated[
        int | None, typer.Option(min=1, metavar="SEQ", help="The number of its last message; the newest else.")
    ] = None,
    branch_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The id of the branch; a new one else.")
    ] = None,
    user: UserId = None,
) -> None:
    """Create a session with the messages of another one, up to a position. Both continue independently."""
    async with opened_session(session, user) as (handle, _):
        info = await (await handle.branch(at, session_id=branch_id)).info()
    if terminal.as_json:
        known = {"parent_session_id": info.parent_session_id, "parent_seq": info.parent_seq}
        terminal.json({"session_id": info.session_id, "message_count": info.message_count, **known})
        return
    terminal.say(f"{info.session_id} begins with {counted(info.message_count, 'message')} of {session}.")
    terminal.note(f"Go on with: threadkeep chat --session {shlex.quote(info.session_id)}")


async def regenerate_answer(
    session: SessionIdArgument,
    *,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN", help="The run whose question it is.")] = None,
    message: Annotated[
        str | None, typer.Option("--message", metavar="ID", help="The question's id; the newest question else.")
    ] = None,
    user: UserId = None,
) -> None:
    """Answer a question again; later messages stay in the history, but are not active any more."""
    if run_id is not None and message is not None:
        raise WrongUse("Name the run or the message, not both.")
    settings = command_settings()
    async with opened_app(settings, works=False) as app:
        from threadkeep.cli.answers import Answer
        from threadkeep.history.all_sessions import AllSessions
        from threadkeep.runs.chat import Again, RegenerationRequest

        with naming_the_database(settings):
            handle, _ = await AllSessions(app.memory).find(session, user_id=user)
            request = RegenerationRequest(run_id, message, trigger="cli")
            turn = await Again(app.chat, app.memory, app.workflows).begin(handle, request)
        answer = Answer()
        answer.begin()
        try:
            await answer.show(turn)
        except ThreadkeepError as error:
            answer.fail(problem_of(error))
            raise typer.Exit(1) from None


async def _id_of(session: Session, message: str) -> str:
    """Return the id of a message that is named by its id or its number."""
    if message.isdecimal() and await session.find(message) is None:
        for found in await session.at([int(message)]):
            return found.id or message
    return message
