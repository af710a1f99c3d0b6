"""Templates: paths filled in, nothing run, nothing changed."""

from __future__ import annotations

import pytest

from threadkeep import InvalidInput
from threadkeep.workflows.state import MOST_RENDERED_CHARACTERS, check_template, nodes_named, render

SCOPE = {
    "text": "Hi",
    "results": {"a": {"text": "found", "list": [{"id": 4}], "ratio": 0.5, "yes": True, "none": None}},
    "inputs": {"evil": "{{results.a.text}} {{'a' * 10**9}}"},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("no places", "no places"),
        ("{{text}}, {{ results.a.text }}!", "Hi, found!"),
        ("{{results.a.list[0].id}} {{results.a.list.0.id}}", "4 4"),
        ("{{results.a.ratio}} {{results.a.yes}} {{results.a.none}}.", "0.5 true ."),
        ("{{results.a.list}}", '[{"id": 4}]'),
        ("[{{results.missing.text}}]", "[]"),
        ("{{inputs.evil}}", "{{results.a.text}} {{'a' * 10**9}}"),
    ],
)
def test_a_place_gets_its_value(template: str, text: str) -> None:
    """Text as it is, JSON for what is no text, nothing for what is missing; what is inserted is not looked at again."""
    assert render(template, SCOPE) == text


def test_what_comes_out_is_bounded() -> None:
    """Many places with long values are cut, with a mark."""
    rendered = render("{{inputs.long}}" * 50, {"inputs": {"long": "x" * 90_000}})
    assert len(rendered) <= MOST_RENDERED_CHARACTERS
    assert rendered.endswith("… [cut]")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{results.a", "not closed"),
        ("{{a.b}}", "names an unknown value"),
        ("{{results.__class__()}}", "is not a path"),
        ("{{results.a | upper}}", "is not a path"),
        ("{{thread_id}}", "names an unknown value"),
        ("x" * 20_001, "at most"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(template: str, words: str) -> None:
    """When the workflow is read, not in the middle of a run."""
    with pytest.raises(InvalidInput, match=words):
        check_template(template)


def test_keys_may_name_more() -> None:
    """The thread, and what the caller configured; within the bounds of keys."""
    check_template("{{thread_id}}:{{configurable.history_key}}", for_key=True)
    with pytest.raises(InvalidInput, match="4096"):
        check_template("x" * 4097, for_key=True)


def test_the_nodes_that_a_template_names() -> None:
    """Of results and outputs; other roots name no nodes."""
    assert nodes_named("{{results.a.b}} {{node_outputs.c}} {{inputs.d}} {{results}}") == ["a", "c"]
