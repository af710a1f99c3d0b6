"""Check that no docstring of src/threadkeep begins with a banned word (see "Style" in CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src/threadkeep"
# Packages that are not rewritten yet. Remove a package when it is clean; never add one.
UNCHECKED: frozenset[str] = frozenset()
BANNED = re.compile(r"(What|Whose|Whoever|Those|One|Nobody|How|Whether|Where|That which|Of|Who|Which)\b")


def banned_docstrings(path: Path) -> Iterator[str]:
    """Yield the location and the first line of each docstring that begins with a banned word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring and BANNED.match(docstring):
            yield f"{path.relative_to(PACKAGE)}:{node.body[0].lineno}: {docstring.splitlines()[0]}"


def main() -> int:
    """Print banned docstrings of checked packages, and unchecked packages that are clean now."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0], []).extend(banned_docstrings(path))
    for name in sorted(UNCHECKED):
        if not found.get(name):
            print(f"{name} is clean; remove it from UNCHECKED in scripts/check_prose.py.")
    problems = [line for name, lines in found.items() if name not in UNCHECKED for line in lines]
    for line in problems:
        print(line, file=sys.stderr)
    if problems:
        print("Begin with an imperative verb (function) or a noun phrase (class, module).", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
