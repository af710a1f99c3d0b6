"""Times, sizes and numbers as people say them."""

from __future__ import annotations

from datetime import datetime

_STEPS = ((60, "second", 1), (3_600, "minute", 60), (86_400, "hour", 3_600), (7 * 86_400, "day", 86_400))


def relative(moment: datetime, now: datetime) -> str:
    """How long ago a moment was; its date when that is more than a week."""
    seconds = (now - moment).total_seconds()
    if seconds < 0:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M") if seconds < -60 else "now"
    if seconds < 1:
        return "now"
    for limit, unit, size in _STEPS:
        if seconds < limit:
            return f"{counted(int(seconds // size), unit)} ago"
    return moment.astimezone().strftime("%Y-%m-%d")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """So many of something; most words only take an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A span of time in its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def size(count: int) -> str:
    """A number of bytes, in the largest unit in which it is at least one."""
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
