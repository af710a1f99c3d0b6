"""The figures as a picture: times by session length, and turns per second, both on log scales."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.contenders import FIELD, Engine, Measure
from bench.plan import TAIL_MESSAGES
from bench.results import Results
from bench.tables import ENGINE_TITLES

_COLOURS = {
    "threadkeep": "#c2410c",
    "raw": "#111827",
    "raw-tuples": "#9ca3af",
    "raw-16": "#6b7280",
    "agents-async-sqlite": "#2563eb",
    "agents-sqlite": "#0891b2",
    "agents-sqlalchemy": "#7c3aed",
    "langgraph-saver": "#15803d",
}
_MARKERS = {"ours": "o", "raw": "s", "session": "^", "saver": "D"}
_LEAST_RATE = 10
"""The value at which bars begin: a log scale has no zero, and all engines should begin at the same value."""


def draw(results: Results, path: Path) -> None:
    """Write the picture as SVG or PNG, depending on the file's name."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "threadkeep"})
    figure = _figure(results)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110, facecolor="white")


def _figure(results: Results) -> Figure:
    engines = results.engines()
    figure = Figure(figsize=(13, 1.2 + 3.6 * len(engines)), layout="constrained")
    axes = figure.subplots(len(engines), 3, squeeze=False)
    for row, engine in enumerate(engines):
        _draw_times(axes[row][0], results, engine, "append", "append of a turn")
        _draw_times(axes[row][1], results, engine, "tail", f"tail({TAIL_MESSAGES})")
        _draw_rates(axes[row][2], results, engine)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_times(axis: Axes, results: Results, engine: Engine, measure: Measure, title: str) -> None:
    sizes = results.sizes(engine)
    for entry in FIELD:
        points = [
            (place, value)
            for place, stored in enumerate(sizes)
            if (value := results.value(engine, entry.name, measure, stored)) is not None
        ]
        if points:
            ours = entry.kind == "ours"
            axis.plot(
                [place for place, _ in points],
                [value for _, value in points],
                label=entry.title,
                color=_COLOURS[entry.name],
                marker=_MARKERS[entry.kind],
                markersize=5,
                linewidth=2.6 if ours else 1.4,
                zorder=3 if ours else 2,
            )
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(_plain)
    axis.set_xticks(range(len(sizes)), [f"{stored:,}" for stored in sizes])
    axis.set_xlabel("messages in the session")
    axis.set_ylabel("milliseconds (median)")
    axis.set_title(f"{ENGINE_TITLES[engine]}: {title}", loc="left", fontsize=11, fontweight="bold")
    axis.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    _tidy(axis)


def _draw_rates(axis: Axes, results: Results, engine: Engine) -> None:
    rates = [
        (entry, value) for entry in FIELD if (value := results.value(engine, entry.name, "throughput")) is not None
    ]
    rates.reverse()
    bars = axis.barh(
        [entry.title for entry, _ in rates], [value for _, value in rates],
        color=[_COLOURS[entry.name] for entry, _ in rates], height=0.6,
    )  # fmt: skip
    axis.bar_label(bars, [f"{value:,.0f}" for _, value in rates], padding=4)
    axis.set_xscale("log")
    axis.set_xlim(_LEAST_RATE, max(value for _, value in rates) * 5)
    axis.xaxis.set_major_formatter(_plain)
    axis.set_xlabel("turns a second")
    axis.set_title(f"{ENGINE_TITLES[engine]}: 16 sessions", loc="left", fontsize=11, fontweight="bold")
    axis.grid(axis="x", color="#e5e7eb", linewidth=0.8)
    _tidy(axis)


def _plain(value: float, _place: object) -> str:
    """Return a number for an axis in decimal form, not as a power of ten."""
    return f"{value:,g}"


def _tidy(axis: Axes) -> None:
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
