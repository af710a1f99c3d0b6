"""Check that no docstring begins with a banned word (see "Style" in CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = re.compile(r"(What|Whose|Whoever|Those|One|Nobody|How|Whether|Where|That which|Of|Who|Which)\b")
# A docstring of a test is a sentence, so it may begin with other words, but it may not continue the name of the test.
CONTINUED = re.compile(
    r"(And|But|Or|Nor|Also|So|Then|It|They|What|Whatever|Whose|Who|Whoever|Which|Whichever|Those|Nobody|How|However|"
    r"Whether|That which)\b"
)
FOLDERS = {"src/threadkeep": BANNED, "tests": CONTINUED, "bench": CONTINUED, "scripts": CONTINUED}


def banned_docstrings(path: Path, banned: re.Pattern[str]) -> Iterator[str]:
    """Yield the location and the first line of each docstring that begins with a banned word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring and banned.match(docstring):
            yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {docstring.splitlines()[0]}"


def main() -> int:
    """Print the banned docstrings; return 1 if there are any."""
    problems = [
        line
        for folder, banned in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in banned_docstrings(path, banned)
    ]
    for line in problems:
        print(line, file=sys.stderr)
    if problems:
        print(
            "Begin with an imperative verb (function), a noun phrase (class, module) or a whole sentence (test).",
            file=sys.stderr,
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
