"""Run one job: decode, resolve, check, call through the server middleware, and say what came of it."""

import inspect
import time
from dataclasses import dataclass
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import (
    ArgumentsError,
    ArgumentsMismatchError,
    Discard,
    PayloadError,
    RetryLater,
    Shutdown,
    UnknownWorkerError,
)
from framework.execute.event_loop import EventLoop
from framework.execute.job_log import JobFields, JobLog
from framework.execute.runs import Runs
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Discarded, Failed, Interrupted, Outcome, Postponed, Succeeded, Unreadable
from framework.middleware.chain import Call, Passage
from framework.telemetry import context, logs
from framework.types import Payload
from framework.wire.compress import decompress_arguments
from framework.wire.job import decode, whole_number

_STOPPED = "a server middleware did not yield"


@dataclass(slots=True)
class Execution:
    """One run: what it was, what came of it, and what its end line needs."""

    outcome: Outcome
    worker: Any | None = None
    payload: Payload | None = None
    fields: JobFields | None = None
    extra: dict[str, Any] | None = None
    duration_s: float = 0.0
    cpu_s: float = 0.0


class Executor:
    """Runs units; shared by all threads of a process."""

    def __init__(
        self, middleware: tuple[Call, ...], log: JobLog, loop: EventLoop, runs: Runs, decompressed_limit: int
    ) -> None:
        self._runs = runs
        self._middleware = middleware
        self._log = log
        self._loop = loop
        self._decompressed_limit = decompressed_limit

    def execute(self, unit: UnitOfWork) -> Execution:
        """Run one fetched job and say what came of it; raises nothing."""
        try:
            payload = decode(unit.data)
        except PayloadError as error:
            return Execution(Unreadable(error))
        worker = registry.find(payload["class"])
        declaration = None if worker is None else worker.declaration()
        token = context.enter_job(payload)
        started, cpu = time.perf_counter(), time.thread_time()
        execution = Execution(Interrupted(), worker, payload)
        try:
            execution.fields = self._log.start(payload, unit.queue, len(unit.data), declaration)
            execution.outcome = self._outcome(execution, payload, unit.queue)
        except BaseException as error:  # noqa: BLE001 - whatever a strange payload trips over is that job's failure only
            execution.outcome = Failed(error)
        finally:
            execution.duration_s = time.perf_counter() - started
            execution.cpu_s = time.thread_time() - cpu
            context.leave_job(token)
        return execution

    def _outcome(self, execution: Execution, payload: Payload, queue: str) -> Outcome:
        """Turn whatever the job does into one word; even SystemExit and KeyboardInterrupt are only this job's failure."""
        try:
            decompress_arguments(payload, self._decompressed_limit)
            if execution.worker is None:
                raise UnknownWorkerError(payload["class"], registry.nearest(payload["class"]))
            return self._perform(execution, payload, queue)
        except PayloadError as error:
            return Unreadable(error)
        except RetryLater as request:
            return Postponed(request.delay_s, request.reason)
        except Discard as request:
            return Discarded(request.reason)
        except Shutdown as error:
            return Interrupted() if self._runs.interrupted else Failed(error)
        except BaseException as error:  # noqa: BLE001 - the job's code may raise anything; the process must not
            return Failed(error)

    def _perform(self, execution: Execution, payload: Payload, queue: str) -> Outcome:
        worker: Any = execution.worker
        declaration: Declaration = worker.declaration()
        instance = new_instance(worker, declaration, payload)
        instance._run = self._runs
        execution.extra = instance._extra  # pyright: ignore[reportPrivateUsage]
        if not self._middleware:
            call(instance, declaration, payload, self._loop)
            return Succeeded()
        with Passage(self._middleware, instance, payload, queue) as open_:
            if open_:
                call(instance, declaration, payload, self._loop)
        return Succeeded() if open_ else Discarded(_STOPPED)


def call(instance: Any, declaration: Declaration, payload: Payload, loop: EventLoop) -> None:
    """Check the arguments against ``perform`` as it is today, then run it; raises what it raises."""
    arguments = payload["args"]
    try:
        declaration.signature.check(arguments)
    except ArgumentsError as error:
        raise ArgumentsMismatchError(declaration.wire_name, error.reason) from error
    result = instance.perform(*arguments)
    # Asked of the result, not of the class: a plain decorator around an `async def` returns a coroutine too.
    if inspect.iscoroutine(result):
        loop.run(result)


def new_instance(worker: Any, declaration: Declaration, payload: Payload) -> Any:
    """Return a fresh instance that knows its job; threads share no instance."""
    instance: Any = worker()
    instance.jid = payload.get("jid", "")
    version = whole_number(payload.get("version"))
    # A payload without a version was written when the class had none: version 0, whatever the class says today.
    instance.job_version = 0 if version is None else version
    instance._job = payload
    instance._extra = {}
    instance._logger = _WorkerLog(declaration, payload)
    return instance


class _WorkerLog:
    """``self.logger``: made when it is first used, since most jobs never log."""

    __slots__ = ("_bound", "_declaration", "_payload")

    def __init__(self, declaration: Declaration, payload: Payload) -> None:
        self._declaration = declaration
        self._payload = payload
        self._bound: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._bound is None:
            self._bound = logs.logger(
                **{"class": self._declaration.wire_name, "jid": self._payload.get("jid"), "job_status": "running"}
            )
        return getattr(self._bound, name)
