"""The nodes of workflows, one module for each kind. A node is a record of its options that LangGraph can call."""

from threadkeep.workflows.nodes.agent import AgentNode
from threadkeep.workflows.nodes.append_message import AppendMessageNode
from threadkeep.workflows.nodes.base import Node, NodeKind
from threadkeep.workflows.nodes.candidates import BuildCandidateNode, IngestPromptNode
from threadkeep.workflows.nodes.categorizer import CategorizerNode, Category
from threadkeep.workflows.nodes.knowledge import IdentifyUserNode, RecallNode, RememberNode
from threadkeep.workflows.nodes.model import ModelNode
from threadkeep.workflows.nodes.recording import RecordAnswerNode, RecordQuestionNode
from threadkeep.workflows.nodes.retrieve import RetrieveNode
from threadkeep.workflows.nodes.router import RouterNode, Rule
from threadkeep.workflows.nodes.subworkflow import SubworkflowNode
from threadkeep.workflows.nodes.template import TemplateNode

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
