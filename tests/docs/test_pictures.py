"""Tests that the pictures of the docs agree with the code."""

from __future__ import annotations

import re
import tomllib
from xml.etree.ElementTree import Element, parse

from tests.docs.pages import DOCS, ROOT
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
