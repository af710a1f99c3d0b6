"""Texts with places in them: `{{results.search.text}}` is what the node `search` found, in this run.

The same paths as in session ids: names and indexes, no expressions and no code. A template is never changed; each run
renders it anew. What is inserted is not looked at again: what people write is no place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from threadkeep.context.cut import cut_end
from threadkeep.errors import InvalidInput
from threadkeep.graphs.state import WorkflowState
from threadkeep.history.keys import MAX_TEMPLATE_CHARACTERS, PLACEHOLDER, is_path, look_up

MOST_RENDERED_CHARACTERS = 100_000
MOST_AUTHORED_CHARACTERS = 20_000
ROOTS = ("results", "node_outputs", "inputs", "user_context", "text")
KEY_ROOTS = (*ROOTS, "configurable", "thread_id", "conversation_key")


def scope_of(state: WorkflowState) -> dict[str, object]:
    """What the places of a template may name."""
    return {name: state.get(name) for name in ROOTS}


def render(template: str, scope: Mapping[str, object]) -> str:
    """The template with values in its places.

    Text and numbers stand as they are, truth as true and false, lists and objects as JSON; what is missing is empty.
    The whole is cut with a mark if it is over a hundred thousand characters.
    """
    left = MOST_RENDERED_CHARACTERS

    def value_at(path: str) -> str:
        nonlocal left
        text = _text_of(look_up(scope, path.strip()))[: max(left, 0) + 1]
        left -= len(text)
        return text

    rendered = PLACEHOLDER.sub(lambda found: value_at(found[1]), template)
    return rendered if len(rendered) <= MOST_RENDERED_CHARACTERS else cut_end(rendered, MOST_RENDERED_CHARACTERS, len)


def paths_of(template: str) -> list[str]:
    """The paths that stand in the template's places, in order."""
    return [found[1].strip() for found in PLACEHOLDER.finditer(template)]


def check_template(template: str, *, for_key: bool = False) -> None:
    """Let a template pass that can be rendered.

    Raises:
        InvalidInput: it is too long, or has a place that is no path or names nothing there is.
    """
    most = MAX_TEMPLATE_CHARACTERS if for_key else MOST_AUTHORED_CHARACTERS
    if len(template) > most:
        raise InvalidInput(f"A template has at most {most} characters here; shorten it.")
    rest = PLACEHOLDER.sub("", template)
    if "{{" in rest:
        raise InvalidInput(
            "A template has a {{ that is not closed, or braces inside of braces; write {{path.to.value}}."
        )
    roots = KEY_ROOTS if for_key else ROOTS
    for path in paths_of(template):
        if not is_path(path):
            raise InvalidInput(
                f"{{{{{path}}}}} is no path: write names and indexes with dots between, such as results.a.b."
            )
        if path.partition(".")[0].partition("[")[0] not in roots:
            raise InvalidInput(f"{{{{{path}}}}} names nothing there is; paths begin with {', '.join(roots)}.")


def nodes_named(template: str) -> list[str]:
    """The nodes whose results or outputs a template names."""
    steps = [path.replace("[", ".").split(".") for path in paths_of(template)]
    return [step[1] for step in steps if len(step) > 1 and step[0] in ("results", "node_outputs")]


def _text_of(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            # str() refuses to print the largest.
            return f"{value:d}" if value.bit_length() <= 1024 else ""
        case float():
            return repr(value) if math.isfinite(value) else ""
        case _:
            return _json_of(value)


def _json_of(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return ""
