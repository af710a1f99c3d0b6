"""What a model call of a session would see now, and what not: for `context show` and for `/context` in a chat."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from threadkeep.cli.terminal import Terminal, first_words, harmless
from threadkeep.context.tokens import estimate
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.session import Session

if TYPE_CHECKING:
    from threadkeep.context.manifest import ExclusionReason, Window

_BAR = 40
_WORDS = 60


@dataclass(frozen=True)
class ContextLimits:
    """What a model call may hold: the system prompt, then the newest messages that fit. 0 means none of them."""

    system_prompt: str
    max_messages: int
    max_tokens: int


@dataclass(frozen=True)
class ContextView:
    """The system prompt with its tokens, and the window beside it."""

    session_id: str
    limits: ContextLimits
    system_tokens: int
    window: Window

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON values."""
        manifest = self.window.manifest
        return {
            "session_id": self.session_id,
            "max_messages": self.limits.max_messages,
            "max_tokens": self.limits.max_tokens,
            "tokens": self.system_tokens + self.window.tokens,
            "counter": manifest.counter,
            "sections": [
                {"name": "system", "tokens": self.system_tokens, "messages": 1 if self.limits.system_prompt else 0},
                {"name": "window", "tokens": self.window.tokens, "messages": len(self.window.messages)},
            ],
            "system_prompt": self.limits.system_prompt,
            "messages": [
                {"seq": m.seq, "role": m.role, "tokens": _tokens(self.window, place), "content": m.content}
                for place, m in enumerate(self.window.messages)
            ],
            "excluded": [asdict(gap) for gap in manifest.excluded],
            "cuts": [asdict(cut) for cut in manifest.cuts],
            "dropped": manifest.dropped,
        }


async def look(session: Session, limits: ContextLimits) -> ContextView:
    """What a model call would see now, but for the new input.

    Raises:
        SessionNotFound: there is no such session.
        BudgetTooSmall: the system prompt alone is over the budget, and every call would fail.
    """
    await session.info()
    tokens = estimate(limits.system_prompt)
    if tokens > limits.max_tokens > 0:
        raise BudgetTooSmall(
            f"The system prompt alone has {tokens} tokens and the budget is {limits.max_tokens}: "
            "shorten THREADKEEP_SYSTEM_PROMPT, or raise THREADKEEP_HISTORY_MAX_TOKENS."
        )
    window = await session.window(limits.max_messages, max(limits.max_tokens - tokens, 0))
    return ContextView(session.session_id, limits, tokens, window)


def show_view(terminal: Terminal, view: ContextView) -> None:
    """Draw the budget as a bar for each section, list what is in, and say what is out and why."""
    limits, window = view.limits, view.window
    free = max(limits.max_tokens - view.system_tokens - window.tokens, 0)
    sections = (("system", view.system_tokens, "magenta"), ("window", window.tokens, "cyan"), ("free", free, "dim"))
    total = max(limits.max_tokens, view.system_tokens + window.tokens, 1)
    for name, tokens, color in sections:
        bar = "█" * -(-_BAR * tokens // total)
        terminal.say(Text.assemble(f"{name:<8}", (f"{bar:<{_BAR}}", color), f" {tokens:>7,} tokens"))
    terminal.say(f"{'budget':<8}{'':<{_BAR}} {limits.max_tokens:>7,} tokens, {limits.max_messages} messages")
    terminal.say()
    rows = [("", "system", f"{view.system_tokens:,}", first_words(limits.system_prompt, _WORDS))]
    rows = rows if limits.system_prompt else []
    cut = {cut.seq for cut in window.manifest.cuts}
    for place, message in enumerate(window.messages):
        words = first_words(message.content, _WORDS) + (" (cut)" if message.seq in cut else "")
        rows.append((str(message.seq), message.role, f"{_tokens(window, place):,}", harmless(words)))
    if rows:
        terminal.table(["seq", "role", "tokens", "text"], rows, right=["seq", "tokens"])
    else:
        terminal.say("Nothing of the session is in.")
    for gap in window.manifest.excluded:
        places = str(gap.first_seq) if gap.first_seq == gap.last_seq else f"{gap.first_seq}–{gap.last_seq}"
        terminal.say(f"out: {places}, {_why(gap.reason, limits)}", style="dim")


def _tokens(window: Window, place: int) -> int:
    message = window.messages[place]
    return message.tokens if message.tokens is not None else estimate(message.content)


def _why(reason: ExclusionReason, limits: ContextLimits) -> str:
    match reason:
        case "reset":
            return "before the reset"
        case "over_limit":
            return f"over the limit of {limits.max_messages} messages"
        case "over_budget":
            return f"over the budget of {limits.max_tokens:,} tokens"
        case _:
            return reason.replace("_", " ")
