"""Builds the contexts of a turn's model calls, and the manifests that record them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.assembly import Assembler
from threadkeep.agent.call_measure import CallMeasure, Measuring, ModelUse, usage_of
from threadkeep.agent.conversion import ANSWERS, id_of, is_utterance
from threadkeep.agent.earlier_steps import TurnSteps
from threadkeep.agent.extras import Extra, ExtraRequest, find_all
from threadkeep.agent.invocation import built_contexts, run_hold
from threadkeep.agent.model_call import Assembled, Call, Draft
from threadkeep.agent.provider_messages import first_since, superseded_indexes
from threadkeep.agent.questions import digest_for, in_order, is_question, known_messages
from threadkeep.agent.summarizer import ModelSummarizer
from threadkeep.agent.turn_options import CallSite, TurnOptions
from threadkeep.context.compression import WindowRoom
from threadkeep.context.manifest import ContextManifest, ReportedUsage
from threadkeep.context.tokens import name_of
from threadkeep.context.window import Exclusion, Limits
from threadkeep.errors import StoreError
from threadkeep.history.compression import Compression, CompressionRequest
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import Past, Recollection
from threadkeep.history.session import BegunTurn, Session, in_time
from threadkeep.observe import ContextBuilt, HistoryTruncated
from threadkeep.records import Message
from threadkeep.store.driver import Joined, Row, Statement
from threadkeep.store.manifests import NotedManifest

_UNREAD: Final = Recollection(())


class TurnContext:
    """The contexts of one turn's model calls, and their records (manifests). The last record is stored with the answer.

    - `question_id`: the id with which the newest message of the question is stored; it identifies the turn.
    - `question_seq`: the `seq` of this message, if it is known.
    - `questions`: the number of messages of the question.
    - `question_as_stored`: False if the question's text may differ from the stored text.
    - `sent_rows`: the stored rows that were compared with the history that a client sent.
    - `ordinal`: the number of the answer among the answers of its `author` in the run, from 1.
    - `run_id`: by default, the run id of the stored question, or else a new id.
    """

    def __init__(
        self,
        memory: Memory,
        session: Session,
        options: TurnOptions,
        question: Sequence[BaseMessage],
        site: CallSite | None = None,
        *,
        author: str | None = None,
        ordinal: int = 1,
        run_id: str | None = None,
    ) -> None:
        self._memory = memory
        self.session = session
        self.author = author
        self.ordinal = ordinal
        self.run_id = str(uuid7()) if run_id is None else run_id
        self._run_is_known = run_id is not None
        self._site = site
        self._transcribed = site is None or site.transcript
        self._options = options
        self.question_seq: int | None = None
        self.questions = 1
        self.question_as_stored = True
        self.sent_rows: tuple[Message, ...] = ()
        self._measuring = Measuring(memory, options)
        self.question = tuple(question)
        self.question_id = id_of(self.question[-1]) if self.question else None
        self._assembler: Assembler | None = None
        self._recollection = _UNREAD
        self._extras: list[Extra] | None = None
        self._searched: ExtraRequest | None = None
        self._reads: dict[object, tuple[Any, Sequence[Row]]] = {}
        self._use = ModelUse()
        self._budget: int | None = None
        self._room: WindowRoom | None = None
        self._open: tuple[Assembled, CallMeasure, datetime, ReportedUsage | None] | None = None
        self._new_begin: int | None = None
        self._anchored = False
        self._adopted = False
        self._joins_record = False
        self._truncation_reported = False
        self.steps = TurnSteps(memory, session, options, options.tool_memory if self._transcribed else 0)
        self._hold = run_hold.get()
        self._begun: BegunTurn | None = None
        self._later_ids: set[str | None] = set()
        # Metadata for the model's replies: if later turns follow a repeated question, `ANSWERS` links replies to it.
        self.mark: Mapping[str, str | None] = {}

    @property
    def manifest(self) -> ContextManifest | None:
        """The manifest (the record) of the last model call; None after it was queued or stored."""
        return self._manifest(*self._open) if self._open is not None else None

    async def context(
        self, messages: Sequence[BaseMessage], system: SystemMessage | None = None, use: ModelUse | None = None
    ) -> Assembled:
        """Return the context of a model call: the system message, earlier turns, then the messages of the run.

        Raises:
            BudgetTooSmall: the system message, the question and the newest tool call with its results do not fit, or
                the tools alone do not fit.
        """
        self.keep()
        use = use or ModelUse()
        end = self._end(messages)
        if self._assembler is None and self.question_seq and end < len(messages):
            self._later_ids = await self._of_later_turns(messages, end)
            self.mark = {ANSWERS: self.question[-1].id} if self._later_ids else {}
        if self._later_ids:
            messages = [message for message in messages if message.id not in self._later_ids]
            end = self._end(messages)
        measure = await self._measuring.of(use)
        self._use, self._budget = use, self._budget or measure.budget
        self.steps.gather(messages[end:], self.author, self.ordinal)
        if self._assembler is None:
            self._assembler = await self._first_assembler(messages, measure, use)
        superseded: Sequence[BaseMessage] = ()
        if start := self._start(messages):
            messages = await self.as_stored(messages)
        if self._recollection.superseded:
            messages, superseded = self._without_superseded(messages)
        if start:
            start = self._start(messages)
        first = first_since(self._recollection.forgotten, messages[:start]) if start else 0
        systems = [message for message in messages[:first] if isinstance(message, SystemMessage)]
        call = Call(
            messages=[*systems, *messages[first:]],
            question=self.question,
            question_as_stored=self.question_as_stored and self._transcribed,
            provider=measure.provider,
            shared=measure.shared,
            system=system,
            counter=measure.counter,
            budget=measure.budget,
            max_messages=0 if self._options.no_history else self._options.message_limit,
            forgotten=[message for message in messages[:first] if not isinstance(message, SystemMessage)],
            superseded=superseded,
        )
        draft = await self._draft(self._assembler, call)
        sent = self._assembler.build(draft)
        self._note(sent, draft, measure)
        return sent

    async def _first_assembler(self, messages: Sequence[BaseMessage], measure: CallMeasure, use: ModelUse) -> Assembler:
        """Read the history and the tool calls of earlier turns, and return the assembler of the turn's contexts."""
        options, question_seq = self._options, self.question_seq if self._transcribed else None
        if options.no_history:
            last = (question_seq or 0) - self.questions
            excluded = (Exclusion(1, last, "over_limit"),) if last > 0 else ()
            found = Recollection((), excluded=excluded, question_seq=question_seq, questions=self.questions)
        else:
            # Pass the counter, because stored token counts may come from another counter or from a caller.
            limits = Limits(options.message_limit, measure.budget, measure.counter)
            known_ids = {message_id for message in messages if (message_id := id_of(message)) is not None}
            known_ids.update([row.id for row in self.sent_rows if row.id is not None])
            begun = self._begun
            if begun is None and self._hold is not None and self._hold.joins == self.session.session_id:
                begun = self._hold.begun
            # Use the history that was read when the question was stored.
            read = begun.past if begun is not None and self.question_seq == begun.receipt.last_seq else None
            asked = (self.question_id, question_seq, self.questions)
            found = await self.session.recall(Past(limits, *asked, known_ids, options.profile, read))
        found = found.without_failures()
        if options.plan.fold_repeats:
            found = found.with_folds(self._memory.counter)
        self._recollection = found
        steps = None
        if use.tools:
            steps = await self.steps.earlier(found.messages, messages[: self._start(messages)], measure)
        kept = f"window of {options.profile}"
        assembler = Assembler(found, options.plan, measure.counter, steps, found.derived.get(kept))
        found.derived[kept] = assembler.window
        return assembler

    def report(self, reply: AIMessage | None) -> None:
        """Add the provider's reported usage to the last call's record (manifest), and correct the token counter.

        Usually, the manifest is stored with the answer. If the call gives no answer, or if a workflow run executes the
        turn, the manifest is queued now.
        """
        reported = usage_of(reply)
        if self._open is not None and reported is not None:
            sent, measure, created_at, _ = self._open
            self._open = (sent, measure, created_at, reported)
            if measure.learns and measure.model:
                estimated = measure.unscaled(sent.tokens + measure.tools)
                self._memory.learned_factors.learn(measure.model, estimated, reported.input_tokens, measure.other)
        if self._hold is not None or reply is None or reply.tool_calls:
            self.keep()

    def keep(self) -> None:
        """Queue the record of the last model call for storing, or add it to the transaction that ends the run."""
        if (entry := self._entry()) is None:
            return
        if self._hold is not None and self._hold.joins is not None and self._hold.joins == entry.session_id:
            self._hold.manifests.append(entry)
        else:
            self._memory.manifests.queue(entry)
        self._open = None

    def _entry(self) -> NotedManifest | None:
        if self._open is None:
            return None
        made, texts, now = self._manifest(*self._open), self._open[0].texts, self._memory.clock()
        of_manifest = made.to_dict, texts, False, made.to_short_json, made.message_ids
        return NotedManifest(made.session_id, made.run_id, now, *of_manifest)

    def joined(self, _: Sequence[Message] = ()) -> Joined:
        """Return SQL for the answer's transaction: it stores the call's record, and the start of history if changed."""
        manifests, entry = self._memory.manifests, self._entry()
        if entry is not None and (entry.session_id != self.session.session_id or manifests.has_earlier(entry)):
            entry = None
        self._joins_record = entry is not None
        records = [] if entry is None else manifests.joined(entry)
        anchor = self.anchor_statement()
        return Joined((), records if anchor is None else [*records, anchor])

    def anchor_statement(self) -> Statement | None:
        """Return the SQL statement that stores the new start of history (anchor), if the start has changed."""
        if self._new_begin is None:
            return None
        profile, revision = self._options.profile or "", self._recollection.revision
        return self._memory.contexts.anchor_statement(
            self.session.session_id, profile, self._new_begin, revision=revision
        )

    async def settle(self, *, anchored: bool = False) -> None:
        """End the turn: store data for later turns, and queue the session for compression and learning.

        If another process stored its answer first, the tool calls of this process are not stored. `anchored` is True if
        the window's new start (its anchor) is already stored. Database failures are reported, not raised.
        """
        self.keep()
        if self._options.compression is not None:
            self._consider_compression(self._options.compression)
        if self._options.learning is not None and self._transcribed:
            self._options.learning.consider(self.session, self._use.model, self.run_id)
        begin, self._new_begin = None if anchored or self._anchored else self._new_begin, None
        if begin is not None or self.steps.waiting:
            await in_time(self.session, self._store(begin), self.session.report_write_failed)

    async def _store(self, begin: int | None) -> None:
        if begin is not None:
            profile, revision = self._options.profile or "", self._recollection.revision
            await self._memory.contexts.move_anchor(self.session.session_id, profile, begin, revision=revision)
        if self.question_seq is not None and not self._adopted:
            await self.steps.keep(self.question_id or "", self.question_seq)

    def _consider_compression(self, compression: Compression) -> None:
        model = self._use.model
        if self._budget is None:
            return
        summarizer = compression.summarizer
        if summarizer is None and model is not None:
            summarizer = ModelSummarizer(model, context_window=self._options.context_window)
        if summarizer is not None:
            gaps = self._recollection.excluded
            # Find the newest message that is neither in the window nor in a summary.
            out = [gap.last_seq for gap in gaps if gap.reason in ("before_anchor", "over_budget", "over_limit")]
            left_out_upto = 0 if self._options.no_history else max(*out, (self._new_begin or 1) - 1, 0)
            session_id, room = self.session.session_id, self._room or WindowRoom()
            self._memory.compressor.consider(
                CompressionRequest(session_id, compression, summarizer, self._budget, left_out_upto, room)
            )

    async def as_stored(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages. Replace the messages before the question by their stored versions."""
        start = self._start(messages)
        if start == 0:
            return [*messages]
        rows = self.sent_rows or self._recollection.messages
        if (seq := self.question_seq) is not None:
            rows = tuple(row for row in rows if row.seq is None or row.seq < seq)
        digest = await digest_for(self._memory, rows)
        known = known_messages(messages[:start], rows, digest, by_position=bool(self.sent_rows))
        return [*in_order(messages[:start], known.rows), *messages[start:]]

    async def _of_later_turns(self, messages: Sequence[BaseMessage], begin: int) -> set[str | None]:
        """Return the ids of messages of turns after this one. A checkpoint has them if an old question is repeated.

        `begin` is the index after the question.
        """
        end = len(messages)
        with contextlib.suppress(StoreError, TimeoutError):
            # A later turn begins with a question or with a reply to a question; find its first message.
            for message in messages[begin:]:
                begins = is_question(message) or ANSWERS in message.response_metadata
                if begins and await self._is_later(message):
                    break
                begin += 1
            while begin < end and not await self._is_later(messages[end - 1]):
                end -= 1
            while begin < end < len(messages) and _is_step(messages[end - 1], messages[end]):
                end += 1
            return {one.id for one in messages[begin:end]} - {None}
        return set()

    async def _is_later(self, message: BaseMessage) -> bool:
        """Return True if the message belongs to a later turn than the question."""
        if (answers := message.response_metadata.get(ANSWERS)) is not None:
            return bool(answers != self.question[-1].id)
        async with self.session.timeout():
            stored = await self.session.find(id_of(message) or "")
        return stored is not None and (stored.seq or 0) > (self.question_seq or 0) and stored.run_id != self.run_id

    def _without_superseded(
        self, messages: Sequence[BaseMessage]
    ) -> tuple[Sequence[BaseMessage], Sequence[BaseMessage]]:
        """Split the messages of the run's state into valid and superseded messages."""
        asked = {id_of(message) for message in self.question}
        superseded = superseded_indexes(messages, self._recollection.superseded - asked)
        kept = [message for index, message in enumerate(messages) if index not in superseded]
        return kept, [messages[index] for index in sorted(superseded)]

    def read_sources_again(self) -> None:
        """Make the next model call search the extra sections (such as facts) again, because facts may have changed."""
        self._extras, self._reads = None, {}

    async def _draft(self, assembler: Assembler, call: Call) -> Draft:
        """Choose the messages to send, with the extra sections (such as quotes) that the turn's first call searches."""
        if self._extras is not None:
            return assembler.draft(call, extras=self._extras)
        # If the options exclude history, do not quote older turns either.
        unwanted = ("selected",) if self._options.no_history else ()
        sources = [one for one in self._options.sources if self.question and one.section not in unwanted]
        if not sources:
            self._extras = []
            return assembler.draft(call)
        draft = assembler.draft(call, wanted=[source.section for source in sources])
        request = self._searched = ExtraRequest(
            session=self.session,
            question=self.question,
            earlier=self._recollection.messages,
            question_seq=self._recollection.end,
            known_ids=assembler.included_ids(draft) | {found for one in self.question if (found := id_of(one))},
            counter=call.counter,
            now=self._memory.clock(),
            reads=self._reads,
        )
        self._extras = await find_all(sources, request, draft.rooms, self._memory.observers)
        return replace(draft, extras=tuple(self._extras))

    def _end(self, messages: Sequence[BaseMessage]) -> int:
        """Return the index after the question in the run's messages; 0 if they lack the question."""
        asked = {message.id for message in self.question}
        return max([position for position, message in enumerate(messages, start=1) if message.id in asked], default=0)

    def _start(self, messages: Sequence[BaseMessage]) -> int:
        """Return the index of the question in the run's messages; 0 if they lack the question."""
        first = self.question[0].id if self.question else None
        ids = [message.id for message in messages]
        return ids.index(first) if first in ids else 0

    def _manifest(
        self, sent: Assembled, measure: CallMeasure, created_at: datetime, reported: ReportedUsage | None
    ) -> ContextManifest:
        site = self._site or CallSite(self.run_id, "", self.session.session_id)
        searched, failed = self._searched, self._recollection.failed
        sections = {entry.section for entry in sent.entries} if self._extras else ()
        dropped = [
            f"no_room_for_{one.entry.section}" for one in self._extras or () if one.entry.section not in sections
        ]
        return ContextManifest(
            session_id=site.session_id,
            run_id=site.run_id,
            node=site.node or None,
            conversation=site.conversation,
            created_at=created_at,
            model=measure.model,
            counter=name_of(measure.counter),
            budget=measure.budget,
            max_messages=self._options.message_limit,
            window=self._options.plan.window,
            anchor_seq=sent.begin_seq or self._recollection.begin,
            entries=sent.entries,
            excluded=sent.excluded,
            left_out=sent.left_out,
            dropped=sent.dropped,
            tokens=sent.tokens,
            tools=measure.tools,
            prefix=sent.prefix,
            digest=sent.digest,
            reported=reported,
            notes=(*(["history_unavailable"] if failed else []), *(searched.notes if searched else ()), *dropped),
            graph=tuple(searched.graph if searched else ()),
            facts_left_out=tuple(searched.facts_left_out if searched else ()),
        )

    def _note(self, sent: Assembled, draft: Draft, measure: CallMeasure) -> None:
        """Keep what the record and later calls need to know about a call, and report the call to observers."""
        self._new_begin = sent.begin_seq or self._new_begin
        if self._room is None:
            # The room for history is the budget without system message, summaries and extras.
            left = draft.call.budget - sum(draft.rooms.values())
            for entry in sent.entries:
                if entry.section not in ("system", "summary"):
                    break
                left -= entry.tokens
            left = max(left, 0)
            tokens = None if measure.stored is None else measure.as_stored(left, sent)
            self._room = WindowRoom(tokens, self._options.message_limit, self._options.plan.step)
            self._budget = measure.as_stored(measure.budget, sent)
        self._open = (sent, measure.learning_from(sent), self._memory.clock(), None)
        observers, session_id = self._memory.observers, self.session.session_id
        built = ContextBuilt(
            run_id=self.run_id,
            session_id=session_id,
            messages=len(sent.entries) - sent.marks,
            tokens=sent.tokens,
            dropped=sent.dropped,
        )
        observers.notify(built)
        if (of_run := built_contexts.get()) is not None:
            of_run.append(built)
        if sent.dropped and not self._recollection.dropped and not self._truncation_reported:
            self._truncation_reported = True
            observers.notify(
                HistoryTruncated(channel=channel_of(session_id), dropped=sent.dropped, session_id=session_id)
            )


def _is_step(before: BaseMessage, message: BaseMessage) -> bool:
    """Return True if a message is a tool call or result that follows a question or another tool call or result."""
    follows = is_question(before) or not is_utterance(before)
    return follows and not is_utterance(message) and ANSWERS not in message.response_metadata
