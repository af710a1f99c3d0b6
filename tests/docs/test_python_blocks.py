"""What the docs show in Python runs as it stands, and prints what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.docs.pages import Page, all_pages
from tests.docs.running import PYTHON, Place, run_blocks

PAGES = [page for page in all_pages() if page.blocks_in(*PYTHON)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Page, place_of: Callable[[Page], Place]) -> None:
    """Its blocks run in their order, in one namespace, and what they print stands in the block that follows."""
    run_blocks(page, place_of(page))
