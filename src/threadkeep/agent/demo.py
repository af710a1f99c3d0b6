"""The demo model: an offline chat model that answers only from its context, so that the effect of memory is visible.

It understands nothing. It searches the user's earlier statements for the words of a question, and quotes the best
matches.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.resources import files
from itertools import accumulate, takewhile
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from threadkeep.agent.extras import SECTION_KEY
from threadkeep.agent.provider_messages import CLOSING, NO_ANSWER, NOTHING_ADDED, OPENING
from threadkeep.context.cut import cut_end
from threadkeep.context.quotation import quoted_by
from threadkeep.context.tokens import estimate


class OfflineModel(BaseChatModel):
    """A base class for offline chat models. Bound tools are passed to each model call as `tools`."""

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with bound tools."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)


MAX_QUOTES = 3
MAX_QUOTE_CHARACTERS = 400


def _lines(name: str) -> list[str]:
    """Return the lines of a data file, without its comments."""
    text = files("threadkeep.agent").joinpath("data", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


_SENTENCE_END = re.compile(
    r"(?<=[!?؟])\s+|(?<=[。！？])\s*|\n+|(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bMrs\.)(?<!\bSt\.)(?<!\bNr\.)(?<=[.…])\s+"
)
_FILLER = re.compile(
    r"(?:(?:and|so|but|please|hey|hi|hello|ok|okay|well|now|then|und|also|bitte|hallo|et|y)\b[\s,!]*)+"
)
_QUESTION = re.compile("|".join(_lines("demo_questions.txt")))
_ABOUT_COUNT = re.compile("|".join(_lines("demo_count_questions.txt")))
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORDS = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_EMPTY_WORDS = " ".join(_lines("demo_stop_words.txt"))
_STOP_WORDS = frozenset(unicodedata.normalize("NFKC", _EMPTY_WORDS).casefold().split())
_FUNCTION_CHARACTERS = frozenset(
    "的了是在我你您他她它们們吗嗎呢吧啊么麼什甚谁誰哪这這那有和也都就何はがをにでのもかすましたと"
)


class DemoModel(OfflineModel):
    """A deterministic LangChain chat model that answers questions with earlier statements of the user.

    It quotes the statements that share most words with the question, including statements in quoted older turns and in
    summaries that it wrote. Its own answers, system texts, tool results and questions are not statements. It
    acknowledges a message without a question. Every answer ends with the number of messages in the model call, without
    system messages. For `ModelSummarizer` it returns the first words of each message. The reported usage is an
    estimate. Tools may be bound, but are never called.
    """

    @property
    def _llm_type(self) -> str:
        return "threadkeep-demo"

    def _generate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        text = answer(messages)
        message = AIMessage(content=text, usage_metadata=_usage(messages, text))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        text = answer(messages)
        for word in re.findall(r"\s*\S+", text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        last = AIMessageChunk(content="", usage_metadata=_usage(messages, text), chunk_position="last")
        yield ChatGenerationChunk(message=last)

    async def _astream(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        # Override LangChain's implementation, because it uses an OS thread for each word.
        for chunk in self._stream(messages):
            yield chunk


def answer(messages: Sequence[BaseMessage]) -> str:
    """Return the demo model's answer to messages."""
    if (summary := summary_of(messages)) is not None:
        return summary
    marks = (OPENING, NO_ANSWER, NOTHING_ADDED, CLOSING)
    messages = [message for message in messages if str(message.text) not in marks]
    count = sum(not isinstance(message, SystemMessage) for message in messages)
    seen = f"I see {count} message{'' if count == 1 else 's'}."
    said, recalled = _said(messages)
    if not said:
        return f"You have not told me anything yet. {seen}"
    sentences = _sentences(said[-1])
    questions = [sentence for sentence in sentences if _is_question(sentence)]
    if not questions:
        greeting = "Hello." if count == 1 else "All right."
        return f"{'Noted.' if any(map(_features, sentences)) else greeting} {seen}"
    if any(map(_asks_count, questions)):
        return seen
    statements = [one for text in (*recalled, *said) for one in _sentences(text) if not _is_question(one)]
    # If a statement is repeated, its last position counts.
    latest_first = dict.fromkeys(sentence for sentence in reversed(statements) if _features(sentence))
    return f"{_recollection(questions, [*reversed(latest_first)])} {seen}"


def _said(messages: Sequence[BaseMessage]) -> tuple[list[str], list[str]]:
    """Return two lists of the user's texts: from the conversation, and from quotes and summaries of older turns."""
    said: list[str] = []
    recalled: list[str] = []
    for message in messages:
        section = message.additional_kwargs.get(SECTION_KEY)
        if section == "selected":
            recalled += quoted_by(str(message.text), "user")
        elif section == "summary":
            recalled += statements_in(str(message.text))
        elif section is None and isinstance(message, HumanMessage):
            said.append(str(message.text))
    return said, recalled


def _recollection(questions: Sequence[str], statements: Sequence[str]) -> str:
    if not statements:
        return "You have not told me anything yet."
    matching = _best(set().union(*map(_features, questions)), statements)
    opening = "You told me" if matching else "I find nothing about that. You told me last"
    chosen = (matching or statements)[-MAX_QUOTES:]
    quotes = [f"“{one[:MAX_QUOTE_CHARACTERS]}{'…' if len(one) > MAX_QUOTE_CHARACTERS else ''}”" for one in chosen]
    return f"{opening}: {', '.join(quotes)}{'' if quotes[-1][-2] in '.!…。！' else '.'}"


def _best(wanted: set[str], statements: Sequence[str]) -> list[str]:
    """Return the statements with the highest score. Rare words score higher."""
    features = [_features(statement) for statement in statements]
    spread = Counter(feature for one in features for feature in one)
    scores = [
        sum(math.log(1 + len(statements) / spread[feature]) for feature in sorted(wanted & one)) for one in features
    ]
    best = max(scores)
    return [statement for statement, score in zip(statements, scores, strict=True) if best and score == best]


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def _plain(sentence: str) -> str:
    return unicodedata.normalize("NFKC", sentence).casefold().replace("’", "'").strip()


def _is_question(sentence: str) -> bool:
    plain = _plain(sentence)
    return any(_QUESTION.search(text) for text in (plain, _FILLER.sub("", plain, count=1))) or _asks_count(plain)


def _asks_count(sentence: str) -> bool:
    return bool(_ABOUT_COUNT.search(_plain(sentence)))


def _features(sentence: str) -> set[str]:
    """Return the stems of a sentence's words, or pairs of characters in scripts without spaces."""
    found: set[str] = set()
    for word in _WORDS.findall(_plain(sentence)):
        if word in _STOP_WORDS:
            continue
        if re.match(rf"[{_UNSPACED}]", word):
            pairs = {word[start : start + 2] for start in range(max(len(word) - 1, 1))}
            found |= {pair for pair in pairs if not _FUNCTION_CHARACTERS.issuperset(pair)}
        elif len(word) > 1 or word.isdigit():
            found.add(_stem(word))
    return found


def _stem(word: str) -> str:
    """Return a word without a common ending, such as a plural ending."""
    word = word.replace("our", "or")
    for ending in ("ies", "ing", "ed", "es", "en", "s", "y", "e", "n"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word.removesuffix(ending)
    return word


def _usage(messages: Sequence[BaseMessage], text: str) -> UsageMetadata:
    tokens_in, tokens_out = sum(estimate(str(message.text)) for message in messages), estimate(text)
    return UsageMetadata(input_tokens=tokens_in, output_tokens=tokens_out, total_tokens=tokens_in + tokens_out)


MAX_LINE_CHARACTERS = 80

_LEAST_LINE_CHARACTERS = 20
_REQUEST = re.compile(
    r"(?:<known>\n(?P<known>[^\n]*)\n</known>\n\n)?<record>\n(?P<record>.*)\n</record>\n\n(?P<task>[^\n]+)", re.DOTALL
)
_CONTINUATION = "The known text is your summary"
_MOST_TOKENS = re.compile(r"(\d+) characters")


def summary_of(messages: Sequence[BaseMessage]) -> str | None:
    """Return a summary if the messages are a request of `ModelSummarizer`, otherwise None."""
    match messages:
        case [SystemMessage(), HumanMessage() as asked]:
            found = _REQUEST.fullmatch(str(asked.text))
        case _:
            return None
    most = _MOST_TOKENS.search(found["task"]) if found else None
    if found is None or most is None:
        return None
    try:
        lines = [*_lines_of_record(found["record"])]
        if found["task"].startswith(_CONTINUATION):
            lines = json.loads(found["known"])["known"].splitlines() + lines
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # another program uses the same tags for other content
    return _bounded(lines, int(most[1]))


def statements_in(summary: str) -> list[str]:
    """Return the statements of the user in a summary of the demo model."""
    lines = (line.partition(": ") for line in summary.splitlines())
    return [said for speaker, _, said in lines if speaker == "user"]


def _lines_of_record(record: str) -> Iterator[str]:
    for line in record.split("\n"):  # a text may contain line ends that JSON does not escape
        said = json.loads(line)
        if "from" in said:
            yield f"{said['from']}: {' '.join(said['text'].split())}"
        else:
            yield from said["text"].splitlines()


def _bounded(lines: Sequence[str], most_tokens: int) -> str:
    """Join the lines; cut each of them if necessary. If they do not fit even then, keep only the newest."""
    characters = MAX_LINE_CHARACTERS
    text = "\n".join(_beginning(line, characters) for line in lines)
    while estimate(text) > most_tokens and characters > _LEAST_LINE_CHARACTERS:
        characters //= 2
        text = "\n".join(_beginning(line, characters) for line in lines)
    if estimate(text) <= most_tokens:
        return text
    newest_first = text.splitlines()[::-1]
    sizes = accumulate(estimate(line) + 1 for line in newest_first)
    fitting = max(sum(1 for _ in takewhile(lambda size: size <= most_tokens, sizes)), 1)
    return cut_end("\n".join(newest_first[:fitting][::-1]), most_tokens, estimate)


def _beginning(line: str, characters: int) -> str:
    if len(line) <= characters:
        return line
    cut = line[:characters]
    words = cut.rpartition(" ")[0]
    return f"{words if len(words) > characters // 2 else cut}…"
