"""How a turn reads and writes its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

from langchain_core.runnables import RunnableConfig

from threadkeep.context.budget import input_budget
from threadkeep.context.manifest import ConversationPlace
from threadkeep.context.plan import ContextPlan
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.window import Limits
from threadkeep.errors import InvalidInput
from threadkeep.history.compression import Compression
from threadkeep.workflow.extras import ExtraSource

type IdOf = Callable[[RunnableConfig], str | None]


@dataclass(frozen=True)
class TurnOptions:
    """How a turn reads and writes its session.

    `max_messages` limits what comes from earlier turns; `max_tokens` bounds everything that a model call is sent, the
    system message and this turn's tool calls included, by `counter`; 0 for either leaves earlier turns out. The model's
    own context window bounds it as well, less the reply (`max_output_tokens`) and the tools; `context_window` is that
    window, by default what the model's profile or its name says. Without a `counter` it is the best one for the model.

    `plan` lays the sections out. `sources` find what else bears on an input: older turns, passages of a knowledge base.
    With `compression` older messages become summaries.

    `session_id` and `user_id` find their values in a run's config; by default the session is
    `configurable["thread_id"]` and the user `configurable["user_id"]`. `keep_originals` stores the full LangChain
    message beside its text. Without `answers` the question is stored and what the model says is not: it is a step on
    the way to the answer.
    """

    max_messages: int | None = 20
    max_tokens: int | None = 4000
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

    def __post_init__(self) -> None:
        """Refuse what no turn could be read with, before anybody has said anything.

        Raises:
            InvalidInput: a limit is below zero, or an option is not of its kind.
            BudgetTooSmall: the window leaves no room for a prompt; names the three numbers.
        """
        Limits(self.max_messages, self.max_tokens)
        if self.counter is not None and not callable(self.counter):
            raise InvalidInput("counter is a function of a text, the name of one, or None.")
        if not isinstance(self.plan, ContextPlan):
            raise InvalidInput("plan is a ContextPlan, or None.")
        if not all(callable(getattr(source, "find", None)) for source in self.sources):
            raise InvalidInput("Each of the sources finds a section, as RecalledTurns and RetrievedSnippets do.")
        if self.compression is not None and not isinstance(self.compression, Compression):
            raise InvalidInput("compression is a Compression, or None.")
        if self.context_window is not None:
            input_budget(None, self.max_output_tokens, self.context_window)

    @property
    def no_history(self) -> bool:
        """Whether earlier turns are left out."""
        return self.max_messages == 0 or self.max_tokens == 0


@dataclass(frozen=True)
class CallPlace:
    """Whose the model calls of a workflow's node are.

    The records of them are kept under `run_id`, with the session `session_id`, or with the run if that is None. Earlier
    turns are the session's, or those of a `conversation` elsewhere; without a `transcript` there are none, and nothing
    that is said in the turn is kept in one.
    """

    run_id: str
    node: str
    session_id: str | None = None
    conversation: ConversationPlace | None = None
    transcript: bool = True


@dataclass(frozen=True)
class NodeTurnOptions(TurnOptions):
    """The options of a workflow's node; `place` finds whose the calls of a run are."""

    place: Callable[[RunnableConfig], CallPlace | None] | None = None

    @classmethod
    def of(cls, options: TurnOptions, place: Callable[[RunnableConfig], CallPlace | None]) -> Self:
        """Options with a place."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(TurnOptions)}, place=place)


def place_in(options: TurnOptions, config: RunnableConfig) -> CallPlace | None:
    """Whose the model calls of a run are; None where they are simply those of its session."""
    return options.place(config) if isinstance(options, NodeTurnOptions) and options.place is not None else None
