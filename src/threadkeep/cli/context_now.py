"""The last model call of a session, and what the next would see: for `context show`, and for `/context` in a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.cli.context_drawing import show_context, show_next, show_title, show_title_of_next
from threadkeep.cli.context_view import ContextLook, look_ahead, look_back
from threadkeep.cli.problems import NotDone
from threadkeep.cli.terminal import Terminal
from threadkeep.history.all_sessions import AllSessions

if TYPE_CHECKING:
    from threadkeep.cli.call_choice import CallChoice
    from threadkeep.history.memory import Memory
    from threadkeep.store.manifests import StoredManifest


async def show_now(
    terminal: Terminal, memory: Memory, choice: CallChoice, look: ContextLook, *, only_next: bool = False
) -> None:
    """Show both; where no call is on record, or only the next is wanted, that one in full.

    In a conversation that an agent keeps by itself the built-in chat does not speak: there the last call is shown.

    Raises:
        SessionNotFound: there is no such session, or not for this user.
        BudgetTooSmall: every call would fail.
        NotDone: what is wanted is not there.
    """
    session, info = await AllSessions(memory).find(choice.session_id or "", user_id=choice.user_id)
    if info.namespace:
        if only_next:
            raise NotDone(
                f"An agent keeps {info.session_id} by itself, and the built-in chat makes no call there: leave out "
                "--next, --max-messages and --max-tokens to see the last call."
            )
        await show_call(terminal, memory, await choice.find(memory, None))
        return
    following = await look_ahead(memory, session, look)
    newest = None if only_next else await choice.newest(memory)
    if terminal.as_json:
        last = None if newest is None else await look_back(memory, newest)
        shown, next_call = (following, None) if last is None else (last, following.to_dict())
        terminal.json({**shown.to_dict(), "next_call": next_call})
    elif newest is None:
        show_title_of_next(terminal, following)
        show_context(terminal, following)
    else:
        await show_call(terminal, memory, newest)
        show_next(terminal, following)


async def show_call(terminal: Terminal, memory: Memory, call: StoredManifest) -> None:
    """Show a call that was made."""
    view = await look_back(memory, call)
    if terminal.as_json:
        terminal.json(view.to_dict())
        return
    model = view.manifest.model
    show_title(terminal, view.manifest)
    show_context(terminal, view, await memory.learned_factors.of(model) if model else None)
