"""What workflows of tests name by import strings."""

from __future__ import annotations

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool

ASKED: list[str] = []


@tool
def find_order(number: str) -> str:
    """Find an order by its number."""
    return f"Order {number} is on its way. CANARY-TOOL-RESULT"


def plain(text: str) -> str:
    """A function that is a tool as it stands."""
    return text.upper()


both = [find_order, plain]
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
    """A retriever that is made when it is wanted."""
    return _Shelf()
