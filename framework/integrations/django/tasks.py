"""Run the functions of ``django.tasks`` as jobs: a backend for the setting ``TASKS``.

    TASKS = {"default": {"BACKEND": "framework.integrations.django.tasks.ApplicationWorkerBackend"}}

Django 6 has ``django.tasks``; for older versions the package ``django-tasks`` has the same interface.
"""

import os
import socket
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from framework.application_worker import ATTRIBUTES, ApplicationWorker, Setter
from framework.declare import port
from framework.declare.request import PushRequest
from framework.declare.validators import InvalidValue
from framework.errors import ArgumentsError, PushError, UnknownTaskError
from framework.features.results.calls import RESULTS, kept_options
from framework.features.results.payload import RESULT
from framework.types import QUEUE_NAME, JobState, Json, Priority
from framework.wire.answers import CallEnd, stored_end
from framework.wire.job import count_of
from framework.wire.json import dumps, loads

if TYPE_CHECKING:
    from django_tasks import signals as _signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
    from django_tasks.utils import normalize_json as _normalize_json
else:
    _PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
    _base, _signals = import_module(f"{_PACKAGE}.base"), import_module(f"{_PACKAGE}.signals")
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    _exceptions = import_module(f"{_PACKAGE}.exceptions")
    InvalidTaskError, TaskResultDoesNotExist = _exceptions.InvalidTaskError, _exceptions.TaskResultDoesNotExist
    # In Django 6 a function of django.utils.json.
    _JSON = "django.utils.json" if find_spec("django.tasks") else "django_tasks.utils"
    _normalize_json = import_module(_JSON).normalize_json
    BaseTaskBackend = import_module(f"{_PACKAGE}.backends.base").BaseTaskBackend


BACKEND = f"{__name__}.ApplicationWorkerBackend"
"""The value of ``BACKEND`` in the setting ``TASKS``."""


def _queues_of_settings() -> set[str]:
    """Return the queues that ``TASKS`` allows for this backend: those to which its tasks may go."""
    backends = [one for one in getattr(settings, "TASKS", {}).values() if one.get("BACKEND") == BACKEND]
    return {queue for one in backends for queue in one.get("QUEUES", ()) if QUEUE_NAME.fullmatch(queue)}


class DjangoTaskWorker(ApplicationWorker):
    """Run one function of ``django.tasks``. A failure is final, as with Django's own backends; ``OPTIONS`` may set ``retry``."""

    wire_name = "DjangoTask"
    feature_category = "not_owned"
    queue = "default"
    priority = "normal"
    retry = 0
    loggable_arguments = ("task",)
    _aw_chosen_queues = tuple(sorted(_queues_of_settings() - {"default"}))

    def perform(self, task: str, args: list[Json], kwargs: dict[str, Json], backend: str) -> dict[str, Json] | None:
        """Call the function, and send Django's signals. Return its value with the facts of the run, if its result is kept."""
        found = _loaded_task(task).using(backend=backend)
        result = _result(found, self.jid, args, kwargs)
        with _running(result, attempts=self._attempts()):
            first = (TaskContext(task_result=result),) if found.takes_context else ()
            value = found.call(*first, *args, **kwargs)
        if RESULT not in (self._aw_job or {}):
            return None
        started, finished = (_epoch(one) for one in (result.started_at, result.finished_at))
        return {
            "value": _normalized(value),
            "started_at": started,
            "finished_at": finished,
            "workers": list[Json](result.worker_ids),
        }

    def _attempts(self) -> int:
        job = self._aw_job or {}
        return count_of(job, "retry_count") + 2 if "retry_count" in job else 1


class ApplicationWorkerBackend(BaseTaskBackend):
    """Push each task as a job. ``OPTIONS`` are those of ``Worker.set``; ``QUEUES`` are queues of the framework.

    With ``keep_result`` in ``OPTIONS``, a number of seconds, ``get_result`` and ``refresh`` have the results of tasks.
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(cast("dict[str, Any]", self.options))
        kept = options.pop("keep_result", None)
        declaration = DjangoTaskWorker.declaration()
        try:
            span: timedelta | None = ATTRIBUTES["keep_result"].validator(kept)
            checked = DjangoTaskWorker.set(**options).options
        except (ArgumentsError, InvalidValue) as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from None
        self._kept_s = 0 if span is None else round(span.total_seconds())
        self.supports_get_result = self._kept_s > 0
        wish = kept_options(declaration, checked, self._kept_s) if self._kept_s else checked
        self._setter = Setter[[str, list[Json], dict[str, Json], str]](DjangoTaskWorker, declaration, wish)

    def validate_task(self, task: "Task[Any, Any]") -> None:
        """Refuse what the backend cannot do. Levels of priority belong to the queue of the class.

        Raises:
            InvalidTaskError: the task cannot run.
        """
        super().validate_task(task)
        if task.priority and task.queue_name != DjangoTaskWorker.queue:
            raise InvalidTaskError(
                f"priority={task.priority} needs queue_name={DjangoTaskWorker.queue!r}: other queues have no levels."
            )

    def enqueue(self, task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> "TaskResult[Any]":
        """Push the task; its id is that of the job. Inside of a transaction the job waits for the commit.

        Raises:
            PushError: the job was not written, or a client middleware dropped it.
        """
        self.validate_task(task)
        setter = self._setter.set(queue=task.queue_name)
        if task.priority:
            setter = setter.set(priority=_level(task.priority))
        values = (task.module_path, list(args), dict(kwargs), self.alias)
        jid = (
            setter.perform_async(*values)
            if task.run_after is None
            else setter.perform_at(_aware(task.run_after), *values)
        )
        if jid is None:
            raise PushError(f"a client middleware dropped the task {task.module_path!r}, so it has no result.")
        result = _result(task, jid, args, kwargs)
        if self._kept_s:
            # After the push, whose id is new: before this method returns, no other process knows the id.
            self._note(result, PushRequest(setter.declaration, [], None, setter.options))
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> "TaskResult[Any]":
        """Return the task with its state, and its value or its error; from any process.

        Raises:
            TaskResultDoesNotExist: no task of this backend has the id, or its result is not kept any more.
            NotImplementedError: ``OPTIONS`` has no ``keep_result``.
            UnknownTaskError: the module of the task is not loaded in this process.
        """
        if not self._kept_s:
            raise NotImplementedError(f"TASKS[{self.alias!r}]['OPTIONS'] has no keep_result, so no results are kept.")
        results = port.current().service(RESULTS)
        noted, (answer, state) = results.noted(result_id), results.find(result_id)
        if noted is None or (answer is None and state not in _STATUSES):
            raise TaskResultDoesNotExist(result_id)
        facts: dict[str, Any] = loads(noted)
        names = {name: facts[name] for name in ("queue_name", "priority", "backend")}
        result = _result(_loaded_task(facts["task"]).using(**names), result_id, facts["args"], facts["kwargs"])
        _set(result, enqueued_at=_moment(facts["enqueued_at"]))
        if answer is None:
            _set(result, status=_STATUSES[state])
        else:
            _set_end(result, stored_end(answer))
        return result

    def _note(self, result: "TaskResult[Any]", request: PushRequest) -> None:
        task = cast("Task[Any, Any]", result.task)  # pyright: ignore[reportUnknownMemberType]
        facts: dict[str, Any] = {
            "task": task.module_path,
            "queue_name": task.queue_name,
            "priority": task.priority,
            "backend": self.alias,
            "args": result.args,
            "kwargs": result.kwargs,
            "enqueued_at": _epoch(result.enqueued_at),
        }
        waits_s = 0.0 if task.run_after is None else (_aware(task.run_after) - timezone.now()).total_seconds()
        port.current().service(RESULTS).note(result.id, request, dumps(facts), ceil(max(0.0, waits_s)) + _FACTS_S)


_FACTS_S = 8 * 86_400
"""For how long the facts of a task are kept after its push, or its ``run_after``: longer than a result (7 days)."""

_STATUSES: Mapping[JobState, "TaskResultStatus"] = {
    "queued": TaskResultStatus.READY,
    "retrying": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
}
"""The status of a task whose job has not ended, by the state of the job."""


def _level(priority: int) -> Priority:
    """Return the level of a priority of Django, which is a number from -100 to 100."""
    if priority < 0:
        return "low"
    return "critical" if priority >= _CRITICAL else "high"


_CRITICAL = 50


def _set_end(result: "TaskResult[Any]", end: CallEnd) -> None:
    """Set what a task that has ended has returned, or its error."""
    if end.word == "done":
        run: dict[str, Any] = end.value
        started, finished = _moment(run["started_at"]), _moment(run["finished_at"])
        _set(result, status=TaskResultStatus.SUCCESSFUL, _return_value=run["value"])
        _set(result, started_at=started, last_attempted_at=started, finished_at=finished, worker_ids=run["workers"])
        return
    kind = end.error_class or "RuntimeError"
    path = kind if "." in kind else f"builtins.{kind}"
    reason = end.reason or f"the job has ended without a result ({end.word})"
    result.errors.append(TaskError(exception_class_path=path, traceback=f"{kind}: {reason}"))
    _set(result, status=TaskResultStatus.FAILED)


def _normalized(value: object) -> Json:
    """Return a value as Django's backends store it: sequences as lists. A value that is no JSON is left as it is, and refused."""
    try:
        return cast("Json", _normalize_json(value))
    except (TypeError, ValueError):
        return cast("Json", value)


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _moment(epoch_s: float | None) -> datetime | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, tz=UTC)


def use_queues_of_tasks() -> None:
    """Let processes serve the queues of all tasks that are loaded, too: ``QUEUES`` may be empty, which allows every queue."""
    own = {str(one.queue_name) for one in _loaded_tasks() if isinstance(one.get_backend(), ApplicationWorkerBackend)}
    queues = _queues_of_settings() | {queue for queue in own if QUEUE_NAME.fullmatch(queue)}
    declaration = DjangoTaskWorker.declaration()
    chosen = tuple(sorted(queues - {declaration.queue}))
    DjangoTaskWorker._aw_declaration = replace(declaration, chosen_queues=chosen)  # pyright: ignore[reportPrivateUsage]


def _loaded_tasks() -> "list[Task[Any, Any]]":
    names: list[Mapping[str, Any]] = [dict(getattr(module, "__dict__", {})) for module in list(sys.modules.values())]
    # By type(): isinstance would evaluate the lazy objects of other libraries.
    return [value for found in names for value in found.values() if issubclass(type(value), Task)]


def _loaded_task(path: str) -> "Task[Any, Any]":
    module, _, name = path.rpartition(".")
    found: Any = getattr(sys.modules.get(module), name, None)
    if not isinstance(found, Task):
        raise UnknownTaskError(path)
    return found  # pyright: ignore[reportUnknownVariableType]


def _aware(moment: datetime) -> datetime:
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def _result(task: "Task[Any, Any]", jid: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "TaskResult[Any]":
    return TaskResult(
        task=task,
        id=jid,
        status=TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


@contextmanager
def _running(result: "TaskResult[Any]", *, attempts: int) -> Generator[None]:
    """Set the state of the result around a run, and send the signals of its begin and its end."""
    sender = type(result.task.get_backend())
    _set(result, status=TaskResultStatus.RUNNING, started_at=timezone.now(), last_attempted_at=timezone.now())
    result.worker_ids.extend([f"{socket.gethostname()}:{os.getpid()}"] * attempts)
    _signals.task_started.send(sender, task_result=result)
    try:
        yield
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback="".join(traceback.format_exception(error))))
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        _signals.task_finished.send(sender, task_result=result)
        raise
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
    _signals.task_finished.send(sender, task_result=result)


def _set(result: "TaskResult[Any]", **values: Any) -> None:
    # The results of Django are frozen; its own backends set them in this way.
    for name, value in values.items():
        object.__setattr__(result, name, value)
