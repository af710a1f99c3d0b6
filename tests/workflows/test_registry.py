"""Tests of the workflows of a service: their sources, their names, and their descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from tests.workflows.desk import Desk
from tests.workflows.test_yaml import GOOD
from threadkeep import InvalidWorkflow, WorkflowNotFound
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.describing import describe, describe_whole, draw_mermaid, draw_png, draw_svg, explain_key
from threadkeep.workflows.loading import load_python, read_workflow
from threadkeep.workflows.registry import Workflows, circles, deepest_ways, drawn
from threadkeep.workflows.state import WorkflowState


def a_function(state: WorkflowState) -> WorkflowState:
    """Return a state, as a custom node does."""
    return {"text": "done"}


def make_graph() -> StateGraph[Any, Any, Any, Any]:
    """Return a graph that is not compiled."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(WorkflowState)
    builder.add_node("work", a_function)
    builder.add_edge(START, "work")
    return builder


def fail() -> StateGraph[Any, Any, Any, Any]:
    """Raise an error instead of returning a graph."""
    raise RuntimeError("no model here")


graph = make_graph()
without_start: StateGraph[Any, Any, Any, Any] = StateGraph(WorkflowState)
without_start.add_node("work", a_function)
compiled = make_graph().compile()
declared = python_workflow("declared", make_graph(), version="2026-01", description="With a version of its own.")
HERE = "tests.workflows.test_registry"


def test_the_built_in_chat_is_always_registered() -> None:
    assert [one.name for one in Workflows().all()] == ["chat"]
    assert Workflows.load([]).get("chat").source == "built-in"
    with pytest.raises(WorkflowNotFound, match="There is no workflow 'chta' here; there are chat") as caught:
        Workflows().get("chta")
    assert caught.value.available == ("chat",)


def test_workflows_are_loaded_from_files_folders_and_modules(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    for name in ("b", "a"):
        (tmp_path / "flows" / f"{name}.yaml").write_text(GOOD.replace("support", name, 1))
    (tmp_path / "flows" / "notes.txt").write_text("nothing")
    single = tmp_path / "single.yml"
    single.write_text(GOOD.replace("support", "single", 1))
    loaded = Workflows.load([str(tmp_path / "flows"), str(single), f"mine={HERE}:graph", f"declared={HERE}:declared"])
    assert [(one.name, one.source) for one in loaded.all()] == [
        ("chat", "built-in"),
        ("a", "yaml"),
        ("b", "yaml"),
        ("single", "yaml"),
        ("mine", "python"),
        ("declared", "python"),
    ]
    assert loaded.get("declared").version == "2026-01"
    assert len(loaded.get("mine").version) == 16


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["no/such.yaml"], "no such file"),
        (["x=tests.workflows.nothing:graph"], "no module 'tests.workflows.nothing'"),
        ([f"x={HERE}:nothing"], "no 'nothing'"),
        ([f"x={HERE}:compiled"], "compiled already: name its `builder`"),
        ([f"x={HERE}:HERE"], "name a StateGraph"),
        (["x=nonsense"], "package.module:name"),
        (["=tests.workflows.test_registry:graph"], "a name begins with a letter"),
        ([f"my bot={HERE}:graph"], "a name begins with a letter"),
        ([f"x={HERE}:fail"], "'x': 'tests.workflows.test_registry:fail' raised RuntimeError when it was called"),
        ([f"x={HERE}:without_start"], "cannot be compiled"),
        ([f"other={HERE}:declared"], "write declared="),
        ([f"chat={HERE}:graph"], "Two workflows are called 'chat'"),
    ],
)
def test_workflows_that_cannot_be_loaded_are_refused(names: list[str], words: str) -> None:
    """An error at the start names the workflow that cannot be loaded and the cure."""
    with pytest.raises(InvalidWorkflow, match=words):
        Workflows.load(names)


def test_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("kind: agent", "kind: agnet"))
    with pytest.raises(InvalidWorkflow) as caught:
        Workflows.load([str(tmp_path), "nothing.yaml"])
    assert [Path(str(problem.file)).name for problem in caught.value.problems] == ["a.yaml", "b.yaml", "nothing.yaml"]


def calling(name: str, *children: str) -> str:
    """Return a workflow that runs others one after the other."""
    lines = [f"schema: 1\nname: {name}\nnodes:"]
    for number, child in enumerate(children):
        following = f"n{number + 1}" if number + 1 < len(children) else "end"
        lines.append(f"  n{number}:\n    kind: subworkflow\n    workflow: {child}\n    next: {following}")
    leaf = "  say: {kind: template, text: Hi, as_message: true, next: end}"
    return "\n".join([*lines, *([] if children else [leaf])]) + "\n"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"a": calling("bot"), "b": calling("bot")}, [("b", 2, "Two workflows are called 'bot'")]),
        ({"a": calling("chat")}, [("a", 2, "Two workflows are called 'chat'")]),
        ({"a": calling("session-reset")}, [("a", 2, "Threadkeep reserves")]),
        ({"a": calling("a", "b", "c"), "b": calling("b"), "c": calling("c", "a")}, [("a", 10, "cycle (a → c → a)")]),
        ({"a": calling("a", "leav"), "b": calling("leave")}, [("a", 6, "not a workflow: correct the name (did you")]),
    ],
)
def test_problems_between_files_are_reported_with_their_location(
    tmp_path: Path, files: dict[str, str], told: list[tuple[str, int, str]]
) -> None:
    """Duplicate names, cycles and missing children across files are reported with file and line."""
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(InvalidWorkflow) as caught:
        Workflows.load([str(tmp_path)])
    found = [(Path(str(one.file)).stem, one.line) for one in caught.value.problems]
    assert found == [(name, line) for name, line, _ in told]
    assert all(words in str(caught.value) for *_, words in told)


def test_a_single_file_may_refer_to_other_workflows(tmp_path: Path) -> None:
    """A single file may refer to a workflow that is not loaded. The missing child is still listed."""
    (tmp_path / "a.yaml").write_text(calling("a", "elsewhere"))
    loaded = Workflows.load([str(tmp_path)], complete=False)
    assert [(one.line, "'elsewhere'" in one.sentence) for one in loaded.missing_children()] == [(6, True)]


def test_many_workflows_are_checked_without_listing_their_paths() -> None:
    """Cycles and depths are computed in graphs with too many paths to enumerate."""
    layers = {f"{side}{number}": (f"a{number + 1}", f"b{number + 1}") for number in range(1500) for side in "ab"}
    assert list(circles(layers)) == []
    ways = deepest_ways(layers)
    assert (len(ways["a0"]), len(ways["b1499"])) == (1500, 1)
    assert drawn(ways["a0"]) == "a0 → a1 → a2 → a3 → a4 → a5 → … → a1499"
    every = [str(number) for number in range(60)]
    going_round = list(circles({name: [other for other in every if other != name] for name in every}))
    assert all(circle[0] == circle[-1] for circle in going_round)
    assert 0 < len(going_round) < 60 * 60


def test_a_function_may_make_the_graph() -> None:
    assert isinstance(load_python("made", f"{HERE}:make_graph"), Workflow)


def test_a_workflow_is_described() -> None:
    workflow = read_workflow(GOOD)
    assert describe(workflow) | {"version": ""} == {
        "name": "support",
        "description": "Answers questions of customers.",
        "version": "",
        "source": "yaml",
        "nodes": 3,
        "children": [],
    }
    whole = describe_whole(workflow)
    assert {(node["name"], node["kind"], *node["next"]) for node in whole["nodes"]} == {
        ("record_question", "record_question", "search"),
        ("search", "retrieve", "answer"),
        ("answer", "agent", "end"),
    }
    assert whole["options"]["max_tokens"] == 20000
    assert whole["definition"] == workflow.definition


@pytest.mark.slow
def test_a_workflow_is_drawn() -> None:
    """A workflow is drawn as Mermaid text with the kinds of its nodes, and as SVG and PNG without a network."""
    text = draw_mermaid(read_workflow(GOOD))
    assert text.startswith("---\nconfig:")
    assert "search(search<br/><small>retrieve</small>)" in text
    assert "class answer agent" in text
    assert "search --> answer;" in text
    picture = draw_svg(read_workflow(GOOD))
    assert picture.startswith("<svg")
    assert "answer" in picture
    assert draw_png(read_workflow(GOOD)).startswith(b"\x89PNG")
    assert "work(work)" in draw_mermaid(python_workflow("mine", make_graph()))


ODD = """
schema: 1
name: odd
nodes:
  route:
    kind: router
    rules:
      - {path: inputs.score, equals: 1.5, next: graph-2}
      - {path: text, equals: 'a "b" | .-> <c>', next: style}
      - {path: text, equals: "two\\nlines, 日本", next: a--b}
    otherwise: end
  graph-2: {kind: template, text: x, next: end}
  style: {kind: subworkflow, workflow: 'we"ird] name', next: end}
  a--b: {kind: template, text: x, next: end}
"""


@pytest.mark.slow
def test_odd_names_and_values_are_drawn() -> None:
    """Names and values that are words or signs of Mermaid are escaped."""
    workflow = read_workflow(ODD)
    workflow.builder.add_node("Füße (1)", a_function)
    workflow.builder.add_edge("a--b", "Füße (1)")
    assert "(graph-2<br/><small>template</small>)" in draw_mermaid(workflow)
    picture = draw_svg(workflow)
    assert all(words in picture for words in ("score = 1.5", "a--b", "two lines, 日本", "style", "Füße (1)"))


KEYED = """
schema: 1
name: keyed
nodes:
  answer: {kind: agent, use_graph_chat_history: true, next: other}
  other:
    kind: agent
    history_key_candidates: ["{{results.none.x}}", "telegram:{{results.telegram_events_parser.chat_id}}", "room-1"]
    next: end
"""


def test_keys_are_explained() -> None:
    """`explain_key` returns the key of each agent for a payload, and the reasons of the refused candidates."""
    payload: dict[str, Any] = {"results": {"telegram_events_parser": {"bot_id": "b", "chat_id": 12345}}}
    answer, other = explain_key(read_workflow(KEYED), payload)
    assert (answer.node, answer.uses_store, answer.key) == ("answer", True, "telegram:b:12345")
    assert answer.winner is not None
    assert answer.winner.endswith("chat_id}}")
    assert [refusal.reason for refusal in answer.refused] == ["unresolved_template"] * 4
    assert (other.uses_store, other.key) == (False, "telegram:12345")
    assert [(one.candidate, one.reason) for one in other.refused] == [("{{results.none.x}}", "unresolved_template")]


def test_a_payload_without_a_key_is_explained_too() -> None:
    """A payload that is not in the form of a request is taken as the inputs.

    The thread is a key only in runs by hand.
    """
    [answer, _] = explain_key(read_workflow(KEYED), {"history_key": "vip"})
    assert answer.key == "vip"
    [answer, _] = explain_key(read_workflow(KEYED), {"thread_id": "t1", "inputs": {}})
    assert (answer.key, answer.winner) == (None, None)
    [answer, _] = explain_key(read_workflow(KEYED), {"thread_id": "t1", "inputs": {}}, by_hand=True)
    assert answer.key == "t1"


async def test_the_built_in_chat_is_a_workflow(desk: Desk) -> None:
    await desk.run("chat", "Hi", session_id="room:1")
    await desk.run("chat", "Again", session_id="room:1")
    assert len(desk.model.calls[1]) == 3
    assert len(await desk.transcript("room:1")) == 4
