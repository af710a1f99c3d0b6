"""Session ids, which may be nearly any text, and keys, which are built from external values."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from threadkeep.errors import InvalidKey
from threadkeep.observe.events import CHANNELS, Channel

type Reason = Literal["empty", "empty_part", "unresolved_template", "too_long", "invalid_chars"]

MAX_KEY_CHARACTERS = 256
MAX_TEMPLATE_CHARACTERS = 4096
KEY_TEMPLATE = "{{conversation_key}}"

_TELEGRAM = "results.telegram_events_parser"
_AIBOT = "results.wecom_ai_bot_events_parser"
_DIRECT = "results.wecom_events_parser"

KEY_CANDIDATES = (
    "{{results.resolve_history_key.session_key}}",
    "{{configurable.history_key}}",
    "{{inputs.history_key}}",
    f"telegram:{{{{{_TELEGRAM}.bot_id}}}}:{{{{{_TELEGRAM}.chat_id}}}}:{{{{{_TELEGRAM}.message_thread_id}}}}",
    f"telegram:{{{{{_TELEGRAM}.bot_id}}}}:{{{{{_TELEGRAM}.chat_id}}}}",
    "wecom_cs:{{results.wecom_cs_sync.open_kf_id}}:{{results.wecom_cs_sync.external_userid}}",
    f"wecom_aibot:{{{{{_AIBOT}.bot_id}}}}:{{{{{_AIBOT}.chat_type}}}}:{{{{{_AIBOT}.chat_id}}}}",
    f"wecom_aibot:{{{{{_AIBOT}.bot_id}}}}:{{{{{_AIBOT}.chat_type}}}}:{{{{{_AIBOT}.user}}}}",
    f"wecom_dm:{{{{{_DIRECT}.corp_id}}}}:{{{{{_DIRECT}.agent_id}}}}:{{{{{_DIRECT}.user}}}}",
    "{{thread_id}}",
)
"""Templates for the key of a run's conversation; the first one that gives a valid key is used.

These are, in order: an explicit key, the key of the channel, the thread.
"""

_KEY = re.compile(r"[A-Za-z0-9:_-]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_ESCAPED = re.compile(r"(?:[A-Za-z0-9-]|_[0-9a-f]{2})*")
_BYTE = re.compile(rb"_([0-9a-f]{2})")
PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
WHOLE = "key:"
"""The prefix of a placeholder for a complete key, as in `{{key:inputs.history_key}}`."""
_PATH = re.compile(r"[\w-]+(?:\.[\w-]+|\[[0-9]+\])*")
_STEP = re.compile(r"[\w-]+")
_RUN_IDS = ("thread_id", "configurable.thread_id")

# These texts are also shown in HTTP responses and by commands, so they name no function.
_SESSION_ID_CURES: Mapping[Reason, str] = {
    "empty": "A session id needs at least one character that is not blank; give the id of the chat or the person.",
    "empty_part": "A session id that begins with a channel has no empty part; give each part a value: telegram:123.",
    "unresolved_template": "A session id cannot contain an unresolved {{…}}; replace it with the value.",
    "too_long": f"A session id has at most {MAX_KEY_CHARACTERS} characters; use a shorter id or a hash of it.",
    "invalid_chars": "A session id is text without control characters such as line breaks; remove them.",
}
_KEY_CURES: Mapping[Reason, str] = {
    "empty": "A key has at least one character; give the id of the chat or the person.",
    "empty_part": "A key has no empty part between its colons; give every part a value, such as telegram:123.",
    "unresolved_template": "A key cannot contain {{…}}; resolve the template with threadkeep.resolve_key first.",
    "too_long": f"A key has at most {MAX_KEY_CHARACTERS} characters; use a shorter id or a hash of it.",
    "invalid_chars": "A key is text of A-Z, a-z, 0-9, colon, _ and -; escape other values with threadkeep.escape_key.",
}


@dataclass(frozen=True)
class Refusal:
    """A rejected candidate for a key, or the rejected key template, and the reason."""

    candidate: str
    reason: Reason


@dataclass(frozen=True)
class KeyResolution:
    """The resolved key, if there is one, and everything that was rejected, in order.

    `conversation_key` is the value of the first valid candidate. `key` is the key template, rendered with it. `refused`
    has the rejected candidates and, last, the template if it was rejected.
    """

    key: str | None
    conversation_key: str | None = None
    refused: tuple[Refusal, ...] = ()

    @property
    def reason(self) -> Reason | None:
        """The reason of the last rejection, or `empty` if there was no candidate; None if there is a key."""
        if self.key is not None:
            return None
        return self.refused[-1].reason if self.refused else "empty"


def check_session_id(session_id: str) -> None:
    """Reject an invalid session id: empty, too long, with control characters, a placeholder or an empty channel part.

    Raises:
        InvalidKey: the id is not valid. The error has the reason; its message does not repeat the id.
    """
    reason = _session_id_refusal(session_id)
    if reason is not None:
        raise InvalidKey(_SESSION_ID_CURES[reason], reason=reason)


def _session_id_refusal(value: object) -> Reason | None:
    if not isinstance(value, str):
        return "invalid_chars"
    if not value.strip():
        return "empty"
    if channel_of(value) != "other" and "" in value.split(":"):
        return "empty_part"  # if it were valid, all chats of the channel without an id would share one history
    if PLACEHOLDER.search(value):
        return "unresolved_template"
    if len(value) > MAX_KEY_CHARACTERS:
        return "too_long"
    unstorable = not value.isprintable() and any(unicodedata.category(character) in ("Cc", "Cs") for character in value)
    return "invalid_chars" if unstorable else None


def refusal(value: object) -> Reason | None:
    """Return the first reason why a value is not a valid session key, or None if it is valid."""
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


def whole_refusal(value: str) -> Reason | None:
    """Return the reason why the value of a `{{key:path}}` placeholder is not a valid key, or None if it is valid."""
    reason = _session_id_refusal(value)
    return "empty_part" if reason is None and "" in value.split(":") else reason


def check_key(key: str) -> None:
    """Reject an invalid key. `check_session_id` is less strict, because other session ids may be nearly any text.

    Raises:
        InvalidKey: the key is not valid; the message does not repeat it.
    """
    reason = refusal(key)
    if reason is not None:
        raise InvalidKey(_KEY_CURES[reason], reason=reason)


def escape_key(text: str) -> str:
    """Escape a text as one part of a key: `li@corp` becomes `li_40corp`.

    Each UTF-8 byte of a character other than A-Z, a-z, 0-9 and minus becomes `_` and two hex digits. Two different
    texts never give the same part, and `unescape_key` restores the text.

    Raises:
        InvalidKey: the text has a lone surrogate, which is not a character.
    """
    try:
        return _UNSAFE.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), text)
    except UnicodeEncodeError:
        sentence = "An id with a lone surrogate is not valid text; correct the code that decodes it."
        # Suppress the cause, because the encoding error contains the whole text.
        raise InvalidKey(sentence, reason="invalid_chars") from None


def unescape_key(part: str) -> str:
    """Return the text from which `escape_key` made this part.

    Raises:
        InvalidKey: `escape_key` never returns this part.
    """
    if _ESCAPED.fullmatch(part):
        try:
            text = _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), part.encode()).decode()
        except UnicodeDecodeError:
            text = ""
        # `_41` would decode to A, but A is never escaped: accept only results of `escape_key`.
        if escape_key(text) == part:
            return text
    sentence = "This is not an escaped part; pass what escape_key returned, which is one part and not a whole key."
    raise InvalidKey(sentence, reason="invalid_chars")


def channel_of(session_id: str, *, default: Channel = "other") -> Channel:
    """Return the channel (such as `telegram`) that the first part of a session id names, or the default."""
    first, colon, _ = session_id.partition(":")
    known = [channel for channel in CHANNELS if channel == first] if colon else []
    return known[0] if known else default


def resolve_key(
    candidates: Iterable[object],
    scope: Mapping[str, object],
    *,
    template: str = KEY_TEMPLATE,
    manual: bool = False,
) -> KeyResolution:
    """Resolve a key: render the first valid candidate, and insert it into `template` as `conversation_key`.

    A candidate is a literal text or a template with `{{dotted.path}}` placeholders. A path consists of names and of
    list indexes (`items.0.id` or `items[0].id`); expressions are not supported. A candidate is rendered from `scope`,
    which is not changed, and then checked. Candidates that are not strings are skipped; a single string counts as one
    candidate.

    A text from the scope is escaped with `escape_key`. A whole number becomes its digits (12.0 is 12); any other finite
    float is escaped as text. If a path has no value or a value of another type, such as null, true, a list or an
    object, the candidate is rejected as `unresolved_template`. A blank value is rejected as `empty`, or as `empty_part`
    if the candidate has other parts. A run usually gets a new thread id, so `{{thread_id}}` and
    `{{configurable.thread_id}}` count as missing; they are used only if `manual` is true. Placeholders should be
    separated by colons, the only character of a key that no value can contain: with `{{a}}-{{b}}`, two pairs of values
    could have the same key.

    `{{key:dotted.path}}` is a whole external key: any session id without empty parts, which is used unchanged. The
    candidate must contain nothing else.
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
        whole = whole_path(candidate) is not None
        key, reason = _Values(scope, manual=manual, conversation_key=found, whole=whole).render(template)
        if reason is not None:
            return KeyResolution(None, found, (*refused, Refusal(template, reason)))
        return KeyResolution(key, found, tuple(refused))
    return KeyResolution(None, None, tuple(refused))


class _Values:
    """The values with which the placeholders of one template are replaced."""

    def __init__(
        self,
        scope: Mapping[str, object],
        *,
        manual: bool,
        conversation_key: str | None = None,
        whole: bool = False,
    ) -> None:
        self._scope = scope
        self._manual = manual
        self._conversation_key = conversation_key
        self._refusal = whole_refusal if whole else refusal

    def render(self, template: str) -> tuple[str, Reason | None]:
        """Return the rendered template, and the reason why it is not a valid key, or None."""
        if len(template) > MAX_TEMPLATE_CHARACTERS:
            return "", "too_long"
        if (path := whole_path(template)) is not None:
            return self._whole(template, path)
        try:
            values = [self._text(found[1].strip()) for found in PLACEHOLDER.finditer(template)]
        except InvalidKey:
            return "", "invalid_chars"
        texts = iter(values)
        # A placeholder without a value stays, so the result is rejected as an unresolved template.
        rendered = PLACEHOLDER.sub(lambda found: found[0] if (text := next(texts)) is None else text, template)
        # Reject an empty value: `room-{{user}}` would be the same key for all persons without a user id.
        return rendered, self._refusal(rendered) or ("empty_part" if "" in values else None)

    def _whole(self, template: str, path: str) -> tuple[str, Reason | None]:
        value = self._value(path)
        text = value if isinstance(value, str) else _text_of(value)
        return (template, "unresolved_template") if text is None else (text, whole_refusal(text))

    def _text(self, path: str) -> str | None:
        if path == "conversation_key" and self._conversation_key is not None:
            return self._conversation_key
        return _text_of(self._value(path))

    def _value(self, path: str) -> object:
        return None if path in _RUN_IDS and not self._manual else look_up(self._scope, path)


def whole_path(template: str) -> str | None:
    """Return the path of a template `{{key:path}}`, or None for any other template."""
    found = PLACEHOLDER.fullmatch(template.strip())
    inner = found[1].strip() if found is not None else ""
    return inner.removeprefix(WHOLE).strip() if inner.startswith(WHOLE) else None


def is_path(text: str) -> bool:
    """Return True if a text is a dotted path, such as `results.parser.items[0].id`."""
    return _PATH.fullmatch(text) is not None


def look_up(scope: Mapping[str, object], path: str) -> object:
    """Return the value at a dotted path through mappings and sequences, or None."""
    if not is_path(path):
        return None
    here: object = scope
    for step in _STEP.findall(path):
        if isinstance(here, Mapping):
            here = here.get(step)
        elif isinstance(here, Sequence) and not isinstance(here, str | bytes | bytearray):
            # A longer number is no list index, and int() fails for thousands of digits.
            index = int(step) if step.isascii() and step.isdigit() and len(step) < 10 else len(here)
            here = here[index] if index < len(here) else None
        else:
            return None
    return here


def _text_of(value: object) -> str | None:
    """Return a text or a number as a part of a key, escaped if necessary: "" if blank, None for other types."""
    if isinstance(value, float) and math.isfinite(value):
        value = int(value) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # A number beyond the range of floats is too long for any key, and str() refuses very large numbers.
        return f"{int(value):d}" if value.bit_length() <= 1024 else "9" * (MAX_KEY_CHARACTERS + 1)
    if isinstance(value, str):
        # The beginning of a long text exceeds the limit already, because escaping never shortens it.
        return escape_key(value[: MAX_KEY_CHARACTERS + 1]) if value.strip() else ""
    return None
