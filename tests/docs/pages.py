"""The pages of the docs, parsed into fenced blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)(?P<more>[^`]*)$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page where the text begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A page, named by its path from the root of the repository."""

    name: str
    text: str
    prose: str
    blocks: tuple[Block, ...]

    @property
    def path(self) -> Path:
        """The path of the page's file."""
        return ROOT / self.name

    def blocks_in(self, *languages: str) -> list[Block]:
        """Return the blocks in some languages, in order."""
        return [block for block in self.blocks if block.language in languages]

    def anchors(self) -> set[str]:
        """Return the anchors of the headings, as GitHub names them."""
        found: dict[str, int] = {}
        for line in self.prose.splitlines():
            if heading := _HEADING.match(line):
                slug = _slug(heading[1])
                found[slug] = found.get(slug, -1) + 1
        return {f"{slug}-{again}" if again else slug for slug, times in found.items() for again in range(times + 1)}

    def links(self) -> list[str]:
        """Return the targets of all links and pictures."""
        without_code = _CODE.sub("", self.prose)
        return [next(filter(None, found)) for found in _LINK.findall(without_code)]

    def paragraphs(self) -> list[str]:
        """Return the paragraphs of the prose, which empty lines separate."""
        return [piece for piece in re.split(r"\n\s*\n", self.prose) if piece.strip()]


@cache
def page(name: str) -> Page:
    """Return the page with a path from the root, such as `docs/tutorial.md`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    prose, blocks = _taken_apart(text.splitlines())
    return Page(name, text, prose, tuple(blocks))


def all_pages() -> list[Page]:
    """Return README and every page of the docs except the decisions, which are not updated with the code."""
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [page(name) for name in names if not name.startswith("docs/adr/")]


def linked_pages() -> list[Page]:
    """Return all pages, including the decisions and those in the repository's root."""
    paths = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    return [page(path.relative_to(ROOT).as_posix()) for path in paths if path.name != "template.md"]


def _taken_apart(lines: list[str]) -> tuple[str, list[Block]]:
    prose: list[str] = []
    blocks: list[Block] = []
    numbered = iter(enumerate(lines, start=1))
    for number, line in numbered:
        if opening := _FENCE.match(line):
            text = "\n".join(_inside(numbered, opening["indent"], opening["fence"]))
            blocks.append(Block(opening["language"], text, number + 1))
        else:
            prose.append(line)
    return "\n".join(prose), blocks


def _inside(numbered: Iterator[tuple[int, str]], indent: str, fence: str) -> Iterator[str]:
    for number, line in numbered:
        if line.strip() == fence:
            return
        if line.strip() and not line.startswith(indent):
            raise ValueError(f"line {number} stands left of its fence")
        yield line[len(indent) :]
    raise ValueError("a fenced block has no end")


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
