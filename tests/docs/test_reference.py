"""Tests that the reference is complete and correct."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import pytest
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import threadkeep
from scripts.write_reference import cli_page, http_page, openapi_document, python_page, signature
from tests.docs.pages import ROOT, Page, all_pages, page
from tests.docs.tables import code_in, row_of, section, table_rows
from threadkeep.errors import ThreadkeepError
from threadkeep.observe import events
from threadkeep.observe.log import LogObserver
from threadkeep.observe.prometheus import METRICS, PrometheusObserver
from threadkeep.settings import Settings

CLI = page("docs/reference/cli.md")
PYTHON = page("docs/reference/python.md")
ERRORS = page("docs/reference/errors.md")
SETTINGS = page("docs/reference/settings.md")
METRICS_PAGE = page("docs/reference/metrics.md")
HTTP = page("docs/reference/http.md")

ERROR_NAMES = {kind.__name__ for kind in vars(threadkeep.errors).values() if isinstance(kind, type)}
# The default of these settings depends on the machine, or is no value; the page describes it in words.
IN_WORDS = {"database_url", "pending_dir", "graph_store_backend", "graph_store_sqlite_path", "postgres_dsn"}
IN_WORDS |= {
    "channels",
    "database_key",
    "partitions",
    "jwt_key",
    "requests_per_key",
    "requests_per_user",
    "learning_accept_from",
    "workspace",
    "context_window",
    "max_output_tokens",
    "run_retention_set_aside_days",
}
IN_WORDS |= {"graphiti_api_key", "graphiti_git_folder", "graphiti_scopes", "graphiti_recall_scopes"}
IN_WORDS |= {name for name in Settings.model_fields if name.startswith("retention_") and "_max_" in name}


def subclasses[T](kind: type[T]) -> Iterable[type[T]]:
    """Yield all subclasses of a class, recursively."""
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


@pytest.mark.parametrize("name", ["Memory", "SyncMemory", "Session", "Window", "KeyResolution", "Message"])
def test_described_methods_exist(name: str) -> None:
    """In the tables of a section, names before a bracket are methods of the class."""
    first_cells = re.findall(r"^\|([^|]+)\|", section(PYTHON, name), re.MULTILINE)
    named = {word for cell in first_cells for word in re.findall(r"`(?:\w+\.)?(\w+)\(", cell)}
    assert named <= set(dir(getattr(threadkeep, name)))


@pytest.mark.parametrize("name", [name for name in threadkeep.__all__ if name not in ERROR_NAMES])
def test_every_public_name_has_a_section(name: str) -> None:
    text = section(PYTHON, name)
    thing = getattr(threadkeep, name)
    if thing is threadkeep.Settings:
        return
    if inspect.isfunction(thing) or thing in (
        threadkeep.MemoryOptions,
        threadkeep.Message,
        threadkeep.SessionMemory,
        threadkeep.TurnOptions,
    ):
        assert signature(name, thing) in code_in(text)
    if dataclasses.is_dataclass(thing):
        fields = {field.name for field in dataclasses.fields(thing)}
        assert fields <= {word for row in code_in(text) for word in re.findall(r"\w+", row)}


@pytest.mark.parametrize(("one", "write"), [(CLI, cli_page), (PYTHON, python_page)], ids=["cli", "python"])
def test_the_lists_are_current(one: Page, write: Callable[[str], str]) -> None:
    """The lists are commands, options, methods and signatures.

    `python scripts/write_reference.py` updates the pages.
    """
    assert write(one.text) == one.text


def all_errors() -> dict[str, type[ThreadkeepError]]:
    """Return all errors of the package, except those of the terminal, which become sentences there.

    Adapters whose packages are not installed cannot be imported and are skipped.
    """
    elsewhere = tuple(f"threadkeep.adapters.{name}" for name in ("google_adk", "llama_index", "pydantic_ai"))
    for module in pkgutil.walk_packages(threadkeep.__path__, "threadkeep."):
        if not module.name.startswith(("threadkeep.cli", "threadkeep.testing", "threadkeep.__main__", *elsewhere)):
            import_module(module.name)
    found: list[type[ThreadkeepError]] = [ThreadkeepError, *subclasses(ThreadkeepError)]
    return {kind.__name__: kind for kind in found if re.match(r"threadkeep\.(?!cli)", kind.__module__)}


def test_every_error_is_described() -> None:
    kinds = all_errors()
    [tree] = [block.text for block in ERRORS.blocks_in("text") if "├" in block.text]
    for name, kind in kinds.items():
        row_of(ERRORS, name)
        builtin = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        shown = f"{name} ({builtin[0]})" if builtin else name
        assert re.search(rf"\b{re.escape(shown)}$", tree, re.MULTILINE), shown
    named = {name for row in table_rows(ERRORS)[1:] for name in code_in(row[0]) if "." not in name}
    assert named == set(kinds)


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_described(name: str) -> None:
    row = row_of(SETTINGS, f"THREADKEEP_{name.upper()}")
    if name not in IN_WORDS:
        assert row[1].strip("`") == default_of(Settings.model_fields[name])


def default_of(field: FieldInfo) -> str:
    """Return the default of a setting in the form of an environment variable."""
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in ("", {}, []):
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_variables_named_in_the_docs_are_settings() -> None:
    known = {f"THREADKEEP_{name.upper()}" for name in Settings.model_fields}
    unknown = {
        f"{one.name}: {name}"
        for one in all_pages()
        for name in re.findall(r"THREADKEEP_[A-Z_]*[A-Z]", one.text)
        if name not in known
    }
    assert not unknown


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_described(name: str) -> None:
    row = row_of(METRICS_PAGE, name)
    observer = PrometheusObserver()
    observer.notify(events.TurnFinished(milliseconds=1))
    [metric] = [one for one in observer.registry.collect() if one.name == name.removesuffix("_total")]
    assert row[1] == metric.type
    labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
    assert set(code_in(row[2])) == labels


def test_metrics_named_in_the_docs_exist() -> None:
    known = {*METRICS, *(f"{name}_count" for name in METRICS)}
    named = {name for one in all_pages() for name in re.findall(r"threadkeep_(?:agent|turn|model|run)\w+", one.text)}
    assert named <= known


def kinds_of(kind: type[events.Event]) -> list[type[events.Event]]:
    """Return the subclasses of an event class that have no subclasses."""
    return [leaf for below in kind.__subclasses__() for leaf in kinds_of(below) or [below]]


@pytest.mark.parametrize("kind", kinds_of(events.Event), ids=lambda kind: kind.__name__)
def test_every_event_is_described(kind: type[events.Event], caplog: pytest.LogCaptureFixture) -> None:
    row = row_of(METRICS_PAGE, kind.__name__)
    fields = dataclasses.fields(kind)
    shared = {"session_id", "run_id", "channel", "backend"}
    assert set(code_in(row[2])) == {field.name for field in fields} - shared
    needed = {field.name: 1 for field in fields if field.default is dataclasses.MISSING}
    with caplog.at_level("DEBUG", logger="threadkeep.events"):
        LogObserver().notify(kind(**needed))
    assert [record.levelname for record in caplog.records] == [row[3]]


@pytest.fixture(scope="module")
def document() -> Mapping[str, Any]:
    """Return the OpenAPI document of the service."""
    return openapi_document()


def test_every_endpoint_is_described(document: Mapping[str, Any]) -> None:
    there = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(re.findall(r"^## ((?:GET|POST|PATCH|DELETE|PUT) \S+)$", HTTP.text, re.MULTILINE)) == there
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            text = section(HTTP, f"{method.upper()} {path}")
            in_query = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
            assert not [name for name in in_query if name not in text], f"{method} {path}"


def test_the_list_of_endpoints_is_current(document: Mapping[str, Any]) -> None:
    """The table at the beginning has all endpoints; `python scripts/write_reference.py` adds missing ones."""
    assert http_page(HTTP.text, document) == HTTP.text


def test_shown_requests_are_in_the_openapi_document(document: Mapping[str, Any]) -> None:
    blocks = HTTP.blocks_in("http")
    assert len(blocks) % 2 == 0
    for request, response in zip(blocks[::2], blocks[1::2], strict=True):
        method, target, *_ = request.text.split()
        takes = [path for path, methods in document["paths"].items() if method.lower() in methods]
        patterns = {path: re.sub(r"\{\w+\}", "[^/]+", path) for path in takes}
        # The longest path wins, because a literal part has precedence over a parameter.
        path = max((p for p, pattern in patterns.items() if re.fullmatch(pattern, target.partition("?")[0])), key=len)
        assert response.text.split()[1] in document["paths"][path][method.lower()]["responses"], request.text


def test_every_kind_of_problem_is_described() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src/threadkeep/web").rglob("*.py")]
    named = re.compile(r'\b([45]\d\d)[,:]\s*\(?"([a-z]+(?:-[a-z]+)*)"(?!:)')
    there = {found for source in sources for found in named.findall(source)}
    rows = [(row[0], code_in(row[1])[0]) for row in table_rows(HTTP) if row[0].isdigit()]
    assert len(there) > 10
    assert set(rows) == there
