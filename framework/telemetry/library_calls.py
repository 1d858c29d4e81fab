"""Count the calls that jobs make with redis-py, SQLAlchemy, Django, httpx, requests and urllib3 (``usage``).

``count_library_calls`` switches it on. A library that is not loaded yet is counted from its import on, and none is imported for
it. A call outside of a job costs one look at the context. The framework's own fetches, heartbeats and acknowledgements pass none
of these functions, and belong to no job.
"""

import importlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from time import perf_counter
from types import ModuleType
from typing import Any

from framework.telemetry.usage import Usage, size_of, usage_records

_in_request: ContextVar[bool] = ContextVar("framework_in_request", default=False)
"""Whether a request is counted already: ``requests`` sends it by urllib3."""


def count_library_calls() -> None:
    """Count the calls of jobs in this process from now on. A second call does nothing."""
    usage_records.enabled = True
    if any(isinstance(finder, _ImportWatch) for finder in sys.meta_path):
        return
    for name in _LIBRARIES:
        if name in sys.modules:
            _count_calls_of(name)
    sys.meta_path.insert(0, _ImportWatch())


class _ImportWatch(MetaPathFinder):
    """Switch the counting of a library on after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _LIBRARIES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            # The loader belongs to this import alone.
            spec.loader.exec_module = partial(_load, spec.loader.exec_module, fullname)  # type: ignore[method-assign]
        return spec


def _load(execute: Callable[[ModuleType], None], name: str, module: ModuleType) -> None:
    execute(module)
    _count_calls_of(name)


def _count_calls_of(name: str) -> None:
    try:
        _LIBRARIES[name]()
    except Exception:
        # A future version of the library: jobs go on without its figures.
        logging.getLogger("framework").exception("the calls of %s cannot be counted in this version", name)


def _replace(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by one that counts, once."""
    method = getattr(owner, name)
    if not getattr(method, "counts_calls", False):
        counting = wraps(method)(around(method))
        counting.counts_calls = True  # type: ignore[attr-defined]
        setattr(owner, name, counting)


# --- redis-py: commands, and pipelines as a whole -------------------------------------------------------------------


def _count_redis() -> None:
    # Not the connections: those of the framework are of the same classes, and each of their calls would cost more.
    for place in ("redis.client", "redis.asyncio.client", "redis.cluster", "redis.asyncio.cluster"):
        module: Any = importlib.import_module(place)
        is_async = ".asyncio." in place
        command = _async_command if is_async else _command
        pipeline = _async_pipeline if is_async else _pipeline
        if place.endswith("client"):
            _replace(module.Redis, "execute_command", command)
            _replace(module.Pipeline, "immediate_execute_command", command)
            _replace(module.Pipeline, "execute", pipeline)
        else:
            _replace(module.RedisCluster, "execute_command", command)
            _replace(module.ClusterPipeline, "execute", pipeline)


def _command(method: Callable[..., Any]) -> Callable[..., Any]:
    def execute_command(client: Any, *args: Any, **options: Any) -> Any:
        used = usage_records.of_job_here()
        if used is None:
            return method(client, *args, **options)
        began, reply = perf_counter(), None
        try:
            reply = method(client, *args, **options)
        finally:
            used.count_redis(1, perf_counter() - began, size_of(args), size_of(reply))
        return reply

    return execute_command


def _async_command(method: Callable[..., Any]) -> Callable[..., Any]:
    async def execute_command(client: Any, *args: Any, **options: Any) -> Any:
        used = usage_records.of_job_here()
        if used is None:
            return await method(client, *args, **options)
        began, reply = perf_counter(), None
        try:
            reply = await method(client, *args, **options)
        finally:
            used.count_redis(1, perf_counter() - began, size_of(args), size_of(reply))
        return reply

    return execute_command


def _pipeline(method: Callable[..., Any]) -> Callable[..., Any]:
    def execute(pipeline: Any, *args: Any, **options: Any) -> Any:
        used = usage_records.of_job_here()
        if used is None:
            return method(pipeline, *args, **options)
        calls, written = _size_of_pipeline(pipeline)
        began, replies = perf_counter(), None
        try:
            replies = method(pipeline, *args, **options)
        finally:
            used.count_redis(calls, perf_counter() - began, written, size_of(replies))
        return replies

    return execute


def _async_pipeline(method: Callable[..., Any]) -> Callable[..., Any]:
    async def execute(pipeline: Any, *args: Any, **options: Any) -> Any:
        used = usage_records.of_job_here()
        if used is None:
            return await method(pipeline, *args, **options)
        calls, written = _size_of_pipeline(pipeline)
        began, replies = perf_counter(), None
        try:
            replies = await method(pipeline, *args, **options)
        finally:
            used.count_redis(calls, perf_counter() - began, written, size_of(replies))
        return replies

    return execute


def _size_of_pipeline(pipeline: Any) -> tuple[int, int]:
    """Return the number of commands, and their bytes; the method empties the stack."""
    of_cluster = getattr(pipeline, "_execution_strategy", None)
    stack: list[Any] = pipeline.command_stack if of_cluster is None else of_cluster._command_queue
    commands: list[Any] = [one[0] if type(one) is tuple else one.args for one in stack]
    return len(commands), sum(map(size_of, commands))


# --- SQL -----------------------------------------------------------------------------------------------------------


def _count_sqlalchemy() -> None:
    event, engine = importlib.import_module("sqlalchemy.event"), importlib.import_module("sqlalchemy.engine").Engine
    for name, listener in (
        ("before_cursor_execute", _before_statement),
        ("after_cursor_execute", _after_statement),
        ("handle_error", _after_error),
    ):
        if not event.contains(engine, name, listener):
            event.listen(engine, name, listener)


_STARTED = "_framework_started"
DATABASE_OPTION = "application_worker_database"
"""The execution option of an engine that names its database, for the fields ``db_NAME_count`` and ``db_NAME_duration_s``."""


def _before_statement(
    _connection: Any, _cursor: Any, _statement: Any, _parameters: Any, execution: Any, *_: Any
) -> None:
    if execution is not None and (used := usage_records.of_job_here()) is not None:
        setattr(execution, _STARTED, (used, perf_counter()))


def _after_statement(connection: Any, _cursor: Any, _statement: Any, _parameters: Any, execution: Any, *_: Any) -> None:
    _end_statement(connection, execution)


def _after_error(error: Any) -> None:
    _end_statement(error.connection, error.execution_context)


def _end_statement(connection: Any, execution: Any) -> None:
    started: tuple[Usage, float] | None = getattr(execution, _STARTED, None)
    if started is None:
        return
    delattr(execution, _STARTED)
    used, began = started
    options: Mapping[str, Any] = {} if connection is None else connection.get_execution_options()
    name = options.get(DATABASE_OPTION)
    used.count_sql(perf_counter() - began, _field_name(name) if isinstance(name, str) else None)


@lru_cache(maxsize=64)
def _field_name(database: str) -> str:
    """Return the name of a database as a part of a field's name."""
    return re.sub(r"[^a-z0-9_]", "_", database.lower())[:64]


def _count_django() -> None:
    # Each thread has connections of its own, so those of the jobs are made later.
    signals = importlib.import_module("django.db.backends.signals")
    signals.connection_created.connect(_watch_connection, dispatch_uid="application_worker.usage")


def _watch_connection(connection: Any, **_: Any) -> None:
    if _django_statement not in connection.execute_wrappers:
        # In front: `with connection.execute_wrapper(...)` removes the last one at its end.
        connection.execute_wrappers.insert(0, _django_statement)


def _django_statement(execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Mapping[str, Any]) -> Any:
    used = usage_records.of_job_here()
    if used is None:
        return execute(sql, params, many, context)
    began = perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        used.count_sql(perf_counter() - began, _field_name(context["connection"].alias))


# --- requests to other services ------------------------------------------------------------------------------------


def _count_httpx(name: str) -> None:
    module = importlib.import_module(name)
    _replace(module.Client, "send", _request)
    _replace(module.AsyncClient, "send", _async_request)


def _count_requests() -> None:
    _replace(importlib.import_module("requests").Session, "send", _request)


def _count_urllib3() -> None:
    _replace(importlib.import_module("urllib3.connectionpool").HTTPConnectionPool, "urlopen", _request)


def _request(method: Callable[..., Any]) -> Callable[..., Any]:
    """Count a request with its redirects and retries as one, as its caller sees it."""

    def send(client: Any, *args: Any, **options: Any) -> Any:
        used = None if _in_request.get() else usage_records.of_job_here()
        if used is None:
            return method(client, *args, **options)
        began, token = perf_counter(), _in_request.set(True)
        try:
            return method(client, *args, **options)
        finally:
            _in_request.reset(token)
            used.count_http(perf_counter() - began)

    return send


def _async_request(method: Callable[..., Any]) -> Callable[..., Any]:
    async def send(client: Any, *args: Any, **options: Any) -> Any:
        used = usage_records.of_job_here()
        if used is None:
            return await method(client, *args, **options)
        began = perf_counter()
        try:
            return await method(client, *args, **options)
        finally:
            used.count_http(perf_counter() - began)

    return send


_LIBRARIES: Mapping[str, Callable[[], None]] = {
    "redis": _count_redis,
    "sqlalchemy": _count_sqlalchemy,
    "django.db": _count_django,
    "httpx": partial(_count_httpx, "httpx"),
    "httpx2": partial(_count_httpx, "httpx2"),
    "requests": _count_requests,
    "urllib3": _count_urllib3,
}
"""The modules after whose import a library can be counted."""
