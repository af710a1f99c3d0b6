"""Helpers that follow links and send forms of the console as a browser without scripts does."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

import httpx2

FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass
class FoundForm:
    """A form of a page: its address, its method, and the values of its fields."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[FoundForm] = []
        self.links: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links, forms with their fields, and inline code that the content policy forbids."""
        values = {name: value or "" for name, value in attrs}
        self.inline += [name for name in values if name == "style" or name.startswith("on")]
        if tag == "script" and "src" not in values:
            self.inline.append("script")
        if tag == "a":
            self.links.append(values.get("href", ""))
        elif tag == "form":
            self.forms.append(FoundForm(values["action"], values["method"]))
        elif tag in ("input", "textarea", "select") and "name" in values and values.get("type") != "checkbox":
            self.forms[-1].fields[values["name"]] = values.get("value", "")


@dataclass(frozen=True)
class Page:
    """A page of the console."""

    text: str
    forms: list[FoundForm]
    links: list[str]

    def form(self, ending: str) -> FoundForm:
        """Return the first form whose address ends with a text."""
        return next(form for form in self.forms if form.action.partition("?")[0].endswith(ending))

    @property
    def words(self) -> str:
        """Return the text of the page without tags, with single spaces."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.text)).split())


async def opened(client: httpx2.AsyncClient, address: str, *, status: int = 200) -> Page:
    """Open a page, and check that it has no inline script or style and nothing of other hosts."""
    response = await client.get(address, follow_redirects=True)
    assert response.status_code == status, response.text
    return page_of(response)


def page_of(response: httpx2.Response) -> Page:
    """Return the page of a response, after checking the guarantees of every page."""
    assert response.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in response.headers["content-security-policy"]
    # Browsers send `Origin: null` with the forms of a page that forbids referrers; then no form works.
    assert response.headers["referrer-policy"] == "same-origin"
    assert "unsafe" not in response.headers["content-security-policy"]
    reader = _Reader()
    reader.feed(response.text)
    assert reader.inline == []
    assert re.findall(r"(?:href|src|action)=\"(?:https?:)?//", response.text) == []
    return Page(response.text, reader.forms, reader.links)


async def sent(client: httpx2.AsyncClient, form: FoundForm, **values: str) -> Page:
    """Send a form, and return the page that a browser shows afterwards."""
    content = urlencode({**form.fields, **values})
    response = await client.post(form.action, content=content, headers=FORM, follow_redirects=True)
    assert response.status_code == 200, response.text
    return page_of(response)
