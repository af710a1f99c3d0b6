"""How far a run came, as its process knows it: stored beside the next step, and not at all once nobody can need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata

from threadkeep.errors import StoreUnavailable
from threadkeep.observe import Observer, RunTrouble, RunWorkRecovered
from threadkeep.runs.postponed import Postponed

_AGAIN_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.005
"""How long what a task wrote waits where it may not wait long: its step's checkpoint is mostly there by then."""


@dataclass(frozen=True, eq=False)
class PendingCheckpoint:
    """A checkpoint that is not stored yet."""

    saver: BaseCheckpointSaver[Any]
    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions

    async def store(self) -> None:
        """Store it."""
        await self.saver.aput(self.config, self.checkpoint, self.metadata, self.new_versions)

    @property
    def is_whole(self) -> bool:
        """Whether it can stand for those before it: channels of LangGraph's that keep changes are spread over them."""
        return not self.metadata.get("counters_since_delta_snapshot")

    @property
    def is_of_step(self) -> bool:
        """Whether something was done before it: not that with which a graph begins."""
        return self.metadata.get("source") != "input"

    def instead_of(self, before: PendingCheckpoint) -> PendingCheckpoint:
        """The same, with what an earlier one would have stored for it."""
        return replace(self, config=before.config, new_versions={**before.new_versions, **self.new_versions})


@dataclass(frozen=True, eq=False)
class PendingWrites:
    """What a task wrote after a checkpoint, and that is not stored yet."""

    saver: BaseCheckpointSaver[Any]
    config: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str

    async def store(self) -> None:
        """Store it."""
        await self.saver.aput_writes(self.config, self.writes, self.task_id, self.task_path)


type Pending = PendingCheckpoint | PendingWrites


class ProgressKeeping:
    """Stores the progress of a process's runs; tells once that it cannot be stored for now, and once that it can again.

    What is beside the runs would be silent otherwise until one of them needs it.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._fails = False

    async def store(self, part: Pending) -> None:
        """Store a part of some run's progress.

        Raises:
            StoreUnavailable: the database does not take it.
        """
        try:
            await part.store()
        except StoreUnavailable as error:
            if not self._fails:
                self._fails = True
                self._observer.notify(RunTrouble(error=type(error).__name__, work="keeping_progress"))
            raise
        if self._fails:
            self._fails = False
            self._observer.notify(RunWorkRecovered(work="keeping_progress"))


class RunProgress:
    """The checkpoints of one life of a run: those of its graph, and of the graphs inside, each in a place of its own.

    Those of places that are `beside` wait `seconds` for newer ones of their place, which stand for them, and are stored
    while the run goes on; a run that has its result by then needs none. Of other places, as of all at first, the
    checkpoint of each step is stored at once, and what a part of a step wrote soon. A `fresh` run has none of an
    earlier life.

    One that cannot be stored for now is tried again; another failure is raised where the next one comes.
    """

    def __init__(self, keeping: ProgressKeeping, *, fresh: bool, seconds: float) -> None:
        self.beside: Callable[[str], bool] = lambda _: False
        self._keeping = keeping
        self._unstored = fresh
        self._fresh = fresh
        self._seconds = seconds
        self._pending: dict[Pending, None] = {}
        self._places: set[str] = set()
        self._storing = Postponed(self._keep_beside)
        self._failed: Exception | None = None

    async def add(self, new: Pending) -> None:
        """Store a part of the progress, at once or soon."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        place = place_of(new.config)
        self._places.add(place)
        if isinstance(new, PendingCheckpoint) and new.is_whole:
            for older in self._pending_of(place):
                del self._pending[older]
                if isinstance(older, PendingCheckpoint):
                    new = new.instead_of(older)
        self._pending[new] = None
        if self.beside(place):
            self._storing.within(self._seconds)
        elif isinstance(new, PendingCheckpoint) and new.is_of_step:
            await self._keep(place)
        else:
            self._storing.within(_SOON_SECONDS)

    def is_new(self, place: str) -> bool:
        """Whether there is nothing of a place, here or anywhere."""
        return self._fresh and place not in self._places

    async def keep(self) -> None:
        """Store what there is by now.

        Raises:
            StoreUnavailable: the database does not take it; it is kept for the next try.
        """
        self._storing.disarm()
        await self._keep()

    async def leave(self) -> bool:
        """Forget what is not stored: the run is over, or another process's. Whether nothing was stored ever."""
        self._pending.clear()
        await self._storing.close()
        return self._unstored

    async def _keep(self, place: str | None = None) -> None:
        async with self._storing.working:
            for one in self._pending_of(place):
                if one not in self._pending:
                    continue  # a newer one has taken its place meanwhile
                self._unstored = False
                await self._keeping.store(one)
                self._pending.pop(one, None)

    def _pending_of(self, place: str | None) -> list[Pending]:
        return [one for one in self._pending if place is None or place_of(one.config) == place]

    async def _keep_beside(self) -> None:
        try:
            await self.keep()
        except StoreUnavailable:
            # The run goes on: by its end at the latest somebody insists on what it still needs.
            if self._pending:
                self._storing.within(_AGAIN_SECONDS)
        except Exception as error:  # noqa: BLE001 - a state that cannot be stored is the graph's failure, told there
            self._failed = error


def place_of(config: RunnableConfig) -> str:
    """Which graph of a run a checkpoint belongs to: the namespace, empty for the one at the top."""
    return str(config["configurable"].get("checkpoint_ns", ""))
