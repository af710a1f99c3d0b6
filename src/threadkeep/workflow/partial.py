"""What a model has said so far, for answers that are cut off."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackManager
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
from langchain_core.runnables import RunnableConfig

from threadkeep.workflow.conversion import text_of


class PartialAnswer(AsyncCallbackHandler):
    """What a model has said so far, when it streams: kept if the run is cancelled in the middle.

    Of several model calls (a retry, say) it is the newest one's.
    """

    def __init__(self) -> None:
        self.text = ""
        self._run_id: UUID | None = None

    async def on_llm_new_token(
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
        if run_id != self._run_id:
            self._run_id, self.text = run_id, ""
        if isinstance(chunk, ChatGenerationChunk):
            self.text += text_of(chunk.message)
        elif isinstance(token, str):
            self.text += token


def listening(config: RunnableConfig, handler: PartialAnswer) -> RunnableConfig:
    """The run's config with one more listener on its model calls."""
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=True)
        return {**config, "callbacks": manager}
    return {**config, "callbacks": [*(callbacks or []), handler]}
