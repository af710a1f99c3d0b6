"""The state that a workflow's nodes share in one run, and templates with values of the state.

`{{results.search.text}}` becomes the text that the node `search` found in this run. A placeholder is a path of names
and indexes, without expressions or code. Inserted text is not rendered again, so that users cannot inject placeholders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.utils.uuid import uuid7
from langgraph.graph.message import add_messages

from threadkeep.agent.conversion import text_of
from threadkeep.context.cut import cut_end
from threadkeep.errors import InvalidInput
from threadkeep.history.keys import MAX_TEMPLATE_CHARACTERS, PLACEHOLDER, WHOLE, is_path, look_up, whole_path
from threadkeep.records import Json


def merged(before: Mapping[str, Json] | None, update: Mapping[str, Json] | None) -> dict[str, Json]:
    """Merge two mappings. For a name that both have, use the value in `update`."""
    return {**(before or {}), **(update or {})}


class WorkflowState(TypedDict, total=False):
    """The shared state of a run.

    `messages` has the question, and one final message of each speaking node. `node_outputs` has the output of each
    node; `results` has named values for templates, from nodes and from the channel's parser. `inputs` and
    `user_context` are the run's parameters. `text` is the question's text.
    """

    messages: Annotated[list[AnyMessage], add_messages]
    node_outputs: Annotated[dict[str, Json], merged]
    results: Annotated[dict[str, Json], merged]
    inputs: dict[str, Json]
    user_context: dict[str, Json]
    text: str


def initial_state(
    text: str,
    *,
    message_id: str | None = None,
    inputs: Mapping[str, Json] | None = None,
    results: Mapping[str, Json] | None = None,
    user_context: Mapping[str, Json] | None = None,
) -> WorkflowState:
    """Return the initial state of a run: its question and the values that are known before it begins.

    `inputs` is the payload that started the run. `results` has the values that the channel parsed from it (such as
    `telegram_events_parser`). With an empty `text`, the run has no question.
    """
    question = [HumanMessage(text, id=message_id or str(uuid7()))] if text else []
    return {
        "messages": list(question),
        "node_outputs": {},
        "results": dict(results or {}),
        "inputs": dict(inputs or {}),
        "user_context": dict(user_context or {}),
        "text": text,
    }


def map_of(values: Mapping[str, Json], name: str) -> dict[str, Json]:
    """Return the map in the field `name` of a request; return an empty map if there is none."""
    part = values.get(name)
    return dict(part) if isinstance(part, Mapping) else {}


def answer_of(state: Mapping[str, object]) -> AIMessage | None:
    """Return the answer of a run: its newest assistant message after the question, or None.

    Assistant messages without text or with tool calls are not answers.
    """
    messages = state.get("messages")
    for message in reversed(messages if isinstance(messages, Sequence) else ()):
        if isinstance(message, HumanMessage):
            return None
        if isinstance(message, AIMessage) and not message.tool_calls and text_of(message).strip():
            return message
    return None


def last_text(state: WorkflowState) -> str:
    """Return the text of the newest message, or an empty string."""
    messages: Sequence[BaseMessage] = state.get("messages") or ()
    return text_of(messages[-1]) if messages else ""


MOST_RENDERED_CHARACTERS = 100_000
MOST_AUTHORED_CHARACTERS = 20_000
ROOTS = ("results", "node_outputs", "inputs", "user_context", "text")
KEY_ROOTS = (*ROOTS, "configurable", "thread_id", "conversation_key")


def scope_of(state: WorkflowState) -> dict[str, object]:
    """Return the values that the placeholders of a template may use."""
    return {name: state.get(name) for name in ROOTS}


def render(template: str, scope: Mapping[str, object]) -> str:
    """Replace the placeholders in a template by values, and return the text.

    Text and numbers are inserted as they are, booleans as true and false, lists and objects as JSON, and missing values
    as an empty string. A result of more than 100,000 characters is truncated, and marked as such.
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
    """Return the paths in the placeholders of a template, in order."""
    if (path := whole_path(template)) is not None:
        return [path]
    return [found[1].strip() for found in PLACEHOLDER.finditer(template)]


def check_template(template: str, *, for_key: bool = False, whole: bool | None = None) -> None:
    """Check the template of a text or, with `for_key`, of a key.

    `whole` allows the placeholder `{{key:path}}`, whose value is the whole key; by default, `for_key` decides.

    Raises:
        InvalidInput: the template is too long, or a placeholder is not a path or names an unknown value.
    """
    most = MAX_TEMPLATE_CHARACTERS if for_key else MOST_AUTHORED_CHARACTERS
    if len(template) > most:
        raise InvalidInput(f"A template may have at most {most} characters here; shorten it.")
    rest = PLACEHOLDER.sub("", template)
    if "{{" in rest:
        raise InvalidInput(
            "A template has a {{ that is not closed, or braces inside of braces; write {{path.to.value}}."
        )
    roots = KEY_ROOTS if for_key else ROOTS
    if any(found[1].strip().startswith(WHOLE) for found in PLACEHOLDER.finditer(template)) and (
        not (for_key if whole is None else whole) or whole_path(template) is None
    ):
        raise InvalidInput("{{key:…}} must be the whole text of a key candidate, such as {{key:inputs.history_key}}.")
    for path in paths_of(template):
        if not is_path(path):
            raise InvalidInput(
                f"{{{{{path}}}}} is not a path: write names and indexes separated by dots, such as results.a.b."
            )
        if path.partition(".")[0].partition("[")[0] not in roots:
            raise InvalidInput(f"{{{{{path}}}}} names an unknown value; paths begin with {', '.join(roots)}.")


def nodes_named(template: str) -> list[str]:
    """Return the names of the nodes whose results or outputs a template uses."""
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
            # Drop very large numbers, because Python refuses to format them.
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
