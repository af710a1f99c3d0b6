"""Charts as SVG, drawn by the server. Colors come from classes, because the pages allow no inline styles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _FLOOR = 720, 150, 132
_GAP = 0.25


@dataclass(frozen=True)
class Column:
    """A column of a chart: a label, its parts from the bottom up, and the page that it leads to."""

    label: str
    parts: Mapping[str, float]
    address: str | None = None

    @property
    def total(self) -> float:
        """The height of the column."""
        return sum(self.parts.values())


def bar(parts: Sequence[tuple[str, int]], total: int, title: str) -> Markup:
    """Return a horizontal bar of parts, each a class and a number, in proportion to the total."""
    drawn, left = [], 0.0
    for name, amount in parts:
        width = 100 * amount / max(total, 1)
        if width > 0:
            words = escape(f"{name.replace('_', ' ')}: {amount:,}")
            drawn.append(
                f'<rect class="part {escape(name)}" x="{left:.3f}" width="{width:.3f}" height="10">'
                f"<title>{words}</title></rect>"
            )
        left += width
    body = "".join(drawn)
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg class="bar" role="img" aria-label="{escape(title)}" viewBox="0 0 100 10" '
        f'preserveAspectRatio="none">{body}</svg>'
    )


def columns(values: Iterable[tuple[str, float]], title: str, unit: str, kind: str = "window") -> Markup:
    """Return a chart with one value in each column."""
    return stacked_columns([Column(label, {kind: value}) for label, value in values], title, unit)


def stacked_columns(drawn: Sequence[Column], title: str, unit: str, *, limit: int | None = None) -> Markup:
    """Return a chart of columns with parts, and a line at a limit."""
    if not drawn:
        return Markup("")
    highest = max([column.total for column in drawn] + [limit or 0, 1e-9])
    step = _WIDTH / max(len(drawn), 12)
    shapes = [_column(column, index * step, step, highest, unit) for index, column in enumerate(drawn)]
    top = f'<text x="0" y="9">{escape(_amount(highest, unit))}</text>'
    if limit is not None:
        y = _y(limit, highest)
        shapes.append(f'<line class="limit" x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    ends = f'<text x="0" y="{_HEIGHT - 4}">{escape(drawn[0].label)}</text>'
    if len(drawn) > 3:
        ends += f'<text class="end" x="{len(drawn) * step:.1f}" y="{_HEIGHT - 4}">{escape(drawn[-1].label)}</text>'
    # An image hides the links that are in it.
    role = "group" if any(column.address for column in drawn) else "img"
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg class="chart" role="{role}" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<line class="floor" x1="0" x2="{_WIDTH}" y1="{_FLOOR}" y2="{_FLOOR}"/>{"".join(shapes)}{top}{ends}</svg>'
    )


def _column(column: Column, x: float, step: float, highest: float, unit: str) -> str:
    below, shapes = 0.0, []
    for name, amount in column.parts.items():
        y, bottom = _y(below + amount, highest), _y(below, highest)
        shapes.append(
            f'<rect class="part {escape(name)}" x="{x + step * _GAP / 2:.1f}" y="{y:.1f}" '
            f'width="{step * (1 - _GAP):.1f}" height="{max(bottom - y, 0):.1f}"/>'
        )
        below += amount
    words = escape(f"{column.label}: {_amount(column.total, unit)}")
    group = f"<g><title>{words}</title>{''.join(shapes)}</g>"
    if column.address is None:
        return group
    return f'<a href="{escape(column.address)}" aria-label="{words}">{group}</a>'


def _y(amount: float, highest: float) -> float:
    return _FLOOR - (_FLOOR - 14) * amount / highest


def _amount(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"
    return f"{number} {unit}"
