"""A model call's messages as one text, for models and clients that take no messages.

Messages are better where they are understood: in one text nothing but a label tells who speaks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, ChatMessage, ToolMessage

from threadkeep.agent.conversion import role_of, text_of
from threadkeep.errors import InvalidInput

_PLACEHOLDER = re.compile(r"\{\{\s*([\w.-]*)\s*\}\}")
_NEEDED: Mapping[str, str] = {
    "history": "earlier messages would be left out without a word",
    "input": "the new message would not reach the model",
}
_OPTIONAL = ("system", "summary", "context")


def flatten_messages(messages: Sequence[BaseMessage]) -> str:
    """The messages as one text: `(role) content`, joined by blank lines.

    The role is `system`, `user`, `assistant`, `tool`, or what a chat message calls it; of the content only text stays.
    """
    return "\n\n".join(f"({_label(message)}) {text_of(message)}" for message in messages)


@dataclass(frozen=True)
class PromptTemplate:
    """A text for a model call with the placeholders `{{history}}` and `{{input}}`; the latter is required.

    It may have `{{system}}`, `{{summary}}` and `{{context}}` too.

    Raises:
        InvalidInput: a place is missing, or one is named that there is nothing for.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse a template that would leave something out."""
        named = self._named()
        for name in sorted(named - {*_NEEDED, *_OPTIONAL}):
            raise InvalidInput(
                f"The prompt template has {{{{{name}}}}}, and there is nothing for it: the places are "
                f"{_listed((*_NEEDED, *_OPTIONAL))}."
            )
        for name, harm in _NEEDED.items():
            if name not in named:
                raise InvalidInput(f"The prompt template has no {{{{{name}}}}}, so {harm}: add it where it belongs.")

    def render(self, messages: Sequence[BaseMessage], *, summary: str = "", context: str = "") -> str:
        """The text for these messages, exactly as the template stands, whatever the messages say.

        The input is the newest user message (and what came after it); the system messages stand at `{{system}}`, or in
        the history if the template has no such place; the rest is the history, as `flatten_messages` gives it.

        Raises:
            InvalidInput: there is a summary or context, and no place for it.
        """
        named = self._named()
        given = {"summary": summary, "context": context}
        for name, text in given.items():
            if text and name not in named:
                raise InvalidInput(f"The prompt template has no {{{{{name}}}}}, and there is one: add the place.")
        system = [one for one in messages if role_of(one) == "system"] if "system" in named else []
        said = [one for one in messages if not system or role_of(one) != "system"]
        start = max((place for place, one in enumerate(said) if role_of(one) == "user"), default=len(said))
        values = {
            "system": "\n\n".join(map(text_of, system)),
            "history": flatten_messages(said[:start]),
            "input": "\n\n".join([*map(text_of, said[start : start + 1]), *_flat(said[start + 1 :])]),
            **given,
        }
        # One pass over the template: what looks like a place in somebody's words stays what they wrote.
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)

    def _named(self) -> set[str]:
        return set(_PLACEHOLDER.findall(self.text))


def _flat(messages: Sequence[BaseMessage]) -> list[str]:
    return [flatten_messages(messages)] if messages else []


def _label(message: BaseMessage) -> str:
    if isinstance(message, ToolMessage):
        return "tool"
    return role_of(message) or (message.role if isinstance(message, ChatMessage) else message.type)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{{{{{name}}}}}" for name in names)
