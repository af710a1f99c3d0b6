"""Tests of translating Markdown of models into Telegram's MarkdownV2."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.markdown_v2 import visible
from threadkeep.channels.formatting import markdown_v2


@pytest.mark.parametrize(
    ("markdown", "sent"),
    [
        ("Costs 3.50 (net) - really!", r"Costs 3\.50 \(net\) \- really\!"),
        ("**bold** and *it*, ~~no~~", "*bold* and _it_, ~no~"),
        ("a **bold _nested_ `code`**", "a *bold _nested_ code*"),
        ("# Title **x** #", "*Title x*"),
        ("- item 1.\n  * sub", "• item 1\\.\n  • sub"),
        ("1. one", r"1\. one"),
        ("> quoted", ">quoted"),
        ("`a.b` `` c`d ``", r"`a.b` `c\`d`"),
        ("[link](https://a.b/c_(d))", r"[link](https://a.b/c_(d\))"),
        ("snake_case_name and 2*3*4", r"snake\_case\_name and 2\*3\*4"),
        (r"a \(x\) C:\dir &amp; <b>", r"a \\\(x\\\) C:\\dir &amp; <b\>"),
        ("```python\nprint('a`b\\n')\n```", "```python\nprint('a\\`b\\\\n')\n```"),
        ("```\nopen", "```\nopen\n```"),
        ("**not closed", r"\*\*not closed"),
        ("  indented", "  indented"),
        ("", ""),
    ],
)
def test_markdown_is_translated_and_escaped(markdown: str, sent: str) -> None:
    assert markdown_v2(markdown) == sent
    visible(sent)


_MARKED = st.lists(
    st.sampled_from(["a", "b1", " ", "\n", "`a.b`", "**b**", "_1_", "~~a~~", "# ", "- ", "> ", "*", "`", "_"])
)


@given(_MARKED, st.text(st.sampled_from("ab1 \n*_~`[]()#>+-=|{}.!\\"), max_size=60) | st.text(max_size=60))
def test_every_text_is_valid_and_keeps_its_letters(marked: list[str], text: str) -> None:
    for each in ("".join(marked), text.replace("\r", "").replace("\ufdd0", "")):
        words = [sign for sign in visible(markdown_v2(each)) if sign.isalnum()]
        expected = [sign for sign in re.sub(r"(?m)^ {0,3}(?:```|~~~).*$", "", each) if sign.isalnum()]
        links = re.search(r"\]\(", each)
        assert links or "~~~" in each or "```" in each or words == expected
