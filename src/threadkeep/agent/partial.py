"""Listen to the model calls of one agent step: what was asked, the text so far, and whether the model failed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig

from threadkeep.agent.conversion import text_of


class PartialAnswer(BaseCallbackHandler):
    """The text of a streaming model so far, kept if the run is cancelled in the middle.

    Of several model calls (a retry, say) it is the newest one's. `failed` says that the last call ended with an error.
    `asked` has the messages of each call, `models` the names of the models. Calls that other middleware makes for
    itself (to pick tools) do not count.
    """

    run_inline = True  # asynchronous runs call it without a thread

    def __init__(self) -> None:
        self.text = ""
        self.failed = False
        self.asked: list[list[BaseMessage]] = []
        self.models: set[object] = set()
        self._run_id: UUID | None = None
        self._foreign: set[UUID] = set()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take what a model is asked."""
        if metadata and metadata.get("lc_source"):
            self._foreign.add(run_id)
        else:
            self.asked += messages
            self.models.add((metadata or {}).get("ls_model_name"))

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the text of one chunk."""
        if run_id in self._foreign:
            return
        if run_id != self._run_id:
            self._run_id, self.text = run_id, ""
        if isinstance(chunk, ChatGenerationChunk):
            self.text += text_of(chunk.message)
        elif isinstance(token, str):
            self.text += token

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Note a call that gave an answer."""
        self.failed &= run_id in self._foreign

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note a call that failed."""
        self.failed |= run_id not in self._foreign


def listening(config: RunnableConfig, handler: PartialAnswer) -> RunnableConfig:
    """Return the run's config with one more listener on its model calls."""
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=True)
        return {**config, "callbacks": manager}
    return {**config, "callbacks": [*(callbacks or []), handler]}
