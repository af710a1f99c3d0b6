"""Tests of templates: paths are replaced by values, and no code runs."""

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
def test_a_path_is_replaced_by_its_value(template: str, text: str) -> None:
    """Text is inserted unchanged, other values as JSON, and missing values as nothing.

    Inserted text is not rendered again.
    """
    assert render(template, SCOPE) == text


def test_the_rendered_text_is_limited() -> None:
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
def test_invalid_templates_are_refused(template: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_template(template)


def test_templates_of_keys_have_more_roots() -> None:
    """Templates of keys may also use the thread and the configuration of the caller.

    They are limited in length.
    """
    check_template("{{thread_id}}:{{configurable.history_key}}", for_key=True)
    with pytest.raises(InvalidInput, match="4096"):
        check_template("x" * 4097, for_key=True)


def test_the_nodes_that_a_template_names() -> None:
    assert nodes_named("{{results.a.b}} {{node_outputs.c}} {{inputs.d}} {{results}}") == ["a", "c"]
