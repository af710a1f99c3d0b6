"""`threadkeep context`: shows the contexts of recorded model calls and of the next call, and compares two calls."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.commands import PREVIOUS
from threadkeep.cli.shared import UserId, command_settings, on_this_database, opened_memory, session_ids
from threadkeep.cli.terminal import NotDone, WrongUse, counted, first_words, stopped_by_ctrl_c, styled, terminal
from threadkeep.errors import InvalidSettings

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from threadkeep.agent.context_view import ContextView, Difference, PreviewOptions, SeenMessage
    from threadkeep.context.manifest import ContextManifest, Entry, LeftOut, TurnReference
    from threadkeep.context.tokens import TokenFactor
    from threadkeep.history.memory import Memory
    from threadkeep.settings import Settings
    from threadkeep.store.manifests import Cursor, StoredManifest


type _Row = tuple[str, ...]
_PAGE = 200
_COLORS = {"system": "magenta", "summary": "yellow", "window": "cyan", "input": "green", "free": "dim"}
_COLORS |= dict.fromkeys(("earlier_steps", "steps"), "red") | dict.fromkeys(("facts", "snippets", "selected"), "blue")
_BAR = 40
_BAR_MARGIN = 34
_LABEL = 9
_COLUMNS = ("seq", "section", "role", "tokens", "text")
_RIGHT = ("seq", "tokens")
_SUMMARY_TAGS = re.compile(r"</?summary\b[^>]*> ?")


async def show_context(
    *,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The session's id.", autocompletion=session_ids)
    ] = None,
    call: Annotated[
        int | None,
        typer.Option("--call", min=1, metavar="N", help="The call: 1 is the newest; with --run, the N-th of the run."),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Show calls of this run.")] = None,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="[N]", help="Show changes since another call; by default the previous one."),
    ] = None,
    following: Annotated[bool, typer.Option("--next", help="Show only the context of the chat's next call.")] = False,
    user: UserId = None,
    max_messages: Annotated[int | None, typer.Option(min=0, help="For the next call, instead of the setting.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="For the next call, instead of the setting.")] = None,
) -> None:
    """Show the context of a model call: its budget, its messages, and the excluded messages with the reasons.

    Without --call, show the last call, then preview the built-in chat's next call, before its user message is known.
    """
    if session is None and run_id is None:
        raise WrongUse("Name a session or a run: --session ID, or --run RUN.")
    only_next = following or max_messages is not None or max_tokens is not None
    if only_next and not (call is None and run_id is None and diff is None):
        raise WrongUse(
            "--next, --max-messages and --max-tokens are for the next call; "
            "--call, --run and --diff are for recorded calls. Use only one of the two groups."
        )
    other = None if diff is None or diff == PREVIOUS else int(diff) if diff.isdigit() else 0
    if other == 0:
        raise WrongUse("--diff takes the number of a call, from 1; without a number it is the previous call.")
    settings = command_settings(history_max_messages=max_messages, history_max_tokens=max_tokens)
    choice = CallChoice(session, run_id, user, settings.manifest_retention_days)
    with terminal.waiting("Looking"), stopped_by_ctrl_c():
        parameters = preview_options(settings) if diff is None and call is None and run_id is None else None
    async with opened_memory() as memory:
        if diff is not None:
            await _compare(memory, choice, call, other)
        elif parameters is None:
            await show_call(memory, await choice.find(memory, call))
        else:
            await show_now(memory, choice, parameters, only_next=only_next)


def preview_options(settings: Settings) -> PreviewOptions:
    """Return the options of the configured chat's next model call, for a preview of its context."""
    from threadkeep.agent.context_view import PreviewOptions
    from threadkeep.app import chat_options

    options = chat_options(settings)
    return PreviewOptions(options.turn_options(), options.system_prompt, model_of(settings))


def model_of(settings: Settings) -> BaseChatModel | None:
    """Return the configured model, or None if it cannot be created."""
    from threadkeep.agent.models import make_model

    try:
        return make_model(settings.model)
    except InvalidSettings:
        return None


async def show_now(memory: Memory, choice: CallChoice, parameters: PreviewOptions, *, only_next: bool = False) -> None:
    """Show the session's last model call, and a preview of the built-in chat's next call.

    If an agent stores the conversation in a LangGraph store, show no preview, because the chat makes no calls there.
    """
    from threadkeep.agent.context_view import preview, recorded_view
    from threadkeep.history.all_sessions import AllSessions

    session, info = await AllSessions(memory).find(choice.session_id or "", user_id=choice.user_id)
    if info.namespace:
        if only_next:
            raise NotDone(
                f"An agent stores {info.session_id} itself, and the built-in chat makes no calls there; omit "
                "--next, --max-messages and --max-tokens to see the last call."
            )
        await show_call(memory, await choice.find(memory, None))
        return
    following = await preview(memory, session, parameters)
    newest = [] if only_next else await choice.newest(memory)
    if terminal.as_json:
        shown, next_call = following, None
        if newest:
            shown, next_call = await recorded_view(memory, newest[0]), following.to_dict()
        terminal.json({**shown.to_dict(), "next_call": next_call})
    elif not newest:
        terminal.labelled("", "The built-in chat's next call, without its input")
        terminal.labelled("in ", _location(following.manifest))
        _show_view(following)
    else:
        await show_call(memory, newest[0])
        _show_next(following)


async def show_call(memory: Memory, call: StoredManifest) -> None:
    """Show the context of a recorded model call."""
    from threadkeep.agent.context_view import recorded_view

    view = await recorded_view(memory, call)
    if terminal.as_json:
        terminal.json(view.to_dict())
        return
    model = view.manifest.model
    _show_title(view.manifest)
    _show_view(view, await memory.learned_factors.of(model) if model else None)


async def _compare(memory: Memory, choice: CallChoice, number: int | None, other: int | None) -> None:
    from threadkeep.agent.context_view import Difference, recorded_view

    later = await choice.find(memory, number)
    earlier = await (choice.before(memory, later) if other is None else choice.find(memory, other))
    difference = Difference.between(await recorded_view(memory, earlier), await recorded_view(memory, later))
    terminal.result(difference.to_dict(), lambda: _show_difference(difference))


class CallNotFound(NotDone):
    """An error for a model call that is not recorded, or for a session or run without recorded calls."""


@dataclass(frozen=True)
class CallChoice:
    """The recorded model calls of a session, a run, or both. A command chooses one of these calls."""

    session_id: str | None = None
    run_id: str | None = None
    user_id: str | None = None
    retention_days: float = 0

    async def find(self, memory: Memory, number: int | None) -> StoredManifest:
        """Return the call with this number, by default the newest one.

        Calls of a run are counted from its first call, calls of a session from its newest call. If the call is not
        recorded, raise `CallNotFound`.
        """
        if self.run_id is None:
            return await self._of_session(memory, number or 1)
        found = await memory.manifests.of_run(self.run_id, user_id=self.user_id)
        calls = {call.call: call for call in found if self.session_id in (None, call.session_id, _key_of(call))}
        if not calls:
            raise CallNotFound(f"No model call of run {self.run_id} is recorded{self._cure()}")
        if (call := calls.get(number or max(calls))) is None:
            raise CallNotFound(f"Run {self.run_id} has the calls {min(calls)} to {max(calls)}; choose one of them.")
        return call

    async def newest(self, memory: Memory, *, limit: int = 1, before: Cursor | None = None) -> list[StoredManifest]:
        """Return up to `limit` recorded calls of the session, newest first, older than the cursor `before`."""
        from threadkeep.history.all_sessions import AllSessions

        session_id = self.session_id or ""
        return await AllSessions(memory).calls(session_id, user_id=self.user_id, limit=limit, before=before)

    async def before(self, memory: Memory, call: StoredManifest) -> StoredManifest:
        """Return the last call before `call` in the same session or run. If there is none, raise `CallNotFound`."""
        from threadkeep.agent.context_view import call_before

        if self.session_id is not None:
            older = next(iter(await self.newest(memory, before=call.cursor)), None)
        else:
            older = await call_before(memory, call, user_id=self.user_id)
        if older is None:
            raise CallNotFound("No earlier call is recorded to compare it with; name another one with --diff N.")
        return older

    async def _of_session(self, memory: Memory, number: int) -> StoredManifest:
        cursor, count = None, 0
        while page := await self.newest(memory, limit=min(_PAGE, number - count), before=cursor):
            count, cursor = count + len(page), page[-1].cursor
            if count == number:
                return page[-1]
        if not count:
            raise CallNotFound(f"No model call of {self.session_id} is recorded{self._cure()}")
        raise CallNotFound(
            f"{self.session_id} has {counted(count, 'recorded call')}: --call takes 1 (the newest) to {count}."
        )

    def _cure(self) -> str:
        variable = "THREADKEEP_MANIFEST_RETENTION_DAYS"
        if self.retention_days == 0:
            return f": {variable} is 0, so calls are not recorded. Set it above 0, send a message, and try again."
        return f": there was none yet, or only longer ago than {variable}={self.retention_days:g} days."


def _key_of(call: StoredManifest) -> object:
    """Return the key of a call's conversation in a LangGraph store, or None if the call belongs to a session."""
    conversation = call.manifest.get("conversation")
    return conversation.get("key") if isinstance(conversation, dict) else None


def _show_view(view: ContextView, factor: TokenFactor | None = None) -> None:
    """Show the context of a model call. `factor` is the learned correction of token estimates for the call's model."""
    _show_bars(view)
    terminal.facts(_facts(view.manifest, factor), width=_LABEL)
    terminal.say()
    _show_rows([("", "", [_row_of(message, view.manifest) for message in view.messages])])
    if view.manifest.session_id and not any(message.entry.seq is not None for message in view.messages):
        terminal.say("No message of the session is included.")
    show_excluded(view.manifest)


def show_excluded(manifest: ContextManifest) -> None:
    """Show a line for each range of messages that the call excluded, with the reason."""
    from threadkeep.agent.explanations import in_words
    from threadkeep.context.window import join_ranges

    for gap in join_ranges(manifest.excluded):
        seqs = _ranges(range(gap.first_seq, gap.last_seq + 1))
        terminal.labelled("out: ", f"{seqs}, {in_words(gap.reason, manifest)}", style="dim")
    for one in manifest.left_out:
        terminal.labelled("out: ", f"{_range_of_run(one)}, {in_words(one.reason, manifest)}", style="dim")


def _show_next(view: ContextView) -> None:
    """Summarise the built-in chat's next model call. Its input is not known yet."""
    seqs = [message.entry.seq for message in view.messages if message.entry.seq is not None]
    terminal.say()
    seen = f"messages {seqs[0]} to {seqs[-1]}" if seqs else "no message of the session"
    tokens = f"{view.manifest.tokens:,} of {counted(view.budget, 'token')}"
    terminal.labelled("", f"The built-in chat's next call would see {seen} and its input: {tokens}.")
    session = shlex.quote(view.manifest.session_id or "")
    command = on_this_database(f"threadkeep context show --session {session} --next")
    terminal.say(f"In full: {command}", style="dim")
    show_excluded(view.manifest)


def _show_title(manifest: ContextManifest, label: str = "") -> None:
    """Show the title of a recorded model call, in two lines."""
    at = f", {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}" if manifest.created_at else ""
    node = f", node {manifest.node}" if manifest.node else ""
    terminal.labelled(label, f"Call {manifest.call} of run {manifest.run_id}{node}")
    terminal.labelled(" " * len(label), f"in {_location(manifest)}{at}")


def _show_rows(groups: Iterable[tuple[str, str, Sequence[_Row]]], *, marked: bool = False) -> None:
    """Print groups of rows in columns. A group is its mark (such as + or -), its heading (may be empty), and its rows.

    Rows are cut to the width of the terminal. `marked` adds a column that repeats the mark of the group in each row.
    """
    filled = [(mark, heading, rows) for mark, heading, rows in groups if rows]
    every = [_COLUMNS, *(row for _, _, rows in filled for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(_COLUMNS) - 1)]
    if filled:
        _show_row(_COLUMNS, widths, " " if marked else "", style="bold")
    for mark, heading, rows in filled:
        if heading:
            terminal.say(heading, style="dim")
        for row in rows:
            _show_row(row, widths, mark)


def _row_of(message: SeenMessage, manifest: ContextManifest) -> _Row:
    """Return the table row of a message, which shows the beginning of its text."""
    entry = message.entry
    words = _SUMMARY_TAGS.sub("", message.words) if entry.section == "summary" else message.words
    cut = "" if entry.tokens_before is None else f"(cut from {entry.tokens_before:,})"
    text = first_words(" ".join(filter(None, (cut, _content(entry, manifest), words))), terminal.width)
    return "" if entry.seq is None else str(entry.seq), entry.section, message.role or "", f"{entry.tokens:,}", text


def _ranges(seqs: Iterable[int]) -> str:
    """Return `seq` numbers as ranges, such as 1–4, 17."""
    from threadkeep.store.superseding import ranges_of

    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in ranges_of(seqs))


def _show_bars(view: ContextView) -> None:
    """Draw a bar for the tokens of each section of a context, one for the free tokens, and then the budget."""
    total = max(view.budget, view.manifest.tokens, 1)
    widest = min(max(terminal.width - _BAR_MARGIN, 0), _BAR)
    parts = [(str(name), tokens) for name, tokens, _ in view.sections]
    label = max(_LABEL, *(len(name) + 1 for name, _ in parts))
    for name, tokens in [*parts, ("free", view.free)]:
        bar = "█" * -(-widest * tokens // total)
        share = f" {tokens:>9,} tokens {100 * tokens / total:>4.0f} %"
        terminal.say(f"{name:<{label}}", (f"{bar:<{widest}}", _COLORS[name]), share)
    terminal.say(f"{'budget':<{label}}{'':<{widest}} {view.budget:>9,} tokens")


def _show_row(row: _Row, widths: Sequence[int], mark: str, *, style: str = "") -> None:
    *cells, text = row
    columns = zip(_COLUMNS, cells, widths, strict=False)  # the text has no column
    aligned = [cell.rjust(width) if name in _RIGHT else cell.ljust(width) for name, cell, width in columns]
    line = styled("  ".join(filter(None, (mark, *aligned, text))))
    line.truncate(terminal.width, overflow="ellipsis")
    terminal.say(line.plain, style=style)


def _location(manifest: ContextManifest) -> str:
    """Return the name of a model call's session or conversation."""
    if manifest.conversation is not None:
        return f"{manifest.conversation.key} of {'.'.join(manifest.conversation.namespace)}"
    return manifest.session_id or "no session"


def _facts(manifest: ContextManifest, factor: TokenFactor | None) -> Iterator[tuple[str, str]]:
    """Yield the labels and values that describe a recorded model call."""
    from threadkeep.agent.explanations import describe_left_out, recall_in_words

    learned = ""
    if factor is not None and factor.samples:
        learned = f"; correction today: {factor.label}, learned from {counted(factor.samples, 'call')}"
    yield "model", f"{manifest.model or 'not named'}, counted by {manifest.counter}{learned}"
    if manifest.tools:
        yield "tools", f"{counted(manifest.tools, 'token')} on top, for their descriptions"
    if (reported := manifest.reported) is not None:
        share = 100 * reported.cached_tokens / max(reported.input_tokens, 1)
        cached = (
            f", {reported.cached_tokens:,} of them from its cache ({share:.0f} %)" if reported.cached_tokens else ""
        )
        estimated = counted(manifest.tokens + manifest.tools, "token was estimated", "tokens were estimated")
        counts = f"{estimated}, the provider counted {reported.input_tokens:,}{cached}"
        yield "reported", f"{counts}; the reply had {reported.output_tokens:,}"
    most = "" if manifest.max_messages is None else f", at most {counted(manifest.max_messages, 'earlier message')}"
    begins = f", begins at message {manifest.anchor_seq}" if manifest.anchor_seq else ""
    yield "window", f"{manifest.window}{most}{begins}"
    if (prefix := manifest.prefix) is not None:
        leading = f"the first {counted(prefix.messages, 'message')}, {counted(prefix.tokens, 'token')}"
        yield "stable", f"{leading}: they do not depend on the input"
    for one in manifest.graph:
        yield "graphiti", recall_in_words(one)
    for facts in manifest.facts_left_out:
        yield "no facts", describe_left_out(facts)
    if manifest.notes:
        yield "notes", ", ".join(manifest.notes).replace("_", " ")


def _range_of_run(one: LeftOut) -> str:
    if one.last_id is not None:
        return f"{one.count:,} messages of the run, {one.id} to {one.last_id}"
    if one.id is None:
        return counted(one.count, "message") + " of the run"
    return f"the run's message {one.id}"


def _content(entry: Entry, manifest: ContextManifest) -> str:
    """Describe what a message of the context contains: quoted turns, facts or passages, or a summary of messages."""
    if entry.turns:
        return f"quotes {'; '.join(_cited(entry.turns, manifest.session_id or ''))}:"
    if entry.summaries:
        gaps = [gap for gap in manifest.excluded if gap.reason == "summarised"]
        seqs = (seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1))
        return f"{'summary' if len(entry.summaries) == 1 else 'summaries'} of {_ranges(seqs)}:"
    if entry.facts:
        return f"{counted(len(entry.facts), 'fact')} ({'; '.join(_origins(entry))}):"
    return f"passages {', '.join(entry.snippets)}:" if entry.snippets else ""


def _origins(entry: Entry) -> Iterator[str]:
    """Yield a phrase for each scope (such as a user) of the entry's facts: how many facts, and from which messages."""
    for scope in dict.fromkeys(fact.scope for fact in entry.facts):
        facts = [fact for fact in entry.facts if fact.scope == scope]
        messages = ", ".join(_cited(turn for fact in facts for turn in fact.evidence))
        yield f"{len(facts)} of the {scope}" + (f" from {messages}" if messages else "")


def _cited(turns: Iterable[TurnReference], home: str | None = None) -> list[str]:
    """Return messages as ranges of `seq`, one text for each session. The session `home` comes first, without its id."""
    found: dict[str, list[int]] = {} if home is None else {home: []}
    for turn in turns:
        found.setdefault(turn.session_id, []).append(turn.seq)
    return [
        _ranges(seqs) if session_id == home else f"{_ranges(seqs)} of {session_id}"
        for session_id, seqs in found.items()
        if seqs
    ]


def _show_difference(difference: Difference) -> None:
    before, after = difference.before.manifest, difference.after.manifest
    _show_title(before, "from  ")
    _show_title(after, "to    ")
    terminal.say()
    for line in _sharing(difference):
        terminal.labelled("", line)
    terminal.say()
    if not difference.came and not difference.went:
        terminal.say("Nothing changed.")
        return
    came = [_row_of(message, after) for message in difference.came]
    removed = {why: [_row_of(message, before) for message in went] for why, went in difference.gone.items()}
    _show_rows([("+", "", came), *(("-", f"- {why}:", rows) for why, rows in removed.items())], marked=True)


def _sharing(difference: Difference) -> list[str]:
    before, after = difference.before.manifest, difference.after.manifest
    share = 100 * difference.shared_tokens / max(after.tokens, 1)
    tokens = f"{difference.shared_tokens:,} of {counted(after.tokens, 'token')} ({share:.0f} %)"
    same = f"Both begin with the same {counted(difference.shared, 'message')}"
    lines = [f"{same}: {tokens}, which a provider's prompt cache can reuse."]
    if after.reported is not None:
        lines.append(f"The provider took {counted(after.reported.cached_tokens, 'token')} from its cache.")
    if difference.stable:
        lines.append("All parts that do not depend on the input are also at the beginning of the later call.")
    elif before.anchor_seq != after.anchor_seq:
        lines.append(
            f"The window was shortened: it began at message {max(before.anchor_seq, 1)}, now at {after.anchor_seq}."
        )
    else:
        lines.append("A part that does not depend on the input changed; the first line below shows it.")
    return lines
