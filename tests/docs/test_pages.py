"""What the docs show works as it stands, and answers what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.docs.pages import Page, all_pages
from tests.docs.running import RUNNABLE, Place, run_page

PAGES = [page for page in all_pages() if page.blocks_in(*RUNNABLE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_carried_out(
    page: Page, place_of: Callable[[Page], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python, commands and requests work in their order, and what they print stands in the block that follows."""
    run_page(page, place_of(page), monkeypatch.setenv)
