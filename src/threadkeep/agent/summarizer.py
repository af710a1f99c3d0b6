"""`ModelSummarizer`: a summarizer that calls a chat model, and its prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage

from threadkeep.agent.turn_options import facts_of
from threadkeep.context.quotation import quoted_text
from threadkeep.errors import InvalidInput
from threadkeep.history.compression import CompressionFailed, SummaryTask

PROMPT_VERSION = "3"
"""The version of the prompts, which is stored with each summary; increase it with each change."""

_DATA = files("threadkeep.agent").joinpath("data")
INSTRUCTIONS = _DATA.joinpath("summary.txt").read_text(encoding="utf-8").rstrip("\n")
_TASKS: dict[SummaryTask, str] = json.loads(_DATA.joinpath("summary_tasks.json").read_text(encoding="utf-8"))
_KNOWN = "The known text says what was said before. It is there to understand the record by: do not repeat it."
_MOST_INPUT_TOKENS = 24_000
_REASONS = ("finish_reason", "stop_reason", "done_reason")
_CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "content_filter"})
_REFUSED = frozenset({"refusal", "safety", "prohibited_content", "blocklist", "spii", "recitation"})


class ModelSummarizer:
    """A summarizer that uses any LangChain chat model.

    A small model with a context window of 8,000 tokens is enough, because long records are sent in parts.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        input_tokens: int | None = None,
        context_window: int | None = None,
        timeout_seconds: float = 60.0,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        """Create a summarizer.

        Args:
            model: the chat model.
            input_tokens: the maximum number of tokens of the record in one call. The default is a third of the context
                window, but at most 24,000, because models read long records less carefully.
            context_window: the model's context window in tokens; by default it comes from the model's profile or name.
            timeout_seconds: the maximum number of seconds of a model call.
            instructions: the system message.

        Raises:
            InvalidInput: `input_tokens` or `timeout_seconds` is not above zero.
        """
        facts = facts_of(model, context_window)
        if input_tokens is None:
            input_tokens = min(max(facts.window // 3, 1), _MOST_INPUT_TOKENS)
        if input_tokens < 1 or timeout_seconds <= 0:
            raise InvalidInput("input_tokens and timeout_seconds of a summarizer are numbers above 0.")
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._instructions = instructions
        self.name = facts.name or model._llm_type  # noqa: SLF001 - the name of its kind, if it has no other
        self.input_tokens = input_tokens
        self.prompt_version = PROMPT_VERSION
        if instructions != INSTRUCTIONS:
            self.prompt_version += f"+{sha256(instructions.encode()).hexdigest()[:8]}"

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """Return the summary of a record; see `threadkeep.history.compression.Summarizer`.

        If the model refuses, the summary is empty.

        Raises:
            CompressionFailed: the provider reports that the answer was cut off or filtered.
            TimeoutError: the model call took longer than `timeout_seconds`.
        """
        messages = [SystemMessage(self._instructions), HumanMessage(_request(record, earlier, task, max_tokens))]
        async with asyncio.timeout(self._timeout_seconds):
            answer = await self._model.ainvoke(messages, {"run_name": "threadkeep-summary", "tags": ["threadkeep"]})
        metadata = answer.response_metadata
        incomplete = metadata.get("incomplete_details")  # of OpenAI's Responses API
        details = incomplete if isinstance(incomplete, Mapping) else {}
        reasons = (*(metadata.get(key) for key in _REASONS), details.get("reason"))
        reason = next((one.lower() for one in reasons if isinstance(one, str) and one), "")
        if reason in _CUT_OFF:
            raise CompressionFailed("too_long")
        # A refusal must not replace the messages, so return no text. The property `text` omits OpenAI's refusals.
        return "" if reason in _REFUSED else str(answer.text)


def _request(record: str, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
    parts = [f"<record>\n{record}\n</record>"]
    if earlier is not None:
        parts.insert(0, f"<known>\n{quoted_text('known', earlier)}\n</known>")
    words = _TASKS[task]
    if earlier is not None and task != "continuation":
        words = f"{_KNOWN} {words}"
    length = f"At most {max(max_tokens * 2 // 3, 10)} words; in Chinese, Japanese or Korean {max_tokens} characters."
    return "\n\n".join([*parts, f"{words} {length}"])
