"""Explanations of the key that each agent of a workflow derives from a payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from threadkeep.errors import InvalidInput
from threadkeep.history.keys import Refusal
from threadkeep.records import Json
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.nodes import AgentNode

_SCOPES = ("inputs", "results", "node_outputs", "configurable", "user_context")


@dataclass(frozen=True)
class KeyExplanation:
    """The key that one agent derives from a payload.

    `key` is None if no candidate gives one: the agent would work in memory only. `winner` is the candidate that gave
    the key; `refused` are the candidates before it, each with its reason. If `uses_store` is false, the agent uses
    the turns of the run's session, and the key is hypothetical.
    """

    node: str
    uses_store: bool
    namespace: tuple[str, ...]
    key: str | None
    conversation_key: str | None
    winner: str | None
    refused: tuple[Refusal, ...]

    def to_dict(self) -> dict[str, Json]:
        """Return the explanation as JSON values."""
        return {
            "node": self.node,
            "uses_store": self.uses_store,
            "namespace": list(self.namespace),
            "key": self.key,
            "conversation_key": self.conversation_key,
            "winner": self.winner,
            "refused": [{"candidate": one.candidate, "reason": one.reason} for one in self.refused],
        }


def explain_key(workflow: Workflow, payload: Mapping[str, Json], *, by_hand: bool = False) -> list[KeyExplanation]:
    """Return the key of each agent of a workflow for a payload, in the order of the nodes. Nothing is read or written.

    A payload with `inputs`, `results`, `node_outputs`, `configurable` or `user_context` provides the values that
    candidates may name; any other payload is the `inputs`. `thread_id` counts only in runs that are started
    `by_hand`.
    """
    if not isinstance(payload, Mapping):
        raise InvalidInput("A payload is a JSON object; put what the channel delivers into one.")
    scope: dict[str, object] = dict(payload) if any(name in payload for name in _SCOPES) else {"inputs": payload}
    scope["thread_id"] = payload.get("thread_id")
    found: list[KeyExplanation] = []
    for name, node in workflow.nodes.items():
        if not isinstance(node, AgentNode):
            continue
        resolution = node.resolve(scope, by_hand=by_hand)
        tried = len(resolution.refused)
        texts = [one for one in node.history_key_candidates if isinstance(one, str)]
        won = resolution.conversation_key is not None
        found.append(
            KeyExplanation(
                node=name,
                uses_store=node.use_graph_chat_history,
                namespace=node.history_namespace,
                key=resolution.key,
                conversation_key=resolution.conversation_key,
                winner=texts[tried if resolution.key is not None else tried - 1] if won else None,
                refused=resolution.refused,
            )
        )
    return found
