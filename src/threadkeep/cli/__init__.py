"""The command line `threadkeep NOUN VERB`, for people and for scripts.

Every command works through `threadkeep.app` and the objects that it opens. Results go to stdout, for people or as
JSON with `--json`; problems and progress go to stderr. Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

from threadkeep.cli.entry import main

__all__ = ["main"]
