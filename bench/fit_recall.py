"""`python -m bench.fit_recall --data FILE`: fit the weights of recall and print the results; `--write` stores them.

Each turn with an answer should rank above the turns without (a softmax over the turns found for a question, with a
ridge). Five sets are fitted at once, so that the weights suit more than one kind of conversation: conversations of
people; the same as chats of a user with a wordy assistant; the same with remarks instead of questions; synthetic chats;
and harder ones with long answers. The results are printed for conversations that were left out of the fit and, in
parentheses, for weights that were fitted to all conversations.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import recall_hard
from bench.recall import BUDGETS, conversations, cost
from bench.recall_chats import Chat, chats
from bench.recall_phrases import ENGLISH
from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.context.recall import weights as current
from threadkeep.context.recall.index import COST_SHARE

type Floats = NDArray[np.float64]

_RIDGE = 0.1
_SHARES = {"people": 1.0, "assistant": 0.4, "remarks": 0.4, "made up": 0.1, "hard": 0.4}
_NAMES = [
    *(("PRIOR", name) for name in current.PRIOR),
    *(("ANSWER", name) for name in current.ANSWER),
    *(("MATCH", name) for name in current.MATCH),
]
# The data has no questions about an agent's statements, so a fit would weigh an agent's turns too low.
_SET_BY_HAND = ("by_agent",)
_QUESTION_WORDS = re.compile(
    r"^(what|when|where|who|why|which|how( many| long| often| much)?)\b( (kind|type)s? of)?"
    r"( (did|does|do|is|was|are|has|have|would|were))?", re.IGNORECASE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """A question: the signals of its candidate turns, their costs, and which of them contain the answer."""

    signals: Floats
    costs: Floats
    holds: NDArray[np.bool_]
    evidence: int


def examples(chat: Chat) -> Iterator[Example]:
    """Yield the questions of a chat with the signals that the index computes."""
    priors: dict[str, Sequence[float]] = {}
    answers: dict[str, Sequence[float]] = {}

    def notice(turn_id: str, prior: Sequence[float], answer: Sequence[float]) -> None:
        priors[turn_id], answers[turn_id] = prior, answer

    index = RecallIndex(notice)
    costs = {turn.id: cost(turn) for turn in chat.turns}
    for turn in chat.turns:
        index.add(IndexedTurn(turn.id, turn.text, turn.speaker, turn.time, turn.session))
    for asked in chat.asked:
        rows, ids = [], []
        for turn_id, kind, match in index.candidates(asked.text):
            known = zip(current.ANSWER, answers[turn_id], strict=True)
            answer = [value * (name == kind) for name, value in known]
            rows.append([*priors[turn_id], *answer, *(match[name] for name in current.MATCH)])
            ids.append(turn_id)
        if rows:
            holds = np.array([turn_id in asked.evidence for turn_id in ids])
            yield Example(np.array(rows), np.array([costs[i] for i in ids], float), holds, len(asked.evidence))


def as_assistant(chat: Chat) -> Iterator[Chat]:
    """Yield the chat once per speaker: that one is the user, the other an assistant that adds unrelated text."""
    speakers = sorted({turn.speaker for turn in chat.turns})
    for user in speakers:
        chance = random.Random(chat.id + user)
        names = re.compile(rf",? ?\b({'|'.join(name for s in speakers for name in (s, s[:3]))})\b")
        turns = []
        for turn in chat.turns:
            text = names.sub("", turn.text)
            if turn.speaker != user and chance.random() < 0.7:
                subject = chance.choice(ENGLISH.subjects)
                advice = chance.sample(ENGLISH.advice, chance.randint(3, 9))
                text = " ".join([text, *(line.format(subject=subject) for line in advice)])
            turns.append(replace(turn, text=text, speaker="user" if turn.speaker == user else "assistant"))
        others = [speaker for speaker in speakers if speaker != user]
        asked = [
            replace(asked, text=_in_first_person(asked.text, user))
            for asked in chat.asked
            if user in asked.text and not any(other in asked.text for other in others)
        ]
        yield Chat(f"{chat.id}-{user}", turns, asked)


def _in_first_person(text: str, name: str) -> str:
    text = re.sub(rf"\b{name}['’]s\b", "my", text)
    verbs = {"does": "do", "is": "am", "has": "have", "was": "was"}
    text = re.sub(rf"\b({'|'.join(verbs)}) {name}\b", lambda found: f"{verbs[found[1]]} I", text)
    return re.sub(rf"\b{name}\b", "I", text)


def as_remarks(chat: Chat) -> Iterator[Chat]:
    """Yield the chat with remarks instead of its questions."""
    yield replace(
        chat,
        asked=[
            replace(asked, text=f"I was just thinking about {_QUESTION_WORDS.sub('', asked.text).strip(' ?')}.")
            for asked in chat.asked
        ],
    )


def fit(sets: Sequence[tuple[float, Sequence[Example]]]) -> Floats:
    """Return weights that rank turns with the answer above the others; each set counts with its share."""
    kept = [(share / len(found), example) for share, found in sets for example in found if example.holds.any()]
    every = np.concatenate([example.signals for _, example in kept])
    spread = every.std(axis=0)
    spread[spread < 1e-4] = 1e6
    scaled = [(share, example.signals / spread, example.holds) for share, example in kept]

    def loss(weights: Floats) -> tuple[float, Floats]:
        total, slope = _RIDGE / 2 * float(weights @ weights), _RIDGE * weights
        for share, signals, holds in scaled:
            scores = signals @ weights
            powers = np.exp(scores - scores.max())
            against = powers[~holds].sum()
            chances = powers[holds] / (powers[holds] + against)
            each = share / holds.sum()
            total -= each * float(np.log(chances + 1e-12).sum())
            pull = np.zeros(len(scores))
            pull[holds] = chances - 1
            pull[~holds] = powers[~holds] * ((1 - chances).sum() / max(against, 1e-12))
            slope = slope + each * (signals.T @ pull)
        return total, slope

    return _least(loss, np.zeros(every.shape[1])) / spread


def _least(loss: Callable[[Floats], tuple[float, Floats]], start: Floats, rounds: int = 60) -> Floats:
    """Return the minimum of a smooth convex function, by at most `rounds` steps of L-BFGS with halved steps."""
    here, (value, slope) = start, loss(start)
    steps: list[tuple[Floats, Floats]] = []
    for _ in range(rounds):
        way, shares = slope.copy(), []
        for step, change in reversed(steps):
            shares.append((step @ way) / (change @ step))
            way -= shares[-1] * change
        way *= (steps[-1][0] @ steps[-1][1]) / (steps[-1][1] @ steps[-1][1]) if steps else 1 / np.linalg.norm(slope)
        for (step, change), share in zip(steps, reversed(shares), strict=True):
            way += step * (share - (change @ way) / (change @ step))
        size = 1.0
        while (new := loss(here - size * way))[0] > value - 1e-4 * size * float(slope @ way) and size > 1e-6:
            size /= 2
        steps = [*steps[-7:], (-size * way, new[1] - slope)]
        gained, here, (value, slope) = value - new[0], here - size * way, new
        if gained < 1e-7:
            break
    return here


def recalls(weights: Floats, found: Sequence[Example]) -> Floats:
    """Return the recall of each example at each budget."""
    rows = np.zeros((len(found), len(BUDGETS)))
    for row, example in zip(rows, found, strict=True):
        order = np.argsort(COST_SHARE * np.log(example.costs) - example.signals @ weights, kind="stable")
        for column, budget in enumerate(BUDGETS):
            left = float(budget)
            for number in order:
                if example.costs[number] <= left:
                    left -= example.costs[number]
                    row[column] += example.holds[number] / example.evidence
    return rows


def _folds(given: Sequence[Chat]) -> list[dict[str, list[Example]]]:
    """Group the examples by conversation: all forms of one conversation, each with its own synthetic chat."""
    made_up, hard = list(chats()), list(recall_hard.chats("fitted", (1, 2, 3)))
    folds: list[dict[str, list[Example]]] = []
    for number, chat in enumerate(given):
        shapes = {
            "people": [chat], "assistant": as_assistant(chat), "remarks": as_remarks(chat),
            "made up": made_up[number :: len(given)], "hard": hard[number :: len(given)],
        }  # fmt: skip
        folds.append({name: [one for shape in shaped for one in examples(shape)] for name, shaped in shapes.items()})
        print(f"read {number + 1} of {len(given)}", file=sys.stderr)
    return folds


def _fitted(folds: Sequence[Mapping[str, Sequence[Example]]]) -> Floats:
    return fit([(share, [one for fold in folds for one in fold[name]]) for name, share in _SHARES.items()])


def fitted_without(given: Sequence[Chat]) -> list[Floats]:
    """Return for each conversation the weights that are fitted to the others."""
    folds = _folds(given)
    return [_fitted([fold for fold in folds if fold is not left_out]) for left_out in folds]


def use(weights: Floats) -> None:
    """Rank with these weights from now on; turns that are indexed already keep their priors."""
    for table, fitted in _tables(weights).items():
        getattr(current, table).update(fitted)


def _tables(weights: Floats) -> dict[str, dict[str, float]]:
    tables: dict[str, dict[str, float]] = {"PRIOR": {}, "ANSWER": {}, "MATCH": {}}
    for (table, name), weight in zip(_NAMES, weights, strict=True):
        tables[table][name] = current.PRIOR[name] if name in _SET_BY_HAND else float(weight)
    return tables


def _text(weights: Floats) -> str:
    """Return the source of the module of weights with these weights."""
    source = Path(current.__file__).read_text()
    for table, fitted in _tables(weights).items():
        rows = [f'    "{name}": {weight:.3f},\n' for name, weight in fitted.items()]
        begin = source.index("{", source.index(f"{table}: Final")) + 1
        source = source[:begin] + "\n" + "".join(rows) + source[source.index("}", begin) :]
    return source


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the recall on left-out conversations, store the weights if requested, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_recall", description=main.__doc__)
    parser.add_argument("--data", type=conversations, required=True, help="conversations.json of the shared data set")
    parser.add_argument(
        "--write", action="store_true", help="write the weights into threadkeep/context/recall/weights.py"
    )
    given = parser.parse_args(arguments)
    folds = _folds(given.data)
    everything = _fitted(folds)
    apart = [_fitted([fold for fold in folds if fold is not left_out]) for left_out in folds]
    for name in _SHARES:
        left_out = np.concatenate([recalls(weights, fold[name]) for weights, fold in zip(apart, folds, strict=True)])
        fitted = np.concatenate([recalls(everything, fold[name]) for fold in folds])
        line = "  ".join(
            f"{100 * a:6.2f} ({100 * b:6.2f})" for a, b in zip(left_out.mean(0), fitted.mean(0), strict=True)
        )
        print(f"{name:<10} {line}   left out (fitted), n={len(fitted)}")
    held_out = [one for chat in recall_hard.chats("held out", (1, 2, 3)) for one in examples(chat)]
    line = "  ".join(f"{100 * share:6.2f}" for share in recalls(everything, held_out).mean(0))
    print(f"{'hard':<10} {line}   the part that no fit sees, n={len(held_out)}")
    if given.write:
        Path(current.__file__).write_text(_text(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
