"""Formatting of answers for a platform: splitting at its size limit, and Telegram's MarkdownV2."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

type Size = Callable[[str], int]

# Patterns at which a text is cut into parts, in order of preference: paragraph, line, sentence, word.
_CUTS = tuple(map(re.compile, (r"\n[ \t]*\n", r"\n", r"(?<=[.!?])[ \t]+|(?<=[。！？；])", r"\s+")))

# Characters that are not inline markup, such as the power operator `**` between spaces.
_NO_MARKUP = re.compile(r"`{3,}|(?<!\S)\*\*(?!\S)")

_FENCE = re.compile(r"[ ]{0,3}(`{3,8}|~{3,8})([^`]*)")
_FENCE_ROOM = 100
"""The part of a size limit that is reserved for closing and reopening a code block."""


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units, which Telegram counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8_length(text: str) -> int:
    """Return the number of bytes in UTF-8, which WeCom counts."""
    return len(text.encode("utf-8", "surrogatepass"))


def split_text(text: str, limit: int, *, size: Size = len, markup: bool = False) -> tuple[str, ...]:
    """Split a text into parts of at most `limit` units; no part is blank.

    A part ends at the last paragraph break in its second half or else at a line break, sentence end or space.
    White space at a cut is dropped. With `markup`, cuts outside of Markdown's bold text, code and links are preferred.
    """
    parts: list[str] = []
    rest = text.strip("\n")
    while size(rest) > limit:
        fits = _fitting(rest, limit, size)
        end, begin = (markup and _cut(rest, fits, _in_markup)) or _cut(rest, fits) or _hard_cut(rest, fits)
        parts.append(rest[:end].rstrip())
        rest = rest[begin:].lstrip("\n")
    return tuple(part for part in (*parts, rest.rstrip()) if part.strip())


def split_markdown(text: str, limit: int, *, size: Size = len) -> tuple[str, ...]:
    """Split a text as `split_text` does; close and reopen a code block at a cut."""
    if size(text) <= limit:
        return split_text(text, limit, size=size)
    parts = split_text(text, limit - _FENCE_ROOM, size=size, markup=True)
    return tuple(_balanced(parts))


def _fitting(text: str, limit: int, size: Size) -> int:
    """Return how many characters from the start of a text fit into `limit` units, as `size` counts them."""
    # A character has at least one unit, so at most `limit` characters fit.
    ends = range(1, min(len(text), limit) + 1)
    return max(1, bisect_right(ends, limit, key=lambda end: size(text[:end])))


def _cut(text: str, fits: int, is_bad: Callable[[str, int], bool] | None = None) -> tuple[int, int] | None:
    """Return the best cut up to position `fits`: the end of this part, and the start of the next part.

    Skip positions for which `is_bad` returns True. Return None if no position is left.
    """
    for pattern in _CUTS:
        found = [match.span() for match in pattern.finditer(text, max(1, fits // 2), fits + 1) if match.start() <= fits]
        for span in reversed(found):
            if is_bad is None or not is_bad(text, span[0]):
                return span
    return None


def _in_markup(text: str, position: int) -> bool:
    """Return True if a cut at this position would be inside bold text, code or a link."""
    before = _NO_MARKUP.sub("", text[text.rfind("\n", 0, position) + 1 : position])
    if before.count("**") % 2 or before.count("`") % 2:
        return True
    return before.rfind("[") > before.rfind("]") or before.rfind("](") > before.rfind(")")


def _hard_cut(text: str, fits: int) -> tuple[int, int]:
    """Return a cut at `fits`, or a bit earlier so as not to split a displayed character."""
    end = fits
    while end > max(1, fits - 16) and _joined(text, end):
        end -= 1
    return end, end


def _joined(text: str, position: int) -> bool:
    """Return True if the characters around a position are displayed as one."""
    after = text[position]
    return (
        unicodedata.combining(after) > 0
        or after in "\u200d\ufe0f"
        or text[position - 1] == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )


def _balanced(parts: tuple[str, ...]) -> Iterator[str]:
    opening = ""
    for part in parts:
        before = f"{opening}\n" if opening else ""
        opening = _open_fence(part, opening)
        after = f"\n{opening.strip()[: _marks(opening)]}" if opening else ""
        yield before + part + after


def _open_fence(part: str, opening: str) -> str:
    """Return the first line of the code block that is open at the end of a part."""
    for line in part.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        marks, info = fence[1], fence[2].strip()
        if not opening:
            opening = marks + info[:20]
        elif marks[0] == opening[0] and len(marks) >= _marks(opening) and not info:
            opening = ""
    return opening


def _marks(opening: str) -> int:
    """Return the number of backticks or tildes at the beginning of a code block."""
    return len(opening) - len(opening.lstrip(opening[:1]))


_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE = re.compile(r"([`\\])")
_IN_URL = re.compile(r"([)\\])")
_CODE_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(.*)")
_QUOTE = re.compile(r"[ ]{0,3}>[ ]?(.*)")

# An asterisk between letters and digits is a multiplication sign.
_TIMES = re.compile(r"(?<=[0-9A-Za-z)])\*(?=[0-9A-Za-z(])")
_STANDS_FOR_TIMES = "\ufdd0"

_MARKS = {"strong": "*", "em": "_", "s": "~"}

# Only this markup is parsed: backslashes and entities stay as the model wrote them.
_INLINE = MarkdownIt("zero").enable(["backticks", "emphasis", "link", "strikethrough"])


def markdown_v2(text: str) -> str:
    """Return a text in Telegram's MarkdownV2, with everything except markup escaped."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = _CODE_FENCE.fullmatch(line)
        if found is not None and not fence:
            fence = found[1]
            lines.append(f"```{_escaped(found[2], _IN_CODE)}")
        elif found is not None and found[1].startswith(fence) and not found[2]:
            fence = ""
            lines.append("```")
        else:
            lines.append(_escaped(line, _IN_CODE) if fence else _line(line))
    return "\n".join([*lines, "```"] if fence else lines)


def _line(line: str) -> str:
    if found := _HEADING.fullmatch(line):
        return f"*{_rendered(found[1], bold=True)}*" if found[1] else ""
    if found := _QUOTE.fullmatch(line):
        return f">{_rendered(found[1])}"
    if found := _BULLET.fullmatch(line):
        return f"{found[1]}• {_rendered(found[2])}"
    return _rendered(line)


def _rendered(line: str, *, bold: bool = False) -> str:
    content = line.lstrip()
    if not content:
        return line
    if "](" not in content:  # the URL of a link may contain asterisks
        content = _TIMES.sub(_STANDS_FOR_TIMES, content)
    [inline] = _INLINE.parseInline(content)
    return line[: len(line) - len(content)] + _inline(inline.children or [], bold=bold)


def _inline(tokens: Sequence[Token], *, bold: bool) -> str:
    """Render a line's tokens. MarkdownV2 allows no code inside other markup, and no bold inside bold."""
    done: list[str] = []
    # The text that closes each open element (for a link, with its URL).
    open_marks: list[str] = ["*"] if bold else []
    for token in tokens:
        if token.nesting == 1:
            mark = _MARKS.get(token.tag, "")
            open_marks.append("" if mark in open_marks else mark)
            done.append("[" if token.type == "link_open" else open_marks[-1])
            if token.type == "link_open":
                open_marks[-1] = f"]({_escaped(str(token.attrGet('href') or ''), _IN_URL)})"
        elif token.nesting == -1:
            done.append(open_marks.pop())
        elif token.type == "code_inline" and not any(open_marks):
            done.append(f"`{_escaped(token.content, _IN_CODE)}`")
        else:
            done.append(_escaped(token.content, _SPECIAL))
    return "".join(done)


def _escaped(text: str, characters: re.Pattern[str]) -> str:
    return characters.sub(r"\\\1", text.replace(_STANDS_FOR_TIMES, "*"))
