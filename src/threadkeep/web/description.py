"""The API's documentation page: Swagger UI served by this process, without any network access."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

ADDRESS: Final = "/docs"
_FILES: Final = f"{ADDRESS}/files"
_SCRIPT: Final = f"{_FILES}/swagger-ui-bundle.js"
_STYLE: Final = f"{_FILES}/swagger-ui.css"
_ICON: Final = f"{_FILES}/favicon-32x32.png"
FILES: Final = (_SCRIPT, _STYLE, _ICON)


def describe(service: FastAPI) -> None:
    """Serve the page and its files. Only the files come from fastapi-swagger, because its routes add other pages."""
    service.mount(_FILES, StaticFiles(packages=[("fastapi_swagger", "resources")]))

    @service.get(ADDRESS, include_in_schema=False)
    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=service.openapi_url or "",
            title=service.title,
            swagger_js_url=_SCRIPT,
            swagger_css_url=_STYLE,
            swagger_favicon_url=_ICON,
        )
