"""Check that requirements/ was compiled from the current pyproject.toml, without a package index.

`make lock` records a digest of the requirements in pyproject.toml (`--write`); `make lint` compares it.
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
    """Return the digest of everything in pyproject.toml from which the lock is compiled."""
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
    """Write the digest with `--write`, otherwise compare it with the recorded one."""
    if sys.argv[1:] == ["--write"]:
        RECORD.write_text(digest() + "\n", encoding="utf-8")
        return 0
    if RECORD.read_text(encoding="utf-8").strip() == digest():
        return 0
    print("requirements/ was not compiled from what pyproject.toml asks for now: run `make lock`.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
