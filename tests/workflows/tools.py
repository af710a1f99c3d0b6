"""Tools and retrievers that the workflows of tests import."""

from __future__ import annotations

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langgraph.types import interrupt

ASKED: list[str] = []
RAN: list[str] = []


@tool
def find_order(number: str) -> str:
    """Find an order by its number."""
    return f"Order {number} is on its way. CANARY-TOOL-RESULT"


@tool
def ask_person(question: str) -> str:
    """Ask a person, and wait for the answer."""
    RAN.append("asked")
    return f"The person says {interrupt({'question': question})}."


def plain(text: str) -> str:
    """Return a text in capital letters."""
    RAN.append("plain")
    return text.upper()


both = [find_order, plain]
waiting = [plain, ask_person]
number = 7


class _Shelf(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        ASKED.append(query)
        return [
            Document("Parcels take three days.", id="shipping-1", metadata={"page": 3, "odd": object()}),
            Document("  "),
            Document("Returns are free."),
        ]


class _Broken(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise ConnectionError("no route to the index")


shelf = _Shelf()
broken = _Broken()


def make_shelf() -> BaseRetriever:
    """Return a new retriever."""
    return _Shelf()


def make_nothing() -> BaseRetriever:
    """Raise an error instead of returning a retriever."""
    raise ConnectionError("no route to the index")
