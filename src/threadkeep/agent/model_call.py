"""The stages of a model call: its inputs, the selection, and the messages that are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from langchain_core.messages import BaseMessage, SystemMessage

from threadkeep.agent.extras import Extra
from threadkeep.context.manifest import Entry, Exclusion, ExclusionReason, LeftOut, Section, StablePrefix
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Plan
from threadkeep.records import Summary


@dataclass(frozen=True)
class Call:
    """The inputs of a model call, apart from what its turn recalls.

    `messages` are the run's own, with the `question` (some of them) among them; `budget` is in tokens of `counter`,
    `max_messages` limits what is from earlier turns. `provider` is that of the model. `forgotten` are messages of the
    run from before a reset, `superseded` those that were superseded in the transcript. `question_as_stored` says that
    the transcript has the same words for the question. `shared` is the most tokens that the shares of extras are parts
    of.
    """

    messages: Sequence[BaseMessage]
    question: Sequence[BaseMessage]
    system: SystemMessage | None
    counter: TokenCounter
    budget: int
    max_messages: int | None = None
    forgotten: Sequence[BaseMessage] = ()
    superseded: Sequence[BaseMessage] = ()
    question_as_stored: bool = True
    provider: str | None = None
    shared: int | None = None


class Piece(NamedTuple):
    """A message that may be sent, and the id under which it is stored.

    A `mark` is of the call alone: nobody said it, and it goes with the message before it.
    """

    message: BaseMessage
    section: Section
    id: str | None
    mark: bool = False


@dataclass(frozen=True)
class Draft:
    """A call whose window is chosen: `rooms` are the tokens that each extra which is still to be found may take.

    `unsendable` are those of its messages that no provider takes, `summaries` those that are sent.
    """

    call: Call
    pieces: tuple[Piece, ...]
    chosen: Plan
    unsendable: Sequence[tuple[BaseMessage, ExclusionReason]] = ()
    rooms: Mapping[Section, int] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()
    summaries: tuple[Summary, ...] = ()

    @property
    def kept_ids(self) -> frozenset[str]:
        """The stored ids of what is in already."""
        ids = (self.pieces[index].id for index in self.chosen.kept)
        return frozenset(found for found in ids if found is not None)


@dataclass(frozen=True)
class Assembled:
    """The messages that a model call is sent, with the reasons; `texts` are those that the entries name by digest.

    `begin_seq` is where the window begins from now on, None where that is as before. `marks` is the number of
    messages that nobody said.
    """

    system: SystemMessage | None
    messages: tuple[BaseMessage, ...]
    entries: tuple[Entry, ...]
    excluded: tuple[Exclusion, ...]
    left_out: tuple[LeftOut, ...]
    dropped: int
    prefix: StablePrefix
    digest: str
    begin_seq: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    marks: int = 0

    @property
    def tokens(self) -> int:
        """All that is sent, by the counter."""
        return sum(entry.tokens for entry in self.entries)
