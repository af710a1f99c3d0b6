"""Conversion of a model's Markdown to Telegram's MarkdownV2, line by line, preserving words and indentation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE = re.compile(r"([`\\])")
_IN_URL = re.compile(r"([)\\])")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(.*)")
_QUOTE = re.compile(r"[ ]{0,3}>[ ]?(.*)")

# An asterisk between letters and digits is a multiplication sign.
_TIMES = re.compile(r"(?<=[0-9A-Za-z)])\*(?=[0-9A-Za-z(])")
_STANDS_FOR_TIMES = "\ufdd0"

_MARKS = {"strong": "*", "em": "_", "s": "~"}

# Backslashes and entities stay as the model wrote them.
_INLINE = MarkdownIt("zero").enable(["backticks", "emphasis", "link", "strikethrough"])


def markdown_v2(text: str) -> str:
    """Return a text in Telegram's MarkdownV2, with everything except markup escaped."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line)
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
    """Render the tokens of a line. Code may not be nested in other markup, nor bold in bold."""
    done: list[str] = []
    # Marks and URLs of the open elements; an empty entry renders as nothing.
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
