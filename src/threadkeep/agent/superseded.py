"""Messages of a run's state that were superseded in the transcript.

A checkpoint keeps them; a model is not sent them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.agent.conversion import id_of


def superseded_places(messages: Sequence[BaseMessage], superseded: Collection[str]) -> set[int]:
    """Return where the messages with these ids stand, and the steps that belong to them.

    The tool calls and results before a superseded answer go with it, and so do those after a superseded question.
    """
    gone: set[int] = set()
    for place, message in enumerate(messages):
        if id_of(message) not in superseded:
            continue
        gone.add(place)
        if isinstance(message, HumanMessage):
            gone.update(_steps(messages, range(place + 1, len(messages))))
        else:
            gone.update(_steps(messages, range(place - 1, -1, -1)))
    return gone


def _steps(messages: Sequence[BaseMessage], places: range) -> list[int]:
    """Return the places up to the next question or answer."""
    found: list[int] = []
    for place in places:
        message = messages[place]
        answer = isinstance(message, AIMessage) and not message.tool_calls
        if answer or isinstance(message, HumanMessage):
            break
        if not isinstance(message, SystemMessage):
            found.append(place)
    return found
