"""Say whether requirements/ was compiled from today's pyproject.toml, without asking any package index.

`make lock` records a digest of what pyproject.toml asks for (`--write`); `make lint` compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "requirements" / "inputs.sha256"


def digest() -> str:
    """The digest of everything in pyproject.toml that the lock is compiled from."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    inputs = [
        table["build-system"]["requires"],
        project["requires-python"],
        project["dependencies"],
        project["optional-dependencies"],
        table["dependency-groups"],
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def main() -> int:
    """Write the digest with `--write`, else compare it with the recorded one."""
    if sys.argv[1:] == ["--write"]:
        RECORD.write_text(digest() + "\n", encoding="utf-8")
        return 0
    if RECORD.read_text(encoding="utf-8").strip() == digest():
        return 0
    print("requirements/ was not compiled from what pyproject.toml asks for now: run `make lock`.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
