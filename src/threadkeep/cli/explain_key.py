"""`threadkeep explain-key`: which key a payload gets from each agent of a workflow, and why not another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.options import AsJson
from threadkeep.cli.payload import read_payload
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.workflows import named

if TYPE_CHECKING:
    from threadkeep.graphs.explaining import KeyExplanation


def explain_keys(
    *,
    workflow: Annotated[str, typer.Option("--workflow", metavar="WORKFLOW", help="Its name, or the path of its file.")],
    payload: Annotated[str, typer.Option("--payload", metavar="FILE", help="A JSON object; - is stdin.")],
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="As in a run that a person starts: thread_id counts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which key each agent of a workflow makes of a payload, and why each other candidate was refused."""
    from threadkeep.graphs.explaining import explain_key

    terminal = Terminal(as_json=as_json)
    found = explain_key(named(workflow), read_payload(payload), by_hand=by_hand)
    if as_json:
        terminal.json({"workflow": workflow, "agents": [one.to_dict() for one in found]})
    elif not found:
        terminal.say(f"{workflow} has no agent.")
    for place, explanation in enumerate(found if not as_json else ()):
        if place:
            terminal.say()
        _show(terminal, explanation)


def _show(terminal: Terminal, explanation: KeyExplanation) -> None:
    key = explanation.key or "no key: it works in memory only"
    terminal.say(f"{explanation.node}: {key}", style="bold")
    if not explanation.uses_store:
        terminal.say("  It does not use it: use_graph_chat_history is off, its history is that of the run's session.")
    if explanation.key is not None:
        terminal.say(f"  by {explanation.winner}")
    for refusal in explanation.refused:
        terminal.say(f"  {refusal.reason:<19} {refusal.candidate}")
