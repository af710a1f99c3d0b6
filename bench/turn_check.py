"""The check that callers and models received what is stored: a pure function over recorded events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from bench.turn_history import Answer, Asked, ModelCall, Stored, Told, TurnHistory, question_id, question_text

type FaultKind = Literal[
    "two answers",
    "told is not stored",
    "told differently",
    "unanswered",
    "lost",
    "doubled",
    "torn",
    "reordered",
    "run",
    "context",
    "stream",
    "asked again",
    "error",
]


class Fault(NamedTuple):
    """A broken guarantee: its kind, and a sentence."""

    kind: FaultKind
    says: str


@dataclass(frozen=True)
class Verdict:
    """The faults of a history, and the conflicts that an outage explains.

    A conflict is an answer that a caller received while the database was unavailable, and that another returned answer
    replaced. It is stored as superseded, or its turn was stored late.
    """

    faults: Sequence[Fault]
    conflicts: Sequence[Fault]


def check(history: TurnHistory) -> Verdict:
    """Return the faults and the conflicts of a history."""
    checked = _Check(history)
    faults: list[Fault] = [Fault("error", says) for says in history.errors]
    for part in (
        checked.two_answers,
        checked.told_is_stored,
        checked.lost,
        checked.doubled,
        checked.torn,
        checked.reordered,
        checked.results,
        checked.contexts,
        checked.streams,
        checked.asked_again,
    ):
        faults += part()
    return Verdict(faults, checked.conflicts)


@dataclass
class _Check:
    """The events of a history by session and question."""

    history: TurnHistory
    conflicts: list[Fault] = field(default_factory=list)

    @cached_property
    def asked(self) -> dict[str, Asked]:
        return {each.message_id: each for each in self.history.asked}

    @cached_property
    def told(self) -> dict[str, list[Told]]:
        found: defaultdict[str, list[Told]] = defaultdict(list)
        for each in sorted(self.history.told, key=lambda told: told.at):
            found[each.message_id].append(each)
        return dict(found)

    @cached_property
    def questions(self) -> dict[str, Stored]:
        return {row.message_id: row for row in self.history.stored if row.role == "user"}

    @cached_property
    def sessions(self) -> dict[str, list[Stored]]:
        found: defaultdict[str, list[Stored]] = defaultdict(list)
        for row in sorted(self.history.stored, key=lambda row: row.seq):
            found[row.session_id].append(row)
        return dict(found)

    @cached_property
    def answers(self) -> dict[str, list[Stored]]:
        """The complete answers to each question that are not superseded, in order."""
        return self._answers_where(superseded=False)

    @cached_property
    def superseded(self) -> dict[str, list[Stored]]:
        return self._answers_where(superseded=True)

    def _answers_where(self, *, superseded: bool) -> dict[str, list[Stored]]:
        found: defaultdict[str, list[Stored]] = defaultdict(list)
        for row in sorted(self.history.stored, key=lambda row: row.seq):
            answer = Answer.of(row.content)
            if row.role == "assistant" and row.status == "complete" and row.superseded == superseded and answer:
                found[answer.message_id].append(row)
        return dict(found)

    def outage(self, begun_at: float, ended_at: float, service: str | None = None) -> bool:
        """Return whether the database may have been unavailable in a period, for one service or any."""
        return any(
            one.begun_at <= ended_at and begun_at <= one.ended_at and service in (None, one.service)
            for one in self.history.outages
        )

    def two_answers(self) -> Iterator[Fault]:
        """Check that a question has at most one complete answer per speaker and ordinal."""
        for message_id, rows in self.answers.items():
            places: defaultdict[tuple[str, int], list[Stored]] = defaultdict(list)
            for row in rows:
                answer = Answer.of(row.content)
                assert answer is not None
                if row.answers not in (None, message_id):
                    yield Fault("torn", f"{message_id}: its answer at {row.seq} is stored as the answer of another")
                places[row.author or answer.speaker, row.ordinal or 1].append(row)
            for (speaker, _), found in places.items():
                if len(found) > 1:
                    texts = ", ".join(f"{_short(row.content)} at {row.seq}" for row in found)
                    yield Fault("two answers", f"{message_id} has {len(found)} complete answers of {speaker}: {texts}")

    def told_is_stored(self) -> Iterator[Fault]:
        """Check that every caller received the last active answer of the transcript."""
        for message_id, tellings in self.told.items():
            rows = self.answers.get(message_id, [])
            last = rows[-1].content if rows else None
            texts = list(dict.fromkeys(one.text for one in tellings))
            wrong = [one for one in tellings if one.text != last]
            if not wrong:
                continue
            if last is not None and last in texts and all(self._gave_way(one) for one in wrong):
                self.conflicts.append(Fault("told differently", f"{message_id}: {len(wrong)} told what gave way"))
            elif len(texts) > 1:
                heard = ", ".join(f"{_short(one.text)} by {one.service} at {one.at:.1f}" for one in tellings)
                yield Fault("told differently", f"{message_id}: callers were told {heard}; stored {_short(last)}")
            else:
                says = f"{message_id}: {wrong[0].service} told {_short(wrong[0].text)}; stored {_short(last)}"
                yield Fault("told is not stored", says)

    def _gave_way(self, told: Told) -> bool:
        # Search the whole session, because the answer to coalesced messages may be stored with any of them.
        rows = self.sessions.get(told.session_id, ())
        kept = any(row.superseded and row.content == told.text for row in rows)
        asked = self.asked[told.message_id].at if told.message_id in self.asked else told.begun_at
        return kept and not told.final and self.outage(asked, told.at)

    def lost(self) -> Iterator[Fault]:
        """Check that each question was answered, and is stored with an answer of each speaker."""
        for message_id, asked in self.asked.items():
            if message_id not in self.told:
                refused = [
                    f"{one.status} at {one.at:.1f}" for one in self.history.refused if one.message_id == message_id
                ]
                says = f"{message_id} was asked at {asked.at:.1f} and never answered; refused with {refused[-5:]}"
                yield Fault("unanswered", says)
            elif message_id not in self.questions:
                yield Fault("lost", f"{message_id} was answered, and its question is not stored")
            elif len(self.answers.get(message_id, ())) < len(self.history.speakers):
                yield Fault("lost", f"{message_id} was answered, and not all speakers' answers are stored")

    def doubled(self) -> Iterator[Fault]:
        """Check that a question is stored once, whatever its id."""
        texts: defaultdict[str, list[Stored]] = defaultdict(list)
        for row in self.history.stored:
            if row.role == "user":
                texts[row.content].append(row)
        for text, rows in texts.items():
            if len(rows) > 1:
                yield Fault("doubled", f"{text!r} is stored {len(rows)} times: {[row.message_id for row in rows]}")

    def torn(self) -> Iterator[Fault]:
        """Check that `seq` has no gaps, texts are whole, and each answer is behind its question in the same session."""
        given = {call.answer for call in self.history.calls}
        for session_id, rows in self.sessions.items():
            if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
                yield Fault("torn", f"{session_id} has the numbers {[row.seq for row in rows]}")
            for row in rows:
                yield from self._torn_row(row, given)

    def _torn_row(self, row: Stored, given: set[str | None]) -> Iterator[Fault]:
        if row.role == "user" and row.content != question_text(row.message_id):
            yield Fault("torn", f"{row.session_id}: {row.message_id} is stored with another text")
        if row.role != "assistant" or row.status != "complete":
            return
        answer = Answer.of(row.content)
        if answer is None or row.content not in given:
            yield Fault("torn", f"{row.session_id}: no model gave the answer at {row.seq}, {_short(row.content)}")
            return
        question = self.questions.get(answer.message_id)
        if question is not None and (question.session_id != row.session_id or question.seq > row.seq):
            yield Fault("torn", f"{answer.message_id}: its answer is at {row.session_id} {row.seq}, before it")

    def reordered(self) -> Iterator[Fault]:
        """Check that a turn is stored before the next question if its answer was returned before that question."""
        sessions: defaultdict[str, list[Asked]] = defaultdict(list)
        for asked in sorted(self.history.asked, key=lambda asked: asked.at):
            sessions[asked.session_id].append(asked)
        for turns in sessions.values():
            for before, after in pairwise(turns):
                yield from self._order(before, after)

    def _order(self, before: Asked, after: Asked) -> Iterator[Fault]:
        told, next_row = self.told.get(before.message_id), self.questions.get(after.message_id)
        answers = self.answers.get(before.message_id)
        if not told or next_row is None or not answers or told[0].at >= after.at:
            return
        if answers[-1].seq < next_row.seq:
            return
        says = f"{before.message_id}: its answer is at {answers[-1].seq}, behind the next question at {next_row.seq}"
        # Other processes do not wait for a turn that is still in the pending folder.
        if self.outage(before.at, after.at):
            self.conflicts.append(Fault("reordered", says))
        else:
            yield Fault("reordered", says)

    def results(self) -> Iterator[Fault]:
        """Check that each run is over, and that its result is the stored answer."""
        for run in self.history.runs:
            if run.status in ("queued", "running", "waiting"):
                yield Fault("run", f"{run.message_id}: its run is still {run.status}")
            rows = self.answers.get(run.message_id or "", [])
            if run.status == "done" and rows and run.text != rows[-1].content:
                says = f"{run.message_id}: its run says {_short(run.text)}; stored {_short(rows[-1].content)}"
                yield Fault("run", says)

    def contexts(self) -> Iterator[Fault]:
        """Check that a model call gets each stored question and answer once, and that no returned answer is missing."""
        for call in self.history.calls:
            asked = [found for role, text in call.messages if role == "user" and (found := question_id(text))]
            if not asked or asked[-1] not in self.asked:
                yield Fault("context", f"call {call.number} was sent no question")
                continue
            name = f"call {call.number} for {asked[-1]}"
            for message_id in {one for one in asked if asked.count(one) > 1}:
                yield Fault("context", f"{name} was sent {message_id} twice")
            yield from self._context_answers(name, call)
            yield from self._forgotten(name, call, asked)

    def _context_answers(self, name: str, call: ModelCall) -> Iterator[Fault]:
        seen: set[tuple[str, str]] = set()
        for role, text in call.messages:
            answer = Answer.of(text)
            if role != "assistant" or answer is None:
                continue
            if (answer.message_id, answer.speaker) in seen and len(self.history.speakers) == 1:
                yield Fault("context", f"{name} was sent two answers to {answer.message_id}")
            seen.add((answer.message_id, answer.speaker))
            rows = self.answers.get(answer.message_id, [])
            if all(row.content != text for row in rows):
                stored = _short(rows[-1].content) if rows else "none"
                fault = Fault("context", f"{name} was sent {_short(text)} of {answer.message_id}; stored {stored}")
                if self._superseded_later(answer.message_id, text, call.at) or self._waited(text, call.at):
                    self.conflicts.append(fault)
                else:
                    yield fault

    def _superseded_later(self, message_id: str, text: str, at: float) -> bool:
        """Return whether a text was in the transcript until an outage's pending answer replaced it."""
        kept = any(row.content == text for row in self.superseded.get(message_id, ()))
        return kept and self.outage(self.asked[message_id].at, at)

    def _waited(self, text: str, at: float) -> bool:
        """Return whether an answer waited in a process that could not read the database, and was never returned.

        It is not stored, because another answer had been returned by then.
        """
        given = next((call.at for call in self.history.calls if call.answer == text), None)
        was_told = any(one.text == text for one in self.history.told)
        return given is not None and not was_told and self.outage(given, given) and self.outage(at, at)

    def _forgotten(self, name: str, call: ModelCall, asked: Sequence[str]) -> Iterator[Fault]:
        first = self.told.get(asked[-1], ())[:1]
        if first and first[0].at < call.at and first[0].text != call.answer:
            # The process was paused after it had read the session, and the question was answered meanwhile.
            return
        session_id = self.asked[asked[-1]].session_id
        texts = {text for _, text in call.messages}
        told = [
            one
            for message_id, [one, *_] in self.told.items()
            if one.session_id == session_id and message_id != asked[-1] and one.at < call.at
        ]
        newest = sorted(told, key=lambda one: one.at)[-self.history.window_messages // 4 :]
        for one in newest:
            missing = question_text(one.message_id) not in texts or one.text not in texts
            # A service that cannot reach its database may answer without earlier turns.
            if missing and not self.outage(self.asked[one.message_id].at, call.at):
                yield Fault("context", f"{name} was not sent the turn {one.message_id}, which was told before")

    def streams(self) -> Iterator[Fault]:
        """Check that the chunks of a stream end with its answer, unless it reports that the answer was replaced."""
        for one in self.history.told:
            if one.pieces and not one.pieces.endswith(one.text) and not one.replaced:
                yield Fault("stream", f"{one.message_id}: the pieces {_short(one.pieces)} end with {_short(one.text)}")

    def asked_again(self) -> Iterator[Fault]:
        """Check that a repeat without faults calls no model."""
        for call in self.history.calls:
            if call.final:
                yield Fault("asked again", f"call {call.number}: a repeat of an answered question asked the model")


def _short(text: str | None) -> str:
    """Return the number of an answer, or the beginning of another text, for the sentence of a fault."""
    if text is None:
        return "nothing"
    answer = Answer.of(text)
    return f"#{answer.call}" if answer else repr(text[:40])


def by_kind(faults: Iterable[Fault]) -> dict[str, int]:
    """Return how many faults of each kind there are."""
    found: defaultdict[str, int] = defaultdict(int)
    for fault in faults:
        found[fault.kind] += 1
    return dict(found)
