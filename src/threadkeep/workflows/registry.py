"""The registry of a service's workflows by name, and a runner of child workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.conversion import text_of
from threadkeep.boundary import ErrorBoundary
from threadkeep.context.tokens import input_budget
from threadkeep.errors import BudgetTooSmall, InvalidWorkflow, WorkflowNotFound, WorkflowProblem
from threadkeep.records import Json
from threadkeep.records.runs import OWN_NAMES
from threadkeep.workflows.built_in import chat_workflow
from threadkeep.workflows.definition import Compiler, Workflow
from threadkeep.workflows.document import suggestion
from threadkeep.workflows.loading import SUFFIXES, load_python, load_yaml
from threadkeep.workflows.nodes import SubworkflowNode
from threadkeep.workflows.nodes.speaking import SpeakingNode
from threadkeep.workflows.resources import ChildRequest, ChildResult, Resources, RunContext
from threadkeep.workflows.state import answer_of, initial_state, map_of
from threadkeep.workflows.yaml_source import Path as ValuePath

type Way = tuple[str, ...]
type Children = Mapping[str, Sequence[str]]

_MOST_DRAWN = 8


def circles(children: Children) -> Iterator[Way]:
    """Yield cycles of workflows that run each other (at least one, if there are any).

    Each cycle is a path from a workflow back to itself. Different cycles have no workflow in common.
    """
    rest = dict(children)
    while True:
        try:
            TopologicalSorter({name: _known(rest, name) for name in rest}).prepare()
        except CycleError as error:
            # In the error's list, each workflow is called by the next one.
            circle: Way = tuple(reversed(error.args[1]))
            yield circle
            rest = {name: called for name, called in rest.items() if name not in circle}
        else:
            return


def deepest_ways(children: Children) -> dict[str, Way]:
    """Map each workflow's name to its longest path of nested calls. There must be no cycles."""
    known = {name: _known(children, name) for name in children}
    found: dict[str, Way] = {}
    for name in TopologicalSorter(known).static_order():  # each name comes after its children
        found[name] = (name, *max((found[child] for child in known[name]), key=len, default=()))
    return found


def drawn(way: Way) -> str:
    """Return a path of workflow names as text with arrows; a long path is shortened in the middle."""
    shown = way if len(way) <= _MOST_DRAWN else (*way[: _MOST_DRAWN - 2], "…", way[-1])
    return " → ".join(shown)


def _known(children: Children, name: str) -> list[str]:
    return [child for child in children.get(name, ()) if child in children]


class Workflows:
    """All registered workflows, by their unique names, with the built-in `chat`."""

    def __init__(self, workflows: Iterable[Workflow] = (), *, chat: Workflow | None = None) -> None:
        """Raise `InvalidWorkflow` if names clash, or if calls form a cycle or nest too deeply."""
        self._workflows: dict[str, Workflow] = {}
        problems: list[WorkflowProblem] = []
        for workflow in (chat or chat_workflow(), *workflows):
            other = self._workflows.setdefault(workflow.name, workflow)
            if workflow.name in OWN_NAMES:
                sentence = f"{workflow.name!r} is a name that Threadkeep reserves; rename the workflow."
                problems.append(_problem(workflow, sentence, ("name",)))
            elif other is not workflow:
                origins = ", ".join(one.origin or one.source for one in (other, workflow))
                sentence = f"Two workflows are called {workflow.name!r} ({origins}); rename one."
                problems.append(_problem(workflow, sentence, ("name",)))
        if problems:
            raise InvalidWorkflow(problems)
        self._check_nesting()

    @classmethod
    def load(
        cls, names: Sequence[str], *, chat: Workflow | None = None, imports: bool = True, complete: bool = True
    ) -> Workflows:
        """Load workflows from YAML files, folders of YAML files, and import strings (`name=package.module:graph`).

        Args:
            names: the files, folders and import strings, as in THREADKEEP_WORKFLOWS.
            chat: the built-in chat with the service's own options; by default, with default options.
            imports: True to import tools and retrievers, to check that they exist.
            complete: True if `names` lists all workflows, so that each child workflow must be among them.

        Raises:
            InvalidWorkflow: workflows have problems; the error lists all of them.
        """
        found: list[Workflow] = []
        problems: list[WorkflowProblem] = []
        for name in names:
            try:
                paths = [] if "=" in name else yaml_files(Path(name))
                found += [] if paths else [load_python(*_named(name))]
            except InvalidWorkflow as error:
                problems += error.problems
                continue
            for path in paths:
                try:
                    found.append(load_yaml(path, imports=imports))
                except InvalidWorkflow as error:
                    problems += error.problems
        if problems:
            raise InvalidWorkflow(problems)
        loaded = cls(found, chat=chat)
        if complete and (missing := loaded.missing_children()):
            raise InvalidWorkflow(missing)
        return loaded

    def get(self, name: str) -> Workflow:
        """Return the workflow with this name.

        Raises:
            WorkflowNotFound: no workflow has this name; the error lists the registered names.
        """
        if name not in self._workflows:
            raise WorkflowNotFound(name, tuple(self._workflows))
        return self._workflows[name]

    def all(self) -> list[Workflow]:
        """Return all workflows, the built-in chat first."""
        return list(self._workflows.values())

    def missing_children(self) -> list[WorkflowProblem]:
        """Return a problem for each call of a workflow that is not registered."""
        problems: list[WorkflowProblem] = []
        for workflow in self.all():
            for child in workflow.children:
                if child not in self._workflows:
                    sentence = (
                        f"{workflow.name!r} runs {child!r}, which is not a workflow: correct the name"
                        f"{suggestion(child, self._workflows)}, or add its file to the workflows."
                    )
                    problems.append(_problem(workflow, sentence, _call_of(workflow, child)))
        return problems

    def check_room(self, model_name: str | None, window: int) -> None:
        """Reject nodes that reserve so many tokens for the reply that no prompt fits the service's model.

        Raises:
            InvalidWorkflow: there are such nodes; the error has the numbers and the location of each.
        """
        problems: list[WorkflowProblem] = []
        for workflow in self.all():
            for name, node in workflow.nodes.items():
                if isinstance(node, SpeakingNode) and node.model is None and node.max_output_tokens is not None:
                    try:
                        input_budget(model_name, node.max_output_tokens, node.context_window or window)
                    except BudgetTooSmall as error:
                        sentence = f"Node {name!r} cannot be used: {error}"
                        problems.append(_problem(workflow, sentence, ("nodes", name, "max_output_tokens")))
        if problems:
            raise InvalidWorkflow(problems)

    def _check_nesting(self) -> None:
        children = {workflow.name: workflow.children for workflow in self.all()}
        problems: list[WorkflowProblem] = []
        for circle in circles(children):
            workflow = self._workflows[circle[0]]
            sentence = f"Workflows run each other in a cycle ({drawn(circle)}); remove one of these calls."
            problems.append(_problem(workflow, sentence, _call_of(workflow, circle[1])))
        for way in () if problems else deepest_ways(children).values():
            workflow = self._workflows[way[0]]
            if len(way) - 1 > workflow.options.max_depth:
                sentence = (
                    f"{drawn(way)} is {len(way) - 1} levels deep, but only {workflow.options.max_depth} are allowed: "
                    f"nest less deeply, or raise max_depth of {workflow.name!r}."
                )
                problems.append(_problem(workflow, sentence, _call_of(workflow, way[1])))
        if problems:
            raise InvalidWorkflow(problems)


def yaml_files(path: Path) -> list[Path]:
    """Return the YAML files at a path: the file itself, or all files directly in the folder, sorted by name.

    Raises:
        InvalidWorkflow: the path does not exist, or the folder has no YAML file.
    """
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())
        if not found:
            raise InvalidWorkflow([WorkflowProblem("There is no .yaml file in this folder; name another.", str(path))])
        return found
    if not path.exists():
        sentence = "There is no such file; correct the path, or write name=package.module:graph for a graph in Python."
        raise InvalidWorkflow([WorkflowProblem(sentence, str(path))])
    return [path]


def _named(text: str) -> tuple[str, str]:
    name, _, reference = text.partition("=")
    return name.strip(), reference.strip()


def _call_of(workflow: Workflow, child: str) -> ValuePath:
    """Return the path to the first option in a workflow's file that names the workflow `child`."""
    nodes = workflow.nodes.items()
    calling = [name for name, node in nodes if isinstance(node, SubworkflowNode) and node.workflow == child]
    return ("nodes", calling[0], "workflow")


def _problem(workflow: Workflow, sentence: str, path: ValuePath) -> WorkflowProblem:
    return workflow.positions.problem(sentence, path) if workflow.positions else WorkflowProblem(sentence)


_INTERRUPT = "__interrupt__"


class InProcessChildren:
    """A runner that executes children in the current process, for library use and tests.

    A child gets only its request, and not the state, callbacks, streams or checkpoints of the parent. It ends with the
    process, and cannot wait for a person. A repeated request starts a new child.
    """

    def __init__(self, workflows: Workflows, compiler: Compiler, resources: Resources) -> None:
        self._workflows = workflows
        self._compiler = Compiler(checkpointer=False, store=compiler.store)
        self.resources = replace(resources, children=self)

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Run a child until it ends or asks a person (status `waiting`)."""
        workflow = self._workflows.get(request.workflow)
        run_id = str(uuid7())
        limits = request.deadline_seconds, workflow.options.deadline_seconds
        # Use an empty context, because LangGraph passes the parent's callbacks and streams in context variables.
        work = asyncio.create_task(self._execute(workflow, run_id, request), context=Context())
        # Catch any error of a child, because the parent gets the child's status instead.
        with ErrorBoundary():
            try:
                async with asyncio.timeout(min(filter(None, limits), default=None)):
                    return await work
            except TimeoutError:
                if work.cancelled():
                    return ChildResult(run_id, None, "", "deadline")
            except asyncio.CancelledError:
                work.cancel()
                await asyncio.wait([work])
                raise
        return ChildResult(run_id, None, "", "failed")

    async def _execute(self, workflow: Workflow, run_id: str, request: ChildRequest) -> ChildResult:
        context = RunContext(
            run_id=run_id,
            workflow=workflow.name,
            resources=self.resources,
            session_id=f"child:{run_id}" if request.with_session else None,
            trigger="child",
            depth=request.depth,
            user_context=map_of(request.input, "user_context"),
            ancestors=request.ancestors,
        )
        config: RunnableConfig = {"recursion_limit": workflow.options.recursion_limit}
        graph, text = self._compiler.compiled(workflow), request.input.get("text")
        given: Any = initial_state(
            text if isinstance(text, str) else "", inputs=request.input, user_context=context.user_context
        )
        state = await graph.ainvoke(given, config, context=context)
        if _INTERRUPT in state:
            return ChildResult(run_id, None, "", "waiting")
        return result_of(workflow, run_id, state)


def result_of(workflow: Workflow, run_id: str, state: Mapping[str, Any]) -> ChildResult:
    """Return a run's result: the output of the node `workflow.output` (or the answer), and the answer's text."""
    answer = answer_of(state)
    reply = text_of(answer) if answer is not None else ""
    outputs = state.get("node_outputs") or {}
    if workflow.output is None:
        return ChildResult(run_id, {"text": reply}, reply, "done")
    output: Json = outputs.get(workflow.output)
    return ChildResult(run_id, output, reply or (output if isinstance(output, str) else ""), "done")
