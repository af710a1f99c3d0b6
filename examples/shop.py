"""What the workflows of the examples name by import strings: a small shop's tools and its knowledge base."""

from __future__ import annotations

import re

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool

_ORDERS = {"4711": "left our house yesterday", "4712": "waits for its payment"}
_PASSAGES = {
    "shipping": "Parcels within the country take three days. Parcels abroad take a week.",
    "returns": "You may send anything back within thirty days. The label is in the parcel.",
    "payment": "We take cards and bank transfers. An order is sent when its payment has arrived.",
}


@tool
def find_order(number: str) -> str:
    """Find out where an order is, by its number."""
    return f"Order {number} {_ORDERS.get(number, 'is not known here')}."


@tool
def opening_hours(day: str) -> str:
    """Tell when the shop is open on a day of the week."""
    return f"On {day} the shop is closed." if day.lower() == "sunday" else f"On {day} the shop is open from 9 to 18."


tools = [find_order, opening_hours]


class KnowledgeBase(BaseRetriever):
    """Passages by the words that they share with a question; any LangChain retriever stands in its place."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        asked = _words(query)
        ranked = sorted(_PASSAGES.items(), key=lambda item: -len(asked & _words(" ".join(item))))
        return [Document(text, id=name) for name, text in ranked if asked & _words(f"{name} {text}")][:2]


def knowledge_base() -> BaseRetriever:
    """The shop's knowledge base."""
    return KnowledgeBase()


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 3}
