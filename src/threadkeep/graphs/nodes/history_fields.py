"""Chat history in the graph's store: the fields that say whether, where and under which key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from langchain_core.runnables import RunnableConfig
from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt

from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.graphs.templates import check_template, nodes_named, scope_of
from threadkeep.history.keys import KEY_TEMPLATE, KeyResolution, channel_of, resolve_key
from threadkeep.observe import Channel, KeyResolutionFailed
from threadkeep.store.graph_transcripts.chunks import CHUNK_SIZE
from threadkeep.store.graph_transcripts.layout import GraphLayout

_TELEGRAM = "results.telegram_events_parser"
_AIBOT = "results.wecom_ai_bot_events_parser"
_DIRECT = "results.wecom_events_parser"

KEY_CANDIDATES = (
    "{{results.resolve_history_key.session_key}}",
    "{{configurable.history_key}}",
    "{{inputs.history_key}}",
    f"telegram:{{{{{_TELEGRAM}.bot_id}}}}:{{{{{_TELEGRAM}.chat_id}}}}:{{{{{_TELEGRAM}.message_thread_id}}}}",
    f"telegram:{{{{{_TELEGRAM}.bot_id}}}}:{{{{{_TELEGRAM}.chat_id}}}}",
    "wecom_cs:{{results.wecom_cs_sync.open_kf_id}}:{{results.wecom_cs_sync.external_userid}}",
    f"wecom_aibot:{{{{{_AIBOT}.bot_id}}}}:{{{{{_AIBOT}.chat_type}}}}:{{{{{_AIBOT}.chat_id}}}}",
    f"wecom_aibot:{{{{{_AIBOT}.bot_id}}}}:{{{{{_AIBOT}.chat_type}}}}:{{{{{_AIBOT}.user}}}}",
    f"wecom_dm:{{{{{_DIRECT}.corp_id}}}}:{{{{{_DIRECT}.agent_id}}}}:{{{{{_DIRECT}.user}}}}",
    "{{thread_id}}",
)
"""The key of a run's conversation, the first that can be filled in: one that is given, that of the channel, the thread.

Bot or tenant, chat and topic are parts of a channel's key. A chat without a topic has none in its key; in a group of
WeCom's bot the chat counts, alone with it the user.
"""


def _key_template(template: str) -> str:
    check_template(template, for_key=True)
    return template


def _namespace(labels: tuple[str, ...]) -> tuple[str, ...]:
    return GraphLayout(namespace=labels).namespace


def _meta_key_suffix(suffix: str) -> str:
    return GraphLayout(meta_key_suffix=suffix).meta_key_suffix


def _value_field(name: str) -> str:
    return GraphLayout(value_field=name).value_field


def _command(text: str) -> str:
    if not text.strip():
        raise ValueError("A message of blanks is no command; write one, such as /new.")
    return text


type KeyTemplate = Annotated[str, Field(min_length=1), AfterValidator(_key_template)]
type Candidates = Annotated[tuple[KeyTemplate | StrictInt | StrictFloat, ...], Field(max_length=32)]
type Namespace = Annotated[tuple[str, ...], Field(min_length=1, max_length=8), AfterValidator(_namespace)]


class ConversationFields(BaseModel):
    """Where a conversation is, when it is in the graph's store and not the run's session."""

    use_graph_chat_history: bool = Field(False, description="Whether earlier turns are those of the graph's store.")
    history_namespace: Namespace = Field(("agent_chat_history",), description="Where in the store conversations are.")
    history_key_template: KeyTemplate = Field(
        KEY_TEMPLATE, description="The key, made of what the winning candidate gave."
    )
    history_key_candidates: Candidates = Field(
        KEY_CANDIDATES,
        description="What may name the conversation: texts or templates, tried in order; other values are skipped.",
    )
    history_meta_key_suffix: Annotated[str, AfterValidator(_meta_key_suffix)] = Field(
        "__meta__", description="What ends the keys of a conversation's metadata."
    )
    history_chunk_size: int = Field(CHUNK_SIZE, ge=1, le=10_000, description="Messages in one item of the store.")
    history_value_field: Annotated[str, AfterValidator(_value_field)] = Field(
        "content", description="Under which name an item has a message's text."
    )

    @property
    def layout(self) -> GraphLayout:
        """How conversations are laid out in the store."""
        return GraphLayout(
            self.history_namespace, self.history_meta_key_suffix, self.history_chunk_size, self.history_value_field
        )

    def channel_in(self, state: WorkflowState) -> Channel:
        """The channel of a run that gave no key: that of the first candidate whose parser has found anything."""
        results = state.get("results") or {}
        for candidate in self.history_key_candidates:
            if not isinstance(candidate, str):
                continue
            if any(results.get(name) for name in nodes_named(candidate)) and channel_of(candidate) != "other":
                return channel_of(candidate)
        return "other"

    def resolve(self, scope: Mapping[str, object], *, by_hand: bool) -> KeyResolution:
        """The key of a run's conversation; the fields stay as they are, whatever run it is."""
        return resolve_key(self.history_key_candidates, scope, template=self.history_key_template, manual=by_hand)

    def resolve_in(self, state: WorkflowState, context: RunContext, config: RunnableConfig) -> KeyResolution:
        """The same in a run, told where there is no key."""
        resolution = self.resolve(key_scope(state, context, config), by_hand=context.by_hand)
        if resolution.key is None:
            context.resources.observer.notify(
                KeyResolutionFailed(
                    channel=self.channel_in(state),
                    reason=resolution.reason or "empty",
                    candidates=len(self.history_key_candidates),
                    run_id=context.run_id,
                )
            )
        return resolution


class HistoryFields(ConversationFields):
    """Where an agent's history is, and how it begins anew."""

    reset_command: Annotated[str, Field(min_length=1), AfterValidator(_command)] | None = Field(
        None, description="The message that begins the conversation anew; it is not stored."
    )


def key_scope(state: WorkflowState, context: RunContext, config: RunnableConfig) -> dict[str, object]:
    """What the candidates of a run may name.

    The thread is that of the caller, the run's session: a run's own thread is new each time.
    """
    given = {name: value for name, value in config.get("configurable", {}).items() if not name.startswith("__")}
    configurable = {**given, "thread_id": context.session_id}
    return {**scope_of(state), "configurable": configurable, "thread_id": context.session_id}


def is_reset(command: str | None, texts: Iterable[str]) -> bool:
    """Whether what was asked is the command to begin anew, and nothing else."""
    return command is not None and "\n".join(texts).strip() == command.strip()
