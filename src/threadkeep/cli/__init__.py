"""The command line `threadkeep`, for people and for scripts.

Most commands open only the database. Commands that answer messages or execute runs open an App. Results go to
stdout, as text or, with `--json`, as JSON. Problems and progress go to stderr. Exit codes: 0 success, 1 failure, 2 for
wrong usage.
"""

from threadkeep.cli.entry import main

__all__ = ["main"]
