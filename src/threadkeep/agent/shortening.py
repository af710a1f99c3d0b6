"""Shortens messages to a token budget: cuts texts and arguments of tool calls, and replaces media by marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from threadkeep.agent.conversion import is_plain, role_of, text_of, with_only_text
from threadkeep.agent.counting import as_json, call_id_of, count_message, is_call, is_text, media_indexes, media_mark
from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, keep_ends, middle_mark
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.context.trim import Item, Size, plan
from threadkeep.errors import InvalidInput

type Block = str | dict[str, object]

_LEAST_TEXT = 16
"""The minimum tokens of a text in a message with media. Before the text gets shorter, marks replace the media."""

_GONE = " left out"
_LONGEST_TOKEN = 16
_RAW_CALLS = frozenset({"tool_calls", "function_call"})
_ARGUMENTS = ("args", "input", "arguments")  # keys of the arguments in blocks that repeat a tool call


def size_of(message: BaseMessage, counter: TokenCounter) -> Size:
    """Return the number of tokens of a message, and of its shortest form."""
    if is_plain(message):
        tokens = counter(str(message.content))
        return Size(tokens, min(tokens, counter(CUT_MARK)))
    tokens = count_message(message, counter)
    if role_of(message) == "system":
        return Size(tokens, tokens)
    media = media_indexes(message)
    if isinstance(message, AIMessage) and message.tool_calls:
        return Size(tokens, min(tokens, count_message(_with_short_calls(_with_marks(message, media), 0), counter)))
    text = text_of(message)
    mark = middle_mark(len(text)) if isinstance(message, ToolMessage) else CUT_MARK
    if isinstance(message.content, str):
        return Size(tokens, min(tokens, counter(mark)))
    shortest = min((text, mark), key=counter)
    return Size(tokens, min(tokens, count_message(_merged(message, shortest, media), counter)))


def shortened(message: BaseMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """Return a copy of the message with at most `tokens` tokens, or its shortest form if that is longer.

    A tool's result is cut in the middle of its text, a tool call in the middle of its long arguments, and any other
    message at the end of its text. If that is not enough, marks replace media.
    """
    if isinstance(message, AIMessage) and message.tool_calls:
        return _shortened_calls(message, tokens, counter)
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    text = text_of(message)
    if isinstance(message.content, str):
        return with_text(message, cut(text, tokens, counter))
    media = media_indexes(message)
    least = min(counter(text), _LEAST_TEXT)
    without = (count_message(_merged(message, "", media[:number]), counter) for number in range(len(media)))
    number = next((number for number, count in enumerate(without) if count + least <= tokens), None)
    removed = media[:number]
    in_place = _with_marks(message, removed)
    if count_message(in_place, counter) <= tokens:
        return in_place
    kept = cut(text, tokens, lambda part: count_message(_merged(message, part, removed), counter))
    return _merged(message, kept, removed)


def with_text(message: BaseMessage, text: str) -> BaseMessage:
    """Return a copy of a message with another text. Content blocks of other types stay."""
    return _merged(message, text, ())


def _with_marks[M: BaseMessage](message: M, removed: Collection[int]) -> M:
    """Return a copy of a message with marks in place of the `removed` blocks."""
    if not removed:
        return message
    blocks = [
        {"type": "text", "text": media_mark([block], _GONE)} if index in removed else block
        for index, block in enumerate(message.content)
    ]
    return message.model_copy(update={"content": blocks})


def _merged(message: BaseMessage, text: str, removed: Collection[int]) -> BaseMessage:
    """Return a copy in which `text` replaces all texts and a mark replaces the `removed` blocks. Keep other blocks."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": text})
    mark = media_mark([message.content[index] for index in removed], _GONE)
    text = "\n".join(part for part in (text, mark) if part)
    texts = [n for n, block in enumerate(message.content) if is_text(block)]
    # Providers require that an assistant's reasoning and searches precede its text.
    position = texts[-1] if texts and isinstance(message, AIMessage) else 0
    others = [(n, block) for n, block in enumerate(message.content) if not is_text(block) and n not in removed]
    if not others:
        return with_only_text(message, text)
    before, after = [block for n, block in others if n < position], [block for n, block in others if n >= position]
    written = [{"type": "text", "text": text}] if text else []
    return message.model_copy(update={"content": [*before, *written, *after]})


def _shortened_calls(message: AIMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """Return the message with each argument and text cut to the greatest common length that fits into `tokens`."""
    if count_message(_with_short_calls(message, 0), counter) > tokens:
        message = _with_marks(message, media_indexes(message))
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
    """Return a copy in which each argument and text has at most `most` characters."""
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
    # Remove the raw calls of some providers; LangChain rebuilds them from `tool_calls`.
    extra = {name: value for name, value in message.additional_kwargs.items() if name not in _RAW_CALLS}
    return message.model_copy(update={"tool_calls": calls, "content": content, "additional_kwargs": extra})


def _short_block(block: Block, most: int, arguments: Mapping[str, Mapping[str, object]]) -> object:
    """Return a content block with its text cut or, if it repeats a tool call, with the cut `arguments`."""
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
    """Return the number of characters of the message's longest argument or text."""
    values = [value for call in message.tool_calls for value in call["args"].values()]
    return max(
        (len(value if isinstance(value, str) else as_json(value)) for value in [*values, text_of(message)]), default=0
    )


def trim(
    messages: Sequence[BaseMessage],
    budget: int,
    *,
    counter: TokenCounter | None = None,
    max_messages: int | None = None,
) -> list[BaseMessage]:
    """Return the messages that fit into the budget of one model call, measured by the counter.

    System messages come first and stay whole. The newest user message is always included, cut with a mark if necessary.
    Tool calls stay with their results. Messages after the newest user message take precedence over history, and newer
    messages over older ones. Large tool results and arguments are cut in the middle, the oldest first. Marks
    replace media that do not fit. Pass the messages to `repair` before calling this.

    Args:
        messages: everything that could be sent, in order.
        budget: the maximum number of tokens of all sent messages in total.
        counter: the counter of texts; by default, `estimate`.
        max_messages: the maximum number of messages before the newest user message; tool calls do not count.

    Raises:
        BudgetTooSmall: the system messages exceed the budget, alone or together with the newest user message and the
            newest tool call with its results, all in their shortest form.
        InvalidInput: max_messages is below zero.
    """
    if max_messages is not None and max_messages < 0:
        raise InvalidInput("max_messages must be a whole number from 0 (0 means none), or None for no limit.")
    measured = counter or estimate
    sizes: dict[int, Size] = {}

    def measure(index: int) -> Size:
        if index not in sizes:
            sizes[index] = size_of(messages[index], measured)
        return sizes[index]

    chosen = plan(items_of(messages), measure, budget, max_messages=max_messages)
    return [
        shortened(messages[index], chosen.cuts[index], measured) if index in chosen.cuts else messages[index]
        for index in chosen.kept
    ]


def items_of(messages: Sequence[BaseMessage]) -> list[Item]:
    """Return the kind and the group of each message. A tool call and its results are in one group."""
    callers: dict[str, int] = {}
    items: list[Item] = []
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            callers |= {call["id"]: index for call in message.tool_calls if call["id"]}
            items.append(Item("assistant", group=index))
        elif isinstance(message, ToolMessage):
            items.append(Item("tool", group=callers.get(message.tool_call_id)))
        else:
            items.append(Item(role_of(message) or "assistant"))
    return items
