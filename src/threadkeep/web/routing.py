"""Routes whose path parameters may contain a slash, encoded as %2F."""

from __future__ import annotations

from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope


class EncodedPathRoute(APIRoute):
    """A route matched against the encoded path: `/sessions/a%2Fb` names the session `a/b`.

    Servers decode the path before matching, which would turn a slash inside a parameter into a path separator.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the encoded path, then decode the parameters."""
        match, child_scope = super().matches({**scope, "path": _encoded_path(scope)})
        if match is not Match.NONE:
            parameters = child_scope["path_params"]
            child_scope["path_params"] = {name: _decoded(value) for name, value in parameters.items()}
        return match, child_scope


def _encoded_path(scope: Scope) -> str:
    """Return the path with only the slashes and percent signs inside its segments encoded."""
    path: str = scope["path"]
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return path.replace("%", "%25")
    if b"%" not in raw:
        return path
    segments = [_decoded(segment) for segment in raw.decode("latin-1").split("/")]
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)


def _decoded(text: str) -> str:
    # Invalid UTF-8 becomes lone surrogates, which are rejected; otherwise many such ids would map to one.
    return unquote(text, errors="surrogateescape")
