"""All commands under one name, and what becomes of an error in any of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

import typer
from typer.main import get_command

from threadkeep.cli import (
    bench,
    chat,
    context,
    doctor,
    explain_key,
    migrate,
    pending,
    prune,
    run_carrying,
    run_pruning,
    runs,
    serve,
    sessions,
    transfer,
    worker,
    workflows,
)
from threadkeep.cli.problems import problem_of, show_problem
from threadkeep.version import __version__

_CTRL_C = 130
# Whoever calls `main` again in one process does not wait for all commands to be made again.
_made_once = cache(get_command)

application = typer.Typer(
    name="threadkeep",
    help="The memory of LangGraph agents: serve it, talk to it, look into it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # The help of rich takes as long again as all the rest of `--help`.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
sessions.commands.command("export")(transfer.export_sessions)
sessions.commands.command("import")(transfer.import_sessions)
sessions.commands.command("prune")(prune.prune_sessions)
workflows.commands.command("run")(run_carrying.run_workflow)
runs.commands.command("resume")(run_carrying.resume_run)
runs.commands.command("retry")(run_carrying.retry_run)
runs.commands.command("prune")(run_pruning.prune_runs)
application.command("serve")(serve.serve_http)
application.command("worker")(worker.work)
application.command("chat")(chat.chat)
application.add_typer(sessions.commands, name="sessions")
application.add_typer(context.commands, name="context")
application.add_typer(workflows.commands, name="workflows")
application.add_typer(runs.commands, name="runs")
application.command("explain-key")(explain_key.explain_keys)
application.command("doctor")(doctor.doctor)
application.command("migrate")(migrate.migrate_schema)
application.command("bench")(bench.bench)
application.add_typer(pending.commands, name="pending")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"threadkeep {__version__}")
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The memory of LangGraph agents: serve it, talk to it, look into it."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; every error becomes a sentence (or a JSON object) on stderr and an exit code."""
    try:
        code = _made_once(application).main(
            context.with_whole_options(arguments), prog_name="threadkeep", standalone_mode=False
        )
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last door: a person gets a sentence, never a traceback
        return _tell(error, arguments)
    if code == _CTRL_C:
        return _tell(KeyboardInterrupt(), arguments)
    return code if isinstance(code, int) else 0


def _tell(error: BaseException, arguments: Sequence[str]) -> int:
    problem = problem_of(error)
    show_problem(problem, as_json="--json" in arguments)
    return problem.exit_code
