"""`threadkeep context`: the contexts of recorded model calls, and of the next model call of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings, opened_memory
from threadkeep.cli.options import PREVIOUS, UserId, session_ids, verbs
from threadkeep.cli.problems import NotDone, WrongUse
from threadkeep.cli.terminal import counted, terminal
from threadkeep.errors import InvalidSettings

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from threadkeep.agent.context_view import PreviewOptions
    from threadkeep.history.memory import Memory
    from threadkeep.settings import Settings
    from threadkeep.store.manifests import Cursor, StoredManifest

commands = verbs("Show the messages that the model saw, and the excluded ones.")

_PAGE = 200


@commands.command("show")
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
    other = None if diff in (None, PREVIOUS) else _number(diff or "")
    settings = command_settings(history_max_messages=max_messages, history_max_tokens=max_tokens)
    choice = CallChoice(session, run_id, user, settings.manifest_retention_days)
    with terminal.waiting("Looking"):
        parameters = preview_options(settings) if diff is None and call is None and run_id is None else None
    async with opened_memory() as memory:
        if diff is not None:
            await _compare(memory, choice, call, other)
        elif parameters is None:
            await show_call(memory, await choice.find(memory, call))
        else:
            await show_now(memory, choice, parameters, only_next=only_next)


def preview_options(settings: Settings) -> PreviewOptions:
    """Return the configured chat's parameters for the preview of its next model call."""
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

    In a conversation that an agent stores itself, the built-in chat makes no calls, so there is no preview.
    """
    from threadkeep.agent.context_view import preview, recorded_view
    from threadkeep.cli.context_output import show_next, show_whole_next
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
    newest = None if only_next else await choice.newest(memory)
    if terminal.as_json:
        last = None if newest is None else await recorded_view(memory, newest)
        shown, next_call = (following, None) if last is None else (last, following.to_dict())
        terminal.json({**shown.to_dict(), "next_call": next_call})
    elif newest is None:
        show_whole_next(following)
    else:
        await show_call(memory, newest)
        show_next(following)


async def show_call(memory: Memory, call: StoredManifest) -> None:
    """Show the context of a recorded model call."""
    from threadkeep.agent.context_view import recorded_view
    from threadkeep.cli.context_output import show_title, show_view

    view = await recorded_view(memory, call)
    if terminal.as_json:
        terminal.json(view.to_dict())
        return
    model = view.manifest.model
    show_title(view.manifest)
    show_view(view, await memory.learned_factors.of(model) if model else None)


async def _compare(memory: Memory, choice: CallChoice, number: int | None, other: int | None) -> None:
    from threadkeep.agent.context_view import Difference, recorded_view
    from threadkeep.cli.context_output import show_difference

    later = await choice.find(memory, number)
    earlier = await (choice.before(memory, later) if other is None else choice.find(memory, other))
    difference = Difference.between(await recorded_view(memory, earlier), await recorded_view(memory, later))
    if terminal.as_json:
        terminal.json(difference.to_dict())
    else:
        show_difference(difference)


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise WrongUse("--diff takes the number of a call, from 1; without a number it is the previous call.")
    return int(text)


class CallNotFound(NotDone):
    """The requested model call has no record."""


@dataclass(frozen=True)
class CallChoice:
    """The recorded model calls of a session, a run, or both, from which a command chooses."""

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

    async def newest(self, memory: Memory) -> StoredManifest | None:
        """Return the newest recorded call of the session, or None if there is none."""
        return next(iter(await self._newest(memory, 1)), None)

    async def before(self, memory: Memory, call: StoredManifest) -> StoredManifest:
        """Return the last call before `call` in the same session or run."""
        from threadkeep.agent.context_view import call_before

        if self.session_id is not None:
            older = next(iter(await self._newest(memory, 1, before=call.cursor)), None)
        else:
            older = await call_before(memory, call, user_id=self.user_id)
        if older is None:
            raise CallNotFound("No earlier call is recorded to compare it with; name another one with --diff N.")
        return older

    async def _newest(self, memory: Memory, limit: int, *, before: Cursor | None = None) -> list[StoredManifest]:
        from threadkeep.history.all_sessions import AllSessions

        session_id = self.session_id or ""
        return await AllSessions(memory).calls(session_id, user_id=self.user_id, limit=limit, before=before)

    async def _of_session(self, memory: Memory, number: int) -> StoredManifest:
        cursor, count = None, 0
        while page := await self._newest(memory, min(_PAGE, number - count), before=cursor):
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
    """Return the key of the conversation, if an agent stores it itself."""
    conversation = call.manifest.get("conversation")
    return conversation.get("key") if isinstance(conversation, dict) else None
