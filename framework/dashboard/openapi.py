"""Describe the JSON API in the form of OpenAPI 3.1: a path for each page."""

import re
from collections.abc import Sequence
from typing import Any

from framework.pages.page import Page
from framework.version import VERSION

_ERRORS = {
    "400": "a word of the query is not allowed",
    "403": "the caller may not see the page",
    "404": "no such thing, or no such shard",
    "429": "the caller asks for too many expensive reads",
}


def describe(pages: Sequence[Page], server: str) -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "application-worker dashboard", "version": VERSION},
        "servers": [{"url": server}],
        "paths": {path_of(page): {"get": _operation(page)} for page in pages},
        "components": {"schemas": {"Error": {"type": "object", "required": ["detail"]}}},
    }


def path_of(page: Page) -> str:
    """Return the path of a page in the API, as OpenAPI writes it."""
    return "/api" + ("/overview" if page.path == "/" else page.path.replace(":path}", "}"))


def _operation(page: Page) -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    words = re.findall(r"{(\w+)", page.path)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "operationId": page.name,
        "summary": page.title,
        "parameters": [
            *({"name": word, "in": "path", "required": True, **text} for word in words),
            {"name": "shard", "in": "query", **text},
        ],
        "responses": {
            "200": {
                "description": "what the page shows",
                "content": {"application/json": {"schema": {"type": "object", "required": ["unanswered"]}}},
            },
            **{code: {"description": why, "content": error} for code, why in _ERRORS.items()},
        },
    }
