"""The ASGI application of the dashboard: a route for each page, as HTML, as JSON, and as a stream that says when it has changed."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from markupsafe import escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from framework.admin.audit import acting_as
from framework.admin.port import current
from framework.dashboard.installation import read_installation
from framework.dashboard.openapi import describe
from framework.dashboard.pages import own_pages
from framework.dashboard.rendering import Renderer, is_part, language_of
from framework.dashboard.security import (
    Authorize,
    ChosenLanguage,
    LoopbackHosts,
    SecureHeaders,
    caller_of,
    check_change,
    cookie_name,
    token_of,
)
from framework.dashboard.shared_reads import SharedRead, SharedReads
from framework.errors import ConfigurationError, ConfigurationProblem, FrameworkError, UnknownNameError
from framework.feature import all_features
from framework.pages.caller import Caller
from framework.pages.job_column import JobColumn
from framework.pages.page import Action, Page
from framework.pages.view import ShardReads, View
from framework.text import Sentence

MAX_STREAMS = 500
"""The open streams of a process. A page without one asks again every few seconds."""

_LEAST_WAIT_S = 1.0
"""A stream looks again not sooner."""

_STREAM_S = 600.0
"""A stream ends after this time, and the browser opens a new one: so a caller who may see no more sees no more."""

_ACTION_WITHIN_S = 30.0
"""How long an action on all matching jobs may take on a shard. Each action has a time limit below it."""

TOKEN_MARK = secrets.token_urlsafe(32)
"""Stands for the token of a viewer in HTML that viewers share. No other program knows it."""

_MOST_BYTES = 1_000_000
"""The longest form."""

_STATIC = Path(__file__).parent / "static"


def app(authorize: Authorize | None = None, *, loopback_only: bool = False) -> ASGIApp:
    """Return the dashboard. ``authorize`` is asked for each request but static files; without it all are refused.

    ``loopback_only`` refuses requests whose Host is not this machine.
    """
    return DashboardSite(authorize).application(loopback_only=loopback_only)


def all_pages() -> list[Page]:
    """Return the pages of the dashboard, of the features, and of the application, in the order of the menu.

    Raises:
        ConfigurationError: two pages have one name or path.
    """
    pages: list[Page] = own_pages()
    for feature in all_features():
        for page in (one.load()() for one in feature.pages):
            if any(page.name == other.name or page.path == other.path for other in pages):
                problem = f"another page has the name {page.name!r} or the path {page.path!r}"
                raise ConfigurationError([ConfigurationProblem("features", feature.name, problem)])
            pages.append(page)
    return pages


def all_columns() -> list[JobColumn]:
    """Return the columns that features and the application add to lists of jobs."""
    return [one.load()() for feature in all_features() for one in feature.job_columns]


class DashboardSite:
    """Answer the requests for all pages."""

    def __init__(self, authorize: Authorize | None) -> None:
        self._authorize = authorize
        # The settings name the features of the application.
        current()
        self.pages = all_pages()
        self._columns = all_columns()
        self._renderer = Renderer(self.pages)
        self._reads = ShardReads()
        self._shared = SharedReads()
        self._streams: set[asyncio.Event] = set()

    def application(self, *, loopback_only: bool) -> ASGIApp:
        """Return the ASGI application that serves the pages."""
        # Pages are not compressed: their length would tell what stands beside a text of the request (BREACH).
        files = GZipMiddleware(StaticFiles(directory=_STATIC), minimum_size=500)
        static = Mount("/static", files, name="static")
        handlers = {HTTPException: self.on_error, Exception: self.on_error}
        served = ChosenLanguage(Starlette(routes=[static, *self.routes()], exception_handlers=handlers))
        # Outside of Starlette, so that the answer to an unexpected error has the headers too.
        return SecureHeaders(LoopbackHosts(served) if loopback_only else served)

    def routes(self) -> list[Route]:
        """Return a route for each page, and for each in ``/api`` and in ``/live``."""
        found = [Route("/api/openapi.json", self._describe)]
        for page in self.pages:
            served = _ServedPage(self, page)
            methods = ["GET", "POST"] if page.actions else ["GET"]
            path = page.path if page.path != "/" else "/overview"
            found.append(Route(page.path, served.html, methods=methods, name=page.name))
            found.append(Route(f"/api{path}", served.api, name=f"api-{page.name}"))
            found.append(Route(f"/live{path}", served.live, name=f"live-{page.name}"))
        return found

    async def view(self, request: Request, page: Page) -> View:
        """Return what the request may read.

        Raises:
            HTTPException: 403, the caller may not see the page on any of the chosen shards; 404, there is no such shard.
        """
        caller = await caller_of(request, self._authorize)
        shards = current().shards
        may_for_some = Caller.may_for_some_jobs
        may = may_for_some if page.of_jobs else Caller.may
        wanted = request.query_params.get("shard")
        visible = {name: shards[name] for name in shards if may(caller, page.role, name)}
        if not visible:
            raise HTTPException(
                403,
                Sentence(
                    "The page {title} needs the role {role} on a shard.", title=Sentence(page.title), role=page.role
                ),
            )
        if wanted and wanted not in visible:
            raise HTTPException(404, Sentence("There is no such shard, or you may not see it."))
        return View(
            caller,
            await asyncio.to_thread(read_installation),
            {wanted: visible[wanted]} if wanted else visible,
            self._reads,
            parameters=dict(request.path_params),
            query={name: value for name, value in request.query_params.items() if value},
            within_s=page.within_s,
            columns=[one for one in self._columns if any(may_for_some(caller, one.role, name) for name in visible)],
        )

    async def read(self, page: Page, view: View, *, is_live: bool = False) -> SharedRead:
        """Return what the page reads; callers with the same sight share it for a moment. ``is_live``: for a page that is left open.

        Raises:
            HTTPException: 404, the path names something that is not there; 400, a word of the query is not allowed.
        """
        key = (page.name, tuple(view.parameters.items()), tuple(sorted(view.query.items())), view.caller.sight)
        try:
            return await self._shared.read(key, page, view, is_live=is_live)
        except UnknownNameError as error:
            raise HTTPException(404, str(error)) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

    def html(self, request: Request, page: Page, view: View, shared: SharedRead) -> Response:
        """Return the page as HTML, with the cookie of its token. Viewers share the part of the page that changes."""
        token = token_of(request)
        if not is_part(request):
            return self._with_token(
                request, HTMLResponse(self._rendered_page(request, page, view, shared, token)), token
            )
        key = language_of(request), str(request.url.path), request.url.query
        html = shared.parts.get(key)
        if html is None:
            began = time.thread_time()
            html = shared.parts[key] = self._rendered_page(request, page, view, shared, TOKEN_MARK)
            shared.processor_s += time.thread_time() - began
        return self._with_token(request, HTMLResponse(html.replace(TOKEN_MARK, str(escape(token)))), token)

    def _rendered_page(self, request: Request, page: Page, view: View, shared: SharedRead, token: str) -> str:
        all_shards = [name for name in current().shards if view.caller.may_for_some_jobs("read", name)]
        actions = [one for one in page.actions if may_anywhere(view, one)]
        shown = {
            "data": shared.facts,
            "view": view,
            "token": token,
            "again_ms": round(1_000 * shared.period_s),
            "all_shards": sorted(all_shards),
            "actions": actions,
        }
        return self._renderer.page(request, page, shown)

    @staticmethod
    def _with_token(request: Request, response: Response, token: str) -> Response:
        response.set_cookie(
            cookie_name(request),
            token,
            path="/" if request.url.scheme == "https" else request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def rendered(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page that is none of the table: a preview, a result, an error."""
        return HTMLResponse(self._renderer.render(request, template, values), status)

    def on_error(self, request: Request, error: Exception) -> Response:
        """Return an error as JSON below ``/api`` and ``/live``, else as a page."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = error.detail if isinstance(error, HTTPException) else ""
        headers = error.headers if isinstance(error, HTTPException) else None
        if request.scope["path"].removeprefix(request.scope.get("root_path", "")).startswith(("/api/", "/live/")):
            return JSONResponse({"detail": detail}, status, headers)
        response = self.rendered(request, "error.html", {"detail": detail, "code": status}, status)
        response.headers.update(headers or {})
        return response

    def open_stream(self) -> asyncio.Event | None:
        """Return what tells a new stream to end, ``None`` if there are too many streams."""
        if len(self._streams) >= MAX_STREAMS:
            return None
        ending = asyncio.Event()
        self._streams.add(ending)
        return ending

    def close_stream(self, ending: asyncio.Event) -> None:
        """Forget a stream that has ended."""
        self._streams.discard(ending)

    def end_streams(self) -> None:
        """Let all streams and long reads end now: the server ends."""
        self._reads.long.forget()
        for ending in self._streams:
            ending.set()

    def forget(self) -> None:
        """Let each page be read again: something was changed."""
        self._reads.long.forget()
        self._shared.forget()

    async def _describe(self, request: Request) -> Response:
        await caller_of(request, self._authorize)
        return JSONResponse(describe(self.pages, request.scope.get("root_path") or "/"))


def may_anywhere(view: View, action: Action) -> bool:
    """Return whether the caller may use the action on a shard at least, for some jobs."""
    return any(view.caller.may_for_some_jobs(action.role, name) for name in view.shards)


class _ServedPage:
    def __init__(self, site: DashboardSite, page: Page) -> None:
        self._site, self._page = site, page

    async def html(self, request: Request) -> Response:
        view = await self._site.view(request, self._page)
        if request.method == "POST":
            return await self._change(request, view)
        shared = await self._site.read(self._page, view, is_live=is_part(request))
        return self._site.html(request, self._page, view, shared)

    async def api(self, request: Request) -> Response:
        view = await self._site.view(request, self._page)
        return JSONResponse((await self._site.read(self._page, view)).facts)

    async def live(self, request: Request) -> Response:
        view = await self._site.view(request, self._page)
        # a2wsgi's mark of a WSGI server, where each open stream would take a thread.
        if "wsgi_environ" in request.scope:
            raise HTTPException(501, Sentence("This server keeps no streams: ask for the page from time to time."))
        ending = self._site.open_stream()
        if ending is None:
            raise HTTPException(429, Sentence("Too many open streams: ask for the page from time to time."))
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._changes(request, view, ending), media_type="text/event-stream", headers=headers)

    async def _changes(self, request: Request, view: View, ending: asyncio.Event) -> AsyncIterator[str]:
        """Yield an event whenever the page would show something else."""
        loop = asyncio.get_running_loop()
        ends, shown, wait_s = loop.time() + _STREAM_S, "", self._page.fresh_s
        try:
            while loop.time() < ends and not await request.is_disconnected():
                with suppress(HTTPException):
                    read = asyncio.ensure_future(self._site.read(self._page, view, is_live=True))
                    if not await before(ending, read):
                        return
                    shared = read.result()
                    yield "event: changed\ndata: 1\n\n" if shown not in ("", shared.text) else ": same\n\n"
                    shown = shared.text
                    wait_s = max(shared.began + shared.period_s - loop.time(), _LEAST_WAIT_S)
                if not await before(ending, asyncio.ensure_future(asyncio.sleep(wait_s))):
                    return
                view = await self._site.view(request, self._page)
        finally:
            self._site.close_stream(ending)

    async def _change(self, request: Request, view: View) -> Response:
        form = await _form(request)
        check_change(request, form)
        action = self._action((form.get("action") or [""])[0])
        if not may_anywhere(view, action):
            raise HTTPException(
                403,
                Sentence("The action {label} needs the role {role}.", label=Sentence(action.label), role=action.role),
            )
        values: dict[str, Any] = {"page": self._page, "action": action, "form": form, "view": view}
        try:
            view.within_s = _ACTION_WITHIN_S
            if not form.get("confirmed"):
                preview = await action.preview(view, form)
                shown = {**values, "preview": preview, "data": {"unanswered": view.unanswered}}
                return self._site.rendered(request, "preview.html", shown)
            # The context goes along into the threads of the shards.
            with acting_as(view.caller.name, "dashboard", request.client.host if request.client else ""):
                done = await action.apply(view, form)
        except (FrameworkError, ValueError) as error:
            raise HTTPException(409, str(error)) from None
        self._site.forget()
        values["data"] = {"unanswered": view.unanswered}
        return self._site.rendered(request, "done.html", {**values, "done": done})

    def _action(self, name: str) -> Action:
        found = next((one for one in self._page.actions if one.name == name), None)
        if found is None:
            raise HTTPException(400, Sentence("The form names no action of this page: nothing was changed."))
        return found


async def before(ending: asyncio.Event, step: "asyncio.Future[Any]") -> bool:
    """Wait for the step, and return whether it has ended before the server ends; else it is cancelled.

    A read of a slow shard would hold the end of the process.
    """
    stop = asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait((stop, step), return_when=asyncio.FIRST_COMPLETED)
        return step.done() and not ending.is_set()
    finally:
        stop.cancel()
        step.cancel()


async def _form(request: Request) -> Mapping[str, Sequence[str]]:
    """Return the fields of a form. Only the plain encoding is read."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(415, Sentence("Send the form as application/x-www-form-urlencoded."))
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, Sentence("The form is too long: select fewer jobs, or all that match."))
    return parse_qs(body.decode(errors="replace"), keep_blank_values=True)
