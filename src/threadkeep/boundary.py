"""Boundaries for errors: code whose failure must not stop its caller, and code that is undone if it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType


class ErrorBoundary:
    """A context manager that ends its block at an error instead of raising it, whatever the class of the error.

    It is for background loops, which have to outlive each failure, for calls of models and other code that may raise
    anything, and for one item of many. The error is passed to `report` and stays in `error`, so that no failure is
    silent. Cancellation, KeyboardInterrupt and SystemExit are raised, and so are the errors in `raising`.
    """

    def __init__(
        self, report: Callable[[Exception], object] | None = None, *, raising: tuple[type[Exception], ...] = ()
    ) -> None:
        self.error: Exception | None = None
        self._report = report
        self._raising = raising

    @property
    def caught(self) -> Exception:
        """The error of a block that did not come to its end."""
        if self.error is None:
            raise AttributeError("The block ended without an error; read `error`, which is None then.")
        return self.error

    def __enter__(self) -> ErrorBoundary:
        """Return the boundary, whose `error` is set if the block fails."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Report the error of the block; return False if it is to be raised."""
        if not isinstance(error, Exception) or isinstance(error, self._raising):
            return False
        self.error = error
        if self._report is not None:
            self._report(error)
        return True


class OnFailure:
    """A context manager that calls `undo` if its block raises or is cancelled; the error is raised afterwards."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Undo what the block did, if it failed."""
        if kind is not None:
            self._undo()


class AsyncOnFailure:
    """The asynchronous form of `OnFailure`: it awaits `undo`."""

    def __init__(self, undo: Callable[[], Awaitable[object]]) -> None:
        self._undo = undo

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Undo what the block did, if it failed."""
        if kind is not None:
            await self._undo()
