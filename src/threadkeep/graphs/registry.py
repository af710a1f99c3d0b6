"""The workflows of a service, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from threadkeep.errors import InvalidWorkflow, WorkflowNotFound, WorkflowProblem
from threadkeep.graphs.built_in import chat_workflow
from threadkeep.graphs.checking import nestings
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.loading import SUFFIXES, load_python, load_yaml
from threadkeep.graphs.session_workflows import OWN_NAMES


class Workflows:
    """All workflows that can be run, each name once. The built-in `chat` is always there."""

    def __init__(self, workflows: Iterable[Workflow] = (), *, chat: Workflow | None = None) -> None:
        """Raises `InvalidWorkflow` where two have one name, or run each other in a circle or too deeply."""
        self._workflows: dict[str, Workflow] = {}
        for workflow in (chat or chat_workflow(), *workflows):
            if workflow.name in OWN_NAMES:
                raise InvalidWorkflow(f"{workflow.name!r} is a name of Threadkeep's own; call the workflow otherwise.")
            if workflow.name in self._workflows:
                places = [one.origin or one.source for one in (self._workflows[workflow.name], workflow)]
                raise InvalidWorkflow(f"Two workflows are called {workflow.name!r} ({', '.join(places)}); rename one.")
            self._workflows[workflow.name] = workflow
        self._check_nesting()

    @classmethod
    def load(cls, names: Sequence[str], *, chat: Workflow | None = None, imports: bool = True) -> Workflows:
        """The workflows that a setting names: YAML files, folders of them, and `name=package.module:graph`.

        Args:
            names: what the setting has.
            chat: the built-in chat with the service's own options.
            imports: whether tools and retrievers are imported to see whether they are there.

        Raises:
            InvalidWorkflow: with everything that is wrong with any of them.
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
        return cls(found, chat=chat)

    def get(self, name: str) -> Workflow:
        """The workflow with a name.

        Raises:
            WorkflowNotFound: there is none; the error names those that there are.
        """
        if name not in self._workflows:
            raise WorkflowNotFound(name, tuple(self._workflows))
        return self._workflows[name]

    def all(self) -> list[Workflow]:
        """All of them, the built-in first."""
        return list(self._workflows.values())

    def _check_nesting(self) -> None:
        children = {workflow.name: workflow.children for workflow in self.all()}
        problems: dict[str, WorkflowProblem] = {}
        for name, workflow in self._workflows.items():
            for way in nestings(children, name):
                drawn = " → ".join(way)
                if way[-1] in way[:-1]:
                    circle = " → ".join(way[way.index(way[-1]) :])
                    sentence = f"Workflows run each other in a circle ({circle}); take one of these calls away."
                    problems.setdefault(" ".join(sorted(set(way[way.index(way[-1]) :]))), _told(workflow, sentence))
                elif len(way) - 1 > workflow.options.max_depth:
                    sentence = (
                        f"{drawn} is {len(way) - 1} levels deep, and {workflow.options.max_depth} are allowed: "
                        f"nest less deeply, or raise max_depth of {name!r}."
                    )
                    problems.setdefault(drawn, _told(workflow, sentence))
        if problems:
            raise InvalidWorkflow(list(problems.values()))


def yaml_files(path: Path) -> list[Path]:
    """The YAML files that a path names: itself, or those right in the folder that it is, in the order of their names.

    Raises:
        InvalidWorkflow: there is nothing at the path, or no workflow in the folder.
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


def _told(workflow: Workflow, sentence: str) -> WorkflowProblem:
    return WorkflowProblem(sentence, workflow.origin if workflow.source == "yaml" else None)
