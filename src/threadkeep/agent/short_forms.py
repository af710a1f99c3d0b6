"""Short forms of messages that are too big: less text, shorter arguments of calls, marks for media."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from threadkeep.agent.content_blocks import as_json, call_id_of, is_call, is_text, media_mark, media_places
from threadkeep.agent.conversion import role_of, text_of
from threadkeep.agent.counting import count_message
from threadkeep.agent.sent_messages import is_plain
from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, keep_ends, middle_mark
from threadkeep.context.steps import Size
from threadkeep.context.tokens import TokenCounter

type Block = str | dict[str, object]

_LEAST_TEXT = 16
"""Of a text beside media so many tokens stay, if it has them; then media go."""

_GONE = " left out"
_LONGEST_TOKEN = 16
_RAW_CALLS = frozenset({"tool_calls", "function_call"})
_ARGUMENTS = ("args", "input", "arguments")  # where a block that repeats a call has them


def size_of(message: BaseMessage, counter: TokenCounter) -> Size:
    """The tokens of a message, and of what it can be cut to."""
    if is_plain(message):
        tokens = counter(str(message.content))
        return Size(tokens, min(tokens, counter(CUT_MARK)))
    tokens = count_message(message, counter)
    if role_of(message) == "system":
        return Size(tokens, tokens)
    media = media_places(message)
    if isinstance(message, AIMessage) and message.tool_calls:
        return Size(tokens, min(tokens, count_message(_with_short_calls(_with_marks(message, media), 0), counter)))
    text = text_of(message)
    mark = middle_mark(len(text)) if isinstance(message, ToolMessage) else CUT_MARK
    if isinstance(message.content, str):
        return Size(tokens, min(tokens, counter(mark)))
    shortest = min((text, mark), key=counter)
    return Size(tokens, min(tokens, count_message(_merged(message, shortest, media), counter)))


def shortened(message: BaseMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """A copy of the message with so much of it that it has at most so many tokens.

    A tool's result loses the middle of its text, a call the middle of its long arguments, any other message the end of
    its text. Where that is not enough, images and other media go, the oldest first, and a mark says so.
    """
    if isinstance(message, AIMessage) and message.tool_calls:
        return _shortened_calls(message, tokens, counter)
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    text = text_of(message)
    if isinstance(message.content, str):
        return with_text(message, cut(text, tokens, counter))
    media = media_places(message)
    least = min(counter(text), _LEAST_TEXT)
    number = next((n for n in range(len(media)) if _count_without(message, media[:n], counter) + least <= tokens), None)
    gone = media[:number]
    in_place = _with_marks(message, gone)
    if count_message(in_place, counter) <= tokens:
        return in_place
    kept = cut(text, tokens, lambda part: count_message(_merged(message, part, gone), counter))
    return _merged(message, kept, gone)


def with_text(message: BaseMessage, text: str) -> BaseMessage:
    """A copy with another text; blocks that are not text stay behind it."""
    return _merged(message, text, ())


def _with_marks[M: BaseMessage](message: M, gone: Collection[int]) -> M:
    """A copy with marks in the places of blocks, and all else as it was."""
    if not gone:
        return message
    blocks = [
        {"type": "text", "text": media_mark([block], _GONE)} if place in gone else block
        for place, block in enumerate(message.content)
    ]
    return message.model_copy(update={"content": blocks})


def _merged(message: BaseMessage, text: str, gone: Collection[int]) -> BaseMessage:
    """A copy with another text, one mark for the blocks that are gone, and the other blocks behind it."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": text})
    mark = media_mark([message.content[place] for place in gone], _GONE)
    text = "\n".join(part for part in (text, mark) if part)
    others = [block for n, block in enumerate(message.content) if not is_text(block) and n not in gone]
    return message.model_copy(update={"content": [{"type": "text", "text": text}, *others] if others else text})


def _count_without(message: BaseMessage, gone: Collection[int], counter: TokenCounter) -> int:
    return count_message(_merged(message, "", gone), counter)


def _shortened_calls(message: AIMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """The message with the longest arguments and texts that fit; all are cut to one length."""
    if count_message(_with_short_calls(message, 0), counter) > tokens:
        message = _with_marks(message, media_places(message))
    best = _with_short_calls(message, 0)
    low, high = 0, min(_longest(message), _LONGEST_TOKEN * tokens) + 1
    while high - low > 1:
        middle = (low + high) // 2
        candidate = _with_short_calls(message, middle)
        if count_message(candidate, counter) <= tokens:
            low, best = middle, candidate
        else:
            high = middle
    return best


def _with_short_calls(message: AIMessage, most: int) -> AIMessage:
    """A copy in which no argument and no text has more than so many characters beside its mark; all keys are there.

    An argument that is no text is cut as the JSON that it is.
    """
    calls = [
        ToolCall(
            name=call["name"],
            args={key: _short(value, most) for key, value in call["args"].items()},
            id=call["id"],
            type="tool_call",
        )
        for call in message.tool_calls
    ]
    arguments = {str(call["id"]): call["args"] for call in calls}
    content: str | list[object] = (
        str(_short(message.content, most))
        if isinstance(message.content, str)
        else [_short_block(block, most, arguments) for block in message.content]
    )
    # Some providers' raw calls stand here too: they are made anew from the calls.
    extra = {name: value for name, value in message.additional_kwargs.items() if name not in _RAW_CALLS}
    return message.model_copy(update={"tool_calls": calls, "content": content, "additional_kwargs": extra})


def _short_block(block: Block, most: int, arguments: Mapping[str, Mapping[str, object]]) -> object:
    """A block of a message with calls: its text cut, and the arguments that it repeats as the call has them now."""
    if isinstance(block, str):
        return _short(block, most)
    if is_text(block):
        return {**block, "text": _short(block.get("text"), most)}
    if not is_call(block, frozenset(arguments)) or (given := arguments.get(str(call_id_of(block)))) is None:
        return block
    repeated = {
        name: given if isinstance(block[name], Mapping) else as_json(given) for name in _ARGUMENTS if name in block
    }
    return {**{name: value for name, value in block.items() if name != "partial_json"}, **repeated}


def _short(value: object, most: int) -> object:
    text = value if isinstance(value, str) else as_json(value)
    short = keep_ends(text, most) if len(text) > most else text
    return short if len(short) < len(text) else value


def _longest(message: AIMessage) -> int:
    """The characters of the longest text or argument."""
    values = [value for call in message.tool_calls for value in call["args"].values()]
    return max(
        (len(value if isinstance(value, str) else as_json(value)) for value in [*values, text_of(message)]), default=0
    )
