"""Replace the Mermaid diagrams in the built site with SVG, so that no page loads Mermaid from another server."""

from __future__ import annotations

import html
import re
import sys
from hashlib import sha256
from pathlib import Path

import mermaidx  # type: ignore[import-untyped]

_DIAGRAM = re.compile(r'<pre class="mermaid"><code>(.*?)</code></pre>', re.DOTALL)
# The drawings have the colors of a light page. The id of a drawing must be unique on its page.
_FRAME = '<div style="background: #fff; padding: 1em; border-radius: 4px; overflow-x: auto">{}</div>'


def with_drawings(page: str) -> str:
    """Return the HTML of a page with a drawing in place of each diagram."""

    def drawing(found: re.Match[str]) -> str:
        source = html.unescape(found[1])
        name = f"diagram-{sha256(source.encode()).hexdigest()[:8]}"
        return _FRAME.format(str(mermaidx.render(source).svg()).replace("my-svg", name))

    return _DIAGRAM.sub(drawing, page)


def main(folder: Path) -> None:
    """Draw the diagrams of all pages in a folder."""
    for path in sorted(folder.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        if _DIAGRAM.search(page):
            path.write_text(with_drawings(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
