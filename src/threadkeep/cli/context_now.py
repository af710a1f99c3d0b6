"""The last model call of a session, and what the next would see: for `context show`, and for `/context` in a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.cli.context_drawing import show_context, show_next, show_title, show_title_of_next
from threadkeep.cli.context_view import ContextLook, look_ahead, look_back
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.cli.call_choice import CallChoice
    from threadkeep.history.memory import Memory


async def show_now(
    terminal: Terminal, memory: Memory, choice: CallChoice, look: ContextLook, *, only_next: bool = False
) -> None:
    """Show both; where no call is on record, or only the next is wanted, that one in full.

    Raises:
        SessionNotFound: there is no such session, or not for this user.
        BudgetTooSmall: every call would fail.
    """
    session = memory.session(choice.session_id or "", user_id=choice.user_id)
    following = await look_ahead(memory, session, look)
    newest = None if only_next else await choice.newest(memory)
    last = None if newest is None else await look_back(memory, newest)
    if terminal.as_json:
        shown = following if last is None else last
        terminal.json({**shown.to_dict(), "next_call": None if last is None else following.to_dict()})
    elif last is None:
        show_title_of_next(terminal, following)
        show_context(terminal, following)
    else:
        model = last.manifest.model
        show_title(terminal, last.manifest)
        show_context(terminal, last, await memory.learned_factors.of(model) if model else None)
        show_next(terminal, following)
