"""Session ids: what a valid key is, how an id becomes part of one, and which candidate wins."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from threadkeep.errors import InvalidKey
from threadkeep.observe.events import CHANNELS, Channel

type Reason = Literal["empty", "empty_part", "unresolved_template", "too_long", "invalid_chars"]

MAX_KEY_CHARACTERS = 256
MAX_TEMPLATE_CHARACTERS = 4096
KEY_TEMPLATE = "{{conversation_key}}"

_KEY = re.compile(r"[A-Za-z0-9:_-]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_ESCAPED = re.compile(r"(?:[A-Za-z0-9-]|_[0-9a-f]{2})*")
_BYTE = re.compile(rb"_([0-9a-f]{2})")
PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_PATH = re.compile(r"[\w-]+(?:\.[\w-]+|\[[0-9]+\])*")
_STEP = re.compile(r"[\w-]+")
_RUN_IDS = ("thread_id", "configurable.thread_id")

_CURES: Mapping[Reason, str] = {
    "empty": "A session id has at least one character; give the id of the chat or the person.",
    "empty_part": "A session id has no empty part between its colons; give every part a value, such as telegram:123.",
    "unresolved_template": "A session id holds no {{…}}; resolve the template with threadkeep.resolve_key first.",
    "too_long": f"A session id has at most {MAX_KEY_CHARACTERS} characters; use a shorter id or a hash of it.",
    "invalid_chars": "A session id is text of A-Z, a-z, 0-9, colon, _ and -; other ids need threadkeep.escape_key.",
}


@dataclass(frozen=True)
class Refusal:
    """A candidate, as its author typed it, and why it gave no key."""

    candidate: str
    reason: Reason


@dataclass(frozen=True)
class KeyResolution:
    """The key, if there is one, and every template that was refused on the way, in the order of trying.

    `conversation_key` is what the winning candidate gave; `key` is what the key template made of it. If the key
    template was refused, it is the last in `refused` and `key` is None.
    """

    key: str | None
    conversation_key: str | None = None
    refused: tuple[Refusal, ...] = ()

    @property
    def reason(self) -> Reason | None:
        """Why there is no key, by the last that was refused; None when there is one."""
        if self.key is not None:
            return None
        return self.refused[-1].reason if self.refused else "empty"


def refusal(value: object) -> Reason | None:
    """Why a value is not a valid key, or None if it is; of several reasons the first in the order of `Reason`."""
    if not isinstance(value, str):
        return "invalid_chars"
    if not value.strip():
        return "empty"
    if "" in value.split(":"):
        return "empty_part"
    if "{{" in value or "}}" in value:
        return "unresolved_template"
    if len(value) > MAX_KEY_CHARACTERS:
        return "too_long"
    return None if _KEY.fullmatch(value) else "invalid_chars"


def check_key(key: str) -> None:
    """Let a valid key pass.

    Raises:
        InvalidKey: the key is not valid; the sentence does not repeat it.
    """
    reason = refusal(key)
    if reason is not None:
        raise InvalidKey(_CURES[reason], reason=reason)


def escape_key(text: str) -> str:
    """The text as one part of a key: `li@corp` becomes `li_40corp`.

    Of every character other than A-Z, a-z, 0-9 and minus, each UTF-8 byte becomes `_` and two hex digits. Two different
    texts never become the same part, and `unescape_key` gives the text back.

    Raises:
        InvalidKey: the text has a lone surrogate, which stands for no character.
    """
    try:
        return _UNSAFE.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), text)
    except UnicodeEncodeError:
        sentence = "An id with a lone surrogate stands for no text; repair where it is decoded."
        # From None: the encoding error carries the whole text.
        raise InvalidKey(sentence, reason="invalid_chars") from None


def unescape_key(part: str) -> str:
    """The text that `escape_key` made this part of.

    Raises:
        InvalidKey: `escape_key` never gives this.
    """
    if _ESCAPED.fullmatch(part):
        try:
            text = _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), part.encode()).decode()
        except UnicodeDecodeError:
            text = ""
        # `_41` would give A, which is escaped as A: only one spelling of a text is accepted.
        if escape_key(text) == part:
            return text
    sentence = "This is not an escaped part; pass what escape_key returned, which is one part and not a whole key."
    raise InvalidKey(sentence, reason="invalid_chars")


def channel_of(session_id: str, *, default: Channel = "other") -> Channel:
    """The channel that the first part of a session id names, else the default."""
    first, colon, _ = session_id.partition(":")
    return next((channel for channel in CHANNELS if colon and channel == first), default)


def resolve_key(
    candidates: Iterable[object],
    scope: Mapping[str, object],
    *,
    template: str = KEY_TEMPLATE,
    manual: bool = False,
) -> KeyResolution:
    """The key that the first valid candidate gives, after the key template was rendered with it as `conversation_key`.

    A candidate is a literal or has `{{dotted.path}}` placeholders: names, and indexes of lists (`items.0.id` or
    `items[0].id`); there are no expressions. It is rendered from `scope`, which is only read, and then checked. What is
    not a string is skipped; one string alone counts as one candidate.

    A text from the scope is escaped with `escape_key`, a whole number gives its digits (12.0 is 12; another fraction is
    escaped as text). A missing path, null, true, false, a list or an object is `unresolved_template`. An empty or blank
    value is `empty`, or `empty_part` if the candidate has more than it. `{{thread_id}}` is missing unless the run is
    `manual`, since elsewhere it is new in each run. Keep placeholders apart with colons, the only character that no
    value can contain: `{{a}}-{{b}}` gives two pairs of values one key.
    """
    refused: list[Refusal] = []
    values = _Values(scope, manual=manual)
    for candidate in (candidates,) if isinstance(candidates, str) else candidates:
        if not isinstance(candidate, str):
            continue
        found, reason = values.render(candidate)
        if reason is not None:
            refused.append(Refusal(candidate, reason))
            continue
        key, reason = _Values(scope, manual=manual, conversation_key=found).render(template)
        if reason is not None:
            return KeyResolution(None, found, (*refused, Refusal(template, reason)))
        return KeyResolution(key, found, tuple(refused))
    return KeyResolution(None, None, tuple(refused))


class _Values:
    """What placeholders may refer to in one resolution."""

    def __init__(self, scope: Mapping[str, object], *, manual: bool, conversation_key: str | None = None) -> None:
        self._scope = scope
        self._manual = manual
        self._conversation_key = conversation_key

    def render(self, template: str) -> tuple[str, Reason | None]:
        """The template with values in place of its placeholders, and why the result is no key."""
        if len(template) > MAX_TEMPLATE_CHARACTERS:
            return "", "too_long"
        try:
            values = [self._text(found[1].strip()) for found in PLACEHOLDER.finditer(template)]
        except InvalidKey:
            return "", "invalid_chars"
        texts = iter(values)
        # A placeholder without a value stays as it is, and is refused as an unresolved template.
        rendered = PLACEHOLDER.sub(lambda found: found[0] if (text := next(texts)) is None else text, template)
        # `room-{{user}}` without a user would be one room for everybody, though none of its parts is empty.
        return rendered, refusal(rendered) or ("empty_part" if "" in values else None)

    def _text(self, path: str) -> str | None:
        if path == "conversation_key" and self._conversation_key is not None:
            return self._conversation_key
        if path in _RUN_IDS and not self._manual:
            return None
        return _text_of(look_up(self._scope, path))


def is_path(text: str) -> bool:
    """Whether a text is a dotted path, such as `results.parser.items[0].id`."""
    return _PATH.fullmatch(text) is not None


def look_up(scope: Mapping[str, object], path: str) -> object:
    """The value at a dotted path, through mappings and sequences only; None if there is none."""
    if not is_path(path):
        return None
    here: object = scope
    for step in _STEP.findall(path):
        if isinstance(here, Mapping):
            here = here.get(step)
        elif isinstance(here, Sequence) and not isinstance(here, str | bytes | bytearray):
            # Nine digits: more are no index, and int() refuses thousands of them with an error.
            index = int(step) if step.isascii() and step.isdigit() and len(step) < 10 else len(here)
            here = here[index] if index < len(here) else None
        else:
            return None
    return here


def _text_of(value: object) -> str | None:
    """A value from the scope as part of a key, empty if it is blank, None if it is neither text nor a number."""
    if isinstance(value, float) and math.isfinite(value):
        value = int(value) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # A number beyond any float is longer than a key in any case, and str() refuses to print the largest.
        return f"{int(value):d}" if value.bit_length() <= 1024 else "9" * (MAX_KEY_CHARACTERS + 1)
    if isinstance(value, str):
        # Escaping never shortens, so what follows cannot make the key fit again.
        return escape_key(value[: MAX_KEY_CHARACTERS + 1]) if value.strip() else ""
    return None
