"""Boot with a Starlette or FastAPI application, and give the jobs of a request its context.

from framework.integrations.starlette import RequestContext, lifespan

app = FastAPI(lifespan=lifespan)
app.add_middleware(RequestContext)
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.integrations.scope import DEFAULT_HEADER, caller_id_of, correlation_id_of, trace_of
from framework.integrations.scope import scope as request_scope
from framework.telemetry.context import bound, bound_trace
from framework.types import Json
from framework.wiring.client import boot


@asynccontextmanager
async def lifespan(app: Any) -> AsyncGenerator[None]:
    """Call ``framework.boot()`` before the first request, in a thread. A lifespan of the application may enter it.

    Raises:
        ConfigurationError: with every problem found; the application does not start.
    """
    del app
    await asyncio.to_thread(boot)
    yield


def _no_facts(scope: Scope) -> Mapping[str, Json]:
    del scope
    return {}


class RequestContext:
    """Bind the correlation id of a request and its caller (``GET /orders/{id}``) around the request. An ASGI middleware.

    The id is that of the header, or a new one; the response has it too. ``facts`` returns more facts from the scope of a request. The
    jobs of a request with a ``traceparent`` belong to its trace, without a library for traces too.
    """

    def __init__(
        self, app: ASGIApp, *, header: str = DEFAULT_HEADER, facts: Callable[[Scope], Mapping[str, Json]] = _no_facts
    ) -> None:
        self._app = app
        self._header = header
        self._facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one connection of a websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        correlation_id = correlation_id_of(headers.get(self._header))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(self._header, correlation_id)
            await send(message)

        caller = caller_id_of(scope.get("method", "WEBSOCKET"), _route_of(scope))
        facts = {"caller_id": caller, **self._facts(scope)}
        with request_scope(), bound(correlation_id, **facts), bound_trace(trace_of(headers.get)):
            await self._app(scope, receive, send_with_id)


def _route_of(scope: Scope) -> str | None:
    """Return the pattern of the route that will serve the request; that of a mounted application ends at its mount."""
    for route in getattr(scope.get("app"), "routes", ()):
        match, _ = route.matches(scope)
        if match is not Match.NONE:
            path: str | None = getattr(route, "path", None)
            return path
    return None
