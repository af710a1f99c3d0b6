"""`threadkeep doctor`: everything that can be wrong with an installation, each with its cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.findings import Finding, show_findings
from threadkeep.cli.opening import run
from threadkeep.cli.options import AsJson
from threadkeep.cli.terminal import Terminal
from threadkeep.errors import InvalidSettings

if TYPE_CHECKING:
    from threadkeep.settings import Settings


def doctor(
    call_model: Annotated[bool, typer.Option("--call-model", help="Ask the model something; may cost.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong here, each with its cure.

    Looks at the settings, the database, its schema and locks, what was learned of models' tokens, the disk, the models
    and the pending writes. Exits with 1 if any of them fails.
    """
    terminal = Terminal(as_json=as_json)
    from threadkeep.settings import load_settings

    try:
        settings = load_settings()
    except InvalidSettings as error:
        cure = f"Correct {error.variable} in the environment or in .env; nothing else can be looked at before."
        findings = [Finding("settings", "fail", str(error), cure)]
    else:
        with terminal.waiting("Looking"):
            findings = run(_findings(settings, call_model=call_model))
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        terminal.json({"ok": not failed, "findings": [finding.to_dict() for finding in findings]})
    else:
        show_findings(terminal, findings)
    if failed:
        raise typer.Exit(1)


async def _findings(settings: Settings, *, call_model: bool) -> list[Finding]:
    from threadkeep.cli.database_checks import check_database
    from threadkeep.cli.machine_checks import (
        check_disk,
        check_model,
        check_pending,
        check_settings,
        check_summary_model,
    )

    return [
        *check_settings(settings),
        *await check_database(settings),
        *check_disk(settings),
        *check_pending(settings),
        *await check_model(settings, call=call_model),
        *check_summary_model(settings),
    ]
