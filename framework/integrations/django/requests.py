"""Give the jobs of a request its context: a middleware of Django.

MIDDLEWARE = ["framework.integrations.django.requests.DjangoRequestContext", ...]
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve

from framework.integrations.scope import DEFAULT_HEADER, caller_id_of, correlation_id_of, scope, trace_of
from framework.telemetry.context import bound, bound_trace

_Handler = Callable[[HttpRequest], HttpResponseBase]
_AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class DjangoRequestContext:
    """Bind the correlation id of a request and its caller (``GET orders/<int:id>``) around the request, for both kinds of views.

    The id is that of the header ``X-Request-ID``, or a new one; the response has it too. The jobs of a request with a
    ``traceparent`` belong to its trace, without a library for traces too. Put it before middlewares that push jobs.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: _Handler | _AsyncHandler) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated] - Python 3.11
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Serve one request."""
        if self._is_async:
            return self._serve(request)
        with _bound(request) as correlation_id:
            response = cast("_Handler", self._get_response)(request)
            response.headers.setdefault(DEFAULT_HEADER, correlation_id)
            return response

    async def _serve(self, request: HttpRequest) -> HttpResponseBase:
        with _bound(request) as correlation_id:
            response = await cast("_AsyncHandler", self._get_response)(request)
            response.headers.setdefault(DEFAULT_HEADER, correlation_id)
            return response


@contextmanager
def _bound(request: HttpRequest) -> Generator[str]:
    correlation_id = correlation_id_of(request.headers.get(DEFAULT_HEADER))
    caller = caller_id_of(request.method or "", _route_of(request))
    with scope(), bound(correlation_id, caller_id=caller), bound_trace(trace_of(request.headers.get)):
        yield correlation_id


def _route_of(request: HttpRequest) -> str | None:
    """Return the pattern of the path: a middleware runs before Django has looked for the view."""
    try:
        return resolve(request.path_info).route
    except Resolver404:
        return None
