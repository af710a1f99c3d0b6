"""`threadkeep workflows`: what workflows there are, whether they are right, and what they look like."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from threadkeep.cli.options import AsJson
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.errors import WorkflowProblem
    from threadkeep.graphs.definition import Workflow
    from threadkeep.graphs.registry import Workflows

commands = typer.Typer(help="The workflows there are, and their files.", no_args_is_help=True, rich_markup_mode=None)

_ENDINGS = {"": "mermaid", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid", ".txt": "mermaid"}
_ENDINGS |= {".svg": "svg", ".png": "png"}

WorkflowName = Annotated[str, typer.Argument(metavar="WORKFLOW", help="A workflow's name, or the path of its file.")]


@commands.command("list")
def list_workflows(as_json: AsJson = False) -> None:
    """List the built-in workflow and those that THREADKEEP_WORKFLOWS names."""
    from threadkeep.graphs.describing import describe

    terminal = Terminal(as_json=as_json)
    with terminal.waiting("Reading workflows"):
        found = registered().all()
    if as_json:
        terminal.json([describe(one) for one in found])
        return
    rows = [[one.name, one.source, one.version, str(len(one.builder.nodes)), one.description] for one in found]
    terminal.table(["workflow", "source", "version", "nodes", "what it is for"], rows, right=["nodes"])


@commands.command("show")
def show_workflow(name: WorkflowName, as_json: AsJson = False) -> None:
    """Show a workflow: its nodes, where each leads, its options."""
    from threadkeep.graphs.describing import describe_whole

    terminal = Terminal(as_json=as_json)
    workflow = named(name)
    described = describe_whole(workflow)
    if as_json:
        terminal.json(described)
        return
    terminal.say(f"{workflow.name} ({workflow.source}, version {workflow.version})", style="bold")
    if workflow.description:
        terminal.say(workflow.description)
    terminal.say()
    rows = [[node["name"], node["kind"], ", ".join(node["next"])] for node in described["nodes"]]
    terminal.table(["node", "kind", "goes on with"], rows)
    terminal.say()
    for option, value in described["options"].items():
        if value is not None:
            terminal.say(f"{option}: {value}")


@commands.command("validate")
def validate_workflows(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="YAML files, or folders of them.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--imports/--no-imports", help="Whether tools and retrievers are imported.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with workflow files, with line, column and cure; without a path, with all there are.

    Exits with 1 if anything is wrong.
    """
    from threadkeep.errors import InvalidWorkflow

    terminal = Terminal(as_json=as_json)
    names = [str(path) for path in paths] if paths else None
    problems: tuple[WorkflowProblem, ...] = ()
    elsewhere: Sequence[WorkflowProblem] = ()
    found: list[str] = []
    try:
        workflows = registered(names, imports=imports)
        found = [one.name for one in workflows.all()[1 if names else 0 :]]
        elsewhere = workflows.missing_children()
    except InvalidWorkflow as error:
        problems = error.problems
    if as_json:
        told = [
            {"sentence": one.sentence, "file": one.file, "line": one.line, "column": one.column} for one in problems
        ]
        terminal.json({"valid": not problems, "workflows": found, "problems": told})
    elif problems:
        for problem in problems:
            terminal.error(str(problem))
        terminal.note(f"{len(problems)} to correct.")
    else:
        for problem in elsewhere:
            terminal.note(str(problem))
        terminal.say(f"All is well: {', '.join(found)}.")
    if problems:
        raise typer.Exit(1)


@commands.command("graph")
def draw_workflow(
    name: WorkflowName,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="mermaid, svg or png; by default the file's ending."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; by default stdout.")
    ] = None,
) -> None:
    """Draw a workflow: as Mermaid's text, SVG or PNG. Nothing is asked of a network."""
    from threadkeep.graphs.drawing import draw_mermaid, draw_png, draw_svg

    wanted = _format(format_name, output)
    workflow = named(name)
    if wanted == "png":
        if output is None and sys.stdout.isatty():
            raise WrongUse("A PNG is not for a terminal: say where to with --output FILE.")
        picture = draw_png(workflow)
        if output is None:
            sys.stdout.buffer.write(picture)
        else:
            output.write_bytes(picture)
        return
    text = draw_svg(workflow) if wanted == "svg" else draw_mermaid(workflow)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def registered(names: list[str] | None = None, *, imports: bool = True) -> Workflows:
    """The workflows that the settings name, or those at some paths."""
    from threadkeep.app import load_workflows
    from threadkeep.settings import load_settings

    return load_workflows(load_settings(), names, imports=imports)


def named(name: str) -> Workflow:
    """The workflow with a name, or in the file at a path."""
    from threadkeep.graphs.loading import SUFFIXES, load_yaml

    path = Path(name)
    return load_yaml(path) if path.suffix in SUFFIXES else registered().get(name)


def _format(given: str | None, output: Path | None) -> Literal["mermaid", "svg", "png"]:
    text = given or (_ENDINGS.get(output.suffix.lower(), "") if output else "mermaid")
    if not text:
        raise WrongUse("The file's ending is none of .svg, .png, .mmd, .md and .txt; say which with --format.")
    match text.lower():
        case "mermaid":
            return "mermaid"
        case "svg":
            return "svg"
        case "png":
            return "png"
    raise WrongUse("--format is mermaid, svg or png.")
