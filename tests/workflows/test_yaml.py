"""Tests of workflow files: their structure, their errors with line, column and cure, and the published schema."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from threadkeep.errors import InvalidWorkflow
from threadkeep.workflows.document import build_schema
from threadkeep.workflows.loading import load_yaml, read_workflow, restore_workflow
from threadkeep.workflows.yaml_source import read_yaml

GOOD = """\
schema: 1
name: support
description: Answers questions of customers.
given_results: [telegram_events_parser]
options:
  max_tokens: 20000
nodes:
  search:
    kind: retrieve
    retriever: tests.workflows.tools:shelf
    next: answer
  answer:
    kind: agent
    system_prompt: |
      Write to {{results.telegram_events_parser.user}}.
      {{results.search.text}}
    tools: [tests.workflows.tools:both]
    next: end
"""


def changed(old: str, new: str) -> str:
    """Return the valid file with one change."""
    assert old in GOOD
    return GOOD.replace(old, new, 1)


# The text, the reported line, words of the error, and whether the schema alone rejects the text.
WRONG = [
    ("nodes: [", 1, "not YAML", False),
    ("", 1, "empty", False),
    (changed("name: support\n", ""), 1, "has no name; add it", True),
    (changed("schema: 1", "schema: 2"), 1, "write schema: 1", True),
    (changed("schema: 1", "schema: '1'"), 1, "write schema: 1", True),
    (changed("schema: 1", "schema: true"), 1, "write schema: 1", True),
    (changed("schema: 1", "schema: 1.0"), 1, "write schema: 1", False),
    (changed("name: support", "name: 1support"), 2, "begins with a letter", True),
    (changed("description:", "descriptionn:"), 3, "did you mean description?", True),
    (changed("max_tokens: 20000", "max_tokens: many"), 6, "max_tokens cannot be used", True),
    (changed("max_tokens: 20000", "max_token: 20000"), 6, "did you mean max_tokens?", True),
    (changed("kind: retrieve", "kind: retrive_"), 9, "kinds are agent, model", True),
    (changed("    kind: retrieve\n", ""), 8, "has no kind", True),
    (changed("    next: answer\n", ""), 8, "Node 'search' has no next; add it", True),
    (
        changed("    kind: agent\n", "    kind: agent\n    max_messages: '30'\n"),
        14,
        "max_messages of node 'answer'",
        True,
    ),
    (changed("    kind: agent\n", "    kind: agent\n    colour: red\n"), 14, "colour is not allowed here", True),
    (changed("tests.workflows.tools:both", "tests.workflows.tools.both"), 17, "package.module:name", True),
    (changed("tests.workflows.tools:both", "{}"), 17, "tools.0 of node", True),
    (changed("tests.workflows.tools:shelf", "{}"), 10, "retriever of node", True),
    (changed("kind: agent", "model: {}\n    kind: agent"), 13, "model of node", True),
    (changed("search:\n", "search it:\n"), 8, "begins with a letter", True),
    (GOOD + "  answer:\n    kind: agent\n    next: end\n", 19, "'answer' appears twice here", False),
    (GOOD + "extra: &x [1]\n", 19, "Anchors", False),
    (changed("next: end", "next: *there"), 18, "Aliases", False),
    (changed("next: end", "input: {{text}}\n    next: end"), 18, "put text with {{…}} in quotes", False),
    (changed("next: end", "input: {{text}} now\n    next: end"), 18, "put text with braces or colons in quotes", False),
    (changed("next: end", "input: Answer: yes\n    next: end"), 18, "put text with braces or colons in quotes", False),
    (changed("name: support", "name: support\nstart: end"), 3, "correct the name, or add", False),
    (changed("next: end", "next: !!python/name:os.system end"), 18, "tag", False),
    (changed("next: end", f"next: {'[' * 40}{']' * 40}"), 18, "deep", False),
    (changed("next: answer", "next: answerr"), 11, "did you mean 'answer'?", False),
    (changed("next: answer", "next: [answer, nowhere]"), 11, "'nowhere', which is not a node", False),
    (changed("next: answer", "next: end"), 12, "No path leads from 'search' to 'answer'", False),
    (changed("next: end", "next: search"), 8, "No path leads from 'search' to the end", False),
    (changed("name: support", "name: support\nstart: begin"), 3, "start names 'begin'", False),
    (changed("name: support", "name: support\noutput: result"), 3, "output names 'result'", False),
    (
        changed("results.search.text", "results.seerch.text"),
        14,
        "not a node: correct the name (did you mean 'search'?)",
        False,
    ),
    (changed("results.search.text", "results.answer.text"), 14, "its own result", False),
    (changed("results.search.text", "result.search.text"), 14, "paths begin with results", False),
    (changed("results.search.text", "results.search.text | upper"), 14, "is not a path", False),
    (
        changed("    next: answer\n", "    query: '{{results.answer.text}}'\n    next: answer\n"),
        11,
        "runs later",
        False,
    ),
    (changed("given_results: [telegram_events_parser]\n", ""), 13, "given_results", False),
    (changed("tests.workflows.tools:both", "no_such_package.tools:both"), 17, "no module 'no_such_package'", False),
    (changed("tests.workflows.tools:both", "tests.workflows.tools:neither"), 17, "no 'neither'", False),
    (changed("tests.workflows.tools:both", "tests.workflows.tools:number"), 17, "is not a tool", False),
    (changed("tests.workflows.tools:shelf", "tests.workflows.tools:number"), 10, "not a LangChain retriever", False),
    (
        changed("tests.workflows.tools:shelf", "tests.workflows.tools:make_nothing"),
        10,
        "'tests.workflows.tools:make_nothing' raised ConnectionError when it was called",
        False,
    ),
    ("schema: 1\nname: bot\a\n", 2, "not allowed in text (U+0007); remove it", False),
    (changed("Answers questions of customers.", '"Answers\\ud800"'), 3, "is not valid text", False),
    (changed("next: end", '"ne\\0xt": end'), 18, "is not valid text", False),
    (changed("next: end", "next: [end, 3]"), 18, "next.1 of node 'answer' cannot be used: write text", True),
    (changed("next: end", "next: 3"), 18, "write the name of a node, a list of them, or end", True),
    (changed("next: end", "answers: 'yes'\n    next: end"), 18, "write true or false", True),
    (
        changed("next: end", "tools: 3\n    next: end").replace("    tools: [tests.workflows.tools:both]\n", ""),
        17,
        "write a list",
        True,
    ),
    (changed("next: end", "max_steps: 0\n    next: end"), 18, "write a number of at least 1.", True),
    (changed("max_tokens: 20000", "deadline_seconds: 1e20"), 6, "write a number of at most 31536000.", True),
    (changed("max_tokens: 20000", f"max_tokens: {2**53}"), 6, "of at most 9007199254740991.", True),
    (changed("next: end", "history_value_field: run_id\n    next: end"), 18, "confidence, created_at", False),
    (
        changed("next: end", "history_key_candidates: ['{{foo.x}}', 3]\n    next: end"),
        18,
        "{{foo.x}} names an unknown value",
        False,
    ),
    (changed("tests.workflows.tools:both", "tests.workflows.script:tool"), 17, "its module raised SystemExit", False),
    (
        changed("  search:\n", "  messages:\n").replace("results.search", "results.messages"),
        8,
        "is a reserved name",
        False,
    ),
]


@pytest.mark.parametrize(("text", "line", "words", "by_schema"), WRONG)
def test_a_problem_is_reported_with_its_location_and_cure(text: str, line: int, words: str, by_schema: bool) -> None:
    """An error begins with the file, the line and the column, as editors parse them.

    A sentence with the cure follows.
    """
    with pytest.raises(InvalidWorkflow) as caught:
        read_workflow(text, file="flows/support.yaml")
    first = caught.value.problems[0]
    assert (first.file, first.line or 1) == ("flows/support.yaml", line), str(caught.value)
    assert words in first.sentence
    assert str(caught.value).startswith("flows/support.yaml")
    if first.line is not None:
        assert re.match(rf"flows/support\.yaml:{line}:\d+: \S", str(caught.value))


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    text = changed("kind: agent", "kind: agent\n    max_steps: 0").replace("max_tokens: 20000", "max_tokens: -1")
    with pytest.raises(InvalidWorkflow) as caught:
        read_workflow(text)
    assert [problem.line for problem in caught.value.problems] == [6, 14]


PLACED = """\
schema: 1
name: bot
nodes:
  choose:
    kind: router
    rules:
      - {path: nothing.there, exists: true, next: note}
    otherwise: note
  note:
    kind: append_message
    text: Hi
    session: SESSION
    next: end
"""


@pytest.mark.parametrize(
    ("session", "words"),
    [
        ("'{{foo}}'", "names an unknown value"),
        ("'telegram:'", "no empty part"),
        ("'{{results.zz.key}}'", "not a node"),
    ],
)
def test_an_invalid_session_template_is_refused(session: str, words: str) -> None:
    """A `session` template that can give no key is refused when the file is read."""
    good = PLACED.replace("nothing.there", "inputs.vip")
    assert read_workflow(good.replace("SESSION", "'news:{{inputs.chat}}'")).name == "bot"
    with pytest.raises(InvalidWorkflow, match=words) as caught:
        read_workflow(good.replace("SESSION", session))
    assert [problem.line for problem in caught.value.problems] == [12]


def test_a_problem_is_reported_once() -> None:
    """An invalid rule is reported once, and not again as a list that is too short without it."""
    with pytest.raises(InvalidWorkflow) as caught:
        read_workflow(PLACED.replace("SESSION", "room-1"))
    assert [problem.line for problem in caught.value.problems] == [7]


def test_the_published_schema_is_that_of_the_nodes() -> None:
    """If this fails, run `python scripts/workflow_schema.py`."""
    assert _published_schema() == build_schema()


def _published_schema() -> Any:
    """Return the JSON schema in the file of the package."""
    return json.loads(files("threadkeep.workflows").joinpath("workflow.schema.json").read_text(encoding="utf-8"))


def test_the_schema_and_the_reader_agree() -> None:
    """The published schema accepts the valid file, and rejects each file whose problem a schema can express."""
    validator = jsonschema_rs.validator_for(_published_schema())
    assert validator.is_valid(yaml.safe_load(GOOD))
    for text, _, words, by_schema in WRONG:
        if by_schema:
            assert not validator.is_valid(yaml.safe_load(text)), words


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("2026-01-01", "2026-01-01"),
        ("-7", -7),
        ("1.5e3", 1500.0),
        ("1e300", 1e300),
        ("-2.5E-300", -2.5e-300),
        ("1e999", "1e999"),
        ("9" * 400 + ".5", "9" * 400 + ".5"),
        ("'7'", "7"),
        ("~", None),
        ("9" * 4000, "9" * 4000),
    ],
)
def test_values_are_read_as_in_yaml_1_2(written: str, value: object) -> None:
    """Values are read as in YAML 1.2 and JSON: there are no other booleans, times or number formats."""
    read = read_yaml(f"value: {written}").value
    assert isinstance(read, dict)
    assert read["value"] == value
    assert type(read["value"]) is type(value)


def test_a_file_is_a_workflow(tmp_path: Path) -> None:
    path = tmp_path / "support.yaml"
    path.write_text(GOOD, encoding="utf-8-sig")
    workflow = load_yaml(path)
    assert (workflow.name, workflow.source, workflow.origin) == ("support", "yaml", str(path))
    assert workflow.options.max_tokens == 20000
    assert set(workflow.nodes) == {"search", "answer", "record_question"}
    same = read_workflow(json.dumps(yaml.safe_load(GOOD)))
    assert same.version == workflow.version
    assert read_workflow(changed("20000", "20001")).version != workflow.version


def test_a_stored_definition_is_the_same_workflow() -> None:
    workflow = read_workflow(GOOD)
    assert workflow.definition is not None
    again = restore_workflow(json.loads(json.dumps(workflow.definition)))
    assert (again.name, again.version, set(again.nodes)) == (workflow.name, workflow.version, set(workflow.nodes))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkflow, match="cannot be read"):
        load_yaml(tmp_path / "nothing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InvalidWorkflow, match="UTF-8"):
        load_yaml(broken)
    with pytest.raises(InvalidWorkflow, match="at most"):
        read_workflow("# " + "x" * 300_000)
