"""The page of the docs: the prose of `page.md` with the tables of a run."""

from __future__ import annotations

from pathlib import Path
from string import Template

from bench.aims import aims_of
from bench.plot import draw
from bench.results import Results
from bench.sections import PAGE, carried_over
from bench.tables import aim_sheet, markdown, sheets_of

PICTURE = "images/benchmarks.svg"


def write_docs(results: Results, docs: Path) -> None:
    """Write the page and its picture into the folder of the docs."""
    template = Template(Path(__file__).with_name("page.md").read_text(encoding="utf-8"))
    tables = "\n\n".join(f"### {sheet.title}\n\n{markdown(sheet)}" for sheet in sheets_of(results))
    page = template.substitute(
        machine=results.machine,
        picture=PICTURE,
        aims=markdown(aim_sheet(aims_of(results))),
        tables=tables,
        notes="\n".join(f"- {note}" for note in results.notes),
    )
    path = docs / PAGE
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(carried_over(old, page.rstrip() + "\n"), encoding="utf-8")
    picture = docs / PICTURE
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(results, picture)
