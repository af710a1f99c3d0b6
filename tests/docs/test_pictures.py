"""Tests that the pictures of the docs agree with the code."""

from __future__ import annotations

import re
import tomllib
from html import escape
from xml.etree.ElementTree import Element, fromstring, parse

import pytest

from scripts.draw_diagrams import with_drawings
from tests.docs.pages import DOCS, ROOT, Page, all_pages
from threadkeep.context.plan import ContextPlan

_SVG = "{http://www.w3.org/2000/svg}"


def texts_of(name: str) -> list[Element]:
    """Return the text elements of a picture, in order."""
    return list(parse(DOCS / "images" / name).iter(f"{_SVG}text"))  # noqa: S314 - our own file


def test_the_picture_of_the_context_has_the_plan() -> None:
    """The picture has the order of the sections, their shares, and the order in which they are shortened."""
    plan = ContextPlan()
    texts = texts_of("context.svg")
    assert [text.text for text in texts if text.get("class") == "name"] == [*plan.order, "steps"]
    drawn: dict[str, list[str]] = {}
    section = ""
    for text in texts:
        if text.get("class") == "name":
            section = text.text or ""
        elif text.get("class") == "what":
            drawn.setdefault(section, []).append(text.text or "")
    drawn["earlier_steps"] = drawn["window"]
    for name, share in plan.shares.items():
        assert re.search(rf"\b{share:.0%}".replace("%", " %"), " ".join(drawn[name])), name
    assert sorted(plan.yields, key=lambda name: drawn[name][-1]) == list(plan.yields)


def test_the_picture_of_the_layers_has_every_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    packages = [package.strip(" ()") for layer in layers for package in layer.split("|")]
    drawn = parse(DOCS / "images" / "layers.svg").iterfind(f"{_SVG}g[@class='name']/{_SVG}text")  # noqa: S314 - our own file
    names = ", ".join(text.text or "" for text in drawn)
    assert names.split(", ") == [package for package in packages if package not in ("__main__", "version")]


_DRAWN = [page for page in all_pages() if page.blocks_in("mermaid")]


@pytest.mark.slow
@pytest.mark.parametrize("page", _DRAWN, ids=lambda page: page.name)
def test_the_diagrams_of_a_page_are_drawn_in_its_site(page: Page) -> None:
    """The site's theme loads Mermaid from another server for each diagram that is left."""
    blocks = "".join(f'<pre class="mermaid"><code>{escape(one.text)}</code></pre>' for one in page.blocks_in("mermaid"))
    drawn = fromstring(f"<main>{with_drawings(blocks)}</main>")  # noqa: S314 - our own drawing
    assert not list(drawn.iter("pre"))
    assert len(list(drawn.iter(f"{_SVG}svg"))) == len(page.blocks_in("mermaid"))
    assert all(len(list(svg.iter(f"{_SVG}path"))) > 3 for svg in drawn.iter(f"{_SVG}svg"))
