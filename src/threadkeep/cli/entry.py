"""Where the command line begins, with or without what its extra installs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's own arguments by default. Answers the exit code."""
    try:
        from threadkeep.cli.commands import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "threadkeep":
            raise
        sentence = f"The command line needs the package {package}; install it with: pip install 'threadkeep[cli]'"
        print(sentence, file=sys.stderr)  # noqa: T201 - rich may be what is missing
        return 1
    _import_from_here()
    return run(sys.argv[1:] if arguments is None else arguments)


def _import_from_here() -> None:
    """Let workflows name modules of the folder that the command is given in; none of them hides an installed one."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.append(here)
