"""Take the pictures of the console for the docs, from a service with made-up conversations.

    python -m scripts.screenshots           # writes into docs/images
    python -m scripts.screenshots --serve   # only serves the conversations, until Ctrl+C

It needs Chromium and the driver of `make browser`; agent-chat-ui is among the pictures if `make foreign` has built it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import httpx2
from playwright.async_api import async_playwright

from tests.foreign.chat_page import IS_BUILT, page_address, serving_page
from tests.web.console.demo_service import GROUP, SHOP, TRIP, opened_service
from threadkeep.web.console.rendering import run_address, session_address

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_SIZE = {"width": 1240, "height": 860}


async def _pages(client: httpx2.AsyncClient, chat_page: str | None) -> dict[str, str]:
    """Return the address of each page that is photographed, by the name of the picture's file."""
    calls = (await client.get(f"/api/v1/sessions/{TRIP}/manifests")).json()["manifests"]
    waiting = (await client.get("/api/v1/runs", params={"status": "waiting"})).json()["runs"]
    pages = {
        "console": run_address(calls[1]["run_id"], "calls", "last"),
        "console-sessions": "/",
        "console-session": session_address(GROUP),
        "console-known": f"/console/known?q=tram&session={TRIP}",
        "console-calls": session_address(TRIP, "calls"),
        "console-run": run_address(waiting[0]["run_id"]),
    }
    if chat_page is not None:
        more = {"threadId": SHOP, "chatHistoryOpen": "true"}
        pages["agent-chat-ui"] = page_address(chat_page, str(client.base_url), "chat", **more)
    return pages


async def _take(client: httpx2.AsyncClient, chat_page: str | None) -> None:
    chromium = shutil.which("chromium")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(base_url=str(client.base_url), viewport=_SIZE, color_scheme="light")
        for name, address in (await _pages(client, chat_page)).items():
            await page.goto(address, wait_until="networkidle")
            file = IMAGES / f"{name}.png"
            await page.screenshot(path=file)
            print(f"{file.name}: {file.stat().st_size // 1024} KB")
        await browser.close()


async def _main() -> None:
    with tempfile.TemporaryDirectory() as folder, serving_page() if IS_BUILT else nullcontext() as origin:
        async with opened_service(Path(folder), cors_origins=origin or "") as (_, client):
            if "--serve" not in sys.argv:
                return await _take(client, origin)
            print(client.base_url, flush=True)
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_main())
