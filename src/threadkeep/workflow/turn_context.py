"""What the model calls of one turn are sent, and the records of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from threadkeep.context.compression import WindowRoom
from threadkeep.context.manifest import ContextManifest, Exclusion, Section
from threadkeep.context.tokens import name_of
from threadkeep.context.window import Limits
from threadkeep.errors import StoreClosed, StoreError
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import Past, Recollection
from threadkeep.history.session import Session
from threadkeep.observe import ContextBuilt, HistoryTruncated
from threadkeep.workflow.assembly import Assembler
from threadkeep.workflow.call_measure import CallMeasure, Measuring, ModelUse, usage_of
from threadkeep.workflow.conversion import id_of
from threadkeep.workflow.extras import ExtraRequest, find_all
from threadkeep.workflow.model_call import Assembled, Call, Draft, Extra
from threadkeep.workflow.summarizer import ModelSummarizer
from threadkeep.workflow.turn_options import CallPlace, TurnOptions


class TurnContext:
    """The contexts of one turn. Each call's manifest is kept when its model has answered, or the next call begins.

    `question_seq` is the place of the question in the session, where its turn knows that already, and `questions` how
    many messages up to there are of it. One that was asked before may have other words now than are stored:
    `question_as_stored` says that they are the same for certain.
    """

    def __init__(
        self,
        memory: Memory,
        session: Session,
        options: TurnOptions,
        question: Sequence[BaseMessage],
        place: CallPlace | None = None,
    ) -> None:
        self._memory = memory
        self._session = session
        self._place = place
        self._transcribed = place is None or place.transcript
        self._options = options
        self.question_seq: int | None = None
        self.questions = 1
        self.question_as_stored = True
        self._measuring = Measuring(memory, options)
        self._question = question
        self._assembler: Assembler | None = None
        self._recollection = Recollection(())
        self._extras: list[Extra] | None = None
        self._use = ModelUse()
        self._budget: int | None = None
        self._room: WindowRoom | None = None
        self._open: tuple[ContextManifest, Mapping[str, str], CallMeasure] | None = None
        self._new_begin: int | None = None
        self._truncation_told = False

    @property
    def left_out_upto(self) -> int:
        """The newest place that had no room in the window and stands in no summary; 0 if there is none."""
        if self._options.no_history:
            return 0
        gaps = self._recollection.excluded
        out = [gap.last_seq for gap in gaps if gap.reason in ("before_anchor", "over_budget", "over_limit")]
        return max(*out, (self._new_begin or 1) - 1, 0)

    @property
    def manifest(self) -> ContextManifest | None:
        """The record of the call that was built last, until it is kept."""
        return self._open[0] if self._open is not None else None

    async def build(
        self, messages: Sequence[BaseMessage], system: SystemMessage | None, use: ModelUse, run_id: str
    ) -> Assembled:
        """What one model call is sent.

        Raises:
            BudgetTooSmall: the system message, the newest user message and the newest step do not fit.
        """
        self.keep()
        measure = await self._measuring.of(use)
        self._use, self._budget = use, measure.unscaled(measure.budget)
        start = self._start(messages)
        if self._assembler is None:
            recollection = await self._recall(messages[:start], measure)
            fold = self._options.plan.fold_repeats
            self._recollection = recollection.with_folds(self._memory.counter) if fold else recollection
            self._assembler = Assembler(self._recollection, self._options.plan)
        first = _first_since(self._recollection.forgotten, messages[:start])
        systems = [message for message in messages[:first] if isinstance(message, SystemMessage)]
        call = Call(
            messages=[*systems, *messages[first:]],
            question=self._question,
            question_as_stored=self.question_as_stored and self._transcribed,
            provider=measure.provider,
            system=system,
            counter=measure.counter,
            budget=measure.budget,
            max_messages=0 if self._options.no_history else self._options.max_messages,
            forgotten=[message for message in messages[:first] if not isinstance(message, SystemMessage)],
        )
        draft = await self._draft(self._assembler, call)
        sent = self._assembler.build(draft)
        self._new_begin = sent.begin_seq or self._new_begin
        self._room = self._room or _window_room(sent, draft, measure, self._options)
        self._open = (self._manifest(sent, measure, run_id), sent.texts, measure.for_messages(sent.messages))
        self._tell(sent, run_id)
        return sent

    def report(self, reply: AIMessage | None) -> None:
        """The model has answered the last call: what its provider counted is kept with the manifest."""
        reported = usage_of(reply)
        if self._open is not None and reported is not None:
            manifest, texts, measure = self._open
            self._open = (replace(manifest, reported=reported), texts, measure)
            if measure.learns and measure.model:
                estimated = measure.unscaled(manifest.tokens + measure.tools)
                self._memory.learned_factors.learn(measure.model, estimated, reported.input_tokens)
        self.keep()

    def keep(self) -> None:
        """Have the record of the last call stored."""
        if self._open is not None:
            manifest, texts, _ = self._open
            self._open = None
            self._memory.manifests.note(manifest.session_id, manifest.run_id, manifest.to_dict(), texts)

    def forget(self) -> None:
        """The session was deleted: what was to be kept for it is not."""
        self._open = self._new_begin = None

    async def settle(self) -> None:
        """The turn is over: keep what the next ones begin with, and have the session compressed if that is due.

        A database that does not answer changes nothing.
        """
        self.keep()
        self._consider_compression()
        begin, self._new_begin = self._new_begin, None
        if begin is None:
            return
        try:
            async with self._session.patience():
                await self._memory.contexts.move_anchor(self._session.session_id, self._profile or "", begin)
        except StoreClosed:
            raise
        except (StoreError, TimeoutError) as error:
            self._session.tell_write_failed(error)

    def _consider_compression(self) -> None:
        compression, model = self._options.compression, self._use.model
        if compression is None or self._budget is None:
            return
        summarizer = compression.summarizer
        if summarizer is None and model is not None:
            summarizer = ModelSummarizer(model, context_window=self._options.context_window)
        if summarizer is not None:
            self._memory.compressor.consider(
                self._session.session_id,
                compression,
                summarizer,
                budget=self._budget,
                left_out_upto_seq=self.left_out_upto,
                window=self._room or WindowRoom(),
            )

    @property
    def _profile(self) -> str | None:
        """Agents with the same limits share an anchor in a session; others have their own."""
        options = self._options
        return None if options.plan.window == "sliding" else f"{options.max_messages}/{options.max_tokens}"

    async def _recall(self, before: Sequence[BaseMessage], measure: CallMeasure) -> Recollection:
        options = self._options
        question_seq = self.question_seq if self._transcribed else None
        if options.no_history:
            return _nothing_of(question_seq, self.questions)
        # Counted anew: what is stored with a message may be another counter's, or a caller's own number.
        limits = Limits(options.max_messages, measure.budget, measure.counter)
        known_ids = {message_id for message in before if (message_id := id_of(message)) is not None}
        question_id = id_of(self._question[-1]) if self._question else None
        past = Past(limits, question_id, question_seq, self.questions, known_ids, self._profile)
        return await self._session.recall(past)

    async def _draft(self, assembler: Assembler, call: Call) -> Draft:
        """The window, and beside it what was found for the input; looked for once in a turn."""
        if self._extras is not None:
            return assembler.draft(call, extras=self._extras)
        sources = [one for one in self._options.sources if self._question and self._wants(one.section)]
        draft = assembler.draft(call, wanted=[source.section for source in sources])
        request = ExtraRequest(
            session=self._session,
            question=self._question,
            earlier=self._recollection.messages,
            question_seq=self._recollection.end,
            known_ids=draft.kept_ids | {message_id for one in self._question if (message_id := id_of(one)) is not None},
            counter=call.counter,
            now=self._memory.clock(),
        )
        self._extras = await find_all(sources, request, draft.rooms, self._memory.observers)
        return replace(draft, extras=tuple(self._extras))

    def _wants(self, section: Section) -> bool:
        """Without history there are no older turns either; a knowledge base is no history."""
        return section != "selected" or not self._options.no_history

    def _start(self, messages: Sequence[BaseMessage]) -> int:
        """Where the question begins among the run's messages."""
        first = self._question[0].id if self._question else None
        return next((place for place, message in enumerate(messages) if message.id == first), 0)

    def _manifest(self, sent: Assembled, measure: CallMeasure, run_id: str) -> ContextManifest:
        place = self._place or CallPlace(run_id, "", self._session.session_id)
        return ContextManifest(
            session_id=place.session_id,
            run_id=place.run_id,
            node=place.node or None,
            conversation=place.conversation,
            created_at=self._memory.clock(),
            model=measure.model,
            counter=name_of(measure.counter),
            budget=measure.budget,
            max_messages=self._options.max_messages,
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
            notes=("history_unavailable",) if self._recollection.failed else (),
        )

    def _tell(self, sent: Assembled, run_id: str) -> None:
        observers, session_id = self._memory.observers, self._session.session_id
        observers.notify(
            ContextBuilt(
                run_id=run_id,
                session_id=session_id,
                messages=len(sent.entries),
                tokens=sent.tokens,
                dropped=sent.dropped,
            )
        )
        if sent.dropped and not self._recollection.dropped and not self._truncation_told:
            self._truncation_told = True
            observers.notify(
                HistoryTruncated(channel=channel_of(session_id), dropped=sent.dropped, session_id=session_id)
            )


def _nothing_of(question_seq: int | None, questions: int) -> Recollection:
    """The past where there is to be none: nothing of it is in, for the one reason."""
    last = (question_seq or 0) - questions
    excluded = (Exclusion(1, last, "over_limit"),) if last > 0 else ()
    return Recollection((), excluded=excluded, question_seq=question_seq, questions=questions)


def _window_room(sent: Assembled, draft: Draft, measure: CallMeasure, options: TurnOptions) -> WindowRoom:
    """What a turn's first call left to its window, in the tokens that are stored."""
    taken = sum(entry.tokens for entry in sent.entries if entry.section in ("system", "summary"))
    left = max(draft.call.budget - taken - sum(draft.rooms.values()), 0)
    tokens = measure.unscaled(left) if measure.as_stored else None
    return WindowRoom(tokens, options.max_messages, options.plan.step)


def _first_since(forgotten: Collection[str], before: Sequence[BaseMessage]) -> int:
    """Where the earlier turns of a checkpoint begin that were not forgotten by a reset; system messages stay."""
    place = max((place for place, message in enumerate(before, start=1) if id_of(message) in forgotten), default=0)
    while 0 < place < len(before) and not isinstance(before[place], HumanMessage):
        place += 1
    return place
