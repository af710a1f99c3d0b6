"""Workflow versions of runs: a run keeps the version with which it began, also after an edit."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable

from threadkeep.errors import InvalidWorkflow, WorkflowNotFound
from threadkeep.records.runs import Run
from threadkeep.store.runs.workflows import WorkflowVersions
from threadkeep.workflows.built_in import session_workflows
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.loading import restore_workflow
from threadkeep.workflows.nodes.base import references_in
from threadkeep.workflows.registry import Workflows

_MOST_RESTORED = 64
_KNOWN_SECONDS = 60.0


class VersionGone(Exception):
    """A run cannot continue as it began; `kind` is the error kind in its record."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RunWorkflows:
    """The workflows with which runs are executed: the registered ones, and older versions of them."""

    def __init__(self, workflows: Workflows, kept: WorkflowVersions) -> None:
        self._workflows = workflows
        self._own = {workflow.name: workflow for workflow in session_workflows()}
        self._kept = kept
        self._known: dict[tuple[str, str], float] = {}
        self._restored: dict[tuple[str, str], Workflow] = {}

    async def newest(self, name: str) -> Workflow:
        """Return the workflow for new runs; its version is stored for as long as they may need it.

        Raises:
            WorkflowNotFound: there is none of that name.
        """
        workflow = self._get(name)
        key = (name, workflow.version)
        # Stored again from time to time, because any process deletes versions that no run has used for long.
        if time.monotonic() - self._known.get(key, -_KNOWN_SECONDS) >= _KNOWN_SECONDS:
            await self._kept.keep(name, workflow.version, workflow.definition)
            self._known[key] = time.monotonic()
        return workflow

    async def of(self, run: Run) -> Workflow:
        """Return the workflow of a run in the version with which it began.

        Raises:
            VersionGone: it is code that has changed, or nothing of it is left.
        """
        current: Workflow | None = None
        with contextlib.suppress(WorkflowNotFound):
            current = self._get(run.workflow)
        # Built-in workflows change with the service's settings; runs continue with the current ones.
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
        """Return the workflow of a run; the newest version if the run has done nothing yet and its own version is gone.

        So runs that wait in the queue while a service is deployed with changed code are still answered.

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
        """Return a stored version; None if it is gone, or imports what no registered workflow does.

        The database is no place for code: only the operator's own files decide what a worker imports.
        """
        kept = await self._kept.version(name, version)
        if kept is None or kept.definition is None:
            return None
        allowed = frozenset[str]().union(*(references_in(each.definition or {}) for each in self._workflows.all()))
        # A copy by way of JSON: the database may have returned other types of lists and maps.
        if not references_in(json.loads(json.dumps(kept.definition))) <= allowed:
            return None
        try:
            return restore_workflow(kept.definition)
        except InvalidWorkflow:
            return None
