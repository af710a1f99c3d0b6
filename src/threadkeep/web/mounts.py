"""The documentation page (Swagger UI without network access) and the console, as parts of the service."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from threadkeep.web.console import calls, known, runs, sessions, sign_in, status

DOCS: Final = "/docs"
_DOCS_FILES: Final = f"{DOCS}/files"
_SCRIPT: Final = f"{_DOCS_FILES}/swagger-ui-bundle.js"
_STYLE: Final = f"{_DOCS_FILES}/swagger-ui.css"
_ICON: Final = f"{_DOCS_FILES}/favicon-32x32.png"
DOCS_FILES: Final = (_SCRIPT, _STYLE, _ICON)


def describe(service: FastAPI) -> None:
    """Serve the page and its files. Only the files come from fastapi-swagger, because its routes add other pages."""
    service.mount(_DOCS_FILES, StaticFiles(packages=[("fastapi_swagger", "resources")]))

    @service.get(DOCS, include_in_schema=False)
    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=service.openapi_url or "",
            title=service.title,
            swagger_js_url=_SCRIPT,
            swagger_css_url=_STYLE,
            swagger_favicon_url=_ICON,
        )


_FILES: Final = "/console/files"
OPEN: Final = (sign_in.ADDRESS, *(f"{_FILES}/{name}" for name in ("console.css", "console.js", "icon.svg")))
"""What a browser gets before it has signed in; it contains no data."""


def mount_console(service: FastAPI) -> None:
    """Serve the console's pages and files, and show browsers a page for an address below it that leads nowhere."""
    service.mount(_FILES, StaticFiles(packages=[("threadkeep.web.console", "static")]))
    for pages in (sessions, calls, runs, known, status, sign_in):
        service.router.routes.extend(pages.router.routes)
    service.add_exception_handler(HTTPException, sign_in.respond_to_browsers)
