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
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from framework.declare.worker import ApplicationWorker
from framework.errors import ArgumentsError, PushError, UnknownTaskError
from framework.types import QUEUE_NAME, Json
from framework.wire.job import count_of

if TYPE_CHECKING:
    from django_tasks import signals as _signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
else:
    _PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
    _base, _signals = import_module(f"{_PACKAGE}.base"), import_module(f"{_PACKAGE}.signals")
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
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
    retry = 0
    loggable_arguments = ("task",)
    _aw_chosen_queues = tuple(sorted(_queues_of_settings() - {"default"}))

    def perform(self, task: str, args: list[Json], kwargs: dict[str, Json], backend: str) -> None:
        """Call the function, and send Django's signals."""
        found = _loaded_task(task).using(backend=backend)
        result = _result(found, self.jid, args, kwargs)
        with _running(result, attempts=self._attempts()):
            first = (TaskContext(task_result=result),) if found.takes_context else ()
            found.call(*first, *args, **kwargs)

    def _attempts(self) -> int:
        """Return the number of this run, from 1 on."""
        job = self._aw_job or {}
        return count_of(job, "retry_count") + 2 if "retry_count" in job else 1


class ApplicationWorkerBackend(BaseTaskBackend):
    """Push each task as a job. ``OPTIONS`` are those of ``Worker.set``; ``QUEUES`` are queues of the framework."""

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self._setter = DjangoTaskWorker.set(**cast("dict[str, Any]", self.options))
        except ArgumentsError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from None

    def enqueue(self, task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> "TaskResult[Any]":
        """Push the task; its id is that of the job. Inside of a transaction the job waits for the commit.

        Raises:
            PushError: the job was not written, or a client middleware dropped it.
        """
        self.validate_task(task)
        setter = self._setter.set(queue=task.queue_name)
        values = (task.module_path, list(args), dict(kwargs), self.alias)
        jid = (
            setter.perform_async(*values)
            if task.run_after is None
            else setter.perform_at(_aware(task.run_after), *values)
        )
        if jid is None:
            raise PushError(f"a client middleware dropped the task {task.module_path!r}, so it has no result.")
        result = _result(task, jid, args, kwargs)
        _signals.task_enqueued.send(type(self), task_result=result)
        return result


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
