"""The nodes of workflows. A node is a pydantic model of its options; LangGraph calls it like a function."""

from threadkeep.workflows.nodes.agent import AgentNode
from threadkeep.workflows.nodes.base import Node, NodeKind
from threadkeep.workflows.nodes.choosing import CategorizerNode, Category, RouterNode, Rule
from threadkeep.workflows.nodes.knowledge import IdentifyUserNode, RecallNode, RememberNode
from threadkeep.workflows.nodes.messages import AppendMessageNode, RecordAnswerNode, RecordQuestionNode, TemplateNode
from threadkeep.workflows.nodes.retrieve import RetrieveNode
from threadkeep.workflows.nodes.speaking import ModelNode
from threadkeep.workflows.nodes.subworkflow import BuildCandidateNode, IngestPromptNode, SubworkflowNode

__all__ = [
    "AgentNode",
    "AppendMessageNode",
    "BuildCandidateNode",
    "CategorizerNode",
    "Category",
    "IdentifyUserNode",
    "IngestPromptNode",
    "ModelNode",
    "Node",
    "NodeKind",
    "RecallNode",
    "RecordAnswerNode",
    "RecordQuestionNode",
    "RememberNode",
    "RetrieveNode",
    "RouterNode",
    "Rule",
    "SubworkflowNode",
    "TemplateNode",
]
