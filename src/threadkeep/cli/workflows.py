"""`threadkeep workflows` and `explain-key`: list, show, validate and draw workflows, and explain agents' keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.shared import command_settings, one_of, opened_output, read_payload
from threadkeep.cli.terminal import WrongUse, terminal
from threadkeep.errors import InvalidWorkflow, WorkflowProblem

if TYPE_CHECKING:
    from threadkeep.workflows.definition import Workflow
    from threadkeep.workflows.describing import KeyExplanation
    from threadkeep.workflows.registry import Workflows

_ENDINGS = {"": "mermaid", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid", ".txt": "mermaid"}
_ENDINGS |= {".svg": "svg", ".png": "png"}

WorkflowName = Annotated[str, typer.Argument(metavar="WORKFLOW", help="A workflow's name, or the path of its file.")]


def list_workflows() -> None:
    """List the built-in workflow and the workflows in THREADKEEP_WORKFLOWS."""
    from threadkeep.workflows.describing import describe

    with terminal.waiting("Reading workflows"):
        found = _registered().all()
    terminal.listing(
        {"workflows": [describe(workflow) for workflow in found]},
        ("workflow", "source", "version", "nodes", "what it is for"),
        [(one.name, one.source, one.version, len(one.builder.nodes), one.description) for one in found],
        right=["nodes"],
        nothing="",
    )


def show_workflow(name: WorkflowName) -> None:
    """Show a workflow: its nodes with their edges, and its options."""
    from threadkeep.workflows.describing import describe_whole

    workflow = _named(name)
    described = describe_whole(workflow)
    if terminal.as_json:
        terminal.json(described)
        return
    terminal.say(f"{workflow.name} ({workflow.source}, version {workflow.version})", style="bold")
    if workflow.description:
        terminal.say(workflow.description)
    terminal.say()
    rows = [[node["name"], node["kind"], ", ".join(node["next"])] for node in described["nodes"]]
    terminal.table(["node", "kind", "next"], rows)
    terminal.say()
    for option, value in described["options"].items():
        if value is not None:
            terminal.say(f"{option}: {value}")


def validate_workflows(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="YAML files, or folders of them.")] = None,
    imports: Annotated[
        bool, typer.Option("--imports/--no-imports", help="Import tools and retrievers, or do not.")
    ] = True,
) -> None:
    """List all problems of workflow files, with positions and how to fix them. Without a path, check all workflows.

    Exits with 1 if there is a problem.
    """
    names = [str(path) for path in paths] if paths else None
    problems: tuple[WorkflowProblem, ...] = ()
    elsewhere: Sequence[WorkflowProblem] = ()
    found: list[str] = []
    try:
        workflows = _registered(names, imports=imports)
        found = [one.name for one in workflows.all()[1 if names else 0 :]]
        elsewhere = workflows.missing_children()
    except InvalidWorkflow as error:
        problems = error.problems

    def show() -> None:
        for problem in problems:
            terminal.error(str(problem))
        for problem in elsewhere:
            terminal.note(str(problem))
        if problems:
            terminal.note(f"Problems to correct: {len(problems)}.")
        else:
            terminal.say(f"Valid: {', '.join(found)}.")

    values = {"valid": not problems, "workflows": found, "problems": problems, "notes": elsewhere}
    terminal.result(values, show, failed=bool(problems))


def draw_workflow(
    name: WorkflowName,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="mermaid, svg or png; by default the file's ending."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; by default stdout.")
    ] = None,
) -> None:
    """Draw a workflow as Mermaid text, SVG or PNG, without network access."""
    from threadkeep.workflows.describing import draw_mermaid, draw_png, draw_svg

    named = format_name or (_ENDINGS.get(output.suffix.lower(), "") if output else "mermaid")
    if not named:
        raise WrongUse("The file does not end with .svg, .png, .mmd, .md or .txt; choose the format with --format.")
    wanted = one_of("--format", named.lower(), ("mermaid", "svg", "png"))
    workflow = _named(name)
    if wanted == "png" and terminal.as_json:
        raise WrongUse("A PNG cannot be shown as JSON; omit --json, or use --format svg.")
    if wanted == "png" and output is None and sys.stdout.isatty():
        raise WrongUse("A terminal cannot show a PNG; name a file with --output FILE.")
    text = draw_svg(workflow) if wanted == "svg" else draw_mermaid(workflow)
    drawing = draw_png(workflow) if wanted == "png" else text.encode()
    if output is not None or not terminal.as_json:
        with opened_output(output) as stream:
            stream.write(drawing)
    if terminal.as_json:
        terminal.json({"workflow": workflow.name, "format": wanted, "drawing": text})


def _registered(names: list[str] | None = None, *, imports: bool = True) -> Workflows:
    """Return the built-in workflow and the workflows in the files `names`, by default the files in the settings."""
    from threadkeep.app import load_workflows

    return load_workflows(command_settings(), names, imports=imports)


def _named(name: str) -> Workflow:
    """Return the workflow with this name, or the workflow in the YAML file at this path."""
    from threadkeep.workflows.loading import SUFFIXES, load_yaml

    path = Path(name)
    return load_yaml(path) if path.suffix in SUFFIXES else _registered().get(name)


def explain_keys(
    *,
    workflow: Annotated[str, typer.Option("--workflow", metavar="WORKFLOW", help="Its name, or the path of its file.")],
    payload: Annotated[str, typer.Option("--payload", metavar="FILE", help="A JSON object; - is stdin.")],
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Resolve keys as in a run that a person starts, where thread_id is used.")
    ] = False,
) -> None:
    """Show the key of each agent's conversation in a run with this payload, and why other keys were rejected."""
    from threadkeep.workflows.describing import explain_key

    found = explain_key(_named(workflow), read_payload(payload), by_hand=by_hand)
    if terminal.as_json:
        terminal.json({"workflow": workflow, "agents": found})
        return
    if not found:
        terminal.say(f"{workflow} has no agent.")
    for number, explanation in enumerate(found):
        if number:
            terminal.say()
        _show_explanation(explanation)


def _show_explanation(explanation: KeyExplanation) -> None:
    key = explanation.key or "no key; its history is in memory only"
    terminal.say(f"{explanation.node}: {key}", style="bold")
    if not explanation.uses_store:
        terminal.say("  The key is not used: use_graph_chat_history is off, so its history is the run's session.")
    if explanation.key is not None:
        terminal.say(f"  by {explanation.winner}")
    for refusal in explanation.refused:
        terminal.say(f"  {refusal.reason:<19} {refusal.candidate}")
