"""What a doctor says: findings, each with its cure, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from threadkeep.cli.terminal import Terminal, harmless

type Level = Literal["ok", "warn", "fail"]

_MARKS: dict[Level, tuple[str, str]] = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


@dataclass(frozen=True)
class Finding:
    """What one check found. Everything that is not ok has a cure."""

    check: str
    level: Level
    detail: str
    cure: str = ""

    def to_dict(self) -> dict[str, str]:
        """The finding as JSON values."""
        return {"check": self.check, "level": self.level, "detail": self.detail, "cure": self.cure}


def show_findings(terminal: Terminal, findings: Sequence[Finding]) -> None:
    """A line for each finding, and one for its cure."""
    from rich.text import Text

    width = max(len(finding.check) for finding in findings) + 2
    for finding in findings:
        mark, color = _MARKS[finding.level]
        terminal.say(Text.assemble((f"{mark} ", color), f"{finding.check:<{width}}", harmless(finding.detail)))
        if finding.cure:
            terminal.say(Text.assemble(" " * (width + 2), (f"→ {harmless(finding.cure)}", color)))
    failed = sum(1 for finding in findings if finding.level == "fail")
    warned = sum(1 for finding in findings if finding.level == "warn")
    terminal.say()
    if failed or warned:
        terminal.say(f"{failed} failed, {warned} to look at, {len(findings) - failed - warned} well.")
    else:
        terminal.say("All is well.")
