"""The nodes that a workflow is made of, one file a kind. Each is a record of its options that LangGraph can call."""

from threadkeep.graphs.nodes.agent import AgentNode
from threadkeep.graphs.nodes.append_message import AppendMessageNode
from threadkeep.graphs.nodes.base import Node, NodeKind
from threadkeep.graphs.nodes.candidates import BuildCandidateNode, IngestPromptNode
from threadkeep.graphs.nodes.categorizer import CategorizerNode, Category
from threadkeep.graphs.nodes.model import ModelNode
from threadkeep.graphs.nodes.recording import RecordAnswerNode, RecordQuestionNode
from threadkeep.graphs.nodes.retrieve import RetrieveNode
from threadkeep.graphs.nodes.router import RouterNode, Rule
from threadkeep.graphs.nodes.subworkflow import SubworkflowNode
from threadkeep.graphs.nodes.template import TemplateNode

__all__ = [
    "AgentNode",
    "AppendMessageNode",
    "BuildCandidateNode",
    "CategorizerNode",
    "Category",
    "IngestPromptNode",
    "ModelNode",
    "Node",
    "NodeKind",
    "RecordAnswerNode",
    "RecordQuestionNode",
    "RetrieveNode",
    "RouterNode",
    "Rule",
    "SubworkflowNode",
    "TemplateNode",
]
