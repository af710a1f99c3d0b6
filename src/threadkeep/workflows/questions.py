"""The node of a workflow that stores the question of a run, and its use for runs that end earlier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain.agents.middleware import AgentMiddleware

from threadkeep.agent.turn_options import TurnOptions
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.nodes import AgentNode, ModelNode, Node, RecordQuestionNode
from threadkeep.workflows.nodes.base import Step
from threadkeep.workflows.resources import Resources, RunContext


def stores_question(node: Node) -> bool:
    """Return True if a node stores its question in the run's session."""
    if isinstance(node, AgentNode):
        return node.input is None and not node.use_graph_chat_history
    return isinstance(node, RecordQuestionNode) or (isinstance(node, ModelNode) and node.input is None)


def reset_commands(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the reset commands of the nodes; these messages are not questions."""
    commands: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, RecordQuestionNode):
            commands |= dict.fromkeys(node.reset_commands)
        elif isinstance(node, AgentNode) and node.reset_command is not None:
            commands[node.reset_command] = None
    return tuple(commands)


def question_recorder(nodes: Iterable[Node]) -> RecordQuestionNode | None:
    """Return a node that stores the question as these nodes would; None if they do not store it."""
    known = tuple(nodes)
    if not any(map(stores_question, known)):
        return None
    waits = any(isinstance(node, RecordQuestionNode) and node.waits for node in known)
    return RecordQuestionNode(reset_commands=reset_commands(known), waits=waits)


def has_one_speaker(workflow: Workflow) -> bool:
    """Return whether a workflow has one node, which answers in the run's session: nothing follows its answer."""
    nodes = list(workflow.nodes.values())
    if len(workflow.builder.nodes) != 1 or len(nodes) != 1:
        return False
    [node] = nodes
    return isinstance(node, AgentNode | ModelNode) and node.answers and stores_question(node)


def asked_at_once(workflow: Workflow, resources: Resources) -> TurnOptions | None:
    """Return the options of the only speaker, if its question may be stored before it is called; else None.

    Middleware may change a question before it is stored.
    """
    if not has_one_speaker(workflow) or any(map(_sees_question, resources.middleware)):
        return None
    [(name, node)] = workflow.nodes.items()
    if not isinstance(node, AgentNode | ModelNode) or (isinstance(node, AgentNode) and node.reset_command is not None):
        return None
    options = node.turn_options(Step(name, RunContext("", workflow.name, resources), None))
    return options if options.scope == "turn" and not options.no_history else None


def only_wraps_tools(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Return whether a middleware does nothing for an agent without tools."""
    hooks = ("after_agent", "aafter_agent", "after_model", "aafter_model", "wrap_model_call", "awrap_model_call")
    return not getattr(middleware, "tools", ()) and not _sees_question(middleware) and not _has_any(middleware, hooks)


def _sees_question(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    return _has_any(middleware, ("before_agent", "abefore_agent", "before_model", "abefore_model"))


def _has_any(middleware: AgentMiddleware[Any, Any, Any], hooks: Iterable[str]) -> bool:
    return any(getattr(type(middleware), hook) is not getattr(AgentMiddleware, hook) for hook in hooks)
