"""Text that looks like a secret, which is not remembered."""

from __future__ import annotations

import re

_NAMED = re.compile(
    r"(?:pass(?:word|wd|phrase|code)|\bpwd|token|secret|(?:api|access|private)[ _-]?key|密码|口令|密钥|令牌)"
    r"\w{0,2}[\"'`]?\s*(?:is|are|was|=|:|：|是|为)\s*\S{3,}",
    re.IGNORECASE,
)
_SHAPED = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\bgh[pousr]_\w{4,}|\bgithub_pat_\w{4,}|\bsk-[\w-]{8,}|\bAKIA[0-9A-Z]{8,}|\bxox[a-z]-[\w-]{4,}"
)


def looks_like_secret(text: str) -> bool:
    """Return whether a text has a password, a token or a key in it: by its shape, or by the word before it."""
    return bool(_SHAPED.search(text) or _NAMED.search(text.replace("_", " ")))
