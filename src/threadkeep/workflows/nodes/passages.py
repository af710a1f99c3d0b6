"""The section of later contexts with passages that `retrieve` nodes found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from langchain_core.documents import Document

from threadkeep.agent.extras import ExtraRequest
from threadkeep.agent.model_call import Extra
from threadkeep.agent.retrieved_snippets import snippets_block
from threadkeep.observe import ExtraSection
from threadkeep.records import Json
from threadkeep.workflows.nodes.places import step_context
from threadkeep.workflows.state import WorkflowState

type Passage = tuple[str | None, str]
"""The id of a passage, if it has one, and its text."""


class FoundPassages:
    """The section `snippets` with passages already found in this run; `passages` None: those of the agent's step."""

    def __init__(self, passages: Sequence[Passage] | None = None) -> None:
        self._passages = passages

    @property
    def section(self) -> ExtraSection:
        """The section `snippets`."""
        return "snippets"

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return the passages that fit, in the order in which they were found."""
        passages = self._passages
        if passages is None:
            context = step_context()
            passages = context.passages if context is not None else ()
        return snippets_block([Document(text, id=name) for name, text in passages], request, room)


def passages_in(state: WorkflowState) -> tuple[Passage, ...]:
    """Return the passages that all `retrieve` nodes of the run have found so far, each once."""
    return tuple(dict.fromkeys(_passages_in(state)))


def _passages_in(state: WorkflowState) -> Iterator[Passage]:
    for result in (state.get("results") or {}).values():
        for passage in _listed(result):
            if isinstance(passage, Mapping) and isinstance(text := passage.get("text"), str):
                name = passage.get("id")
                yield name if isinstance(name, str) else None, text


def _listed(result: Json) -> Sequence[Json]:
    passages = result.get("passages") if isinstance(result, Mapping) else None
    return passages if isinstance(passages, Sequence) and not isinstance(passages, str) else ()
