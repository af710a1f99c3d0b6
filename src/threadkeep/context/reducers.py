"""Limits for a run's memory: first by characters, then by number of messages.

System messages are pinned, and the newest user message is never dropped; it is cut if it alone is too big. Messages to
drop or cut are planned as for a model call, with characters instead of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from threadkeep.context.cut import CUT_MARK, middle_mark
from threadkeep.context.trim import Item, Size, plan


@dataclass(frozen=True)
class TrimReport:
    """The result of one reduction: messages before and after, and the amount removed by each limit.

    `trimmed_by_chars` is in characters, including the removed parts of cut messages; `trimmed_by_count` is in
    messages.
    """

    before: int
    after: int
    trimmed_by_chars: int
    trimmed_by_count: int


@dataclass(frozen=True)
class Bounded:
    """The indexes of the messages to keep, in order, and the lengths to which some of them are cut."""

    kept: tuple[int, ...]
    report: TrimReport
    cuts: Mapping[int, int] = field(default_factory=dict)


def bound(items: Sequence[Item], lengths: Sequence[int], *, max_messages: int, max_chars: int) -> Bounded:
    """Choose the messages of a run to keep.

    Args:
        items: the messages in order: kinds, and tool calls with their results.
        lengths: the number of characters of each message.
        max_messages: the maximum number of messages, system messages included; values below 1 count as 1. The newest
            tool calls stay with their results even beyond the limit, because the agent would repeat lost calls.
        max_chars: the maximum number of characters of all messages together; 0 means no limit.
    """
    # A result without its call is kept, because removing it is not the reducer's task.
    known = [Item("assistant") if item == Item("tool") else item for item in items]
    kept, cuts = _by_chars(known, lengths, max_chars) if max_chars > 0 else (range(len(known)), {})
    chosen = _by_count(known, kept, max(max_messages, 1))
    return Bounded(
        kept=chosen,
        report=TrimReport(
            before=len(items),
            after=len(chosen),
            trimmed_by_chars=sum(lengths) - sum(cuts.get(index, lengths[index]) for index in kept),
            trimmed_by_count=len(kept) - len(chosen),
        ),
        cuts={index: cuts[index] for index in chosen if index in cuts},
    )


def _by_chars(items: Sequence[Item], lengths: Sequence[int], max_chars: int) -> tuple[Sequence[int], Mapping[int, int]]:
    sizes = [_size(item, length) for item, length in zip(items, lengths, strict=True)]
    pinned = sum(size.tokens for item, size in zip(items, sizes, strict=True) if item.kind == "system")
    user = next(
        (size.minimum for item, size in reversed(list(zip(items, sizes, strict=True))) if item.kind == "user"), 0
    )
    # Keep at least one character of the user message even if the system messages take the whole budget.
    planned = plan(items, sizes.__getitem__, max(max_chars, pinned + user), whole_steps=True)
    return sorted(planned.kept), planned.cuts


def _size(item: Item, length: int) -> Size:
    if item.kind == "system" or (item.kind == "assistant" and item.group is not None):
        return Size(length, length)
    mark = middle_mark(length) if item.kind == "tool" else CUT_MARK
    return Size(length, min(length, len(mark)))


def _by_count(items: Sequence[Item], kept: Sequence[int], max_messages: int) -> tuple[int, ...]:
    pinned = [index for index in kept if items[index].kind == "system"]
    user = next((index for index in reversed(kept) if items[index].kind == "user"), None)
    units: dict[int, list[int]] = {}
    for index in kept:
        if items[index].kind != "system" and index != user:
            group = items[index].group
            units.setdefault(index if group is None else group, []).append(index)
    chosen = [*pinned] if user is None else [*pinned, user]
    for place, unit in enumerate(reversed(units.values())):
        newest_calls = place == 0 and items[unit[0]].group is not None and unit[0] > (-1 if user is None else user)
        if len(chosen) + len(unit) > max_messages and not newest_calls:
            break
        chosen += unit
    return tuple(sorted(chosen))
