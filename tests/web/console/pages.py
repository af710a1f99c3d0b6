"""Pages of the console as a browser without scripts has them: links that are followed, and forms that are sent."""

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
        """Note links, forms with their fields, and what the policy of the pages forbids."""
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
        """The first form whose address ends so."""
        return next(form for form in self.forms if form.action.partition("?")[0].endswith(ending))

    @property
    def words(self) -> str:
        """What a person reads, without tags, with single spaces."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.text)).split())


async def opened(client: httpx2.AsyncClient, address: str, *, status: int = 200) -> Page:
    """A page that a browser shows as its policy says: no inline script or style, nothing of other hosts."""
    response = await client.get(address, follow_redirects=True)
    assert response.status_code == status, response.text
    return page_of(response)


def page_of(response: httpx2.Response) -> Page:
    """The page of a response, checked for what every page promises."""
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
    """The page that a browser shows after it has sent a form."""
    content = urlencode({**form.fields, **values})
    response = await client.post(form.action, content=content, headers=FORM, follow_redirects=True)
    assert response.status_code == 200, response.text
    return page_of(response)
