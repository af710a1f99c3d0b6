"""Builds the context of a model call: the messages that fit the token budget, and the entries of its record (manifest).

Earlier turns, summaries and quotes are read once per turn, so that all its model calls begin with the same messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.agent.conversion import (
    add_to_digest,
    digest_of,
    dump_message,
    id_of,
    is_only_text,
    is_plain,
    is_stored_as,
)
from threadkeep.agent.counting import count_message
from threadkeep.agent.earlier_steps import EarlierSteps
from threadkeep.agent.extras import Extra, section_message
from threadkeep.agent.model_call import Assembled, Call, Draft, KeptWindow, Piece, exclusions
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING, mark_between, merge, merged_system, plain, repair
from threadkeep.agent.shortening import items_of, shortened, size_of
from threadkeep.context.manifest import Entry, Section, Source, StablePrefix
from threadkeep.context.plan import ContextPlan
from threadkeep.context.quotation import fitting_summaries, summary_message_text
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Anchor, Item, Plan, Size, plan
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message, Summary

type _Sent = tuple[BaseMessage, Entry]

_NEWEST: Final = 8
"""The number of newest messages that get tokens even if they exceed the window's share of the budget."""
_YIELDING: Final[tuple[Section, ...]] = ("window", "earlier_steps")
_PINNED: Final[tuple[Section, ...]] = ("system", "summary")


class Assembler:
    """A builder of the messages for a turn's model calls. `kept` is the window that an earlier turn cached, if any."""

    def __init__(
        self,
        recollection: Recollection,
        layout: ContextPlan,
        counter: TokenCounter,
        steps: EarlierSteps | None = None,
        kept: object = None,
    ) -> None:
        self._recollection = recollection
        self._layout = layout
        self._earlier_steps = steps or EarlierSteps()
        self._steps = {id(message) for messages in self._earlier_steps.messages.values() for message in messages}
        self.window = kept if isinstance(kept, KeptWindow) and kept.counter == counter else KeptWindow(counter)
        if not self.window.extend(recollection.messages):
            self.window = KeptWindow(counter)
            self.window.extend(recollection.messages)
        self._count = len(recollection.messages)
        # The number of messages before the first question that tool calls and results follow.
        self._before_steps = self._count
        if steps is not None and steps.messages:
            found = (index for index, row in enumerate(recollection.messages) if row.seq in steps.messages)
            self._before_steps = next(found, self._count)
        # Copy the mapping, because later turns add their messages to the cache.
        self._rows_by_id = dict(self.window.rows_by_id)
        self._sizes: dict[int, tuple[BaseMessage, TokenCounter, Size]] = {}
        self._begin_id: str | None = None
        self._shown: tuple[int, TokenCounter, tuple[Summary, ...]] | None = None

    def draft(self, call: Call, wanted: Sequence[Section] = (), extras: Sequence[Extra] = ()) -> Draft:
        """Choose messages to send. Reserve tokens for the `extras` (facts, quotes) and for the `wanted` sections.

        Raises:
            BudgetTooSmall: the system message exceeds the budget, alone or together with the newest user message and
                the turn's newest tool call with its results, all in their shortest form.
        """
        dialogue = [message for message in call.messages if not isinstance(message, SystemMessage)]
        if (window := self._unchanged(call, dialogue)) is not None:
            # If all messages fit into the token budget, choose them all.
            rest = merge(self._earlier[window:], dialogue) if window < self._count else dialogue
            draft = self._drafted(call, rest, wanted, extras, window=window)
            tokens = self.window.sums[draft.window]
            tokens += sum([count_message(piece.message, call.counter) for piece in draft.pieces])
            left = call.budget - draft.reserved - tokens
            recalled = self._unused_quote_tokens(draft)
            if left + recalled >= 0:
                if recalled:
                    draft.rooms = {**draft.rooms, "selected": min(recalled, left + recalled)}
                draft.chosen = Plan(tuple(range(len(draft.pieces))), tokens)
                return draft
        return self._chosen(self._drafted(call, merge(self._earlier, dialogue), wanted, extras))

    def included_ids(self, draft: Draft) -> set[str]:
        """Return the ids of the stored messages that were chosen for a model call (`draft`)."""
        ids = {found for index in draft.chosen.kept if (found := draft.pieces[index].id) is not None}
        return ids.union(row.id for row in self._recollection.messages[: draft.window] if row.id)

    def build(self, draft: Draft) -> Assembled:
        """Return the messages to send: the chosen ones, with the extras (facts, passages, quotes) in their places."""
        pieces, chosen = draft.pieces, draft.chosen
        moved = chosen.cut_back and self._layout.window == "anchored"
        # Let history begin here in the turn's later calls too, so that they do not send turns that this call quotes.
        quoted = not draft.window and any(extra.entry.section == "selected" for extra in draft.extras)
        if (moved or quoted) and chosen.begin < len(pieces):
            self._begin_id = pieces[chosen.begin].id
        texts: dict[str, str] = {}
        sent = [self._sent(draft, pieces[index], chosen.cuts.get(index), texts) for index in chosen.kept]
        if chosen.opened:
            first = sum(entry.section == "system" for _, entry in sent)
            opening = Piece(HumanMessage(OPENING), sent[first][1].section, None, mark=True)
            sent.insert(first, self._sent(draft, opening, None, texts))
        head = [each for each in sent if each[1].section in _PINNED]
        tail = sent[len(head) :]
        inputs = [index for index, (_, entry) in enumerate(tail) if entry.section == "input"]
        stable = inputs[0] if inputs else len(tail)
        if inputs and draft.extras:
            tail[inputs[-1] + 1 : inputs[-1] + 1] = _ordered(draft.extras, self._layout.extras_after_input)
            tail[stable:stable] = _ordered(draft.extras, self._layout.extras_before_input)
            head += _ordered(draft.extras, self._layout.extras_before_window)
            texts |= {digest: text for extra in draft.extras for digest, text in extra.texts.items()}
        return self._assembled(draft, head, tail, stable, texts)

    def _assembled(
        self, draft: Draft, head: list[_Sent], tail: list[_Sent], stable: int, texts: Mapping[str, str]
    ) -> Assembled:
        """Join `head`, cached messages and `tail`. Later calls also begin with the messages before `tail[stable]`."""
        count, pieces = draft.window, draft.pieces
        messages = [*[each[0] for each in head], *self.window.messages[:count], *[each[0] for each in tail]]
        entries = (*[each[1] for each in head], *self.window.entries[:count], *[each[1] for each in tail])
        digest = sha256()
        for message, entry in head:
            add_to_digest(digest, message, texts.get(entry.digest or ""))
        if count:
            digest = self.window.digest(digest, count)
        tokens = stable_tokens = sum([entry.tokens for _, entry in head]) + self.window.sums[count]
        beginning = digest.copy()
        for number, (message, entry) in enumerate(tail, start=1):
            add_to_digest(digest, message, texts.get(entry.digest or ""))
            tokens += entry.tokens
            if number == stable:
                beginning, stable_tokens = digest.copy(), tokens
        others = [message for message, _ in (*head, *tail) if type(message.content) is not str]
        system = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        excluded, left_out, dropped = exclusions(draft, self._rows_by_id, self._recollection)
        begin_seq = None
        if self._layout.window != "sliding" and draft.chosen.lasting:
            rows = (self._rows_by_id.get(piece.id) for piece in pieces[draft.chosen.begin :])
            begin_seq = next((row.seq for row in rows if row is not None and row.seq), None) or self._recollection.end
        return Assembled(
            system=system,
            messages=tuple(messages if system is None else messages[1:]),
            entries=entries,
            tokens=tokens,
            excluded=excluded,
            left_out=left_out,
            dropped=dropped,
            prefix=StablePrefix(len(head) + count + stable, stable_tokens, beginning.hexdigest()),
            digest=digest.hexdigest(),
            begin_seq=begin_seq,
            texts=texts,
            marks=draft.chosen.opened + sum([pieces[index].mark for index in draft.chosen.kept]),
            texts_only=not [one for one in others if count_message(one, lambda _: 0)],
        )

    @cached_property
    def _rows(self) -> dict[int, Message]:
        """The stored rows of the messages in the cached window, by the `id()` of the message."""
        pairs = zip(self.window.messages, self._recollection.messages, strict=False)
        return {id(message): row for message, row in pairs}

    @cached_property
    def _earlier(self) -> list[BaseMessage]:
        """The messages of earlier turns; each question is followed by its tool calls and results."""
        earlier: list[BaseMessage] = []
        steps = self._earlier_steps.messages
        for message, row in zip(self.window.messages, self._recollection.messages, strict=False):
            earlier += [message, *steps.get(row.seq or 0, ())]
        return earlier

    def _unchanged(self, call: Call, dialogue: Sequence[BaseMessage]) -> int | None:
        """Return the number of cached messages that precede the pieces of the call unchanged; None if any may change.

        All other messages are pieces: those from the first question with tool calls on, and those of this turn.
        """
        window, recollection = self.window, self._recollection
        if not window.plain or window.counter != call.counter or self._begin_id is not None or not dialogue:
            return None
        question = {id_of(message) for message in call.question}
        if recollection.folded or recollection.overflowing or id_of(dialogue[0]) not in question:
            return None
        if not isinstance(dialogue[0], HumanMessage):
            return None
        too_many = call.max_messages is not None and self._count > call.max_messages
        if too_many or not self._rows_by_id.keys().isdisjoint(map(id_of, dialogue)):
            return None
        rows = recollection.messages
        if rows and not (self._before_steps and window.has_answer(rows[-1], None)):
            return None
        return self._before_steps if not rows or rows[0].role == "user" or self._summaries_for(call) else None

    def _drafted(
        self,
        call: Call,
        dialogue: Sequence[BaseMessage],
        wanted: Sequence[Section],
        extras: Sequence[Extra],
        *,
        window: int = 0,
    ) -> Draft:
        """Return a draft: messages to choose from, after the first `window` cached messages, all of which are sent."""
        shown = self._summaries_for(call)
        repaired = repair(plain(dialogue, call.provider))
        steps = {id_of(message) for message in dialogue if id(message) in self._steps}
        pieces = tuple(self._pieces(call, repaired.messages, shown, steps))
        draft = Draft(call, pieces, Plan((), 0), repaired.dropped, extras=tuple(extras), summaries=shown, window=window)
        if not wanted:
            return draft
        fixed = sum(self._size(call, piece).tokens for piece in pieces if piece.section not in _YIELDING)
        newest_pieces = [piece for piece in pieces if piece.section == "window"][-_NEWEST:]
        newest = self.window.sums[window] - self.window.sums[max(window - _NEWEST + len(newest_pieces), 0)]
        newest += sum(self._size(call, piece).tokens for piece in newest_pieces)
        return replace(draft, rooms=self._layout.rooms(call.budget, fixed, wanted, shared=call.shared, newest=newest))

    def _chosen(self, draft: Draft) -> Draft:
        call, pieces, reserved = draft.call, draft.pieces, draft.reserved
        if recalled := self._unused_quote_tokens(draft):
            with suppress(BudgetTooSmall):
                chosen = self._plan(call, pieces, call.budget - reserved + recalled)
                if not (chosen.excluded or chosen.cuts):
                    left = call.budget - reserved + recalled - chosen.tokens
                    return replace(draft, chosen=chosen, rooms={**draft.rooms, "selected": min(recalled, left)})
        with suppress(BudgetTooSmall):
            chosen = self._plan(call, pieces, call.budget - reserved)
            reduced = {pieces[index].section for index in (*chosen.cuts, *(index for index, _ in chosen.excluded))}
            if not reserved or reduced.isdisjoint(("input", "steps")):
                return replace(draft, chosen=chosen)
        draft = replace(draft, rooms={}, extras=())
        with suppress(BudgetTooSmall):
            return replace(draft, chosen=self._plan(call, pieces, call.budget))
        pieces = tuple(piece for piece in pieces if piece.section != "summary")
        return replace(draft, pieces=pieces, summaries=(), chosen=self._plan(call, pieces, call.budget))

    def _unused_quote_tokens(self, draft: Draft) -> int:
        """Return the tokens reserved for quotes if the window has all turns, so that no quote is needed; else 0."""
        recollection = self._recollection
        if recollection.begin or recollection.dropped or recollection.overflowing:
            return 0
        return draft.rooms.get("selected", 0)

    def _summaries_for(self, call: Call) -> tuple[Summary, ...]:
        """Return the session's summaries that fit into their share of the call's token budget."""
        if not self._recollection.summaries:
            return ()
        most, counter = self._layout.most("summary", call.budget), call.counter
        if self._shown is None or self._shown[0] != most or self._shown[1] is not counter:
            self._shown = (most, counter, fitting_summaries(self._recollection.summaries, most, counter))
        return self._shown[2]

    def _pieces(
        self, call: Call, dialogue: Sequence[BaseMessage], summaries: Sequence[Summary], steps: Collection[str | None]
    ) -> Iterator[Piece]:
        """Yield every message that may be sent, in sending order."""
        systems = [message for message in call.messages if isinstance(message, SystemMessage)]
        if system := merged_system([*([call.system] if call.system else []), *systems]):
            yield Piece(system, "system", id_of(system))
        if summaries:
            yield Piece(section_message("summary", summary_message_text(summaries)), "summary", None)
        question = {id_of(message) for message in call.question}
        section: Section = "window"
        everything = [(message, id_of(message)) for message in dialogue]
        asked = not question.isdisjoint([message_id for _, message_id in everything])
        unanswered: Piece | None = None
        before: Piece | None = None
        for message, message_id in everything:
            if asked and message_id in question:
                section = "input"
            elif section == "input" or not (asked or message_id in self._rows_by_id):
                section = "steps"
            if unanswered is not None and message.type == "human" and self._is_unanswered(unanswered, message_id):
                yield Piece(AIMessage(NO_ANSWER), unanswered.section, None, mark=True)
            elif before is not None and (mark := mark_between(before.message, message, call.provider)):
                yield Piece(mark, before.section, None, mark=True)
            earlier = section == "window" and message_id in steps
            piece = Piece(message, "earlier_steps" if earlier else section, message_id)
            if not earlier:
                unanswered = piece if message.type == "human" else None
            before = None if message.type == "human" else piece
            yield piece
        if before is not None and (mark := mark_between(before.message, None, call.provider)):
            yield Piece(mark, before.section, None, mark=True)

    def _is_unanswered(self, asked: Piece, next_id: str | None) -> bool:
        """Return True if the stored question `asked` has no answer before the next question (`next_id`)."""
        row = self._rows_by_id.get(asked.id)
        return row is not None and not self.window.has_answer(row, self._rows_by_id.get(next_id))

    def _plan(self, call: Call, pieces: Sequence[Piece], budget: int) -> Plan:
        items = items_of([piece.message for piece in pieces])
        for index, piece in enumerate(pieces):
            if piece.section in _PINNED:
                items[index] = Item("system")
            elif piece.mark:
                before = items[index - 1].group
                items[index] = Item("assistant", group=index - 1 if before is None else before)
        summarised = any(piece.section == "summary" for piece in pieces)
        return plan(
            items,
            lambda index: self._size(call, pieces[index]),
            budget,
            max_messages=call.max_messages,
            turn=next((index for index, piece in enumerate(pieces) if piece.section == "input"), None),
            anchor=self._anchor(pieces),
            opening=0 if summarised else count_message(HumanMessage(OPENING), call.counter),
        )

    def _anchor(self, pieces: Sequence[Piece]) -> Anchor:
        held = self._begin_id is not None
        begin = 0
        if held:
            begin = next((i for i, piece in enumerate(pieces) if piece.id == self._begin_id), 0)
        elif self._recollection.begin:
            # Skip messages of the state that are older than the window's start or covered by a summary.
            known = (i for i, piece in enumerate(pieces) if piece.section != "window" or piece.id in self._rows_by_id)
            begin = next((i for i in known if pieces[i].section not in _PINNED), len(pieces))
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
        # Keep a reference to the message, so that no other object gets the same `id()`.
        self._sizes[id(message)] = (message, call.counter, size)
        return size

    def _sent(self, draft: Draft, piece: Piece, cut_to: int | None, texts: dict[str, str]) -> _Sent:
        """Return a pair: the message as it is sent, cut to `cut_to` tokens if set, and its entry in the manifest."""
        call = draft.call
        message, size = piece.message, count_message(piece.message, call.counter)
        before = self._earlier_steps.tokens_before.get(piece.id) if piece.section == "earlier_steps" else None
        source, seq = self._stored_as(call, piece)
        if cut_to is not None:
            message = shortened(message, cut_to, call.counter)
            before, size = before or size, count_message(message, call.counter)
            source = "text"
        if piece.section == "summary":
            return message, self._summary_entry(message, Entry("summary", size), draft, texts)
        if source != "text":
            return message, Entry(piece.section, size, source, seq=seq, id=piece.id, tokens_before=before)
        digest = _added(message, texts)
        return message, Entry(piece.section, size, seq=seq, id=piece.id, digest=digest, tokens_before=before)

    def _summary_entry(self, message: BaseMessage, entry: Entry, draft: Draft, texts: dict[str, str]) -> Entry:
        """Add the summaries' ids to the entry of their message. If a summary was cut, add the text's digest too."""
        entry = replace(entry, summaries=tuple(summary.id for summary in draft.summaries), source="summaries")
        whole = self._recollection.summaries[-1]
        if draft.summaries[-1].text == whole.text:
            return entry
        before = draft.call.counter(summary_message_text([whole]))
        return replace(entry, source="text", tokens_before=before, digest=_added(message, texts))

    def _stored_as(self, call: Call, piece: Piece) -> tuple[Source, int | None]:
        """Return a message's `seq`, after `transcript` if it is sent exactly as stored, otherwise after `text`."""
        message = piece.message
        row = None if piece.id is None else self._rows_by_id.get(piece.id)
        seq = None if row is None else row.seq
        if piece.section in _PINNED or piece.mark:
            return "text", seq
        if piece.section == "input":
            first = self._recollection.end
            if row is None and piece.id is not None and first is not None:
                asked = [id_of(message) for message in call.question[-self._recollection.questions :]]
                seq = first + asked.index(piece.id) if piece.id in asked else None
            stored = call.question_as_stored and is_plain(message) and message.id == piece.id
        elif (read := self._rows.get(id(message))) is not None:
            stored = read.seq not in self._recollection.folded
        else:
            stored = row is not None and is_stored_as(row, message)
        return "transcript" if stored else "text", seq


def _ordered(extras: Sequence[Extra], order: Sequence[Section]) -> list[_Sent]:
    found = {extra.entry.section: extra for extra in extras}
    return [(found[section].message, found[section].entry) for section in order if section in found]


def _added(message: BaseMessage, texts: dict[str, str]) -> str:
    """Add the JSON of a message to `texts`, and return its digest."""
    if type(message) is SystemMessage and is_only_text(message):
        digest, body = _system_text(str(message.content), message.id)
    else:
        body = dump_message(message)
        digest = digest_of(body)
    texts[digest] = body
    return digest


@lru_cache(maxsize=64)
def _system_text(content: str, message_id: str | None) -> tuple[str, str]:
    """Return the digest and the JSON of a system message; cached, because most calls repeat the message."""
    body = dump_message(SystemMessage(content, id=message_id))
    return digest_of(body), body
