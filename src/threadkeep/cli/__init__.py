"""The command line `threadkeep`, for people and for scripts.

Results go to stdout, as text or as JSON (`--json`); problems and progress go to stderr. Exit codes: 0 success, 1
failure, 2 wrong usage. Without the extra `cli`, only `--version` works; other commands name the missing package.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path

from threadkeep.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default with the process's arguments, and return the exit code."""
    # LangGraph reads this variable at import. With it, loading a checkpoint creates only objects of known types.
    os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
    if arguments is not None:
        return _run(arguments)
    _prepare_streams()
    # Do not collect garbage during imports: it costs time, and imported modules stay.
    gc.disable()
    try:
        return _run(sys.argv[1:])
    except KeyboardInterrupt:  # during an import; a command handles it itself
        print("Stopped before the command was done.", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        # Drop output that stdout cannot write, because Python would report the error a second time at exit.
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Skip the garbage collection at exit to save time, but not after a drawing: mermaidx reports leftover objects.
        if "mermaidx" not in sys.modules:
            gc.freeze()


def _prepare_streams() -> None:
    """Replace closed streams, and escape characters that stdout cannot encode.

    A closed stdin or stderr becomes the null device. A write to a closed stdout fails, because a result would be lost.
    If PYTHONUNBUFFERED is set, stdout may write only a part of a text without an error, so add a buffer.
    """
    for name, mode, access in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
    if isinstance(sys.stdout, TextIOWrapper) and isinstance(raw := sys.stdout.buffer, FileIO):
        sys.stdout = TextIOWrapper(BufferedWriter(raw), sys.stdout.encoding, line_buffering=True)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        # Show the version without importing typer, because the import takes a tenth of a second.
        with contextlib.suppress(OSError):
            print(f"threadkeep {__version__}", flush=True)  # noqa: T201
            return 0
    try:
        from threadkeep.cli.commands import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "threadkeep":
            raise
        sentence = f"The command line needs the package {package}; install it with: pip install 'threadkeep[cli]'"
        print(sentence, file=sys.stderr)  # noqa: T201 - the missing package may be rich
        return 1
    # Allow workflows to import modules of the working directory. Installed modules take precedence.
    with contextlib.suppress(FileNotFoundError):
        if not sys.flags.safe_path and (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
    return run(arguments)
