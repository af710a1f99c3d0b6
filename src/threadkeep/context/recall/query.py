"""Parsing of an input to a `Query` (terms, speakers, kind of answer), and the choice of a text's best passage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from threadkeep.context.recall.words import WordTable, is_stop_word, stem, terms_of, words_of

type Kind = Literal["when", "number", "who", "where", "why", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind.__value__)

ROLES: Final = frozenset(("user", "assistant"))
"""The roles, which stand for speakers who have no name."""

_READ_CHARACTERS = 8_000
_RECENT_CHARACTERS = 1_500
_FIRST_PERSON = frozenset(("i", "my", "me", "mine", "i'm", "i've", "i'd", "we", "our", "us", "myself"))
_BACK = "it its that this these those they them their he him his she her there one ones"
_BACK_WORDS = frozenset(_BACK.split())
_BACK_CHARACTERS = re.compile("[它他她这那]")
_SAYING = "recommend|suggest|said|told|gave|mention|wrote|explain|list|provide|advise|propose"
_TO_THE_OTHER = re.compile(
    rf"\b(?:did|have|had) you\b|\byou (?:\w+ )?(?:{_SAYING})"
    r"|\byour (?:answer|advice|suggestion|recommendation|list)|[你您].{0,3}(?:推荐|建议|说|告诉|提到|给)",
    re.IGNORECASE,
)
_HAN_FIRST_PERSON = "我"
_CAPITALS = re.compile(r"(?<=[a-z0-9,'’s] )[A-Z]\w+")
_PLACES = frozenset(("city", "country", "place", "state", "town", "address"))
_TIMES = frozenset(("date", "day", "year", "month", "time"))
_AMOUNTS = frozenset(("many", "much", "long", "often", "old", "far", "big", "tall"))
_HAN_KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile("什么时候|何时|哪天|几号|哪年"), "when"),
    (re.compile("多少|几[个次天年]|多久|多长"), "number"),
    (re.compile("谁"), "who"),
    (re.compile("哪里|哪儿|在哪|什么地方|哪个城市|哪家"), "where"),
    (re.compile("为什么|为何|怎么会"), "why"),
)
_DATE_WORDS = """
january february march april may june july august september october november december monday tuesday wednesday thursday
friday saturday sunday week month year yesterday today weekend ago last spring summer autumn fall winter day
"""
_DATE_TERMS = frozenset(map(stem, _DATE_WORDS.split()))
# Words of a date weigh less, because they are also matched as days; capitalised names weigh more.
_DATE_SHARE, _CAPITAL_SHARE, _RECENT_SHARE = 0.4, 1.3, 0.35
_FEW_TERMS = 2
_STEMS = WordTable(stem)
_LEAST_NICKNAME = 3
_RECENT_TERMS = 12


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed input: the weight of each term, the speakers it is about, and the kind of answer."""

    terms: Mapping[str, float]
    speakers: frozenset[str]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Participants:
    """The speakers of a conversation, used to find out whom an input names.

    `names` maps each lower-case word of a speaker's name to the speaker; `nicknames` maps prefixes of these words. "I"
    means the `askers`, and "you" means the `others`.
    """

    names: Mapping[str, str]
    askers: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    nicknames: Mapping[str, str] = MappingProxyType({})


def nicknames_of(name: str) -> Iterator[str]:
    """Yield the prefixes of a name that may be used as nicknames."""
    return (name[:length] for length in range(_LEAST_NICKNAME, len(name)))


def read(text: str, participants: Participants, *, recent: Sequence[str] = (), dated: bool = False) -> Query:
    """Parse an input to a query.

    Args:
        text: The new input.
        participants: The speakers of the conversation.
        recent: The last turns, oldest first, to resolve words such as "it" and "that".
        dated: True if days were found in the input.
    """
    text = text[:_READ_CHARACTERS]
    words = words_of(text)
    speakers, content = _named(text, words, participants)
    if not speakers:
        speakers = _persons(text, words, participants)
    terms = dict.fromkeys(terms_of(content), 1.0) or {stem(word): 1.0 for word in content}
    _weigh(terms, text, dated)
    points_back = not _BACK_WORDS.isdisjoint(words) or _BACK_CHARACTERS.search(text) is not None
    if recent and (len(terms) <= _FEW_TERMS or points_back):
        for term in _recent_terms(recent):
            terms.setdefault(term, _RECENT_SHARE)
    return Query(terms, speakers, _kind(text, words))


def _named(text: str, words: Sequence[str], participants: Participants) -> tuple[frozenset[str], list[str]]:
    """Return the speakers that the words name, and the words that name no speaker."""
    found: set[str] = set()
    left: list[str] = []
    for word in words:
        bare = word.removesuffix("'s")
        speaker = participants.names.get(bare) or _nicknamed(bare, participants)
        if speaker is None or speaker in ROLES or (is_stop_word(bare) and f" {bare.capitalize()}" not in text):
            left.append(word)
        else:
            found.add(speaker)
    return frozenset(found), left


def _nicknamed(word: str, participants: Participants) -> str | None:
    if len(word) < _LEAST_NICKNAME or is_stop_word(word):
        return None
    return participants.nicknames.get(word) or participants.names.get(word[:-1])


def _persons(text: str, words: Sequence[str], participants: Participants) -> frozenset[str]:
    """Return the speakers that "I" and "you" in an input refer to."""
    if participants.askers and _TO_THE_OTHER.search(text):
        return participants.others
    if not _FIRST_PERSON.isdisjoint(words) or _HAN_FIRST_PERSON in text:
        return participants.askers
    return frozenset()


def _weigh(terms: dict[str, float], text: str, dated: bool) -> None:
    capitals = {_STEMS[found.lower().removesuffix("'s")] for found in _CAPITALS.findall(text)}
    for term in terms:
        if dated and (term in _DATE_TERMS or (term.isdecimal() and len(term) in (1, 2, 4))):
            terms[term] = _DATE_SHARE
        elif term in capitals:
            terms[term] = _CAPITAL_SHARE


def _recent_terms(recent: Sequence[str]) -> list[str]:
    """Return the terms of the last turns, newest turn first."""
    found: dict[str, None] = {}
    for text in reversed(recent):
        found.update(dict.fromkeys(terms_of(words_of(text[:_RECENT_CHARACTERS]))))
        if len(found) >= _RECENT_TERMS:
            break
    return list(found)[:_RECENT_TERMS]


def _kind(text: str, words: Sequence[str]) -> Kind:
    for pattern, kind in _HAN_KINDS:
        if pattern.search(text):
            return kind
    first, second = [*words[:2], "", ""][:2]
    opening, every = words[:4], frozenset(words)
    if "when" in opening[:3] or (first in {"what", "which"} and not _TIMES.isdisjoint(every)):
        return "when"
    if first == "how" and second in _AMOUNTS:
        return "number"
    if not {"who", "whom", "whose"}.isdisjoint(opening):
        return "who"
    if "where" in opening or (first in {"which", "what", "in"} and not _PLACES.isdisjoint(every)):
        return "where"
    return "why" if "why" in opening else "other"


# A piece ends with a sentence or a line, at the latest after 400 characters.
_PIECES = re.compile(r"[^\n]{1,400}?(?:[.!?。！？]{1,9}(?=\s)|[。！？]|$)|\n|[^\n]{1,400}", re.MULTILINE)
_QUOTED_CHARACTERS = 60_000
_MOST_PIECES = 3_000


class Passage(NamedTuple):
    """A range of characters of a text; the end is excluded."""

    first: int
    last: int


def passage_of(text: str, terms: Mapping[str, float], characters: int) -> Passage:
    """Return the passage of consecutive sentences with the greatest weight in `terms`.

    Args:
        text: The text to quote from.
        terms: The weight of each term of the query.
        characters: The maximum length of the passage. A single longer sentence is cut.
    """
    found = _PIECES.finditer(text[:_QUOTED_CHARACTERS])
    pieces = list(islice(((one.start(), one.end()) for one in found if not one[0].isspace()), _MOST_PIECES))
    known = [{term for term in terms_of(words_of(text[a:b])) if term in terms} for a, b in pieces]
    inside = Counter[str]()
    best = first = 0
    weight = best_weight = 0.0
    for last in range(len(pieces)):
        weight += sum(terms[term] for term in known[last] if not inside[term])
        inside.update(known[last])
        while first < last and pieces[last][1] - pieces[first][0] > characters:
            inside.subtract(known[first])
            weight -= sum(terms[term] for term in known[first] if not inside[term])
            first += 1
        # The answer often follows the words of the question, so of passages with equal weight, choose the first.
        if weight > best_weight + 1e-9:
            best, best_weight = first, weight
    begin = _without_space(text, pieces[best][0]) if pieces else 0
    end = max((b for a, b in pieces if b - begin <= characters), default=0)
    return Passage(begin, end if end > begin else min(len(text), begin + characters))


def _without_space(text: str, begin: int) -> int:
    while begin < len(text) and text[begin].isspace():
        begin += 1
    return begin
