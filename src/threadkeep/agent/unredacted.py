"""Answers that were cut off before `PIIMiddleware` saw them: what of them may be stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from langchain.agents.middleware import PIIMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.runtime import Runtime

from threadkeep.agent.conversion import text_of

HELD_BACK_CHARACTERS: Final = 128
"""The end of a cut-off text that is left out, since it may be the beginning of an address or a number.

LangChain holds back as much of a redacted stream.
"""


def storable(said: BaseMessage | str, kinds: Collection[str], *, whole: bool) -> BaseMessage | str:
    """Return an answer without data of some kinds; nothing if only the program's own code can find one of them.

    Args:
        said: the answer as the model gave it.
        kinds: the kinds of all `PIIMiddleware` of the agent, which may look at answers or not.
        whole: True if the model had finished.
    """
    if not kinds:
        return said
    text = received = said if isinstance(said, str) else text_of(said)
    for kind in kinds:
        try:
            middleware = PIIMiddleware(kind, apply_to_input=False, apply_to_output=True)
        except ValueError:
            return ""
        update = middleware.after_model({"messages": [AIMessage(text)]}, Runtime())
        if update is not None:
            text = text_of(update["messages"][-1])
    if not whole:
        text = text[:-HELD_BACK_CHARACTERS]
    if text == received or isinstance(said, str):
        return said if text == received else text
    return AIMessage(text, id=said.id)
