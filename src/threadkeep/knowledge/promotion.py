"""Promoted facts, which are also sent to Graphiti: their texts, directives in messages, and rejection of secrets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from threadkeep.errors import InvalidInput
from threadkeep.records.knowledge import FACT_KINDS, SCOPE_KINDS, FactKind, NewFact, ScopeKind

# Each repetition has a limit, so that external text is matched in linear time.
_PHRASE = r"(?:pass(?:word|wd|phrase|code)|\bpwd|\bpw\b|密码|口令)\w{0,2}[\"'`]?"
_KEY = r"(?:token|secret|(?:api|access|private)[ -]?key|密钥|令牌)\w{0,2}[\"'`]?"
_VERB = r"(?:\s{1,9}(?:is|are|was)\b|\s{0,9}[是为])"
_JOINT = rf"(?:{_VERB}\s{{0,9}}[=:：]?|\s{{0,9}}[=:：])\s{{0,9}}"
_WITH_DIGIT = r"(?=\S{3})\S{0,80}\d"
_NAMED = re.compile(
    rf"{_PHRASE}{_JOINT}\S{{3,}}"
    rf"|{_PHRASE}\s{{1,9}}(?=\S{{6}})(?=\S{{0,80}}[^\W\d])\S{{0,80}}\d"
    rf"|{_KEY}{_JOINT}(?:{_WITH_DIGIT}|[\w+/=.~-]{{24,}})"
    rf"|{_KEY}\s{{0,9}}(?:=\s{{0,9}}\S{{3,}}|[:：]\s{{0,9}}\S{{3,80}}\s{{0,9}}$)"
    rf"|(?:{_PHRASE}|{_KEY})\s{{1,9}}(?:to|for|of|on|at|in)\s[^.\n]{{1,60}}?{_JOINT}{_WITH_DIGIT}",
    re.IGNORECASE | re.MULTILINE,
)
_SHAPED = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\bgh[pousr]_\w{4,}|\bgithub_pat_\w{4,}|\bsk-[\w-]{8,}|\bAKIA[0-9A-Z]{8,}|\bxox[a-z]-[\w-]{4,}|\beyJ[\w-]{8,}"
    r"|(?i:\bauthorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:bearer|basic|token)\s{1,9}\S{4,})"
)


def looks_like_secret(text: str) -> bool:
    """Return True if a text seems to contain a password, a token or a key.

    After a word such as `token` or `key`, a short value without a digit usually does not count: it may be a plain word.
    """
    return bool(_SHAPED.search(text) or _NAMED.search(text.replace("_", " ")))


type PromotedKind = Literal[
    "decision", "lesson_learned", "preference", "procedure", "task_update", "terminology", "repo_state"
]
type Relation = Literal[
    "DEPENDS_ON", "BLOCKED_BY", "DECIDED", "RISK", "MITIGATED_BY", "DONE", "TODO", "TOUCHES", "DEFINED_IN", "USES",
    "FIXES", "CAUSES", "TESTED_BY", "RAN", "GENERATED", "FAILED_WITH", "VALIDATED_BY",
]  # fmt: skip

PROMOTED_KINDS: tuple[PromotedKind, ...] = get_args(PromotedKind.__value__)
RELATIONS: tuple[Relation, ...] = get_args(Relation.__value__)

_MOST_DIRECTIVES = 100
REFUSAL = "This looks like a secret, such as a password or a key: it was not remembered. Leave the secret out."

_SYNONYMS: dict[str, PromotedKind] = {
    **{kind: kind for kind in PROMOTED_KINDS if kind != "repo_state"},
    "remember": "lesson_learned", "note": "lesson_learned", "lesson": "lesson_learned",
    "pref": "preference", "prefs": "preference", "preferences": "preference",
    "steps": "procedure", "howto": "procedure", "how-to": "procedure",
    "todo": "task_update", "task": "task_update",
    "term": "terminology", "naming": "terminology",
    "lesson learned": "lesson_learned", "task update": "task_update",
}  # fmt: skip
_DIRECTIVE = re.compile(
    rf"^[ \t]*({'|'.join(sorted(map(re.escape, _SYNONYMS), key=len, reverse=True))})"
    # Use no two adjacent repetitions, so that external text is matched in linear time.
    r"[ \t]*(?:\((user|workspace|session)\)[ \t]*)?[:：](.*)$",
    re.IGNORECASE,
)
# A text that begins like this is about its author, and must not become a fact that a whole workspace reads.
_FIRST_PERSON = re.compile(
    # "je" is French for "I". Before one of the listed words, it is Dutch for "you" or "your".
    r"^\W*(?:I['’\s]|je(?!\s+(?:moet|kunt|kan|mag|hebt|bent|zult|zal|wilt?|hoeft|krijgt|gebruikt|vindt|eigen)\b)(?![\w-])"
    r"|(?:my|ich|mein(?:e[mnrs]?)?|ik|mijn|mon|ma|mes|yo|(?:mi|meu|minha)s?|я|мо[йяеёи]|мне|меня)(?![\w-])|j['’]"
    r"|我(?!们|們)|私(?!たち|達)|[僕俺](?!たち|達|ら)|저는|제가|나는|내가)",
    re.IGNORECASE,
)


class RelationOf(NamedTuple):
    """A relation between two things; its name is one of `RELATIONS`."""

    source: str
    name: Relation
    target: str


@dataclass(frozen=True)
class Promotion:
    """A fact to store for a session, workspace or person, and to send to Graphiti with its kind, text and relations."""

    kind: PromotedKind
    text: str
    scope: ScopeKind = "workspace"
    key: str | None = None
    relations: tuple[RelationOf, ...] = ()

    def __post_init__(self) -> None:
        """Reject a fact that cannot be stored.

        Raises:
            InvalidInput: the fact cannot be stored. The error names the field, but does not quote the fact.
        """
        if self.kind not in PROMOTED_KINDS:
            raise InvalidInput(f"A promoted fact's kind is one of {', '.join(PROMOTED_KINDS)}.")
        if not self.text.strip():
            raise InvalidInput("A promoted fact needs a text; write what to remember.")
        NewFact(self.fact_key, self.text)  # raises if it could not be stored
        if any(one.name not in RELATIONS for one in self.relations):
            raise InvalidInput(f"A relation must be one of {', '.join(RELATIONS)}.")
        words = [self.text if self.key is None else f"{self.key}: {self.text}"]
        words += [f"{one.source} {one.name} {one.target}" for one in self.relations]
        if looks_like_secret("\n".join(words)):
            raise InvalidInput(REFUSAL)

    @property
    def fact_key(self) -> str:
        """The key of the fact: the given key, or the kind and a hash of the text; for `repo_state`, only the kind."""
        digest = hashlib.sha256(self.text.strip().encode(errors="surrogatepass")).hexdigest()[:8]
        return self.key or (self.kind if self.kind == "repo_state" else f"{self.kind}_{digest}")

    @property
    def fact_kind(self) -> FactKind:
        """The kind of the stored fact."""
        return next((kind for kind in FACT_KINDS if kind == self.kind), "world_knowledge")

    def episode(self, owner: str) -> str:
        """Return the text that is sent to Graphiti: a line for the fact, and a line for each relation."""
        what = self.kind.replace("_", " ").capitalize()
        lines = [f"{what} of {self.scope} {owner}: {self.text.strip()}"]
        return "\n".join([*lines, *(f"{one.source} {one.name} {one.target}." for one in self.relations)])


def accepted_directives(text: str) -> tuple[list[Promotion], int]:
    """Return a message's directives (`preference (user): Keep diffs small`) and how many were rejected.

    The text of a directive is on the same line, or on the next lines up to a blank line or the next directive. A
    directive without a scope belongs to the workspace, or to the user if it begins with "I" or "my" and is not a
    decision, a procedure or a task update. A directive is rejected if it looks like a secret or is too long. After the
    first 100 directives, all others are rejected.
    """
    found: list[Promotion] = []
    refused = 0
    for kind, named, words in _directives(text):
        try:
            if len(found) < _MOST_DIRECTIVES:
                found.append(Promotion(kind, words, _scope(named, kind, words)))
            else:
                refused += 1
        except InvalidInput:
            refused += 1
    return found, refused


def _directives(text: str) -> Iterator[tuple[PromotedKind, str | None, str]]:
    """Yield the kind, the scope (None if not given) and the text of each directive."""
    lines = text.split("\n")
    matches = [_DIRECTIVE.match(line) for line in lines]
    for index, match in enumerate(matches):
        if match is None:
            continue
        end = index + 1
        while end < len(lines) and lines[end].strip() and matches[end] is None:
            end += 1
        if words := match[3].strip() or "\n".join(line.strip() for line in lines[index + 1 : end]):
            yield _SYNONYMS[match[1].lower()], match[2], words


def _scope(named: str | None, kind: PromotedKind, words: str) -> ScopeKind:
    if named is not None:
        return next(scope for scope in SCOPE_KINDS if scope == named.lower())
    if kind in ("decision", "procedure", "task_update"):
        return "workspace"
    return "user" if _FIRST_PERSON.search(words) else "workspace"
