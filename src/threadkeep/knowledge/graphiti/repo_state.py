"""Branch, commit and uncommitted changes of a git folder that the operator named; no paths and no file names."""

from __future__ import annotations

import asyncio
import contextlib
import time

CACHED_SECONDS = 30.0
_TIMEOUT_SECONDS = 5.0


class GitMetadata:
    """The state of a git folder, cached for half a minute."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._read_at = 0.0
        self._known: dict[str, object] | None = None

    async def read(self) -> dict[str, object] | None:
        """Return branch, commit, and whether there are uncommitted changes; None if it is no git folder."""
        if self._folder is None:
            return None
        if self._read_at and time.monotonic() - self._read_at < CACHED_SECONDS:
            return self._known
        branch, commit, status = await asyncio.gather(
            self._git("rev-parse", "--abbrev-ref", "HEAD"),
            self._git("rev-parse", "--short=12", "HEAD"),
            self._git("status", "--porcelain", "--untracked-files=no"),
        )
        self._known = None
        if branch is not None and commit is not None and status is not None:
            self._known = {"branch": branch, "commit": commit, "dirty": bool(status)}
        self._read_at = time.monotonic()
        return self._known

    async def _git(self, *words: str) -> str | None:
        """Return the output of git; None if it fails or is not installed."""
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                "-C",
                str(self._folder),
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                printed, _ = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return None
        return printed.decode(errors="replace").strip() if process.returncode == 0 else None
