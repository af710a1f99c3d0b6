"""Fields for chat history in the graph's store: whether it is used, its location and its key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from langchain_core.runnables import RunnableConfig
from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt

from threadkeep.graph_store.layout import CHUNK_SIZE, GraphLayout
from threadkeep.history.keys import KEY_CANDIDATES, KEY_TEMPLATE, KeyResolution, channel_of, resolve_key
from threadkeep.observe import Channel, KeyResolutionFailed
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState
from threadkeep.workflows.templates import check_template, nodes_named, scope_of


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
    """The location of a conversation in the graph's store, used instead of the run's session."""

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
        """The layout of conversations in the store."""
        return GraphLayout(
            self.history_namespace, self.history_meta_key_suffix, self.history_chunk_size, self.history_value_field
        )

    def channel_in(self, state: WorkflowState) -> Channel:
        """Return the channel of a run without a key: that of the first candidate whose parser has found a value."""
        results = state.get("results") or {}
        for candidate in self.history_key_candidates:
            if not isinstance(candidate, str):
                continue
            if any(results.get(name) for name in nodes_named(candidate)) and channel_of(candidate) != "other":
                return channel_of(candidate)
        return "other"

    def resolve(self, scope: Mapping[str, object], *, by_hand: bool) -> KeyResolution:
        """Resolve the key of a run's conversation; the fields do not change."""
        return resolve_key(self.history_key_candidates, scope, template=self.history_key_template, manual=by_hand)

    def resolve_in(self, state: WorkflowState, context: RunContext, config: RunnableConfig) -> KeyResolution:
        """Resolve the key within a run, and emit an event if there is none."""
        resolution = self.resolve(key_scope(state, context.session_id, config), by_hand=context.by_hand)
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
    """The location of an agent's history, and its reset commands."""

    reset_command: Annotated[str, Field(min_length=1), AfterValidator(_command)] | None = Field(
        None, description="The message that begins the conversation anew; it is not stored."
    )


def key_scope(state: WorkflowState, session_id: str | None, config: RunnableConfig) -> dict[str, object]:
    """Return the values that the candidates of a run may name.

    The thread is the caller's, which is the run's session: a run's own thread is new each time.
    """
    given = {name: value for name, value in config.get("configurable", {}).items() if not name.startswith("__")}
    configurable = {**given, "thread_id": session_id}
    return {**scope_of(state), "configurable": configurable, "thread_id": session_id}


def is_reset(command: str | None, texts: Iterable[str]) -> bool:
    """Return True if the message is exactly a reset command."""
    return command is not None and "\n".join(texts).strip() == command.strip()
