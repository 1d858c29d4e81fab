"""Run one job in this process, which was made for it, and report what happens to the worker process.

The server middlewares run here, around ``perform``, because they prepare what the job uses. Log lines, fields of ``log_extra``, and
the end go to the worker process; the questions ``self.cancelled`` and ``self.interrupted`` are answered there.
"""

import asyncio
import base64
import contextlib
import importlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from framework import middleware
from framework.declare import registry
from framework.declare.job_context import ExtraFields, JobContext, JobLogger
from framework.errors import JobMemoryError, JobProcessError, OverLimit
from framework.execute.outcomes import call_backoff
from framework.execute.perform import JobCaller, exit_forked_child, new_instance
from framework.execute.timeouts import Timeouts
from framework.features.isolation.channel import MessageReader, described, encoded_object
from framework.features.isolation.server import (
    adopt_orphans,
    end_with_parent,
    limit_memory,
    use_reserve,
    used_memory,
)
from framework.features.isolation.stacks import send_stacks_on_signal, send_task_stacks_on_signal
from framework.features.profiling.profiler import Profiles
from framework.features.profiling.store import JobProfile
from framework.features.tracing.push import entry_of_traces
from framework.finish.answers import encoded_value
from framework.middleware.chain import Call, ChainInvocation
from framework.push.argument_checks import StrictArgumentsCheck
from framework.settings.base import SettingsBase
from framework.telemetry import context, logs
from framework.telemetry.job_events import job_events
from framework.telemetry.last_calls import make_last_calls
from framework.telemetry.library_calls import count_library_calls
from framework.telemetry.usage import usage_records
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.waiters import awaited_job_of

_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class JobTools:
    """The parts that a process needs to run jobs: the server middlewares outside of capsules, and the check of arguments."""

    server_middleware: tuple[Call, ...]
    strictness: StrictArgumentsCheck
    log_level: str
    settings: SettingsBase | None = None
    """``None`` if they could not be loaded."""
    failure: BaseException | None = None
    """Why no job can run: the workers or the configuration could not be loaded."""


class _WorkerProcess:
    """The worker process, as a job's process reaches it. Safe from any thread.

    A process that the job forks has a copy, which does nothing.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = MessageReader(connection, _NO_LIMIT)
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_copy(self) -> bool:
        return os.getpid() != self._pid

    def tell(self, **message: Any) -> None:
        """Send a message. The process ends if the worker process has ended."""
        if not self.is_copy:
            with self._lock, _end_at_error():
                self._connection.sendall(encoded_object(message))

    def ask(self, question: str) -> bool:
        if self.is_copy:
            return False
        with self._lock, _end_at_error():
            self._connection.sendall(encoded_object({"ask": question}))
            answer = self._reader.receive_one()
        return answer is not None and answer.get("answer") is True

    def request(self) -> dict[str, Any] | None:
        """Return the job to run, ``None`` if the worker process has ended."""
        return self._reader.receive_one()


@contextlib.contextmanager
def _end_at_error() -> Any:
    try:
        yield
    except OSError:
        # The worker process has ended, or counts this one as ended: nothing of this run counts any more.
        os._exit(1)


class _LineRelay:
    """Send log lines to the worker process, whose log they belong to."""

    def __init__(self, worker: _WorkerProcess) -> None:
        self._worker = worker

    def write(self, line: str) -> None:
        self._worker.tell(log=line)


class _Extra(ExtraFields):
    """The fields of ``log_extra``. Each is sent at once, so that the line of a killed run has them."""

    def __init__(self, worker: _WorkerProcess) -> None:
        super().__init__()
        self._worker = worker

    def update(self, *args: Any, **fields: Any) -> None:
        super().update(*args, **fields)
        # As text: a value that JSON cannot hold spoils no other.
        self._worker.tell(extra=logs.object_text(dict(*args, **fields)))


class _Story:
    """The messages of a tracked job, which its worker process records."""

    def __init__(self, worker: _WorkerProcess) -> None:
        self._worker = worker

    def note(self, message: str, fields: Mapping[str, Any]) -> None:
        self._worker.tell(story=logs.object_text({"message": message, "fields": dict(fields)}))


class _Cancellation:
    """Whether the job was cancelled, as its worker process knows it."""

    def __init__(self, worker: _WorkerProcess) -> None:
        self._worker = worker
        self.seen = False

    @property
    def cancelled(self) -> bool:
        self.seen = self.seen or self._worker.ask("cancelled")
        return self.seen


class _SentProfiles(Profiles):
    """Send the profile of a job to its worker process."""

    def __init__(self, worker: _WorkerProcess) -> None:
        self._worker = worker

    def keep(self, profile: JobProfile) -> bool:
        page = base64.b64encode(profile.page).decode()
        self._worker.tell(profile={"duration_s": profile.duration_s, "error": profile.error, "page": page})
        return True


class _Context:
    """The questions of a running job, which its worker process answers."""

    def __init__(self, worker: _WorkerProcess) -> None:
        self._worker = worker

    def cancellation(self, jid: Jid, bid: str = "") -> _Cancellation:
        # The worker process knows both.
        del jid, bid
        return _Cancellation(self._worker)

    @property
    def interrupted(self) -> bool:
        return self._worker.ask("interrupted")

    def logger(self, job: dict[str, Any]) -> JobLogger:
        bound: Any = logs.job_logger(job)
        return cast("JobLogger", bound)


def run_job(connection: socket.socket, stacks: socket.socket, load: Callable[[], JobTools]) -> NoReturn:
    """Run the job that comes over ``connection``, and end this process. ``load`` returns the tools, and raises nothing.

    The stacks of the process go to ``stacks``.
    """
    end_with_parent(signal.SIGKILL)
    adopt_orphans()
    # A group of its own: the processes that the job starts end with it.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    worker = _WorkerProcess(connection)
    request = worker.request()
    if request is None:
        os._exit(0)
    send_stacks_on_signal(stacks)
    tools = load()
    logs.open_relayed_log(tools.log_level, {**request["static"], "pid": os.getpid()}, _LineRelay(worker))
    recorded = job_events.record()
    if request["counts_usage"]:
        count_library_calls()
    end: dict[str, Any]
    try:
        end = {"end": "succeeded" if _run(worker, {**request, "stacks": stacks}, tools) else "stopped"}
    except BaseException as error:  # noqa: BLE001 - the job's code may raise anything
        if worker.is_copy:
            exit_forked_child(error)
        if request["memory_limit"] is not None:
            use_reserve()
            if isinstance(error, MemoryError):
                error = _memory_error(error, request)
        if has_type(error, OverLimit):
            # An application's subclass may lack the attributes of its base.
            with contextlib.suppress(Exception):
                call_backoff(request["payload"], error)
        end = {"end": "raised", "error": described(error)}
    if worker.is_copy:
        exit_forked_child(None)
    logs.flush_output()
    make_last_calls()
    used = usage_records.take(request["payload"])
    worker.tell(**end, events=recorded.take(), usage=None if used is None else used.to_json())
    os._exit(0)


def _run(worker: _WorkerProcess, request: Mapping[str, Any], tools: JobTools) -> bool:
    """Run the job; return whether every middleware yielded. Raises what the job raises."""
    if tools.failure is not None:
        raise tools.failure
    kind = _class_of(request)
    payload: Payload = request["payload"]
    instance = new_instance(kind, payload)
    # Named with its type: the instance may be of any class, so nothing else compares it with the port.
    answers: JobContext = _Context(worker)
    instance._aw_run = answers
    instance._aw_extra = _Extra(worker)  # pyright: ignore[reportPrivateUsage]
    if request["recorded"]:
        instance._aw_record = _Story(worker)  # pyright: ignore[reportPrivateUsage]
    context.enter_job(payload)
    enter_trace = None if tools.settings is None else entry_of_traces(tools.settings)
    if enter_trace is not None:
        enter_trace(payload)
    _limit_memory(request)
    worker.tell(begun=True)
    # The middlewares and the task of an async job share one context, as in the worker process.
    own = copy_context()
    reached_end, coroutine = own.run(_begin, worker, request, tools, instance)
    if coroutine is not None:
        with asyncio.Runner() as runner:
            send_task_stacks_on_signal(runner.get_loop(), request["stacks"])
            runner.run(coroutine, context=own)
    return reached_end


def _begin(
    worker: _WorkerProcess, request: Mapping[str, Any], tools: JobTools, instance: Any
) -> tuple[bool, Coroutine[Any, Any, None] | None]:
    """Run the job to its end, or return the coroutine of an async job; its middlewares end in the coroutine."""
    payload: Payload = request["payload"]
    calls = middleware.capsule(request["capsule"]).compile() if request["capsule"] else tools.server_middleware
    with ExitStack() as exits:
        chain = ChainInvocation(calls, instance, payload, request["queue"])
        reached_end = exits.enter_context(chain)
        if reached_end:
            # The worker process has asked the limiter.
            declaration = replace(instance.declaration(), limiter=None)
            caller = JobCaller(tools.strictness, Timeouts(), (_SentProfiles(worker),))
            coroutine = caller.call(instance, declaration, payload)
            if coroutine is not None:
                return True, _complete(worker, instance, payload, coroutine, exits.pop_all())
            _tell_answer(worker, instance, payload, instance._aw_returned)
    return reached_end, None


async def _complete(
    worker: _WorkerProcess, instance: Any, payload: Payload, coroutine: Coroutine[Any, Any, Any], exits: ExitStack
) -> None:
    with exits:
        _tell_answer(worker, instance, payload, await coroutine)


def _tell_answer(worker: _WorkerProcess, instance: Any, payload: Payload, returned: object) -> None:
    awaited = awaited_job_of(payload)
    if awaited is not None and awaited.keeps_answer:
        worker.tell(answer=encoded_value(instance.declaration().wire_name, instance.jid, returned))


def _class_of(request: Mapping[str, Any]) -> Any:
    """Return the class of the job; its module comes from the worker process and not from the payload."""
    name, module = request["class"], request["module"]
    kind = registry.find(name)
    if kind is None and module != "__main__":
        importlib.import_module(module)
        kind = registry.find(name)
    if kind is None:
        raise JobProcessError(
            name,
            f"the module {module} does not have the class in a process of its own. Write the class in a module that can be "
            "imported, and name it with -r or the setting workers_module",
        )
    return kind


def _limit_memory(request: Mapping[str, Any]) -> None:
    limit = request["memory_limit"]
    if limit is None:
        return
    used = used_memory()
    if used >= limit:
        raise JobProcessError(
            request["class"],
            f"memory_limit = {limit:,} is less than the {used:,} bytes that the process uses before the job begins. Raise it by "
            f"that number, or import large modules in perform",
        )
    limit_memory(limit)


def _memory_error(error: MemoryError, request: Mapping[str, Any]) -> BaseException:
    found = JobMemoryError(request["class"], request["memory_limit"])
    # The traceback shows where the memory was used up.
    return found.with_traceback(error.__traceback__)
