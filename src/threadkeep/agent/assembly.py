"""The context of one model call: sections laid out within the budget, with an entry that explains each message.

`Assembler` serves one turn. What was read for it once (earlier turns, summaries, what is quoted) is the same at all of
its model calls, so that they share their leading messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.agent.conversion import (
    digest_of,
    digests_of,
    dump_message,
    id_of,
    is_plain,
    is_stored_as,
    to_langchain,
)
from threadkeep.agent.counting import count_message
from threadkeep.agent.earlier_steps import EarlierSteps
from threadkeep.agent.exclusions import dropped, exclusions
from threadkeep.agent.extras import Extra
from threadkeep.agent.model_call import Assembled, Call, Draft, Piece
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING, Repaired, merge, merged_system, plain, repair
from threadkeep.agent.quoted_sections import section_message
from threadkeep.agent.shortening import items_of, shortened, size_of
from threadkeep.context.manifest import Entry, Section, Source, StablePrefix
from threadkeep.context.plan import ContextPlan
from threadkeep.context.quotation import fitting_summaries, summary_message_text
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Anchor, Item, Plan, Size, plan
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message, Summary

_NEWEST: Final = 8
"""The messages that the window has room for, as long as they need no more than half of the budget."""
_YIELDING: Final[tuple[Section, ...]] = ("window", "earlier_steps")


class Assembler:
    """Builds the contexts of one turn."""

    def __init__(
        self, recollection: Recollection, layout: ContextPlan, earlier_steps: EarlierSteps | None = None
    ) -> None:
        self._recollection = recollection
        self._layout = layout
        steps = earlier_steps or EarlierSteps()
        self._cut_steps = steps.tokens_before
        self._steps = {id(message) for messages in steps.messages.values() for message in messages}
        self._earlier: list[BaseMessage] = []
        self._rows: dict[int, Message] = {}
        for row in recollection.messages:
            self._earlier += [sent := to_langchain(row), *steps.messages.get(row.seq or 0, ())]
            self._rows[id(sent)] = row
        self._rows_by_id: dict[str | None, Message] = {row.id: row for row in recollection.messages if row.id}
        self._spoken = {row.run_id for row in recollection.messages if row.role == "assistant"}
        self._no_answer, self._opening = AIMessage(NO_ANSWER), HumanMessage(OPENING)
        self._sizes: dict[int, tuple[BaseMessage, TokenCounter, Size]] = {}
        self._begin_id: str | None = None
        self._shown: tuple[int, TokenCounter, tuple[Summary, ...]] | None = None

    def draft(self, call: Call, wanted: Sequence[Section] = (), extras: Sequence[Extra] = ()) -> Draft:
        """Choose the window; `wanted` are the extras that are still to be found, `extras` those that were.

        Raises:
            BudgetTooSmall: the system message is over the budget, or it with the newest user message and the newest
                step of the turn, both cut as short as can be.
        """
        repaired = self._repaired(call)
        shown = self._summaries_for(call)
        pieces = tuple(self._pieces(call, repaired.messages, shown))
        fixed = sum(self._size(call, piece).tokens for piece in pieces if piece.section not in _YIELDING)
        newest = [piece for piece in pieces if piece.section == "window"][-_NEWEST:] if wanted else []
        newest_tokens = sum(self._size(call, piece).tokens for piece in newest)
        rooms = self._layout.rooms(call.budget, fixed, wanted, shared=call.shared, newest=newest_tokens)
        reserved = sum(rooms.values()) + sum(extra.entry.tokens for extra in extras)
        if (draft := self._whole_talk(call, pieces, rooms, reserved)) is not None:
            return replace(draft, unsendable=repaired.dropped, extras=tuple(extras), summaries=shown)
        with suppress(BudgetTooSmall):
            chosen = self._plan(call, pieces, call.budget - reserved)
            if not (reserved and _turn_suffers(chosen, pieces)):
                return Draft(call, pieces, chosen, repaired.dropped, rooms, tuple(extras), shown)
        with suppress(BudgetTooSmall):
            return Draft(call, pieces, self._plan(call, pieces, call.budget), repaired.dropped, summaries=shown)
        pieces = tuple(piece for piece in pieces if piece.section != "summary")
        return Draft(call, pieces, self._plan(call, pieces, call.budget), repaired.dropped)

    def _whole_talk(
        self, call: Call, pieces: tuple[Piece, ...], rooms: Mapping[Section, int], reserved: int
    ) -> Draft | None:
        """Return a draft in which older turns have only the room that is left; None if a part of the talk has none."""
        recalled = rooms.get("selected", 0)
        if not recalled or self._recollection.begin or self._recollection.dropped or self._recollection.overflowing:
            return None
        with suppress(BudgetTooSmall):
            chosen = self._plan(call, pieces, call.budget - reserved + recalled)
            if not (chosen.excluded or chosen.cuts):
                left = call.budget - reserved + recalled - chosen.tokens
                return Draft(call, pieces, chosen, rooms={**rooms, "selected": min(recalled, left)})
        return None

    def build(self, draft: Draft) -> Assembled:
        """Lay out what was chosen, with the extras of the draft in their places."""
        pieces, chosen = draft.pieces, draft.chosen
        if chosen.cut_back and self._layout.window == "anchored" and chosen.begin < len(pieces):
            self._begin_id = pieces[chosen.begin].id
        texts: dict[str, str] = {}
        sent = [self._sent(draft, pieces[index], chosen.cuts.get(index), texts) for index in chosen.kept]
        if chosen.opened:
            first = sum(entry.section == "system" for _, entry in sent)
            opening = Piece(self._opening, sent[first][1].section, None, mark=True)
            sent.insert(first, self._sent(draft, opening, None, texts))
        inputs = [place for place, (_, entry) in enumerate(sent) if entry.section == "input"]
        stable = inputs[0] if inputs else len(sent)
        if inputs:
            sent[inputs[-1] + 1 : inputs[-1] + 1] = _ordered(draft.extras, self._layout.extras_after_input)
            sent[stable:stable] = _ordered(draft.extras, self._layout.extras_before_input)
            front = sum(entry.section in ("system", "summary") for _, entry in sent)
            in_front = _ordered(draft.extras, self._layout.extras_before_window)
            sent[front:front] = in_front
            stable += len(in_front)
            texts |= {digest: text for extra in draft.extras for digest, text in extra.texts.items()}
        messages = [message for message, _ in sent]
        system = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        beginning, digest = digests_of([(message, texts.get(entry.digest or "")) for message, entry in sent], stable)
        excluded, left_out = exclusions(draft, self._rows_by_id, self._recollection)
        return Assembled(
            system=system,
            messages=tuple(messages if system is None else messages[1:]),
            entries=tuple(entry for _, entry in sent),
            excluded=excluded,
            left_out=left_out,
            dropped=dropped(draft, self._rows_by_id, self._recollection),
            prefix=StablePrefix(stable, sum(entry.tokens for _, entry in sent[:stable]), beginning),
            digest=digest,
            begin_seq=self._new_begin(draft),
            texts=texts,
            marks=chosen.opened + sum(pieces[index].mark for index in chosen.kept),
        )

    def _repaired(self, call: Call) -> Repaired:
        """Earlier turns and the run's own messages as one talk that a provider takes."""
        talk = [message for message in call.messages if not isinstance(message, SystemMessage)]
        return repair(plain(merge(self._earlier, talk), call.provider))

    def _summaries_for(self, call: Call) -> tuple[Summary, ...]:
        """The summaries that have room in a call of this size."""
        most, counter = self._layout.most("summary", call.budget), call.counter
        # Calls of one run are mostly of one size; a counter may be any callable, so it is known by what it is.
        if self._shown is None or self._shown[0] != most or self._shown[1] is not counter:
            self._shown = (most, counter, fitting_summaries(self._recollection.summaries, most, counter))
        return self._shown[2]

    def _pieces(self, call: Call, talk: Sequence[BaseMessage], summaries: Sequence[Summary]) -> Iterator[Piece]:
        """All that may be sent, in order: the system message and the summary first."""
        systems = [message for message in call.messages if isinstance(message, SystemMessage)]
        if system := merged_system([*([call.system] if call.system else []), *systems]):
            yield Piece(system, "system", id_of(system))
        if summaries:
            yield Piece(section_message("summary", summary_message_text(summaries)), "summary", None)
        question = {id_of(message) for message in call.question}
        section: Section = "window"
        everything = [(message, id_of(message)) for message in talk]
        asked = any(message_id in question for _, message_id in everything)
        unanswered: Piece | None = None
        for message, message_id in everything:
            if asked and message_id in question:
                section = "input"
            elif section == "input" or not (asked or message_id in self._rows_by_id):
                section = "steps"
            if unanswered is not None and message.type == "human" and self._is_unanswered(unanswered, message_id):
                yield Piece(self._no_answer, unanswered.section, None, mark=True)
            earlier = section == "window" and id(message) in self._steps
            piece = Piece(message, "earlier_steps" if earlier else section, message_id)
            if not earlier:
                unanswered = piece if message.type == "human" else None
            yield piece

    def _is_unanswered(self, asked: Piece, next_id: str | None) -> bool:
        """Return whether a question has no answer: the next question follows, and its run said nothing."""
        row, following = self._rows_by_id.get(asked.id), self._rows_by_id.get(next_id)
        if row is None or row.role != "user" or row.run_id is None or row.run_id in self._spoken:
            return False
        return following is None or following.run_id != row.run_id

    def _plan(self, call: Call, pieces: Sequence[Piece], budget: int) -> Plan:
        items = items_of([piece.message for piece in pieces])
        for index, piece in enumerate(pieces):
            if piece.section in ("system", "summary"):
                items[index] = Item("system")
            elif piece.mark:
                before = items[index - 1].group
                items[index] = Item("assistant", group=index - 1 if before is None else before)
        summarised = any(piece.section == "summary" for piece in pieces)
        sizes: list[Size | None] = [None] * len(pieces)

        def measure(index: int) -> Size:
            if (size := sizes[index]) is None:
                size = sizes[index] = self._size(call, pieces[index])
            return size

        return plan(
            items,
            measure,
            budget,
            max_messages=call.max_messages,
            turn=next((index for index, piece in enumerate(pieces) if piece.section == "input"), None),
            anchor=self._anchor(pieces),
            opening=0 if summarised else self._size(call, Piece(self._opening, "window", None, mark=True)).tokens,
        )

    def _anchor(self, pieces: Sequence[Piece]) -> Anchor:
        held = self._begin_id is not None
        begin = 0
        if held:
            begin = next((i for i, piece in enumerate(pieces) if piece.id == self._begin_id), 0)
        elif self._recollection.begin:
            # What the state has from before the first message that was read is before the anchor, or summarised.
            known = (i for i, piece in enumerate(pieces) if piece.section != "window" or piece.id in self._rows_by_id)
            begin = next((i for i in known if pieces[i].section not in ("system", "summary")), len(pieces))
        if self._layout.window == "sliding":
            return Anchor(begin)
        return Anchor(
            begin,
            set=held or self._recollection.begun,
            overflowing=self._recollection.overflowing and not held,
            fraction=self._layout.step,
        )

    def _size(self, call: Call, piece: Piece) -> Size:
        message = piece.message
        known = self._sizes.get(id(message))
        if known is not None and known[1] is call.counter:
            return known[2]
        if piece.section == "summary" or piece.mark:
            tokens = count_message(message, call.counter)
            size = Size(tokens, tokens)
        else:
            size = size_of(message, call.counter)
        # The message is kept beside its size: while it lives, nothing else has its identity.
        self._sizes[id(message)] = (message, call.counter, size)
        return size

    def _sent(self, draft: Draft, piece: Piece, cut_to: int | None, texts: dict[str, str]) -> tuple[BaseMessage, Entry]:
        """A message as it is sent, and its entry; what no transcript has is put among the texts."""
        call = draft.call
        message, size = piece.message, self._size(call, piece).tokens
        entry = Entry(piece.section, size, self._source(call, piece), seq=self._seq(call, piece), id=piece.id)
        before = self._cut_steps.get(id(message))
        if before is not None:
            entry = replace(entry, tokens_before=before)
        if cut_to is not None:
            message = shortened(message, cut_to, call.counter)
            after = count_message(message, call.counter)
            entry = replace(entry, tokens=after, tokens_before=before or size, source="text")
        if piece.section == "summary":
            entry = self._summary_entry(entry, draft)
        if entry.source == "text":
            body = dump_message(message)
            digest = digest_of(body)
            entry = replace(entry, digest=digest)
            texts[digest] = body
        return message, entry

    def _summary_entry(self, entry: Entry, draft: Draft) -> Entry:
        """Return the summaries that a message holds: whole ones, or a single one that was cut."""
        entry = replace(entry, summaries=tuple(summary.id for summary in draft.summaries), source="summaries")
        whole = self._recollection.summaries[-1]
        if draft.summaries[-1].text == whole.text:
            return entry
        before = draft.call.counter(summary_message_text([whole]))
        return replace(entry, source="text", tokens_before=before)

    def _source(self, call: Call, piece: Piece) -> Source:
        """Return the source of a message's text."""
        message = piece.message
        if (read := self._rows.get(id(message))) is not None:
            return "text" if read.seq in self._recollection.folded else "transcript"
        row = self._rows_by_id.get(piece.id)
        if piece.section == "input":
            stored = call.question_as_stored and is_plain(message) and message.id == piece.id
        else:
            stored = row is not None and is_stored_as(row, message)
        return "transcript" if stored else "text"

    def _seq(self, call: Call, piece: Piece) -> int | None:
        if (row := self._rows_by_id.get(piece.id)) is not None:
            return row.seq
        first = self._recollection.end
        if piece.section != "input" or first is None:
            return None
        asked = [id_of(message) for message in call.question[-self._recollection.questions :]]
        return first + asked.index(piece.id) if piece.id in asked else None

    def _new_begin(self, draft: Draft) -> int | None:
        """Return the seq where the window begins from the next turn on; None if it is unchanged."""
        if self._layout.window == "sliding" or not draft.chosen.lasting:
            return None
        rows = (self._rows_by_id.get(piece.id) for piece in draft.pieces[draft.chosen.begin :])
        found = next((row.seq for row in rows if row is not None and row.seq), None)
        return found or self._recollection.end


def _turn_suffers(chosen: Plan, pieces: Sequence[Piece]) -> bool:
    """Return whether a part of the turn itself is cut or left out."""
    suffering = [*chosen.cuts, *(index for index, _ in chosen.excluded)]
    return any(pieces[index].section in ("input", "steps") for index in suffering)


def _ordered(extras: Sequence[Extra], order: Sequence[Section]) -> list[tuple[BaseMessage, Entry]]:
    found = {extra.entry.section: extra for extra in extras}
    return [(found[section].message, found[section].entry) for section in order if section in found]
