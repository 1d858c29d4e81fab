"""Answer ``/metrics`` in a process that pushes jobs: the apps that a web server mounts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from framework.declare import port, registry
from framework.features.observability.answers import metrics_answer
from framework.features.observability.observer import observer, sums_of
from framework.features.observability.settings import ObservabilitySettings
from framework.process.health_server import HealthAnswer
from framework.push.client import Client
from framework.telemetry.job_events import job_events


def _answer(accept: str) -> HealthAnswer:
    """Return the metrics of this process, or of all processes that count in ``metrics.directory``. Raises ConfigurationError."""
    if not job_events.is_scraped:
        job_events.ask()
    client: Client = port.current()  # type: ignore[assignment]  # the port of a process is its client
    settings = ObservabilitySettings.of(client.settings)
    tally = observer(settings)
    if tally is not None:
        for worker in registry.workers():
            declaration = worker.declaration()
            if not tally.has(declaration):
                route = client.route(declaration)
                for shard in client.shards_of(declaration):
                    tally.declare(declaration, route.queue, shard)
    return metrics_answer(sums_of(settings), settings, accept)


def metrics_text(accept: str = "") -> tuple[str, str]:
    """Return the metrics as text, and its content type: for a view of an application's own. ``accept`` is the header ``Accept``.

    The process counts from the first call on: make it at the start of the server.

    Raises:
        ConfigurationError: the configuration of the application is invalid.
        RuntimeError: there are none; the message says why.
    """
    answer = _answer(accept)
    if not answer.well:
        raise RuntimeError(answer.body.decode().strip())
    return answer.body.decode(), answer.content_type


def wsgi_app() -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Return an application of WSGI that answers each request with the metrics; the process counts from now on."""
    job_events.ask()
    return _answer_wsgi


def asgi_app() -> Callable[[Any, Callable[..., Any], Callable[..., Any]], Awaitable[None]]:
    """Return an application of ASGI that answers each request with the metrics; the process counts from now on."""
    job_events.ask()
    return _answer_asgi


def _answer_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer = _answer(environ.get("HTTP_ACCEPT", ""))
    status = "200 OK" if answer.well else "503 Service Unavailable"
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
    start_response(status, [*headers, ("Cache-Control", "no-store")])
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body]


async def _answer_asgi(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    if scope["type"] != "http":
        return
    accept = next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"accept"), "")
    # The text of many classes takes milliseconds, and the folder has a lock.
    answer = await asyncio.to_thread(partial(_answer, accept))
    headers = [(b"content-type", answer.content_type.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200 if answer.well else 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})
