"""Who stores the question of a run in its session: a node of its workflow, or whoever ends the run before that."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.graphs.nodes import AgentNode, ModelNode, Node, RecordQuestionNode


def stores_question(node: Node) -> bool:
    """Whether a node stores what it is asked in the run's session."""
    if isinstance(node, AgentNode):
        return node.input is None and not node.use_graph_chat_history
    return isinstance(node, RecordQuestionNode) or (isinstance(node, ModelNode) and node.input is None)


def reset_commands(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The messages that are no questions: a node takes them for the command to begin anew."""
    commands: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, RecordQuestionNode):
            commands |= dict.fromkeys(node.reset_commands)
        elif isinstance(node, AgentNode) and node.reset_command is not None:
            commands[node.reset_command] = None
    return tuple(commands)


def question_recorder(nodes: Iterable[Node]) -> RecordQuestionNode | None:
    """What stores the question as a graph with such nodes does; None where it is not theirs to store."""
    known = tuple(nodes)
    return RecordQuestionNode(reset_commands=reset_commands(known)) if any(map(stores_question, known)) else None
