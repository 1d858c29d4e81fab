"""Turn what a page has read into HTML. Every value is escaped: no template marks one as safe."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound, pass_context
from jinja2.runtime import Context
from starlette.requests import Request

from framework.dashboard.texts import catalogue, chosen_language, language_names
from framework.pages.page import Page
from framework.text import format_bytes, format_duration
from framework.version import VERSION

_FOLDER = Path(__file__).parent / "templates"

UNIT_TEXTS = ("d", "h", "min", "s", "ms")
"""The units in lengths of time, which a catalogue translates."""


class Renderer:
    """Render the templates of pages. A page's own template is beside its module, the shared ones are in the dashboard's folder."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = pages
        self._by_name = {page.name: page for page in pages}
        self._environment = Environment(
            loader=_Loader({f"page/{page.name}": page.template_path for page in pages}),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.do"],
        )
        filters: dict[str, Callable[..., str]] = {
            "duration": _duration,
            "span": _span,
            "bytes": format_bytes,
            "count": _count,
            "iso": _iso,
            "json": _compact,
        }
        for name, one in filters.items():
            self._environment.filters[name] = one

    def page(self, request: Request, page: Page, values: Mapping[str, Any]) -> str:
        """Return a page, or the part of it that changes if htmx asks for it."""
        live = f"{_root(request)}{live_path(page, request)}"
        return self.render(request, f"page/{page.name}", {"page": page, "live": live, **values})

    def render(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        """Return a template with these values."""
        texts = catalogue(language_of(request))
        shared: dict[str, Any] = {
            "_": texts.text,
            "language": texts.language,
            "layout": "part.html" if is_part(request) else "base.html",
            "link": self._linker(request),
            "shard_link": _shard_linker(request),
            "static": f"{_root(request)}/static/{{}}?v={VERSION}".format,
            "pages": self.pages,
            "menu": [one for one in self.pages if one.menu],
            "languages": language_names(),
            "root": _root(request),
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        }
        return self._environment.get_template(template).render({**shared, **values})

    def _linker(self, request: Request) -> Callable[..., str]:
        root = _root(request)
        # The chosen shard goes along from page to page.
        shard = request.query_params.get("shard", "")

        def link(name: str, **words: object) -> str:
            """Return the address of a page: words of its path, and others as its query."""
            path, query = self._by_name[name].path, {"shard": shard} if shard else {}
            for word, value in words.items():
                text = str(value)
                for place in (f"{{{word}}}", f"{{{word}:path}}"):
                    if place in path:
                        path = path.replace(place, quote(text, safe=""))
                        break
                else:
                    query[word] = text
            query = {word: text for word, text in query.items() if text}
            return f"{root}{path}{'?' if query else ''}{urlencode(query)}"

        return link


def is_part(request: Request) -> bool:
    """Return whether htmx asks for the part of the page that changes."""
    return "hx-request" in request.headers


def language_of(request: Request) -> str:
    """Return the language of the viewer."""
    return chosen_language(request.headers.get("accept-language", ""))


class _Loader(BaseLoader):
    def __init__(self, pages: Mapping[str, Path]) -> None:
        self._pages = pages

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:  # noqa: ARG002
        file = self._pages.get(template, _FOLDER / template)
        if not file.is_file():
            raise TemplateNotFound(template)
        return file.read_text(encoding="utf-8"), str(file), lambda: True


def _shard_linker(request: Request) -> Callable[[str], str]:
    """Return what makes the address of the same page on another shard."""
    others = [(word, text) for word, text in request.query_params.multi_items() if word != "shard"]

    def link(shard: str) -> str:
        return f"?{urlencode([*others, ('shard', shard)] if shard else others)}"

    return link


def live_path(page: Page, request: Request) -> str:
    """Return the address of the stream that says when the page has changed."""
    path = request.scope["path"].removeprefix(_root(request))
    query = f"?{request.url.query}" if request.url.query else ""
    return f"/live{quote(path) if page.path != '/' else '/overview'}{query}"


def _root(request: Request) -> str:
    return str(request.scope.get("root_path") or "").rstrip("/")


def _count(number: int) -> str:
    return f"{number:,}"


@pass_context
def _duration(context: Context, seconds: float) -> str:
    return _with_units(context, format_duration(seconds))


@pass_context
def _span(context: Context, seconds: float) -> str:
    """Return a length of time; below ten seconds with the digits that matter: ``84 ms``, ``1.2 s``."""
    if seconds < 1:
        return _with_units(context, f"{max(seconds, 0.0) * 1000:.0f} ms")
    return _with_units(context, f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds))


def _with_units(context: Context, text: str) -> str:
    """Return the text with its units in the language of the viewer."""
    translate = context["_"]
    return " ".join(translate(word) if word in UNIT_TEXTS else word for word in text.split(" "))


def _iso(epoch_s: float | None) -> str:
    if epoch_s is None:
        return ""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
