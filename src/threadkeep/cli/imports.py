"""`threadkeep import` for other systems, and `sessions import` and `sessions export` for JSONL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.shared import (
    Output,
    UserId,
    ViewOption,
    lines_of,
    opened_input,
    opened_memory,
    opened_output,
    session_ids,
    show_exported,
)
from threadkeep.cli.terminal import Reach, WrongUse, counted, escape, terminal

if TYPE_CHECKING:
    from threadkeep.cli.foreign import Conversation, Conversations, Reading, Unreadable
    from threadkeep.history.exporting import Exported
    from threadkeep.history.importing import Imported, Importer, Position

_MOST_SHOWN = 1_000
_LINES_BETWEEN = 500
_LEFT_OUT = {
    "tool_call": "tool call",
    "tool_result": "tool result",
    "system": "system message",
    "summary": "summary",
    "reasoning": "piece of reasoning",
    "hidden": "hidden message",
    "empty": "empty message",
    "other": "other item",
}
_CLEANED = "Messages with U+FFFD in place of characters that databases reject"
_PLURALS = {"summary": "summaries", "reasoning": "pieces of reasoning"}

Database = Annotated[
    str,
    typer.Argument(metavar="DB", help="The SQLite file, or the URL of a database: postgresql://user@host/database."),
]
Owner = Annotated[str | None, typer.Option("--user", metavar="ID", help="The owner of the imported sessions.")]


async def import_langgraph(
    source: Database,
    channel: Annotated[str, typer.Option(help="The channel of the state that holds the messages.")] = "messages",
    user: Owner = None,
) -> None:
    """Store the threads of a LangGraph checkpointer, each with the messages of its newest state.

    A thread becomes a session with the same id, and the messages keep their ids. The checkpoints are not changed.
    """
    from threadkeep.cli.from_databases import read_threads

    reading = await _import_source(partial(read_threads, source, channel=channel, user_id=user))
    if reading.total and not reading.has_channel:
        terminal.note(f"No state has the channel {channel!r}; name another with --channel.")


async def import_openai_agents(
    source: Database,
    branch: Annotated[str, typer.Option(help="The branch of sessions that have branches.")] = "main",
    user: Owner = None,
) -> None:
    """Store the sessions of the OpenAI Agents SDK (SQLiteSession, AdvancedSQLiteSession, SQLAlchemySession)."""
    from threadkeep.cli.from_databases import read_agent_sessions

    await _import_source(partial(read_agent_sessions, source, branch=branch, user_id=user))


async def import_chatgpt(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The zip of the export, or conversations.json.")],
    user: Owner = None,
) -> None:
    """Store the conversations of a ChatGPT export, each with only the branch that ChatGPT showed last."""
    from threadkeep.cli.foreign import read_export

    await _import_source(partial(read_export, file, user_id=user))


async def import_graph_store(
    source: Database,
    namespace: Annotated[
        str, typer.Option(help="The namespace of the histories; its labels are separated by full stops.")
    ] = "agent_chat_history",
    value_field: Annotated[str, typer.Option(help="The field of a message's text.")] = "content",
    as_sessions: Annotated[
        bool, typer.Option("--sessions", help="Import them as sessions, not as conversations of the graph store.")
    ] = False,
) -> None:
    """Store histories from a LangGraph store in which each history is one item: {"version", "messages"}."""
    from threadkeep.cli.from_databases import read_histories
    from threadkeep.graph_store.layout import GraphLayout

    layout = GraphLayout(tuple(namespace.split(".")), value_field=value_field)
    await _import_source(partial(read_histories, source, layout=layout, as_sessions=as_sessions))


async def import_sessions(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to read; - for stdin.")],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first invalid line.")] = False,
) -> None:
    """Store exported sessions from JSONL.

    Existing messages are not stored again, so a second import changes nothing, and an interrupted import can be
    repeated. Invalid lines are reported and skipped; exits with 1 if there were any.
    """
    errors: list[dict[str, Position]] = []
    done = await _import_lines(file, partial(_refuse, errors, "line", "Line {}"), strict=strict)
    counts = {"sessions": done.sessions, "bad_lines": done.bad_lines, "skipped": done.skipped}
    values = {**counts, **asdict(done.restored), "errors": errors}
    terminal.result(values, lambda: _show_lines(done, strict=strict), failed=bool(done.bad_lines))


def _refuse(errors: list[dict[str, Position]], name: str, words: str, position: Position, sentence: str) -> None:
    """Show a rejected entry at once. With `--json`, add it to `errors`, which the result shows."""
    if len(errors) < _MOST_SHOWN:
        errors.append({name: escape(position) if isinstance(position, str) else position, "detail": sentence})
    if not terminal.as_json:
        terminal.error(f"{words.format(position)}: {sentence}")


async def _import_source(read: Callable[[Reading], Conversations]) -> Reading:
    """Import conversations from another system; exit with 1 if some were rejected."""
    from threadkeep.cli.foreign import Reading
    from threadkeep.history.importing import Importer

    errors: list[dict[str, Position]] = []
    reading, empty = Reading(), 0
    async with aclosing(read(reading)) as conversations:
        # Open the source before the memory, so that a wrong source creates no database file.
        await anext(conversations)
        async with opened_memory(creates=True) as memory:
            importer = Importer(memory, partial(_refuse, errors, "conversation", "{}"))
            with _reporting(importer, reading.total) as reach:
                async for found in conversations:
                    empty += found is not None and not await _accept(importer, found)
                    # Do not report completion yet: a short file is read to its end before all of it is stored.
                    if reading.done < reading.total:
                        reach(reading.done, _words(importer.done))
                await importer.store()
                reach(reading.total, _words(importer.done))
    done = importer.done
    values = {"sessions": done.sessions, "left_out": dict(sorted(reading.left_out.items())), "empty": empty}
    values |= {name: getattr(done.restored, name) for name in ("stored", "known", "cleaned")}
    values |= {"refused": done.bad_lines, "errors": errors}
    terminal.result(values, lambda: _show_source(reading, done, empty), failed=bool(done.bad_lines))
    return reading


async def _accept(importer: Importer, found: Conversation | Unreadable) -> bool:
    """Import a conversation. Return False if it has no messages."""
    from threadkeep.cli.foreign import Unreadable
    from threadkeep.history.archive_lines import MessageLine, SessionLine

    if isinstance(found, Unreadable):
        importer.refuse(found.name, found.sentence)
        return True
    name = found.line.session_id
    lines: list[SessionLine | MessageLine] = [found.line, *(MessageLine(name, one) for one in found.messages)]
    for line in lines if found.messages else ():
        await importer.accept(name, line)
    return bool(found.messages)


async def _import_lines(file: str, refuse: Callable[[Position, str], None], *, strict: bool) -> Imported:
    from threadkeep.cli.foreign import check_file, check_lines
    from threadkeep.history.importing import Importer

    if file != "-":
        await check_file(file, "jsonl")
    with opened_input(file) as stream:
        size = os.fstat(stream.fileno()).st_size if stream is not sys.stdin.buffer else 0
        read = 0
        async with opened_memory(creates=True) as memory:
            importer = Importer(memory, refuse, strict=strict)
            with _reporting(importer, size or None) as reach:
                for number, line in enumerate(lines_of(stream), start=1):
                    if number == 1:
                        check_lines(line)
                    read += len(line)
                    if not await importer.take(number, line):
                        break
                    if number % _LINES_BETWEEN == 0:
                        reach(read, _words(importer.done))
                await importer.store()
                reach(read, _words(importer.done))
            return importer.done


def _reporting(importer: Importer, total: int | None) -> AbstractContextManager[Reach]:
    again = ". Repeat the import to continue; nothing is stored twice."
    return terminal.progress("Importing", total, so_far=lambda: _words(importer.done), again=again)


def _words(done: Imported) -> str:
    return f"{counted(done.restored.stored, 'message')} stored, {done.restored.known:,} already known"


def _show_source(reading: Reading, done: Imported, empty: int) -> None:
    terminal.say(
        f"Stored {counted(done.restored.stored, 'message')} of {counted(done.sessions, 'session')}; "
        f"already known: {done.restored.known:,}."
    )
    if reading.left_out:
        kinds = reading.left_out.most_common()
        items = (counted(count, _LEFT_OUT[kind], _PLURALS.get(kind)) for kind, count in kinds)
        terminal.say(f"Skipped, because they are not messages of a person or an assistant: {', '.join(items)}.")
    _say_counts(
        ("Conversations without messages of a person or an assistant", empty),
        (_CLEANED, done.restored.cleaned),
        ("Conversations that could not be read or stored", done.bad_lines),
    )


def _show_lines(done: Imported, *, strict: bool) -> None:
    terminal.say(f"Stored {counted(done.restored.stored, 'message')}; already known: {done.restored.known:,}.")
    _say_counts(
        ("Stored at other positions, because their sessions had messages or lines were skipped", done.restored.moved),
        (_CLEANED, done.restored.cleaned),
        ("Summaries stored", done.restored.summaries),
        ("Summaries skipped, because their messages are stored differently here", done.restored.summaries_left_out),
        ("Archived messages that are active here, as a graph store has no archive", done.restored.unarchived),
        ("Sessions without their limits, which a graph store does not keep", done.restored.limits_left_out),
        ("Skipped because of their session", done.skipped),
    )
    if done.bad_lines:
        terminal.say(f"Invalid lines: {done.bad_lines:,}. Correct them and repeat the import; nothing is stored twice.")
        if not strict:
            terminal.say(
                "A corrected message follows those that are stored; to keep the order, delete its session first."
            )


def _say_counts(*counts: tuple[str, int]) -> None:
    for words, count in counts:
        if count:
            terminal.say(f"{words}: {count:,}.")


async def export_sessions(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="SESSION", help="The ids of the sessions.", autocompletion=session_ids),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    output: Output = None,
    user: UserId = None,
    view: ViewOption = "active",
) -> None:
    """Write sessions as JSONL, to stdout or a file.

    The line of a session is followed by the lines of its messages and summaries. Superseded messages are exported only
    in the view `history`. A file appears only when it is complete. With `--all`, damaged sessions are skipped and
    listed; the command then exits with 1.
    """
    if bool(sessions) == everything:
        raise WrongUse("Name the sessions to export, or add --all for all of them.")
    from threadkeep.history.all_sessions import AllSessions
    from threadkeep.history.exporting import count_messages, every_session, export, named_sessions

    named = sessions or []
    with opened_output(output) as stream:
        async with opened_memory() as memory:
            chosen = named_sessions(memory, named, user) if named else every_session(memory, user)
            total = await count_messages(memory, named, user, view=view)
            with terminal.progress("Exporting", total) as reach:
                done = await export(chosen, stream, lambda done: reach(done.messages, _exported(done)), view=view)
            for found in await AllSessions(memory).damaged(user) if not named else ():
                done.note_damage(found)
    show_exported(done.to_dict(), _exported(done), output)
    for error in done.damaged.values():
        terminal.error(f"Left out: {error}")
    if done.damaged:
        raise typer.Exit(1)


def _exported(done: Exported) -> str:
    summaries = f" and {counted(done.summaries, 'summary', 'summaries')}" if done.summaries else ""
    return f"{counted(done.messages, 'message')}{summaries} of {counted(done.sessions, 'session')}"
