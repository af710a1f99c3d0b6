"""Threadkeep: the memory of LangGraph agents.

::

    async with open_memory("sqlite:////var/lib/threadkeep/threadkeep.db") as memory:
        agent = create_agent(model, tools, middleware=[SessionMemory(memory)])

Names are imported at their first use, so that `import threadkeep` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.agent.candidates import candidate_graph as candidate_graph
    from threadkeep.agent.counting import count_tokens as count_tokens
    from threadkeep.agent.extras import RetrievedSnippets as RetrievedSnippets
    from threadkeep.agent.fact_learning import FactLearning as FactLearning
    from threadkeep.agent.knowledge_tools import knowledge_tools as knowledge_tools
    from threadkeep.agent.known_facts import KnownFacts as KnownFacts
    from threadkeep.agent.lookup_tools import history_tools as history_tools
    from threadkeep.agent.middleware import SessionMemory as SessionMemory
    from threadkeep.agent.nodes import memory_node as memory_node
    from threadkeep.agent.nodes import session_turn as session_turn
    from threadkeep.agent.prompts import PromptTemplate as PromptTemplate
    from threadkeep.agent.prompts import flatten_messages as flatten_messages
    from threadkeep.agent.rebuilding import rebuild as rebuild
    from threadkeep.agent.recalled_turns import RecalledTurns as RecalledTurns
    from threadkeep.agent.recorded import recorded as recorded
    from threadkeep.agent.reducers import bounded_messages as bounded_messages
    from threadkeep.agent.shortening import trim as trim
    from threadkeep.agent.summarizer import ModelSummarizer as ModelSummarizer
    from threadkeep.agent.turn_options import TurnOptions as TurnOptions
    from threadkeep.context.manifest import ContextManifest as ContextManifest
    from threadkeep.context.plan import ContextPlan as ContextPlan
    from threadkeep.context.tokens import context_window as context_window
    from threadkeep.context.tokens import counter_for as counter_for
    from threadkeep.context.tokens import counter_named as counter_named
    from threadkeep.context.tokens import input_budget as input_budget
    from threadkeep.context.window import Window as Window
    from threadkeep.errors import BudgetTooSmall as BudgetTooSmall
    from threadkeep.errors import ChildFailed as ChildFailed
    from threadkeep.errors import ContextGone as ContextGone
    from threadkeep.errors import Interrupted as Interrupted
    from threadkeep.errors import InvalidInput as InvalidInput
    from threadkeep.errors import InvalidKey as InvalidKey
    from threadkeep.errors import InvalidMessage as InvalidMessage
    from threadkeep.errors import InvalidSettings as InvalidSettings
    from threadkeep.errors import InvalidWorkflow as InvalidWorkflow
    from threadkeep.errors import KnowledgeNotFound as KnowledgeNotFound
    from threadkeep.errors import MessageNotFound as MessageNotFound
    from threadkeep.errors import MessageSuperseded as MessageSuperseded
    from threadkeep.errors import MiddlewareWarning as MiddlewareWarning
    from threadkeep.errors import ModelCallFailed as ModelCallFailed
    from threadkeep.errors import QuestionGone as QuestionGone
    from threadkeep.errors import SchemaTooNew as SchemaTooNew
    from threadkeep.errors import SessionNotFound as SessionNotFound
    from threadkeep.errors import StoreClosed as StoreClosed
    from threadkeep.errors import StoreError as StoreError
    from threadkeep.errors import StoreUnavailable as StoreUnavailable
    from threadkeep.errors import ThreadkeepError as ThreadkeepError
    from threadkeep.errors import WorkflowNotFound as WorkflowNotFound
    from threadkeep.errors import WrongUser as WrongUser
    from threadkeep.history.compression import Compression as Compression
    from threadkeep.history.keys import KeyResolution as KeyResolution
    from threadkeep.history.keys import check_key as check_key
    from threadkeep.history.keys import escape_key as escape_key
    from threadkeep.history.keys import resolve_key as resolve_key
    from threadkeep.history.keys import unescape_key as unescape_key
    from threadkeep.history.memory_options import MemoryOptions as MemoryOptions
    from threadkeep.history.pending import PendingOptions as PendingOptions
    from threadkeep.history.retention import RetentionOptions as RetentionOptions
    from threadkeep.history.retention_rounds import RunRetention as RunRetention
    from threadkeep.history.session import Session as Session
    from threadkeep.memory import Memory as Memory
    from threadkeep.memory import SyncMemory as SyncMemory
    from threadkeep.memory import SyncSession as SyncSession
    from threadkeep.memory import open_memory as open_memory
    from threadkeep.memory import open_memory_sync as open_memory_sync
    from threadkeep.records import Message as Message
    from threadkeep.records import Page as Page
    from threadkeep.records import Receipt as Receipt
    from threadkeep.records import Retention as Retention
    from threadkeep.records import RetentionLimits as RetentionLimits
    from threadkeep.records import SearchHit as SearchHit
    from threadkeep.records import SearchResult as SearchResult
    from threadkeep.records import SessionInfo as SessionInfo
    from threadkeep.records.knowledge import Evidence as Evidence
    from threadkeep.records.knowledge import Fact as Fact
    from threadkeep.records.knowledge import Person as Person
    from threadkeep.records.knowledge import Procedure as Procedure
    from threadkeep.records.knowledge import Scope as Scope
    from threadkeep.settings import Settings as Settings
    from threadkeep.settings import load_settings as load_settings
    from threadkeep.store.driver import StoreOptions as StoreOptions
    from threadkeep.stores import create_checkpointer as create_checkpointer
    from threadkeep.stores import create_graph_store as create_graph_store
    from threadkeep.version import __version__ as __version__
    from threadkeep.workflows.resources import not_idempotent as not_idempotent

_HOMES = {
    "threadkeep.context.manifest": "ContextManifest",
    "threadkeep.context.window": "Window",
    "threadkeep.context.plan": "ContextPlan",
    "threadkeep.context.tokens": "context_window counter_for counter_named input_budget",
    "threadkeep.errors": (
        "BudgetTooSmall ChildFailed ContextGone Interrupted InvalidInput InvalidKey InvalidMessage InvalidSettings "
        "InvalidWorkflow KnowledgeNotFound MessageNotFound MessageSuperseded MiddlewareWarning ModelCallFailed "
        "QuestionGone SchemaTooNew SessionNotFound StoreClosed StoreError StoreUnavailable ThreadkeepError "
        "WorkflowNotFound WrongUser"
    ),
    "threadkeep.workflows.resources": "not_idempotent",
    "threadkeep.history.compression": "Compression",
    "threadkeep.history.keys": "KeyResolution check_key escape_key resolve_key unescape_key",
    "threadkeep.history.memory_options": "MemoryOptions",
    "threadkeep.history.pending": "PendingOptions",
    "threadkeep.history.retention": "RetentionOptions",
    "threadkeep.history.retention_rounds": "RunRetention",
    "threadkeep.history.session": "Session",
    "threadkeep.memory": "Memory SyncMemory SyncSession open_memory open_memory_sync",
    "threadkeep.records": "Message Page Receipt Retention RetentionLimits SearchHit SearchResult SessionInfo",
    "threadkeep.records.knowledge": "Evidence Fact Person Procedure Scope",
    "threadkeep.settings": "Settings load_settings",
    "threadkeep.store.driver": "StoreOptions",
    "threadkeep.stores": "create_checkpointer create_graph_store",
    "threadkeep.version": "__version__",
    "threadkeep.agent.candidates": "candidate_graph",
    "threadkeep.agent.fact_learning": "FactLearning",
    "threadkeep.agent.knowledge_tools": "knowledge_tools",
    "threadkeep.agent.known_facts": "KnownFacts",
    "threadkeep.agent.lookup_tools": "history_tools",
    "threadkeep.agent.middleware": "SessionMemory",
    "threadkeep.agent.nodes": "memory_node session_turn",
    "threadkeep.agent.prompts": "PromptTemplate flatten_messages",
    "threadkeep.agent.rebuilding": "rebuild",
    "threadkeep.agent.recorded": "recorded",
    "threadkeep.agent.recalled_turns": "RecalledTurns",
    "threadkeep.agent.extras": "RetrievedSnippets",
    "threadkeep.agent.reducers": "bounded_messages",
    "threadkeep.agent.counting": "count_tokens",
    "threadkeep.agent.summarizer": "ModelSummarizer",
    "threadkeep.agent.shortening": "trim",
    "threadkeep.agent.turn_options": "TurnOptions",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  the list is the keys of one table


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if home := _HOME_OF.get(name):
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
