"""A LangGraph reducer that limits the messages in a run's state, first by characters, then by number.

System messages always stay. The newest user message is never dropped, but it is cut if it alone is too long. The
character limit uses the same rules as the token limit of a model call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from langchain_core.messages import BaseMessage, MessageLikeRepresentation, ToolMessage
from langgraph.graph.message import add_messages

from threadkeep.agent.conversion import text_of
from threadkeep.agent.shortening import items_of, with_text
from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, middle_mark
from threadkeep.context.trim import Item, Size, plan


@dataclass(frozen=True)
class TrimReport:
    """The result of one reduction: the number of messages before and after, and how much was removed.

    `trimmed_by_chars` is in characters, including characters cut from messages; `trimmed_by_count` is in messages.
    """

    before: int
    after: int
    trimmed_by_chars: int
    trimmed_by_count: int


@dataclass(frozen=True)
class Bounded:
    """The choice of a reducer: the indexes of the messages to keep, and the new lengths of cut messages by index."""

    kept: tuple[int, ...]
    report: TrimReport
    cuts: Mapping[int, int] = field(default_factory=dict)


def bound(items: Sequence[Item], lengths: Sequence[int], *, max_messages: int, max_chars: int) -> Bounded:
    """Choose the messages of a run to keep.

    Args:
        items: the kind and the group of each message, in order. A tool call and its results are in one group.
        lengths: the number of characters of each message.
        max_messages: the maximum number of messages, system messages included; values below 1 count as 1. The newest
            tool calls and their results stay even beyond this limit, because the agent would repeat calls that it does
            not see.
        max_chars: the maximum number of characters of all messages in total; 0 means no limit.
    """
    # Treat a result without its call as a plain message: removing it is not the reducer's task.
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
    # Leave room for the user message even if the system messages take the whole budget.
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
    for number, unit in enumerate(reversed(units.values())):
        newest_calls = number == 0 and items[unit[0]].group is not None and unit[0] > (-1 if user is None else user)
        if len(chosen) + len(unit) > max_messages and not newest_calls:
            break
        chosen += unit
    return tuple(sorted(chosen))


type Messages = Sequence[MessageLikeRepresentation] | MessageLikeRepresentation


class BoundedMessages:
    """A reducer that appends and updates messages as LangGraph's `add_messages` does, then limits the result.

    Like `add_messages`, it gives an id to messages that have none. Apart from these ids, the result is deterministic.
    """

    def __init__(self, max_messages: int, max_chars: int) -> None:
        self.__name__ = "bounded_messages"  # LangGraph asks every reducer for its name
        self.max_messages = max_messages
        self.max_chars = max_chars
        self._last = TrimReport(0, 0, 0, 0)

    def __call__(self, left: Messages, right: Messages) -> list[BaseMessage]:
        """Return the bounded messages of the state after an update."""
        messages = _added(left, right)
        chosen = self._bound(messages)
        self._last = chosen.report
        return [
            _cut(messages[index], chosen.cuts[index]) if index in chosen.cuts else messages[index]
            for index in chosen.kept
        ]

    def trim_report(self, left: Messages | None = None, right: Messages | None = None) -> TrimReport:
        """Return the report of merging `right` into `left`. Without arguments, return the report of the last merge."""
        if left is None and right is None:
            return self._last
        return self._bound(_added(left or [], right or [])).report

    def _bound(self, messages: Sequence[BaseMessage]) -> Bounded:
        lengths = [len(text_of(message)) for message in messages]
        return bound(items_of(messages), lengths, max_messages=self.max_messages, max_chars=self.max_chars)


def bounded_messages(max_messages: int = 8, max_chars: int = 8000) -> BoundedMessages:
    """Return a reducer for `messages: Annotated[list[AnyMessage], bounded_messages(...)]`.

    It drops the oldest messages, first to meet `max_chars`, then `max_messages`. System messages stay. The newest user
    message is cut with a mark instead of being dropped. Tool calls stay with their results.

    Args:
        max_messages: the maximum number of messages, including system messages; values below 1 count as 1.
        max_chars: the maximum number of characters of all texts in total; 0 means no limit.
    """
    return BoundedMessages(max_messages, max_chars)


def _added(left: Messages, right: Messages) -> list[BaseMessage]:
    return cast("list[BaseMessage]", add_messages(_listed(left), _listed(right)))


def _cut(message: BaseMessage, characters: int) -> BaseMessage:
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    return with_text(message, cut(text_of(message), characters, len))


def _listed(messages: Messages) -> list[MessageLikeRepresentation]:
    return [messages] if isinstance(messages, BaseMessage | str | dict | tuple) else list(messages)
