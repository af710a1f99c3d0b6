"""The command line `threadkeep`, for people and for scripts.

Results go to stdout, as text or as JSON (`--json`); problems and progress go to stderr. Exit codes: 0 success, 1
failure, 2 wrong usage.
"""

from threadkeep.cli.entry import main

__all__ = ["main"]
