"""Options of turns and of the built-in chat, and facts about a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Protocol, Self, cast, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from threadkeep.agent.extras import ExtraSource
from threadkeep.context.manifest import ConversationLocation, WindowKind
from threadkeep.context.plan import ContextPlan
from threadkeep.context.tokens import DEFAULT_WINDOW, TokenCounter, counter_for, input_budget, known_window
from threadkeep.context.window import Limits
from threadkeep.errors import BudgetTooSmall, InvalidInput, InvalidSettings
from threadkeep.history.compression import Compression
from threadkeep.history.session import Session
from threadkeep.records.runs import DoubleTexting

type Scope = Literal["turn", "own", "none"]
type QuestionText = Literal["sent", "received"]
type IdOf = Callable[[RunnableConfig], str | None] | Callable[[RunnableConfig, Runtime[Any]], str | None]
"""A function that returns a session or user id from the run's config and LangGraph's runtime."""
type Limit = int | Literal["auto"] | None

AUTO_MESSAGES: Final = 20
"""The maximum number of earlier messages if no limit is given."""

AUTO_TOKENS: Final = 4_000
"""The token budget of a model call if the model's context window is unknown."""

_MOST_NAME_CHARACTERS: Final = 200

AUTO_SHARED_TOKENS: Final = 16_000
"""The maximum number of tokens that are divided among sections by their shares, even in a larger context window."""


class TurnLearning(Protocol):
    """An interface for learning from a session after each turn; `FactLearning` implements it."""

    def consider(self, session: Session, model: BaseChatModel | None, run_id: str) -> None:
        """Queue a session for learning after a turn, and return at once.

        `model` is the agent's model. The turn's stored messages have the run id `run_id`.
        """
        ...

    def workspace_of(self, session: Session) -> str | None:
        """Return the workspace of a turn in a session. It is stored with the answer, so that any process may learn."""
        ...


@dataclass(frozen=True)
class TurnOptions:
    """Options for reading and writing the session in a turn.

    - `max_messages`: the maximum number of messages of earlier turns.
    - `max_tokens`: the maximum number of tokens of a model call, with the system message and this turn's tool calls.
    - `counter`: the counter of tokens; by default, the best one for the model.
    - `context_window`: the model's context window in tokens; by default, it comes from the model's profile or name.
    - `max_output_tokens`: the maximum number of tokens of the reply.
    - `plan`: the order and the sizes of the sections of a model call, such as summaries and facts.
    - `sources`: find texts that are relevant to an input, such as older turns.
    - `compression`: turns older messages into summaries.
    - `tool_memory`: the number of earlier turns whose tool calls and results an agent with tools sees, as far as they
      fit into their share of the plan; 0 means none.
    - `learning`: proposes facts from human messages in the background after a turn.
    - `session_id`, `user_id`: functions of a run's config, or of the config and LangGraph's runtime.
    - `keep_originals`: True to store the full LangChain message in addition to its text.
    - `answers`: False to store only the question, because the model's reply is an intermediate step.
    - `scope`: `turn` for an agent that takes part in the session, `own` for a separate conversation, or `none`.
    - `question_text`: the stored text of a question: the text after other middleware (`"sent"`, so that redaction
      applies), or the text of the caller (`"received"`, if middleware adds to it).
    - `ordered`: True to execute the turns of a session one after the other in this process.

    If `max_messages` or `max_tokens` is 0, earlier turns are left out; None means no such limit. A further limit is the
    context window minus the tokens of the reply and of the tools. By default (`auto`), `max_tokens` is what the window
    allows, or 4,000 if the window is unknown. By default, `max_messages` is 20, but None if `max_tokens` is given.

    By default, the session is `configurable["thread_id"]` and the user is `configurable["user_id"]`. If they are
    missing, the run's context is used: its `session_id` or `thread_id`, and its `user_id`.
    """

    max_messages: Limit = "auto"
    max_tokens: Limit = "auto"
    counter: TokenCounter | None = None
    session_id: IdOf | None = None
    user_id: IdOf | None = None
    keep_originals: bool = False
    plan: ContextPlan = ContextPlan()
    sources: tuple[ExtraSource, ...] = ()
    compression: Compression | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    answers: bool = True
    scope: Scope = "turn"
    question_text: QuestionText = "sent"
    ordered: bool = True
    tool_memory: int = 1
    learning: TurnLearning | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            InvalidInput: a limit is below zero, or another option has an invalid value.
            BudgetTooSmall: the context window leaves no room for a prompt.
        """
        Limits(self.message_limit, None if self.max_tokens == "auto" else self.max_tokens)
        if self.counter is not None and not callable(self.counter):
            raise InvalidInput("counter is a function of a text, the name of one, or None.")
        for name, function in (("session_id", self.session_id), ("user_id", self.user_id)):
            if function is not None and not callable(function):
                raise InvalidInput(f"{name} is a function of the run's config, or None.")
        if not isinstance(self.plan, ContextPlan):
            raise InvalidInput("plan is a ContextPlan, or None.")
        if not all(callable(getattr(source, "find", None)) for source in self.sources):
            raise InvalidInput("Each of the sources finds a section, as RecalledTurns and RetrievedSnippets do.")
        if self.compression is not None and not isinstance(self.compression, Compression):
            raise InvalidInput("compression is a Compression, or None.")
        if self.scope not in get_args(Scope.__value__):
            raise InvalidInput('scope is "turn", "own" or "none".')
        if self.question_text not in get_args(QuestionText.__value__):
            raise InvalidInput('question_text is "sent" or "received".')
        _check_turns(self.tool_memory)
        if self.context_window is not None:
            input_budget(None, self.max_output_tokens, self.context_window)

    @cached_property
    def message_limit(self) -> int | None:
        """The maximum number of earlier messages in a call; None means no limit."""
        if self.max_messages != "auto":
            return self.max_messages
        return AUTO_MESSAGES if self.max_tokens == "auto" else None

    @cached_property
    def profile(self) -> str | None:
        """The key under which agents with equal limits share the start of history; None for a sliding window."""
        return None if self.plan.window == "sliding" else f"{self.message_limit}/{self.max_tokens}"

    @cached_property
    def no_history(self) -> bool:
        """True if model calls get no earlier turns, because a limit is 0."""
        return self.max_messages == 0 or self.max_tokens == 0


def call_id_function(function: IdOf, config: RunnableConfig, runtime: Runtime[Any]) -> str | None:
    """Call a function that returns an id, with the runtime if it takes a second argument."""
    if _takes_two(function):
        return cast("Callable[[RunnableConfig, Runtime[Any]], str | None]", function)(config, runtime)
    return cast("Callable[[RunnableConfig], str | None]", function)(config)


def _takes_two(function: IdOf) -> bool:
    """Return True if a function takes the runtime as its second argument."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is positional[1].empty or positional[1].name == "runtime")


def _check_turns(turns: object) -> None:
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 0:
        raise InvalidInput("tool_memory is a whole number of turns from 0 (0 means none).")


@dataclass(frozen=True)
class CallSite:
    """The run, node and session to which the model calls of a workflow's node belong.

    The records of the calls are stored with the session or, if `session_id` is None, with the run. Earlier turns come
    from `conversation` (stored outside of the session) if it is set, else from the session. If `transcript` is False,
    earlier turns are not read, and the turn is not stored.
    """

    run_id: str
    node: str
    session_id: str | None = None
    conversation: ConversationLocation | None = None
    transcript: bool = True


@dataclass(frozen=True)
class NodeTurnOptions(TurnOptions):
    """The options of a workflow's node; `site` returns the `CallSite` for a run's config."""

    site: Callable[[RunnableConfig], CallSite | None] | None = None

    @classmethod
    def of(cls, options: TurnOptions, site: Callable[[RunnableConfig], CallSite | None]) -> Self:
        """Return the given options with the function `site` added."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(TurnOptions)}, site=site)


def site_in(options: TurnOptions, config: RunnableConfig) -> CallSite | None:
    """Return the workflow's node to which the model calls of a run belong."""
    return options.site(config) if isinstance(options, NodeTurnOptions) and options.site is not None else None


type Recall = Literal["off", "session", "user"]

LEAST_QUESTION_TOKENS = 32
"""The minimum number of tokens that a system prompt must leave, so that the question is not cut too short."""


@dataclass(frozen=True)
class ChatOptions:
    """Options of the built-in chat agent. `threadkeep.settings` explains each option."""

    system_prompt: str = ""
    max_messages: int = 20
    max_tokens: int = 4000
    model_timeout_seconds: float = 60.0
    window: WindowKind = "anchored"
    context_window: int | None = None
    max_output_tokens: int | None = None
    compression: Compression | None = None
    recall: Recall = "off"
    facts: bool = False
    directives: bool = False
    learning: bool = False
    learning_accept_from: float | None = None
    summary_model: str = ""
    workspace: str | None = None
    double_texting: DoubleTexting = "enqueue"

    def turn_options(self, sources: Sequence[ExtraSource] = ()) -> TurnOptions:
        """Return the options with which each turn reads and writes its session."""
        return TurnOptions(
            max_messages=self.max_messages,
            max_tokens=self.max_tokens,
            plan=ContextPlan(window=self.window),
            sources=tuple(sources),
            compression=self.compression,
            context_window=self.context_window,
            max_output_tokens=self.max_output_tokens,
        )

    def check_room(self, model: BaseChatModel | None = None) -> None:
        """Check that the system prompt leaves tokens for a question.

        Raises:
            InvalidSettings: the system prompt leaves too few tokens; the error names the settings to change.
        """
        facts = facts_of(model, self.context_window)
        room = self._room(facts.name, facts.window)
        prompt = counter_for(facts.name)(self.system_prompt)
        needed = prompt + LEAST_QUESTION_TOKENS
        if prompt and needed > room:
            raise InvalidSettings(
                f"THREADKEEP_SYSTEM_PROMPT has {prompt:,} tokens, and a model call may have {room:,} of a context "
                f"window of {facts.window:,}: shorten it, lower THREADKEEP_MAX_OUTPUT_TOKENS, or set "
                "THREADKEEP_CONTEXT_WINDOW to the real window of the model.",
                variable="THREADKEEP_SYSTEM_PROMPT",
            )
        if prompt and 0 < self.max_tokens < needed:
            variable = "THREADKEEP_HISTORY_MAX_TOKENS"
            raise InvalidSettings(
                f"THREADKEEP_SYSTEM_PROMPT has {prompt:,} tokens, and {variable}={self.max_tokens} limits the "
                f"whole model call: raise it to at least {needed} (4000 more is better), or shorten the prompt.",
                variable=variable,
            )

    def _room(self, name: str | None, window: int) -> int:
        try:
            return input_budget(name, self.max_output_tokens, window)
        except BudgetTooSmall as error:
            numbers = str(error).partition(":")[0]
            raise InvalidSettings(
                f"{numbers}: lower THREADKEEP_MAX_OUTPUT_TOKENS, or set THREADKEEP_CONTEXT_WINDOW to the real "
                "window of the model.",
                variable="THREADKEEP_MAX_OUTPUT_TOKENS" if self.max_output_tokens else "THREADKEEP_CONTEXT_WINDOW",
            ) from None


@dataclass(frozen=True)
class ModelFacts:
    """The names of a model and of its provider, and its context window in tokens (`known` is False for a default)."""

    name: str | None
    window: int
    provider: str | None = None
    known: bool = True


def facts_of(
    model: BaseChatModel | None, override: int | None = None, described: Mapping[str, Any] | None = None
) -> ModelFacts:
    """Return the facts of a model. Its window is `override` or, if this is None, comes from its profile or name.

    `name` is the model name that a LangChain chat model sends to its provider, in a form that can be stored. `provider`
    is the provider that the model reports to tracers. `described` is this report, if the caller has read it already.
    """
    names = [getattr(model, attribute, None) for attribute in ("model_name", "model")]
    name = next(iter([kept_name(one) for one in names if isinstance(one, str) and one]), None)
    profile = getattr(model, "profile", None)
    limit = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    window = known_window(name, override if override is not None else limit)
    # Call a private method, because LangChain has no public method for this. Some models lack it.
    if described is None and (describe := getattr(model, "_get_ls_params", None)) is not None:
        described = describe()
    provider = described.get("ls_provider") if described is not None else None
    return ModelFacts(
        name, window or DEFAULT_WINDOW, provider if isinstance(provider, str) else None, known=window is not None
    )


def kept_name(name: str) -> str:
    """Return a model's name in its stored form: printable, with at most 200 characters."""
    return (name if name.isprintable() else ascii(name))[:_MOST_NAME_CHARACTERS]
