"""Output of the difference between two model calls."""

from __future__ import annotations

from threadkeep.agent.context_view import Difference
from threadkeep.cli.context_output import row_of, show_rows, show_title
from threadkeep.cli.terminal import counted, terminal


def show_difference(difference: Difference) -> None:
    """Show the shared messages, then the added and the removed ones."""
    before, after = difference.before.manifest, difference.after.manifest
    show_title(before, "from  ")
    show_title(after, "to    ")
    terminal.say()
    for line in _sharing(difference):
        terminal.labelled("", line)
    terminal.say()
    if not difference.came and not difference.went:
        terminal.say("Nothing came and nothing went.")
        return
    came = [row_of(message, after) for message in difference.came]
    gone = {why: [row_of(message, before) for message in went] for why, went in difference.gone.items()}
    show_rows([("+", "", came), *(("-", f"- {why}:", rows) for why, rows in gone.items())], marked=True)


def _sharing(difference: Difference) -> list[str]:
    before, after = difference.before.manifest, difference.after.manifest
    share = 100 * difference.shared_tokens / max(after.tokens, 1)
    tokens = f"{difference.shared_tokens:,} of {counted(after.tokens, 'token')} ({share:.0f} %)"
    same = f"Both begin with the same {counted(difference.shared, 'message')}"
    lines = [f"{same}: {tokens}, which a provider's prompt cache can reuse."]
    if after.reported is not None:
        lines.append(f"The provider took {counted(after.reported.cached_tokens, 'token')} from its cache.")
    if difference.stable:
        lines.append("All that did not depend on the earlier input is at the beginning of the later call too.")
    elif before.anchor_seq != after.anchor_seq:
        lines.append(
            f"The window was cut back: it began at message {max(before.anchor_seq, 1)}, then at {after.anchor_seq}."
        )
    else:
        lines.append("What did not depend on the earlier input changed; the first line below says what.")
    return lines
