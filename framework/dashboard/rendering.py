"""Turn what a page has read into HTML. Every value is escaped: no template marks one as safe."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request

from framework.dashboard.texts import catalogue, chosen_language, language_names
from framework.pages.page import Page
from framework.text import Sentence, format_bytes, format_duration
from framework.version import VERSION

_FOLDER = Path(__file__).parent / "templates"

TIME_TEXTS = ("in {time}", "{time} ago")
"""The texts of the age of a time."""

_METHODS_OF_DICT = frozenset(dir(dict))
_TIME = Markup('<time datetime="%s">%s</time>')
_METER = Markup(
    '<svg class="meter%s" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="%s: %s %%"><title>%s</title>'
    '<rect width="%s" height="8"/></svg>'
)
_SHARE = Markup(
    '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width="%s" height="8"/></svg>'
)
_SPARK = Markup(
    '<svg class="spark" viewBox="0 0 %s 20" preserveAspectRatio="none" aria-hidden="true"><path d="M-9 40V%s%sl9 20Z"/></svg>'
)
_ZERO = Markup('<span class="zero">0</span>')
_WORD_OF_PATH = re.compile(r"\{(\w+)(?::path)?\}")
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


class Renderer:
    """Render the templates of pages. A page's own template is beside its module, the shared ones are in the dashboard's folder."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = pages
        # Texts of the path, each but the first behind the name of its word.
        self._paths = {page.name: _WORD_OF_PATH.split(page.path) for page in pages}
        self._environment = _Environment(
            loader=_Loader({f"page/{page.name}": page.template_path for page in pages}),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.do"],
            finalize=_said,
        )
        # A list has hundreds of rows: a filter takes a fifth of the time of a macro.
        filters: dict[str, Callable[..., str]] = {
            "time": _time,
            "number": _number,
            "meter": _meter,
            "share": _share,
            "spark": _spark,
            "bar": _bar,
            "duration": format_duration,
            "span": _span,
            "bytes": format_bytes,
            "count": _count,
            "host": _host,
            "iso": _iso,
            "json": _encode,
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
            "said": texts.said,
            "language": texts.language,
            "layout": "part.html" if is_part(request) else "base.html",
            "link": self._linker(request),
            "shard_link": _same_page_linker(request, "shard"),
            "page_link": _same_page_linker(request, "page"),
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
            path, *places = self._paths[name]
            for word, text in zip(places[::2], places[1::2], strict=True):
                path += quote(str(words.pop(word)), safe="") + text
            query = {word: str(value) for word, value in words.items() if value}
            if shard:
                query = {"shard": shard, **query}
            return f"{root}{path}?{urlencode(query)}" if query else f"{root}{path}"

        return link


def is_part(request: Request) -> bool:
    """Return whether htmx asks for the part of the page that changes."""
    return "hx-request" in request.headers


def language_of(request: Request) -> str:
    """Return the language of the viewer."""
    return chosen_language(request.headers.get("accept-language", ""))


class _Environment(Environment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what ``one.size`` is; of a dict first its item, as a row has many."""
        if type(obj) is dict and attribute in obj and attribute not in _METHODS_OF_DICT:
            return obj[attribute]  # pyright: ignore[reportUnknownVariableType]
        return super().getattr(obj, attribute)


class _Loader(BaseLoader):
    def __init__(self, pages: Mapping[str, Path]) -> None:
        self._pages = pages

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:  # noqa: ARG002
        file = self._pages.get(template, _FOLDER / template)
        if not file.is_file():
            raise TemplateNotFound(template)
        return file.read_text(encoding="utf-8"), str(file), lambda: True


def _same_page_linker(request: Request, word: str) -> Callable[[object], str]:
    """Return what makes the address of the same page with another value of one word of its query."""
    others = [(name, text) for name, text in request.query_params.multi_items() if name not in (word, "page")]

    def link(value: object) -> str:
        return f"?{urlencode([*others, (word, str(value))] if value else others)}"

    return link


def live_path(page: Page, request: Request) -> str:
    """Return the address of the stream that says when the page has changed."""
    path = request.scope["path"].removeprefix(_root(request))
    query = f"?{request.url.query}" if request.url.query else ""
    return f"/live{quote(path) if page.path != '/' else '/overview'}{query}"


def _root(request: Request) -> str:
    return str(request.scope.get("root_path") or "").rstrip("/")


def _count(number: float) -> str:
    """Return a number; one with a fraction to a tenth."""
    return f"{round(number, 1):,}".removesuffix(".0")


def _host(identity: str) -> str:
    """Return the host and the process id of an identity."""
    return identity.rpartition(":")[0] or identity


def _span(seconds: float) -> str:
    """Return a length of time; below ten seconds with the digits that matter: ``84 ms``, ``1.2 s``."""
    if seconds < 1:
        return Sentence("{ms:.0f} ms", ms=max(seconds, 0.0) * 1_000)
    return Sentence("{s:.1f} s", s=seconds) if seconds < 10 else format_duration(seconds)


@pass_context
def _said(context: Context, value: object) -> object:
    """Return what a template shows: each sentence is translated here, wherever it comes from."""
    return context["said"](value) if type(value) is Sentence else value


@pass_context
def _time(context: Context, at: float | None, now: float) -> str:
    """Return a time as its age; the script of the pages shows it in the zone of the viewer."""
    if at is None:
        return "–"
    text = TIME_TEXTS[0] if at > now else TIME_TEXTS[1]
    age = context["_"](text, time=format_duration(abs(now - at)))
    return _TIME % (_iso(at), age)


def _number(value: float) -> str:
    """Return a number; a zero is quiet."""
    return f"{value:,}" if value else _ZERO


def _meter(used: float, most: float, title: str) -> str:
    """Return how much of the most is used."""
    share = min(used / most, 1.0) if most else 0.0
    level = " bad" if share >= 0.9 else " warn" if share >= 0.75 else ""
    return _METER % (level, title, round(share * 100), title, round(share * 100, 1))


def _share(value: float, most: float) -> str:
    """Return the share of the most, as a bar beside its number."""
    return _SHARE % (round(100 * value / most, 2) if most else 0,)


def _spark(points: Sequence[float]) -> str:
    """Return the course of a figure; the columns beside it have the numbers."""
    if len(points) < 2:
        return ""
    most = max(*points, 1)
    heights = [19 - round(18 * one / most) for one in points]
    # Each step is relative to the one before. What closes the area is beyond the picture, and is not seen.
    steps = "".join(f"l1 {to - at}" for at, to in pairwise(heights))
    return _SPARK % (len(points) - 1, heights[0], f"H0{steps}")


def _bar(value: float, most: float, place: int) -> str:
    """Return the path of a bar of a chart; none for a zero."""
    return f"M{10 * place + 1} 60V{60 - 58 * value / most:.1f}h8V60" if value else ""


def _iso(epoch_s: float | None) -> str:
    if epoch_s is None:
        return ""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""
