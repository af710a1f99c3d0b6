"""A parser of Telegram's MarkdownV2, written from its documentation."""

from __future__ import annotations

import re

_MARKUP = set("*_~[]()")
_RESERVED = set("#+-=|{}.!")


def visible(text: str) -> str:
    """Return the visible text of MarkdownV2; fail if Telegram would return 400.

    Reserved characters must have a backslash before them, and each entity must be closed.
    """
    shown: list[str] = []
    for number, block in enumerate(re.split(r"(?m)^```(?=\S*$)", text)):
        if number % 2:
            shown.append(_code(block.partition("\n")[2].removesuffix("\n")))
        else:
            shown.extend(_line(line) for line in block.split("\n"))
    assert len(re.findall(r"(?m)^```", text)) % 2 == 0
    return "\n".join(shown)


def _code(text: str) -> str:
    assert not re.search(r"(?<!\\)(?:\\\\)*`", text)
    return re.sub(r"\\(.)", r"\1", text)


def _line(line: str) -> str:
    shown = ""
    entities: list[str] = []
    rest = line.removeprefix(">")
    while rest:
        sign, rest = rest[0], rest[1:]
        if sign == "\\":
            shown, rest = shown + rest[0], rest[1:]
        elif sign == "`":
            code, rest = rest.split("`", 1) if "\\" not in rest else _cut_code(rest)
            shown += _code(code)
        elif sign == "]":
            assert entities.pop() == "["
            found = re.match(r"\(((?:\\.|[^)\\])*)\)", rest)
            assert found is not None
            rest = rest[found.end() :]
        elif sign in _MARKUP:
            if entities and entities[-1] == sign:
                entities.pop()
            else:
                assert sign not in "()"
                assert sign not in entities
                entities.append(sign)
        else:
            assert sign not in _RESERVED
            shown += sign
    assert not entities
    return shown


def _cut_code(rest: str) -> tuple[str, str]:
    found = re.match(r"((?:\\.|[^`\\])*)`", rest)
    assert found is not None
    return found[1], rest[found.end() :]
