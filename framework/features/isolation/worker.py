"""Run isolated jobs from the threads of a worker process: each thread waits for the process of its job.

The thread answers the questions of the job, writes its log lines, and ends it: hard, when it has not ended within a grace period
after its ``timeout`` or its cancellation, and at the deadline of the worker process. A process that ends before its job has ended
is a failure of the job (``JobProcessError``). Another process starts those of the jobs (``server``).
"""

import base64
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Literal, TypeAlias

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.job_context import ExtraFields
from framework.errors import JobMemoryError, JobProcessError, JobTimeoutError, PayloadError, Shutdown
from framework.execute.job_log import JobLog
from framework.execute.outcomes import cancelled_jid
from framework.execute.perform import DetachedRuns
from framework.execute.stats import RunningJobs
from framework.execute.timeouts import timeout_of
from framework.features.isolation.channel import (
    MAX_REPORT_BYTES,
    SERVER_MODULE,
    ChannelError,
    MessageReader,
    encoded,
    encoded_object,
    rebuilt,
)
from framework.features.isolation.server import kill_group, kill_marked
from framework.features.isolation.stacks import JobProcess, ask_processes
from framework.features.profiling.profiler import Profiles
from framework.features.profiling.worker import PROFILES
from framework.finish.answers import EncodedAnswer
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.job_events import StreamEvent, events_of, job_events
from framework.telemetry.stacks import StackCall
from framework.telemetry.usage import Usage, usage_records
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.json import dumps, dumps_parsed, loads_object

LOST_PROCESSES = "sidekiq_jobs_process_lost_total"
"""Runs whose own process ended before them, or needed more memory than their ``memory_limit``."""


@dataclass(frozen=True, slots=True)
class ProcessLost(StreamEvent):
    """The process of an isolated job ended before it, or needed too much memory."""

    counter: ClassVar[str] = LOST_PROCESSES


GRACE_S = 5.0
"""How long a job may clean up after its timeout, or after its cancellation is known, before its process is killed."""
_START_LIMIT_S = 120.0
"""The longest time until ``perform`` begins: the first job waits until the modules of the workers are loaded."""
_KILL_LIMIT_S = 30.0
"""The longest time until a killed process has ended."""
_CHECK_PERIOD_S = 0.25

_KillReason: TypeAlias = Literal["shutdown", "timeout", "cancelled", "stopped", "start", "unreadable"]
MARK_VARIABLE = "FRAMEWORK_ISOLATION_MARK"

_END_LIMIT_S = 30.0
_LOOK_PERIOD_S = 0.25


class ServerProcess:
    """Start the process when it is first needed, and again after its end. The caller's lock protects all but ``wait_until_ready``."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self.popen: subprocess.Popen[bytes] | None = None
        self.mark = ""
        """The variable (``NAME=value``) in the environment of the process, of those of its jobs, and of those that they start."""

    def open(self) -> socket.socket:
        """Return the socket over which jobs are sent; start the process if there is none. Raises OSError."""
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        options = {"modules": sorted(registry.loaded()), "path": [str(one) for one in sys.path]}
        command = [sys.executable, "-P", "-m", SERVER_MODULE, "server", str(theirs.fileno()), json.dumps(options)]
        value = secrets.token_hex(16)
        environment = {**os.environ, MARK_VARIABLE: value}
        started: Future[subprocess.Popen[bytes]] = Future()
        # A thread of its own, which lives as long: the system ends that process with the thread that started it.
        try:
            SupervisedThread("isolation", _keep, command, environment, theirs, started).start()
            self.popen = started.result()
        except BaseException:
            ours.close()
            raise
        self._control, self.mark = ours, f"{MARK_VARIABLE}={value}"
        return ours

    def forget(self) -> "subprocess.Popen[bytes] | None":
        """Close the socket, which ends the process; return the process."""
        self.close_socket()
        popen, self.popen, self._control = self.popen, None, None
        return popen

    def close_socket(self) -> None:
        if self._control is not None:
            self._control.close()

    def close(self) -> None:
        popen = self.forget()
        if popen is not None:
            with suppress(subprocess.TimeoutExpired):
                popen.wait(_END_LIMIT_S)

    def kill(self) -> None:
        """Kill a process that does not answer; its jobs' processes end with it."""
        if self.popen is not None:
            self.popen.kill()


def wait_until_ready(control: int, limit_s: float, stops: Callable[[], bool]) -> None:
    """Wait until the process has loaded its modules, has ended, or ``stops``, and close ``control``, a copy of its socket."""
    poll, deadline = select.poll(), time.monotonic() + limit_s
    poll.register(control, select.POLLIN)
    try:
        while not stops() and time.monotonic() < deadline and not poll.poll(_LOOK_PERIOD_S * 1_000):
            pass
    finally:
        os.close(control)


def _keep(
    command: list[str], environment: dict[str, str], theirs: socket.socket, started: "Future[subprocess.Popen[bytes]]"
) -> None:
    """Start the process, and wait for its end, so that it does not stay a zombie."""
    try:
        with theirs:
            # A group of its own: a supervisor kills that of a dead worker process, and this one ends the processes of its jobs.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
    except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()


class IsolatedRuns(DetachedRuns):
    """The isolated runs of one worker process. Safe from any thread; nothing is started before the first run."""

    def __init__(
        self, job_log: JobLog, running_jobs: RunningJobs, profiles: Profiles | None = None, grace_s: float = GRACE_S
    ) -> None:
        self.job_log = job_log
        self.running_jobs = running_jobs
        self.profiles = profiles
        """Where the profiles of the jobs go; ``None`` for nowhere."""
        self.grace_s = grace_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs = set[_Run]()
        self._server = ServerProcess()
        self._threads_reported = False
        self._stopped = False

    def run(self, payload: Payload, queue: str, instance: Any, capsule: str = "") -> bool:
        """Run ``perform`` in a process of its own.

        Raises what the job raises, and:
            JobProcessError: the process could not be started, or ended before the job.
            JobMemoryError: the job needed more than its ``memory_limit``.
            JobTimeoutError, CancelledError, Shutdown: the process was killed for this reason.
        """
        instance._aw_extra = fields = ExtraFields()
        run = _Run(self, payload, instance, fields)
        try:
            self._start(run)
            return run.wait(queue, capsule)
        finally:
            run.close()
            with self._changed:
                self._runs.discard(run)
                self._changed.notify_all()

    def kill_all(self, timeout_s: float) -> None:
        """Kill the process of every run, and wait at most ``timeout_s`` for their ends. No run begins from now on."""
        with self._changed:
            self._stopped = True
            for run in self._runs:
                run.kill("shutdown")
            self._changed.wait_for(lambda: not self._runs, timeout_s)

    def stop(self, jid: Jid) -> bool:
        with self._lock:
            found = [run for run in self._runs if run.jid == jid]
            for run in found:
                run.kill("stopped")
        return bool(found)

    def stacks(self, timeout_s: float) -> dict[Jid, tuple[int, list[list[StackCall]]]]:
        with self._lock:
            processes = {run.jid: process for run in self._runs if (process := run.process) is not None}
        found = ask_processes(processes, timeout_s)
        return {jid: (processes[jid].pid, stacks) for jid, stacks in found.items()}

    def close(self) -> None:
        with self._lock:
            server, self._server = self._server, ServerProcess()
        server.close()

    def after_fork_in_child(self) -> None:
        """Close the sockets in a child that another job has forked: their ends mean the end of the worker process."""
        for run in list(self._runs):
            run.close()
        self._server.close_socket()

    def report_threads(self, count: int) -> None:
        if count > 1 and not self._threads_reported:
            self._threads_reported = True
            logs.logger().warning(
                f"the modules of the workers start threads when they are imported ({count - 1}), so each isolated job starts a new "
                "interpreter, which imports them again. Import the modules that start threads within perform",
                event_name="isolation.threads",
            )

    def kill_server(self) -> None:
        """Kill a process that does not answer; its jobs' processes end with it."""
        self._server.kill()

    def prepare(self) -> None:
        """Start the process that starts the others, if there is none, and wait until it has loaded its modules.

        Whatever fails is found again, and reported, by the run.
        """
        with suppress(OSError):
            with self._lock:
                if self._stopped:
                    return
                # Another thread may close the socket meanwhile.
                control = os.dup(self._server.open().fileno())
            wait_until_ready(control, _START_LIMIT_S, lambda: self._stopped or self.running_jobs.stopping)

    def _start(self, run: "_Run") -> None:
        with self._lock:
            if self._stopped:
                raise Shutdown
            self._runs.add(run)
            for last in (False, True):
                try:
                    run.send_sockets(self._server.open(), self._server.mark)
                except OSError as error:
                    # The process has ended since the last job.
                    self._server.forget()
                    if last:
                        message = (
                            f"its process could not be started: {error}. Look at the limits of processes and memory"
                        )
                        raise JobProcessError(run.name, message) from error
                else:
                    return


class _Run:
    """One isolated run. Its thread calls all methods, except for ``kill``."""

    def __init__(self, runs: IsolatedRuns, payload: Payload, instance: Any, fields: ExtraFields) -> None:
        self._declaration: Declaration = instance.declaration()
        self.name = self._declaration.wire_name
        self._runs = runs
        self._payload = payload
        self._instance = instance
        self._fields = fields
        self._timeout_s = timeout_of(self._declaration, payload)
        # The ends of this process, and those of the others.
        (self._job, self._job_end), (self._status, self._status_end) = socket.socketpair(), socket.socketpair()
        self._stacks, self._stacks_end = socket.socketpair()
        self._messages = MessageReader(self._job, MAX_REPORT_BYTES)
        self._reports = MessageReader(self._status, MAX_REPORT_BYTES)
        self._mark = ""
        self._pid: int | None = None
        self._began_at: float | None = None
        self._cancelled_at: float | None = None
        self._killed_at = 0.0
        self._kill_reason: _KillReason | None = None
        self._end: dict[str, Any] | None = None
        """The message of the job's end."""
        self._exit: dict[str, Any] | None = None
        """The report of the end of its process."""

    def send_sockets(self, control: socket.socket, mark: str) -> None:
        """Have the process of the job started by the process with ``mark`` in its environment. Raises OSError."""
        self._mark = mark
        socket.send_fds(control, [b"J"], [self._job_end.fileno(), self._status_end.fileno(), self._stacks_end.fileno()])

    def close(self) -> None:
        for one in (self._job, self._job_end, self._status, self._status_end, self._stacks, self._stacks_end):
            one.close()

    @property
    def jid(self) -> Jid:
        return str(self._payload.get("jid"))

    @property
    def process(self) -> JobProcess | None:
        """The process of the job from the begin of ``perform`` to its end."""
        if self._pid is None or self._began_at is None or self._exit is not None:
            return None
        return JobProcess(self._pid, self._stacks, iscoroutinefunction(self._instance.perform))

    def kill(self, reason: _KillReason) -> None:
        """Have the process killed; the first reason counts."""
        if self._kill_reason is None:
            self._killed_at, self._kill_reason = time.monotonic(), reason
            # The process has ended.
            with suppress(OSError):
                self._status.send(b"K")

    def wait(self, queue: str, capsule: str) -> bool:
        """Send the job, and wait for the end of its process; see ``IsolatedRuns.run``."""
        self._job_end.close()
        self._status_end.close()
        self._stacks_end.close()
        self._send_job(queue, capsule)
        started = time.monotonic()
        self._job.setblocking(False)
        poll = select.poll()
        poll.register(self._job, select.POLLIN)
        poll.register(self._status, select.POLLIN)
        while self._exit is None:
            for number, _ in poll.poll(_CHECK_PERIOD_S * 1_000):
                if number == self._status.fileno():
                    self._read_status()
                elif not self._read_job():
                    # A job that closes the socket goes on without it.
                    poll.unregister(self._job)
            self._check_limits(started)
        # The process may have sent lines before its end.
        while self._end is None and self._read_job():
            pass
        return self._result(self._exit)

    def _send_job(self, queue: str, capsule: str) -> None:
        fields = {
            "class": self.name,
            "module": self._declaration.module,
            "queue": queue,
            "capsule": capsule,
            "memory_limit": self._declaration.facts["memory_limit"],
            "static": self._runs.job_log.log.static,
            "recorded": self._instance._aw_record is not None,
            "counts_usage": usage_records.enabled,
        }
        # As on the wire: integers of any size stay exact.
        message = b'{"payload":%b,%b' % (dumps_parsed(self._payload), dumps(fields)[1:])
        self._job.settimeout(_START_LIMIT_S)
        # Its process has ended: the status says why.
        with suppress(OSError):
            self._job.sendall(encoded(message))

    def _read_job(self) -> bool:
        """Handle what the job sends; return false if no more comes."""
        try:
            goes_on = self._messages.receive()
            for message in self._messages.messages():
                self._handle(message)
        except BlockingIOError:
            return self._exit is None
        # Code that is not trusted may send anything.
        except (ChannelError, PayloadError, OSError, KeyError, TypeError, ValueError):
            self.kill("unreadable")
            return False
        return goes_on

    def _handle(self, message: dict[str, Any]) -> None:
        if "log" in message:
            self._write_line(loads_object(str(message["log"]).encode()))
        elif "extra" in message:
            self._fields.update(loads_object(str(message["extra"]).encode()))
        elif "answer" in message:
            self._instance._aw_returned = EncodedAnswer.of(message["answer"])
        elif "profile" in message:
            self._keep_profile(message["profile"])
        elif "story" in message and (story := self._instance._aw_record) is not None:
            note = loads_object(str(message["story"]).encode())
            story.note(str(note["message"]), note["fields"])
        elif "ask" in message:
            self._job.send(encoded_object({"answer": self._answer(message["ask"])}))
        elif "begun" in message:
            self._began_at = time.monotonic()
        elif message["end"] in ("succeeded", "stopped", "raised"):
            self._end = message

    def _write_line(self, line: dict[str, Any]) -> None:
        """Write a line of the job. It does not choose whose the line is, nor does it end a job."""
        log = self._runs.job_log.log
        if "job_status" in line:
            line["job_status"] = "running"
        log.write({**line, **log.static, "pid": self._pid or log.static.get("pid")})

    def _keep_profile(self, sent: Mapping[str, Any]) -> None:
        if self._runs.profiles is not None:
            duration_s, error = float(sent["duration_s"]), str(sent["error"])[:200]
            self._runs.profiles.keep_of(self._instance, duration_s, error, base64.b64decode(sent["page"]))

    def _answer(self, question: str) -> bool:
        return bool(self._instance.cancelled if question == "cancelled" else self._runs.running_jobs.interrupted)

    def _read_status(self) -> None:
        with suppress(OSError):
            goes_on = self._reports.receive()
            for report in self._reports.messages():
                if "started" in report:
                    self._pid = int(report["started"])
                    self._runs.report_threads(report["threads"])
                else:
                    self._exit = report
            if goes_on or self._exit is not None:
                return
        self._exit = {
            "failed": "the process that starts the processes of jobs has ended. The next isolated job starts it again"
        }
        # The system ends the job's process then. No process has adopted those that it has started: their environment tells them.
        if self._pid is not None:
            kill_group(self._pid)
            kill_marked(self._mark)

    def _check_limits(self, started: float) -> None:
        now = time.monotonic()
        if self._kill_reason is not None:
            if now > self._killed_at + _KILL_LIMIT_S:
                self._runs.kill_server()
            return
        if self._began_at is None:
            if now > started + _START_LIMIT_S:
                self.kill("start")
        elif self._timeout_s is not None and now > self._began_at + self._timeout_s + self._runs.grace_s:
            self.kill("timeout")
        if self._cancelled_at is None:
            cancelled = cancelled_jid(self._payload, self._runs.running_jobs.cancelled)
            self._cancelled_at = now if cancelled is not None else None
        elif now > self._cancelled_at + self._runs.grace_s:
            self.kill("cancelled")

    def _result(self, ended: dict[str, Any]) -> bool:
        if "pid" in ended:
            self._fields.line.update(process_pid=ended["pid"], process_peak_bytes=ended["peak_bytes"])
            self._fields.cpu_s = float(ended["cpu_s"])
        if self._end is None:
            raise self._error_without_end(ended)
        for event in events_of(self._end.get("events")):
            job_events.emit(event)
        # Code that is not trusted may send anything.
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            usage_records.add(self._payload, Usage.from_json(self._end["usage"]))
        if self._end["end"] != "raised":
            return bool(self._end["end"] == "succeeded")
        try:
            error = rebuilt(self._end["error"])
        except Exception as failure:
            raise JobProcessError(self.name, "its error cannot be read") from failure
        if has_type(error, JobMemoryError):
            job_events.emit(ProcessLost(self.name))
        raise error

    def _error_without_end(self, ended: dict[str, Any]) -> BaseException:
        match self._kill_reason:
            case "shutdown":
                return Shutdown()
            case "timeout":
                return JobTimeoutError().explain(self._timeout_s or 0.0)
            case "cancelled" | "stopped":
                return CancelledError()
            case "start":
                reason = (
                    f"perform did not begin within {_START_LIMIT_S:g} s. Look at the imports of the workers' modules"
                )
            case "unreadable":
                reason = "its process has sent data that is no report, and was killed"
            case None:
                reason = _exit_reason(ended)
        job_events.emit(ProcessLost(self.name))
        status = ended.get("status")
        return JobProcessError(self.name, reason, status=status if isinstance(status, int) else None)


def _exit_reason(ended: dict[str, Any]) -> str:
    if "failed" in ended:
        return f"its process could not run: {ended['failed']}"
    status = int(ended["status"])
    if status >= 0:
        return (
            f"its process exited with status {status} before perform returned: the job, or a library that it uses, called os._exit. "
            "Return from perform instead"
        )
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        return (
            f"its process was killed ({name}), by the system if there was no memory left. Look at the log of the system"
        )
    return (
        f"its process was ended by {name}: a fault in a library that is not written in Python, or a signal from outside. Look at "
        "the libraries that perform uses"
    )


def worker_part(process: ProcessContext) -> WorkerPart:
    if not process.isolates:
        return WorkerPart()
    # One for all capsules: a second process that has loaded the workers would cost as much memory again.
    return WorkerPart(detached=IsolatedRuns(process.job_log, process.runs, process.service(PROFILES)))
