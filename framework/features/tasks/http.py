"""Serve tasks as HTTP and JSON: ``framework.tasks.http``."""

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import InitVar, dataclass
from enum import Enum
from typing import Any, TypeAlias

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from framework.errors import ShardUnavailableError, TaskDatabaseError, TaskError, TaskNotFoundError, TaskTablesError
from framework.features.tasks.change import has_valid_jid
from framework.features.tasks.database import MAX_ID, STATUSES
from framework.features.tasks.progress import MAX_PAGE, PAGE_BYTES
from framework.features.tasks.task import Task, events_as_json, page_as_json, story
from framework.version import VERSION

STREAM_PERIOD_S = 1.0
"""The time between two looks at the progress of a streamed task."""

STREAM_LIFETIME_S = 600.0
"""A stream ends after this time. Browsers then open it again by themselves."""

AUTHORIZATION_PERIOD_S = 30.0
"""The time after which a stream asks ``authorize`` again: the caller may have logged out."""

MAX_STREAMS, MAX_STREAMS_OF_SCOPE = 500, 20
"""The open streams of a process, and of callers with the same owner and tenant: each reads a row of the database every second."""

_SILENCE_S = 15.0

NOT_FOUND = "there is no such task or job, or you may not see it"
"""The answer for a task or a job that is missing and for one of another caller: a caller must not learn which of both it is."""

_UNAVAILABLE = "the database or Redis does not answer; try again"


class _Any(Enum):
    ANY = "any"


_ANY = _Any.ANY


@dataclass(frozen=True, slots=True)
class TaskScope:
    """Tasks that the caller of a request may see: those of one owner, of one tenant, or of both. ``TaskScope.all()`` sees every task.

    Raises:
        ValueError: an owner or a tenant is no text, or an empty one. A request without a user must not see the tasks of all users.
    """

    owner: str | _Any = _ANY
    tenant: str | _Any = _ANY
    may_change: bool = False
    """Whether the caller may cancel and retry."""
    every: InitVar[bool] = False

    def __post_init__(self, every: bool) -> None:
        for name, value in (("owner", self.owner), ("tenant", self.tenant)):
            # An application may pass the name of a user that is not logged in.
            if value is not _ANY and (type(value) is not str or not value):
                raise ValueError(f"TaskScope({name}={value!r}): it must be a text. TaskScope.all() sees every task")
        if not every and self.owner is self.tenant is _ANY:
            raise ValueError("TaskScope needs an owner or a tenant. TaskScope.all() sees every task")

    @classmethod
    def all(cls, *, may_change: bool = False) -> "TaskScope":
        """Return the scope of a caller that may see every task."""
        return cls(may_change=may_change, every=True)

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see every task, and jobs without a task."""
        return self.owner is _ANY and self.tenant is _ANY

    def includes(self, task: Task) -> bool:
        """Return whether the caller may see a task."""
        return self.owner in (_ANY, task.owner) and self.tenant in (_ANY, task.tenant)


_OUTAGES = (TaskDatabaseError, TaskTablesError, ShardUnavailableError, RedisError)

Authorize: TypeAlias = Callable[[Request], TaskScope | Awaitable[TaskScope | None] | None]
"""Returns the tasks that the caller may see, ``None`` for none. May be ``async def``."""


def tasks_app(authorize: Authorize | None = None) -> Starlette:
    """Return the application. ``authorize`` is asked for each request but ``/openapi.json``; without it, all are refused."""
    api = _Routes(authorize)
    routes = [
        Route("/openapi.json", _describe),
        Route("/tasks", api.list_tasks),
        Route("/tasks/{task_id}", api.show),
        Route("/tasks/{task_id}/events", api.events),
        Route("/tasks/{task_id}/failures", api.failures),
        Route("/tasks/{task_id}/stream", api.stream),
        Route("/tasks/{task_id}/cancel", api.cancel, methods=["POST"]),
        Route("/tasks/{task_id}/retry", api.retry, methods=["POST"]),
        Route("/jobs/{jid}", api.job),
    ]
    handlers: Any = {
        HTTPException: _on_http_error,
        TaskNotFoundError: _error(404, NOT_FOUND),
        **dict.fromkeys(_OUTAGES, _error(503, _UNAVAILABLE)),
        TaskError: _error(409),
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Routes:
    def __init__(self, authorize: Authorize | None) -> None:
        self._authorize = authorize
        self._streams = Counter[tuple[object, object]]()
        """The open streams by owner and tenant of their callers. Only the event loop changes it."""

    async def list_tasks(self, request: Request) -> Response:
        scope = await self._scope(request)
        limit = _number(request, "limit", 100, 1, MAX_PAGE)
        before = request.query_params.get("before")
        owner, tenant = (
            _narrowed(request, name, own) for name, own in (("owner", scope.owner), ("tenant", scope.tenant))
        )
        last = None if before is None else await self._visible(before, scope)
        found = await asyncio.to_thread(page_as_json, owner=owner, tenant=tenant, limit=limit, before=last)
        return JSONResponse({"tasks": found})

    async def show(self, request: Request) -> Response:
        task = await self._task(request)
        return JSONResponse(await asyncio.to_thread(task.as_json))

    async def events(self, request: Request) -> Response:
        # Each is a part of one statement: a status that is repeated a thousand times must not make it a thousand parts.
        statuses = list(dict.fromkeys(request.query_params.getlist("status")))
        if unknown := [one for one in statuses if one not in STATUSES]:
            raise HTTPException(400, f"status must be one of {', '.join(STATUSES)}, not {unknown[0]!r}")
        return await self._page(request, *statuses)

    async def failures(self, request: Request) -> Response:
        return await self._page(request, "failed", "error")

    async def _page(self, request: Request, *statuses: str) -> Response:
        after = _number(request, "after", 0, 0, MAX_ID)
        limit = _number(request, "limit", 100, 1, MAX_PAGE)
        task = await self._task(request)
        return JSONResponse(await asyncio.to_thread(events_as_json, task.id, statuses, after=after, limit=limit))

    async def stream(self, request: Request) -> Response:
        """Send the progress as server-sent events, whenever it changes, until the task is complete."""
        scope = await self._scope(request)
        task = await self._visible(request.path_params["task_id"], scope)
        caller = scope.owner, scope.tenant
        if self._streams[caller] >= MAX_STREAMS_OF_SCOPE or self._streams.total() >= MAX_STREAMS:
            raise HTTPException(429, "too many open streams: close some, or ask for the task from time to time")
        return _Stream(self._progress_lines(request, task), self._streams, caller)

    async def _progress_lines(self, request: Request, task: Task) -> AsyncIterator[str]:
        started_at = asked_at = asyncio.get_running_loop().time()
        sent: Any = None
        silent_s = 0.0
        while (now := asyncio.get_running_loop().time()) < started_at + STREAM_LIFETIME_S:
            try:
                if now >= asked_at + AUTHORIZATION_PERIOD_S:
                    asked_at = now
                    await self._task(request)
                facts = (await task.aprogress()).as_json()
            except (HTTPException, TaskNotFoundError, *_OUTAGES):
                # The caller may no longer see the task, it was deleted, or it cannot be read: a new request gets the reason.
                return
            shown = (facts["counts"], facts["is_complete"], facts["is_cancelled"])
            if shown != sent:
                sent, silent_s = shown, 0.0
                yield f"event: progress\ndata: {json.dumps(facts)}\n\n"
            elif silent_s >= _SILENCE_S:
                # Proxies close connections that are silent.
                silent_s = 0.0
                yield ": nothing new\n\n"
            if facts["is_complete"]:
                yield "event: complete\ndata: {}\n\n"
                return
            await asyncio.sleep(STREAM_PERIOD_S)
            silent_s += STREAM_PERIOD_S

    async def cancel(self, request: Request) -> Response:
        task = await self._task(request, changes=True)
        return JSONResponse({"cancelled": await task.acancel()})

    async def retry(self, request: Request) -> Response:
        task = await self._task(request, changes=True)
        return JSONResponse({"retried": await task.aretry_failed()})

    async def job(self, request: Request) -> Response:
        after = _number(request, "after", 0, 0, MAX_ID)
        limit = _number(request, "limit", MAX_PAGE, 1, MAX_PAGE)
        scope = await self._scope(request)
        jid = request.path_params["jid"]
        event, messages = await asyncio.to_thread(story, jid, after=after, limit=limit, max_bytes=PAGE_BYTES)
        if event.task_id is not None:
            await self._visible(event.task_id, scope)
        elif not scope.sees_all:
            # A job without a task has no owner.
            raise HTTPException(404, NOT_FOUND)
        return JSONResponse({**event.as_json(), "messages": [one.as_json() for one in messages]})

    async def _task(self, request: Request, *, changes: bool = False) -> Task:
        scope = await self._scope(request)
        task = await self._visible(request.path_params["task_id"], scope)
        if changes and not scope.may_change:
            raise HTTPException(403, "not allowed to change tasks")
        if changes and request.headers.get("sec-fetch-site") == "cross-site":
            # The browser of a user sends cookies also where another site has made the request.
            raise HTTPException(403, "a request from a page of another site changes no task")
        return task

    async def _visible(self, task_id: str, scope: TaskScope) -> Task:
        """Return a task that the caller may see; any other does not exist for the caller."""
        task = await Task.aget(task_id)
        if not scope.includes(task):
            raise HTTPException(404, NOT_FOUND)
        return task

    async def _scope(self, request: Request) -> TaskScope:
        found = None if self._authorize is None else self._authorize(request)
        scope = await found if inspect.isawaitable(found) else found
        if scope is None:
            raise HTTPException(403, "not allowed to see tasks: tasks_app(authorize) decides which callers may")
        return scope


class _Stream(StreamingResponse):
    """Server-sent events, which count as an open stream of their caller until the last is sent or the caller has gone."""

    def __init__(
        self, lines: AsyncIterator[str], streams: Counter[tuple[object, object]], caller: tuple[object, object]
    ) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._streams, self._caller = streams, caller
        streams[caller] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._caller] -= 1


async def _describe(request: Request) -> Response:
    document = {**DOCUMENT, "servers": [{"url": request.scope.get("root_path") or "/"}]}
    return JSONResponse(document)


def _narrowed(request: Request, name: str, own: str | _Any) -> str | None:
    """Return the owner or tenant to list: the wanted one within the scope of the caller."""
    wanted = request.query_params.get(name)
    if wanted is not None and (len(wanted) > 255 or not has_valid_jid(wanted)):
        raise HTTPException(400, f"{name} must be a text of 1 to 255 characters")
    if isinstance(own, _Any):
        return wanted
    if wanted not in (None, own):
        raise HTTPException(403, f"not allowed to see tasks of another {name}")
    return own


def _number(request: Request, name: str, missing: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return missing
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise HTTPException(400, f"{name} must be a whole number from {least} to {most}")
    return int(text)


async def _on_http_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


def _error(status: int, text: str = "") -> Callable[[Request, Exception], Response]:
    """Return a handler that answers with ``text``, else with the message of the error.

    The messages of outages and of missing tasks name the database with its host, so these have a text.
    """

    def respond(request: Request, error: Exception) -> Response:
        del request
        return JSONResponse({"error": text or str(error)}, status)

    return respond


_TEXT: Any = {"type": "string"}
_TEXT_OR_NULL: Any = {"type": ["string", "null"]}
_COUNT: Any = {"type": "integer", "minimum": 0}
_NUMBER: Any = {"type": "number", "minimum": 0}
_TIME: Any = {"type": "number", "description": "epoch seconds"}
_TIME_OR_NULL: Any = {**_TIME, "type": ["number", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(of: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(of)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Mapping[str, Any], meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": dict(schema), "description": meaning}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


_ANSWERS = {
    400: "a parameter is not allowed",
    403: "the caller may not",
    404: "there is no such task or job, or the caller may not see it",
}
_FURTHER_ANSWERS = {409: "the state of the task does not allow it", 429: "the caller has too many open streams"}


def _operation(
    summary: str, schema: Any, *parameters: Any, also: tuple[int, ...] = (), kind: str = ""
) -> dict[str, Any]:
    errors = {
        str(status): {"description": text, "content": {"application/json": {"schema": _ref("Error")}}}
        for status, text in {
            **_ANSWERS,
            **{status: _FURTHER_ANSWERS[status] for status in also},
            503: "the database or Redis does not answer",
        }.items()
    }
    content = {kind or "application/json": {"schema": schema}}
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": {"description": "the answer", "content": content}, **errors},
    }


_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, "the most entries of a page")
_AFTER = _query("after", {"type": "integer", "minimum": 0, "maximum": MAX_ID}, "the last id of the page before")
_TASK, _JID = _path("task_id"), _path("jid")

_SCHEMAS: dict[str, Any] = {
    "Error": _object(error=_TEXT),
    "Progress": _object(
        counts=_object(**dict.fromkeys(STATUSES, _COUNT)),
        total=_COUNT,
        items=_COUNT,
        ended=_COUNT,
        failed=_COUNT,
        share={"type": "number", "minimum": 0, "maximum": 1},
        rate=_NUMBER,
        eta_s={"type": ["number", "null"], "minimum": 0},
        elapsed_s=_NUMBER,
        is_complete={"type": "boolean"},
        is_cancelled={"type": "boolean"},
    ),
    "Task": _object(
        id=_TEXT,
        worker=_TEXT_OR_NULL,
        title=_TEXT_OR_NULL,
        owner=_TEXT_OR_NULL,
        tenant=_TEXT_OR_NULL,
        created_at=_TIME,
        completed_at=_TIME_OR_NULL,
        result={},
        progress=_ref("Progress"),
    ),
    "Message": _object(id=_COUNT, at=_TIME, text=_TEXT, fields={"type": "object"}),
    "Event": _object(
        id=_COUNT,
        jid=_TEXT,
        task_id=_TEXT_OR_NULL,
        worker=_TEXT,
        queue=_TEXT,
        shard=_TEXT,
        status={"type": "string", "enum": list(STATUSES)},
        state=_TEXT,
        reason=_TEXT_OR_NULL,
        error_class=_TEXT_OR_NULL,
        params={"type": "array"},
        items=_COUNT,
        runs=_COUNT,
        stands_for=_TEXT_OR_NULL,
        created_at=_TIME,
        started_at=_TIME_OR_NULL,
        ended_at=_TIME_OR_NULL,
        messages=_list("Message"),
    ),
    "StreamEvent": {
        "description": "one server-sent event of the stream; the data of `progress` is a Progress",
        **_object(
            event={"type": "string", "enum": ["progress", "complete"]},
            data={"type": "string", "contentMediaType": "application/json"},
        ),
    },
    "Tasks": _object(tasks=_list("Task")),
    "Events": _object(events=_list("Event"), next={"type": ["integer", "null"]}),
    "Cancelled": _object(cancelled=_COUNT),
    "Retried": _object(retried=_COUNT),
}

_STATUS = _query("status", {"type": "string", "enum": list(STATUSES)}, "events of this status; may be repeated")
_FILTERS = [
    _query(
        name, {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^\x00]+$"}, f"tasks of this {name}"
    )
    for name in ("owner", "tenant")
]

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Tasks", "version": VERSION},
    "paths": {
        "/tasks": {
            "get": _operation(
                "List tasks, the newest first",
                _ref("Tasks"),
                *_FILTERS,
                _LIMIT,
                _query("before", _TEXT, "the last task of the page before"),
            )
        },
        "/tasks/{task_id}": {"get": _operation("Show a task with its progress", _ref("Task"), _TASK)},
        "/tasks/{task_id}/events": {
            "get": _operation("List the events of a task", _ref("Events"), _TASK, _STATUS, _AFTER, _LIMIT)
        },
        "/tasks/{task_id}/failures": {
            "get": _operation("List the failed jobs of a task", _ref("Events"), _TASK, _AFTER, _LIMIT)
        },
        "/tasks/{task_id}/stream": {
            "get": _operation(
                "Stream the progress until the task is complete, for ten minutes at most",
                _ref("StreamEvent"),
                _TASK,
                also=(429,),
                kind="text/event-stream",
            )
        },
        "/tasks/{task_id}/cancel": {
            "post": _operation("Cancel the jobs of a task", _ref("Cancelled"), _TASK, also=(409,))
        },
        "/tasks/{task_id}/retry": {
            "post": _operation("Push the failed jobs again", _ref("Retried"), _TASK, also=(409,))
        },
        "/jobs/{jid}": {"get": _operation("Show the story of a job", _ref("Event"), _JID, _AFTER, _LIMIT)},
    },
    "components": {"schemas": _SCHEMAS},
}
"""The document without the address of the server."""
