"""The terminal face: `threadkeep`, a noun and then a verb, for people and for scripts.

Every command does its work through `threadkeep.app` and what that opens, prints for people (or JSON with `--json`) on
stdout, and tells of problems and progress on stderr. Exit codes: 0 it is done, 1 it failed, 2 it was called wrongly.
"""

from threadkeep.cli.entry import main

__all__ = ["main"]
