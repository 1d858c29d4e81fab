"""Describe the HTTP API of tasks (OpenAPI 3.1). ``tests/features/tasks/test_http.py`` compares each response with its schema."""

from collections.abc import Mapping
from typing import Any

from framework.features.tasks.model import MAX_ID, STATUSES
from framework.features.tasks.queries import MAX_PAGE
from framework.version import VERSION

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
