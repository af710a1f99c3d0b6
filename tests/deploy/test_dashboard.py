"""Tests that the Grafana dashboard uses existing metrics and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from threadkeep.observe.prometheus import METRICS, PrometheusObserver

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
_NAME = re.compile(r"threadkeep_\w+")
_BY = re.compile(r"by \(([\w, ]+)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
_SERIES = re.compile(r"(threadkeep_\w+)[\[)]")


def queries() -> list[str]:
    """Return the queries of all panels."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_metric_of_the_dashboard_exists() -> None:
    asked = {name for query in queries() for name in _NAME.findall(query)}
    assert asked
    assert {name.removesuffix("_bucket") for name in asked} <= set(METRICS)


def test_every_label_of_the_dashboard_exists() -> None:
    """Each label of a sum exists: a sum by a label that the metric lacks would have an empty name."""
    text = PrometheusObserver().render().decode()
    for query in queries():
        wanted = {label.strip() for labels in _BY.findall(query) for label in labels.split(",")}
        [metric] = _SERIES.findall(query)
        series = next(line for line in text.splitlines() if line.startswith(f"{metric}{{"))
        assert wanted <= set(re.findall(r"(\w+)=", series)), query


def test_every_label_of_a_legend_is_in_the_result() -> None:
    """Grafana shows nothing for a label that the query sums away."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    targets = [target for panel in panels for target in panel["targets"]]
    assert any(_LEGEND.search(target["legendFormat"]) for target in targets)
    for target in targets:
        kept = {label.strip() for labels in _BY.findall(target["expr"]) for label in labels.split(",")}
        assert set(_LEGEND.findall(target["legendFormat"])) <= kept, target["expr"]


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
