"""`threadkeep doctor`: checks an installation and names a cure for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.terminal import terminal
from threadkeep.errors import InvalidSettings

if TYPE_CHECKING:
    from threadkeep.cli.machine_checks import Finding, Level
    from threadkeep.settings import Settings

_MARKS: dict[Level, tuple[str, str]] = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


async def doctor(
    call_model: Annotated[bool, typer.Option("--call-model", help="Ask the model something; may cost.")] = False,
) -> None:
    """Check the installation, and name a cure for each problem.

    Looks at the settings, the database, its schema and locks, damage in every database, the conversations in the graph
    store, what was learned of models' tokens, the disk, the models and the pending writes. Exits with 1 if any of them
    fails.
    """
    from threadkeep.cli.machine_checks import Finding, check_variables

    try:
        settings = command_settings()
    except InvalidSettings as error:
        cure = f"Correct {error.variable} in the environment or in .env; nothing else can be looked at before."
        findings = [Finding("settings", "fail", str(error), cure), *check_variables()]
    else:
        with terminal.waiting("Looking"):
            findings = await _findings(settings, call_model=call_model)
    failed = any(finding.level == "fail" for finding in findings)
    if terminal.as_json:
        terminal.json({"ok": not failed, "findings": [vars(finding) for finding in findings]})
    else:
        _show(findings)
    if failed:
        raise typer.Exit(1)


async def _findings(settings: Settings, *, call_model: bool) -> list[Finding]:
    from threadkeep.cli import database_checks, machine_checks

    database = await database_checks.check_database(settings)
    reachable = not any(finding.check == "database" and finding.level == "fail" for finding in database)
    return [
        *machine_checks.check_settings(settings),
        *machine_checks.check_variables(),
        *database,
        *await database_checks.check_all_integrity(settings, reachable=reachable),
        *await database_checks.check_graph_store(settings),
        *machine_checks.check_disk(settings),
        *machine_checks.check_pending(settings),
        *await machine_checks.check_model(settings, call=call_model),
        *machine_checks.check_summary_model(settings),
    ]


def _show(findings: Sequence[Finding]) -> None:
    """Show a line for each finding, and one for its cure."""
    width = max(len(finding.check) for finding in findings) + 2
    for finding in findings:
        mark, color = _MARKS[finding.level]
        terminal.say((f"{mark} ", color), f"{finding.check:<{width}}", finding.detail)
        if finding.cure:
            terminal.say(" " * (width + 2), (f"→ {finding.cure}", color))
    failed = sum(1 for finding in findings if finding.level == "fail")
    warned = sum(1 for finding in findings if finding.level == "warn")
    terminal.say()
    if failed or warned:
        terminal.say(f"{failed} failed, {warned} to look at, {len(findings) - failed - warned} well.")
    else:
        terminal.say("All is well.")
