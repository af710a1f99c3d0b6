"""What a picture says of the code is so."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, parse

from tests.docs.pages import DOCS
from threadkeep.context.plan import ContextPlan

_SVG = "{http://www.w3.org/2000/svg}"


def texts_of(name: str) -> list[Element]:
    """The texts of a picture, in order."""
    return list(parse(DOCS / "images" / name).iter(f"{_SVG}text"))  # noqa: S314 - our own file


def test_the_sections_are_drawn_as_the_plan_has_them() -> None:
    """In the order in which they are sent, with their shares, and the extras by who yields first."""
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
    for name, share in plan.shares.items():
        assert re.search(rf"\b{share:.0%}".replace("%", " %"), " ".join(drawn[name])), name
    assert sorted(plan.yields, key=lambda name: drawn[name][-1]) == list(plan.yields)
