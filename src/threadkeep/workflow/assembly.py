"""The context of one model call: sections laid out within the budget, with an entry that explains each message.

`Assembler` serves one turn. What was read for it once (earlier turns, summaries, what is quoted) is the same at all of
its model calls, so that they share their leading messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from langchain_core.messages import BaseMessage, SystemMessage

from threadkeep.context.manifest import Entry, Section, Source, StablePrefix
from threadkeep.context.plan import ContextPlan
from threadkeep.context.quoted_blocks import fitting_summaries, summary_message_text
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Anchor, Item, Plan, Size, plan
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message, Summary
from threadkeep.workflow.conversion import id_of, to_langchain
from threadkeep.workflow.counting import count_message
from threadkeep.workflow.left_out import dropped, exclusions
from threadkeep.workflow.model_call import Assembled, Call, Draft, Extra, Piece
from threadkeep.workflow.quoted_turns import section_message
from threadkeep.workflow.sendable_messages import Repaired, merge, plain, repair
from threadkeep.workflow.sent_messages import digest_of, digests_of, dump_message, is_plain, merged_system
from threadkeep.workflow.trimming import items_of, shortened, size_of


class Assembler:
    """Builds the contexts of one turn."""

    def __init__(self, recollection: Recollection, layout: ContextPlan) -> None:
        self._recollection = recollection
        self._layout = layout
        self._earlier = [to_langchain(message) for message in recollection.messages]
        self._rows = {id(sent): row for sent, row in zip(self._earlier, recollection.messages, strict=True)}
        self._rows_by_id: dict[str | None, Message] = {row.id: row for row in recollection.messages if row.id}
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
        fixed = sum(self._size(call, piece).tokens for piece in pieces if piece.section != "window")
        rooms = self._layout.rooms(call.budget, fixed, wanted)
        reserved = sum(rooms.values()) + sum(extra.entry.tokens for extra in extras)
        with suppress(BudgetTooSmall):
            chosen = self._plan(call, pieces, call.budget - reserved)
            if not (reserved and _turn_suffers(chosen, pieces)):
                return Draft(call, pieces, chosen, repaired.dropped, rooms, tuple(extras), shown)
        with suppress(BudgetTooSmall):
            return Draft(call, pieces, self._plan(call, pieces, call.budget), repaired.dropped, summaries=shown)
        pieces = tuple(piece for piece in pieces if piece.section != "summary")
        return Draft(call, pieces, self._plan(call, pieces, call.budget), repaired.dropped)

    def build(self, draft: Draft) -> Assembled:
        """Lay out what was chosen, with the extras of the draft in their places."""
        pieces, chosen = draft.pieces, draft.chosen
        if chosen.cut_back and self._layout.window == "anchored" and chosen.begin < len(pieces):
            self._begin_id = pieces[chosen.begin].id
        texts: dict[str, str] = {}
        sent = [self._sent(draft, pieces[index], chosen.cuts.get(index), texts) for index in chosen.kept]
        inputs = [place for place, (_, entry) in enumerate(sent) if entry.section == "input"]
        stable = inputs[0] if inputs else len(sent)
        if inputs:
            sent[inputs[-1] + 1 : inputs[-1] + 1] = _ordered(draft.extras, self._layout.extras_after_input)
            sent[stable:stable] = _ordered(draft.extras, self._layout.extras_before_input)
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
        )

    def _repaired(self, call: Call) -> Repaired:
        """Earlier turns and the run's own messages as one talk that a provider takes."""
        talk = [message for message in call.messages if not isinstance(message, SystemMessage)]
        return repair(merge(self._earlier, talk))

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
        everything = [(message, id_of(message)) for message in plain(talk, call.provider)]
        asked = any(message_id in question for _, message_id in everything)
        for message, message_id in everything:
            if asked and message_id in question:
                section = "input"
            elif section == "input" or not (asked or message_id in self._rows_by_id):
                section = "steps"
            yield Piece(message, section, message_id)

    def _plan(self, call: Call, pieces: Sequence[Piece], budget: int) -> Plan:
        items = items_of([piece.message for piece in pieces])
        for index, piece in enumerate(pieces):
            if piece.section in ("system", "summary"):
                items[index] = Item("system")
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
        if piece.section == "summary":
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
        if cut_to is not None:
            message = shortened(message, cut_to, call.counter)
            after = count_message(message, call.counter)
            entry = replace(entry, tokens=after, tokens_before=size, source="text")
        if piece.section == "summary":
            entry = self._summary_entry(entry, draft)
        if entry.source == "text":
            body = dump_message(message)
            digest = digest_of(body)
            entry = replace(entry, digest=digest)
            texts[digest] = body
        return message, entry

    def _summary_entry(self, entry: Entry, draft: Draft) -> Entry:
        """Which summaries a message holds: whole as they are kept, or the only one cut."""
        entry = replace(entry, summaries=tuple(summary.id for summary in draft.summaries), source="summaries")
        whole = self._recollection.summaries[-1]
        if draft.summaries[-1].text == whole.text:
            return entry
        before = draft.call.counter(summary_message_text([whole]))
        return replace(entry, source="text", tokens_before=before)

    def _source(self, call: Call, piece: Piece) -> Source:
        """Where the text of a message is found again."""
        message = piece.message
        if (read := self._rows.get(id(message))) is not None:
            return "text" if read.seq in self._recollection.folded else "transcript"
        row = self._rows_by_id.get(piece.id)
        if piece.section == "input":
            stored = call.question_as_stored
        else:
            stored = row is not None and row.content == message.content
        return "transcript" if stored and is_plain(message) and message.id == piece.id else "text"

    def _seq(self, call: Call, piece: Piece) -> int | None:
        if (row := self._rows_by_id.get(piece.id)) is not None:
            return row.seq
        first = self._recollection.end
        if piece.section != "input" or first is None:
            return None
        asked = [id_of(message) for message in call.question[-self._recollection.questions :]]
        return first + asked.index(piece.id) if piece.id in asked else None

    def _new_begin(self, draft: Draft) -> int | None:
        """Where the window begins from the next turn on; None if that is as before."""
        if self._layout.window == "sliding" or not draft.chosen.lasting:
            return None
        rows = (self._rows_by_id.get(piece.id) for piece in draft.pieces[draft.chosen.begin :])
        found = next((row.seq for row in rows if row is not None and row.seq), None)
        return found or self._recollection.end


def _turn_suffers(chosen: Plan, pieces: Sequence[Piece]) -> bool:
    """Whether something of the turn itself is cut or left out."""
    suffering = [*chosen.cuts, *(index for index, _ in chosen.excluded)]
    return any(pieces[index].section in ("input", "steps") for index in suffering)


def _ordered(extras: Sequence[Extra], order: Sequence[Section]) -> list[tuple[BaseMessage, Entry]]:
    found = {extra.entry.section: extra for extra in extras}
    return [(found[section].message, found[section].entry) for section in order if section in found]
