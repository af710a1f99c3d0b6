"""Learns facts from people's messages, in the background after each turn, with or without a chat model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage

from threadkeep.agent.conversion import text_of
from threadkeep.agent.knowledge_tools import check_scopes, default_workspace, scopes_of
from threadkeep.agent.turn_options import facts_of
from threadkeep.errors import InvalidInput
from threadkeep.history.session import Session
from threadkeep.knowledge.learning import DirectiveLearner, LearningRequest, Record
from threadkeep.knowledge.proposals import LearnerKind, Proposed
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.observe import LearningFailed
from threadkeep.records.knowledge import FACT_KINDS, SCOPE_KINDS, FactKind, ScopeKind

_INSTRUCTIONS = files("threadkeep.agent").joinpath("data", "learning.txt").read_text(encoding="utf-8").rstrip("\n")

_MODEL_SECONDS = 60.0
_MOST_FAILURES = 100
_DECODER = json.JSONDecoder()


class FactLearning:
    """Background learning that proposes facts from human messages after each turn.

    A person accepts or rejects the proposals (`memory.proposals`). A proposal with a confidence of at least
    `accept_from` is accepted at once. With `directives`, lines such as `preference (user): Keep diffs small.` in
    messages are remembered, and sent to Graphiti if consent was given.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        model: BaseChatModel | None = None,
        proposes: bool = True,
        accept_from: float | None = None,
        directives: bool = False,
        scopes: Sequence[ScopeKind] = ("session", "user"),
        workspace: str | None = None,
    ) -> None:
        """Create the fact learning of a memory.

        Args:
            memory: the memory that stores the facts.
            model: the chat model that proposes facts; by default the agent's own.
            proposes: whether a model proposes facts.
            accept_from: the lowest confidence, from 0 to 1, at which a proposal is accepted at once; None for never.
            directives: whether lines such as `preference (user): …` in messages are remembered.
            scopes: the scopes of the facts that a model proposes: user, session, workspace.
            workspace: the default workspace of runs; if None, the workspace of the memory's Graphiti options.

        Raises:
            InvalidInput: an option has an invalid value.
        """
        if accept_from is not None and not 0 <= accept_from <= 1:
            raise InvalidInput("accept_from is a number from 0 to 1, or None for a person only.")
        check_scopes(scopes)
        self._memory = OnLoop(memory, lambda opened: opened)
        self._model = model
        self._proposes = proposes
        self._accept_from = accept_from
        self._directives = directives
        self._scopes = tuple(scopes)
        self._workspace = workspace

    def consider(self, session: Session, model: BaseChatModel | None, run_id: str) -> None:
        """Queue a session to learn facts from the turn `run_id`. Report an invalid session, workspace or user id."""
        memory, workspace = self._memory.made[0], self.workspace_of(session)
        wanted = SCOPE_KINDS if self._directives else self._scopes
        usable, refused = scopes_of(wanted, session.session_id, workspace, session.user_id)
        for error in refused.values():
            memory.observers.notify(LearningFailed(error=type(error).__name__, session_id=session.session_id))
        if self._directives:
            directives = LearningRequest(session.session_id, DirectiveLearner(), usable, 1.0, run_id)
            memory.loop.post(lambda: memory.learning.enqueue(directives))
        learns = self._model or model
        scopes = {kind: scope for kind, scope in usable.items() if kind in self._scopes}
        if self._proposes and learns is not None and scopes:
            request = LearningRequest(session.session_id, ModelLearner(learns), scopes, self._accept_from, run_id)
            memory.loop.post(lambda: memory.learning.enqueue(request))

    def workspace_of(self, session: Session) -> str | None:
        """Return the workspace of the session's turn. The id is not checked yet."""
        return session.workspace or default_workspace(self._memory.made[0], self._workspace)


class ModelLearner:
    """A learner that asks a chat model to list, as JSON, the facts in a part of a conversation (`Record`)."""

    kind: LearnerKind = "model"

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self.name = facts_of(model).name or model._llm_type  # noqa: SLF001 - the name of its kind, if it has no other

    async def learn(self, record: Record) -> list[Proposed]:
        """Return the facts that the model found.

        Raises:
            TimeoutError: the model took longer than 60 seconds.
            ValueError: the answer contains no JSON list.
        """
        asked = [SystemMessage(_INSTRUCTIONS), HumanMessage(_request(record))]
        async with asyncio.timeout(_MODEL_SECONDS):
            answer = await self._model.ainvoke(asked, {"run_name": "threadkeep-learning", "tags": ["threadkeep"]})
        # Parse in an OS thread, because a model may answer with thousands of facts.
        found = await asyncio.to_thread(lambda: [_proposed(value, record) for value in _listed(text_of(answer))])
        return [one for one in found if one is not None]


def _listed(text: str) -> list[Any]:
    """Return the list of facts in a model's answer: the first JSON list that contains an object, or else the last list.

    If no list is complete (the model's token limit may have cut it off), return all objects that have a `key`.

    Raises:
        ValueError: there is neither a list nor an object with a `key`.
    """
    found: list[Any] | None = None
    failures: list[int] = []
    for found in _values(text, "[", failures):
        if any(isinstance(value, Mapping) for value in found):
            return found
    if found is None and not (found := [one for one in _values(text, "{", failures) if "key" in one]):
        raise ValueError("the answer has no JSON list")
    return found


def _values(text: str, bracket: str, failures: list[int]) -> Iterator[Any]:
    """Yield the JSON values that begin with `bracket`. Add the positions of brackets that begin no value to `failures`.

    Each failed attempt may have parsed the whole rest of the text, so stop after 100 failures.
    """
    start = text.find(bracket)
    while start >= 0 and len(failures) < _MOST_FAILURES:
        end = start + 1
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            failures.append(start)
        else:
            yield value
        start = text.find(bracket, end)


def _request(record: Record) -> str:
    lines = "\n".join(record.lines)
    newest = ", ".join(map(str, record.learnable))
    return (
        f"<record>\n{lines}\n</record>\n\n"
        f"Look at the messages {newest}. About: {', '.join(record.scopes)}. Kinds: {', '.join(FACT_KINDS)}. "
        f"Known keys: {json.dumps(list(record.known_keys), ensure_ascii=False)}."
    )


def _proposed(value: Any, record: Record) -> Proposed | None:
    """Convert an entry of a model's answer to a proposal, if it is valid."""
    if not isinstance(value, Mapping) or not isinstance(value.get("key"), str):
        return None
    seq, about, kind = value.get("message"), value.get("about"), value.get("kind")
    scope = next((scope for name, scope in record.scopes.items() if name == about), None)
    message = record.learnable.get(seq) if type(seq) is int else None
    if scope is None or message is None or seq is None:
        return None
    known: FactKind | None = next((name for name in get_args(FactKind.__value__) if name == kind), None)
    sure = value.get("confidence")
    # NaN counts as 0.
    confidence = float(min(max(0, sure), 1)) if isinstance(sure, int | float) and not isinstance(sure, bool) else 0.5
    return Proposed(scope, value["key"], value.get("value"), seq, known, confidence, None, message.run_id)
