"""The workflow that a run began with, here and now: also when it was edited meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable

from threadkeep.errors import InvalidWorkflow, WorkflowNotFound
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.loading import restore_workflow
from threadkeep.graphs.registry import Workflows
from threadkeep.graphs.session_workflows import session_workflows
from threadkeep.records.runs import Run
from threadkeep.store.runs.workflows import WorkflowVersions

_MOST_RESTORED = 64
_KNOWN_SECONDS = 60.0


class VersionGone(Exception):
    """A run cannot go on as it began; `kind` is what its record says of that."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RunWorkflows:
    """The workflows that runs are carried out with: those registered, and older versions of them."""

    def __init__(self, workflows: Workflows, kept: WorkflowVersions) -> None:
        self._workflows = workflows
        self._own = {workflow.name: workflow for workflow in session_workflows()}
        self._kept = kept
        self._known: dict[tuple[str, str], float] = {}
        self._restored: dict[tuple[str, str], Workflow] = {}

    async def newest(self, name: str) -> Workflow:
        """The workflow that new runs begin with, kept for as long as they may need it.

        Raises:
            WorkflowNotFound: there is none of that name.
        """
        workflow = self._get(name)
        key = (name, workflow.version)
        # Asked again now and then: what no run has had for long is forgotten, by whatever process.
        if time.monotonic() - self._known.get(key, -_KNOWN_SECONDS) >= _KNOWN_SECONDS:
            await self._kept.keep(name, workflow.version, workflow.definition)
            self._known[key] = time.monotonic()
        return workflow

    async def of(self, run: Run) -> Workflow:
        """The workflow of a run, in the version with which it began.

        Raises:
            VersionGone: it is code that has changed, or nothing of it is left.
        """
        current: Workflow | None = None
        with contextlib.suppress(WorkflowNotFound):
            current = self._get(run.workflow)
        # What is built in changes with the service's settings, and goes on with those of today.
        if current is not None and (current.source == "built-in" or run.version in (None, current.version)):
            return current
        if run.version is None:
            raise VersionGone("WorkflowGone")
        key = (run.workflow, run.version)
        if key not in self._restored:
            workflow = await self._restore(*key)
            if workflow is None:
                raise VersionGone("WorkflowGone" if current is None else "WorkflowVersionGone")
            if len(self._restored) >= _MOST_RESTORED:
                del self._restored[next(iter(self._restored))]
            self._restored[key] = workflow
        return self._restored[key]

    async def to_go_on_with(self, run: Run, is_untouched: Callable[[], Awaitable[bool]]) -> Workflow:
        """The workflow of a run; the newest for one that has done nothing yet, where its own is gone.

        So what waits in the queue while a service is put in place with changed code is answered all the same.

        Raises:
            VersionGone: it has done something, or there is no workflow of its name.
        """
        try:
            return await self.of(run)
        except VersionGone as gone:
            if gone.kind == "WorkflowGone" or not await is_untouched():
                raise
        return await self.newest(run.workflow)

    def _get(self, name: str) -> Workflow:
        return self._own[name] if name in self._own else self._workflows.get(name)

    async def _restore(self, name: str, version: str) -> Workflow | None:
        kept = await self._kept.version(name, version)
        if kept is None or kept.definition is None:
            return None
        try:
            return restore_workflow(kept.definition)
        except InvalidWorkflow:
            return None
