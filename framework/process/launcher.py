"""Run one worker process from its start to its end: register, fetch, drain, stop, and give unfinished jobs back.

Start: the process sends one heartbeat before the first fetch, so that no other process counts it as dead.
Drain: fetching ends; the jobs in flight have no deadline, until a signal to stop arrives.
Stop: (1) end fetching and cancel blocking moves; (2) wait for the jobs in flight until the deadline, and acknowledge those that
have ended; (3) push the unfinished jobs back to the right end of their queues, or give them up (``push_back``), over the main
thread's own connection; (4) release the lease last, since until then no other process may touch the working list; (5) run the
hooks of the jobs that were given up and the handlers of exit, for one second at most. ``os._exit`` ends the process even when a
thread hangs.
"""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Mapping

from redis.exceptions import RedisError

from framework.command_line import EXIT_FAILED, EXIT_OK
from framework.fetch.unit_of_work import UnitOfWork
from framework.lifecycle import EXIT_LIMIT_S, SHUTDOWN_LEAST_S, STARTUP_LIMIT_S
from framework.process.capsules import payload_field
from framework.process.components import FetchWatch, ProcessComponents, ProcessTasks
from framework.process.heartbeat import StuckError, Watchdog
from framework.process.shared_state import ProcessState
from framework.process.signals import DRAIN, DUMP, HANG_UP, QUIET, STOP, STOP_NOW, SWEEP, SignalQueue
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.supervised_threads import supervised_threads
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.telemetry.stacks import current_frames
from framework.telemetry.usage import usage_records
from framework.wire.job import base36

# Longer than the read in which the leader thread may be.
_WIND_DOWN_S = COMMAND_TIMEOUT_S + 1.0
# Short, because the dead component may be the one that renews the lease.
_FAILED_TIMEOUT_S = 2.0
# The time that cancelled async jobs have for their clean-up.
_CANCEL_S = 0.5
# The period of acknowledgements while the last jobs run.
_ACKNOWLEDGE_PERIOD_S = 0.1
# The time after the deadline for another try with a new connection. The supervisor kills the process 2 s after the deadline.
_RECONNECT_S = 0.5
# The period of the check whether Redis has answered the first fetch.
_STARTING_CHECK_PERIOD_S = 0.05


class Launcher:
    """Run one process from its main thread."""

    def __init__(self, components: ProcessComponents, signals: SignalQueue) -> None:
        self._components = components
        self._signals = signals
        self._log = logs.logger()
        self._timings = components.timings
        self._lifecycle = components.process.lifecycle
        self._tasks = ProcessTasks(components, signals)
        self._fetch_watch = FetchWatch(components.capsules, components.timings.main_thread_period_s)
        self._draining = False
        self._stop_now = False
        """Whether the stop waits for no job."""
        self._watchdog = Watchdog([self._tasks.lease, *self._tasks.others], components.timings.main_thread_period_s)

    def run(self) -> int:
        """Run until a signal to stop; return the exit status.

        The status is 0, or 1 when a thread of the framework died. The caller has acquired the lease.
        """
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - this thread is one of the framework's, too
            # The jobs in flight are in the working list: another process recovers them when the lease has expired.
            self._components.events.component_died("main", error)
            return EXIT_FAILED

    def _run(self) -> int:
        components = self._components
        self._tasks.start()
        self._tasks.update_title()
        stop = self._start_up()
        while not (stop or self._draining or self._cannot_continue):
            starting = components.shared_state.state is ProcessState.STARTING
            wait_s = _STARTING_CHECK_PERIOD_S if starting else self._timings.main_thread_period_s
            stop = self._handle_signals(wait_s) or self._lost_supervisor()
            self._check_components()
            self._publish_state()
        if self._draining and not stop:
            self._drain_without_deadline()
        if self._signals.damaged:
            # A closed descriptor's number may belong to another file by now, so the process must not write to it. The jobs
            # in flight are recovered by another process.
            components.events.component_died(
                "descriptors", OSError("a job has closed file descriptors of the framework")
            )
            return EXIT_FAILED
        self._stop()
        # Whose own report has failed, for example for want of memory.
        _report_dead_threads()
        return EXIT_FAILED if components.events.died.is_set() else EXIT_OK

    def _start_up(self) -> bool:
        """Run the handlers of startup, then start to fetch jobs; return whether a signal asks to stop already."""
        components = self._components
        self._lifecycle.fire("startup")
        deadline = time.monotonic() + STARTUP_LIMIT_S
        while self._lifecycle.running("startup") and time.monotonic() < deadline:
            # The supervisor must see a live process meanwhile.
            self._publish_state()
            if self._handle_signals(_STARTING_CHECK_PERIOD_S) or self._lost_supervisor():
                return True
            if self._draining or self._cannot_continue:
                return False
        self._lifecycle.abandon("startup")
        components.capsules.start()
        queues = {"queues": components.record.queues, "queues_from": components.record.queues_from}
        self._log.info(
            "the process is ready", event_name="process.ready", identity=components.process.identity, **queues
        )
        return False

    @property
    def _cannot_continue(self) -> bool:
        """Whether the process must end because of a failure of its own."""
        return self._components.events.died.is_set() or self._signals.damaged

    def _handle_signals(self, timeout_s: float) -> bool:
        """Handle the received signals; return whether to stop."""
        stop = False
        for number in self._signals.wait(timeout_s):
            if number in (*STOP, STOP_NOW):
                if number == STOP_NOW or (stop and self._means_stop_now(number)):
                    self._stop_now = True
                if not stop:
                    self._log.info(
                        "the process stops", event_name="process.stopping", signal=signal.Signals(number).name
                    )
                stop = True
            elif number == DRAIN:
                self._draining = not stop
            elif number == QUIET:
                self._quiet()
            elif number == DUMP:
                log_stacks(self._components.record.runs.running(), self._components.capsules.async_stacks())
            elif number == SWEEP:
                self._tasks.sweep.run_now()
            elif number == HANG_UP:
                self._log.info(
                    "the signal HUP has no effect: the log is stdout, so there is no file to reopen",
                    event_name="process.hangup",
                )
        return stop

    def _means_stop_now(self, number: int) -> bool:
        """Return whether a second signal to stop means to stop without waiting for jobs."""
        return number == STOP_NOW or (number in STOP and self._components.supervisor is None)

    def _check_components(self) -> None:
        # A thread that the system could not start earlier may start now.
        self._components.capsules.ensure_fetching()
        self._check_tasks()
        limit_s = self._timings.fetcher_limit_s
        stuck = self._fetch_watch.check(limit_s)
        if stuck is not None:
            error = StuckError(
                f"no thread of the capsule {stuck} has fetched from its queues for more than {limit_s:g} s"
            )
            self._components.events.component_died("fetcher", error)

    def _check_tasks(self) -> None:
        _report_dead_threads()
        stuck = self._watchdog.check()
        if stuck is not None:
            error = StuckError(f"a step of {stuck.name} has run for more than {stuck.limit_s:g} s")
            self._components.events.component_died(stuck.name, error)

    def _publish_state(self) -> None:
        """Write the state of the process to the memory that the supervisor reads."""
        components = self._components
        state = components.shared_state.state
        if self._draining:
            state = ProcessState.DRAINING
        elif components.process.quiet:
            state = ProcessState.QUIET
        elif components.capsules.fetching:
            state = ProcessState.READY
        fetched_at = components.capsules.active_at if components.capsules.fetching else None
        components.shared_state.publish(state, len(components.capsules.running()), fetched_at)

    def _lost_supervisor(self) -> bool:
        """Return whether the supervisor has died: no other process would restart or end this one, so it stops."""
        if self._components.supervisor is not None and os.getppid() != self._components.supervisor:
            self._log.warning(
                "the supervisor has died, so this process stops. Look for the last lines of the supervisor",
                event_name="process.orphaned",
            )
            return True
        return False

    def _quiet(self) -> None:
        if not self._components.process.quiet:
            self._components.process.quiet = self._components.record.runs.quiet = True
            self._components.capsules.quiet()
            self._tasks.update_title()
            self._lifecycle.fire("quiet")
            self._log.info("the process is quiet: it fetches no new jobs", event_name="process.quiet")

    def _drain_without_deadline(self) -> None:
        """Push jobs back that have not started, and wait for the others until they end or a signal to stop arrives."""
        components = self._components
        running = [
            {"jid": payload_field(unit, "jid"), "class": payload_field(unit, "class")}
            for unit in components.capsules.running()
        ]
        self._log.info(
            "the process drains: it fetches no new jobs, and ends when its jobs have ended",
            event_name="process.draining",
            running_jobs=running,
        )
        components.process.quiet = components.record.runs.interrupted = True
        self._tasks.update_title()
        components.capsules.stop()
        self._lifecycle.fire("quiet")
        # ``_stop`` tries it again.
        with contextlib.suppress(RedisError, OSError):
            components.capsules.return_buffered(_WIND_DOWN_S)
        while not (
            self._cannot_continue
            or components.capsules.join(0)
            or self._handle_signals(_ACKNOWLEDGE_PERIOD_S)
            or self._lost_supervisor()
        ):
            self._check_tasks()
            self._publish_state()
            with contextlib.suppress(RedisError, OSError):
                components.capsules.acknowledge_all()

    def _stop(self) -> None:
        components = self._components
        began = time.monotonic()
        deadline = began + self._stop_timeout_s()
        components.shared_state.publish(ProcessState.STOPPING, len(components.capsules.running()), None)
        components.process.quiet = True
        components.record.runs.interrupted = components.record.runs.stopping = True
        components.capsules.stop()
        self._lifecycle.fire("quiet")
        self._lifecycle.fire("shutdown")
        self._tasks.stop_others()
        # The jobs that stay in flight are pushed back below, or recovered by another process.
        with contextlib.suppress(RedisError, OSError):
            components.capsules.return_buffered(min(_WIND_DOWN_S, max(1.0, deadline - time.monotonic())))
        finished = self._wait_for_jobs(deadline)
        if not finished:
            components.record.runs.deadline_passed = True
            components.capsules.cancel_async(_CANCEL_S)
        self._wait_for_shutdown_handlers(max(deadline, began + SHUTDOWN_LEAST_S))
        components.capsules.stop_settling()
        try:
            self._acknowledge_ended(deadline)
            in_time = not (self._stop_now or components.events.died.is_set())
            components.push_back.return_jobs(components.timeout_s if in_time else None)
            # The jobs that ended during the push-back.
            self._acknowledge_ended(deadline)
            # Redis may refuse this at maxmemory; the record expires by itself.
            with contextlib.suppress(RedisError, OSError):
                components.parts.release()
                components.record.remove()
                counters.flush(components.record.client)
                components.metrics.flush()
            self._tasks.lease.stop()
            lost_at = components.capsules.connection_lost_at
            components.lease.release(
                list_is_empty=lost_at is None or time.monotonic() - lost_at > self._timings.blocking_call_s
            )
            self._log.info(
                "the process has stopped",
                event_name="process.stopped",
                returned=components.push_back.returned,
                finished=finished,
            )
        except (RedisError, OSError) as error:
            # The unfinished jobs are in the working list; another process recovers them when the lease has expired.
            self._log.error(
                "the process has stopped while Redis did not answer; another process will recover its jobs in flight",
                event_name="process.jobs_left",
                error=error,
            )
        self._lifecycle.fire("exit")
        deadline = time.monotonic() + EXIT_LIMIT_S
        components.push_back.run_exhausted_hooks()
        self._lifecycle.join("follower", deadline - time.monotonic())
        self._lifecycle.join("exit", deadline - time.monotonic())
        self._lifecycle.abandon("exit")

    def _stop_timeout_s(self) -> float:
        """Return how long the jobs in flight may still run."""
        if self._stop_now:
            return 0.0
        if self._components.events.died.is_set():
            return min(_FAILED_TIMEOUT_S, self._components.timeout_s)
        return self._components.timeout_s

    def _wait_for_jobs(self, deadline: float) -> bool:
        """Wait for the jobs in flight and acknowledge them; return whether all ended before the deadline or a signal."""
        while not self._components.capsules.join(_ACKNOWLEDGE_PERIOD_S):
            # Tried again in the next round: a crash before the acknowledgement repeats these jobs.
            with contextlib.suppress(RedisError, OSError):
                self._components.capsules.acknowledge_all()
            self._tasks.update_title()
            if self._stop_now_requested() or time.monotonic() >= deadline:
                return False
        return True

    def _acknowledge_ended(self, deadline: float) -> None:
        """Acknowledge the jobs that have ended, and try again until the deadline or a signal. Raises the last redis error.

        A job that is not acknowledged runs again. The connection of the last call may be older than a restart of the server.
        """
        until = max(deadline, time.monotonic() + _RECONNECT_S)
        while True:
            began = time.monotonic()
            try:
                return self._components.capsules.acknowledge_all()
            except (RedisError, OSError):
                # The next try may take as long as this one: 5 s where Redis is silent.
                now = time.monotonic()
                too_late = now + (now - began) > until
                if too_late or self._signals.damaged or self._stop_now_requested(_ACKNOWLEDGE_PERIOD_S):
                    raise

    def _wait_for_shutdown_handlers(self, deadline: float) -> None:
        """Wait for the handlers of shutdown until the deadline or a signal to stop at once; acknowledge meanwhile."""
        while not self._lifecycle.join("shutdown", _ACKNOWLEDGE_PERIOD_S):
            with contextlib.suppress(RedisError, OSError):
                self._components.capsules.acknowledge_all()
            if self._stop_now_requested() or time.monotonic() >= deadline:
                self._lifecycle.abandon("shutdown")
                return

    def _stop_now_requested(self, timeout_s: float = 0.0) -> bool:
        for number in self._signals.wait(timeout_s):
            if self._means_stop_now(number):
                self._stop_now = True
                self._log.info(
                    "the process stops without waiting for its jobs",
                    event_name="process.forced",
                    signal=signal.Signals(number).name,
                )
                return True
        return False


def _report_dead_threads() -> None:
    for thread in supervised_threads():
        thread.report_if_dead()


def log_stacks(
    running: Mapping[int, tuple[UnitOfWork, int]], async_stacks: Iterable[tuple[str | None, list[str]]]
) -> None:
    """Write a line for each thread, whose jobs are in ``running`` by thread id, and for each async job."""
    log = logs.logger()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in current_frames().items():
        unit = running.get(ident)
        jid = payload_field(unit[0], "jid") if unit else None
        log.warning(
            "stack",
            event_name="process.stack",
            thread=names.get(ident, str(ident)),
            tid=base36(ident),
            jid=jid,
            stack=[line.rstrip() for line in traceback.format_stack(frame)],
            **usage_records.fields_of(jid),
        )
    for jid, lines in async_stacks:
        log.warning(
            "stack",
            event_name="process.stack",
            thread="event-loop",
            jid=jid,
            stack=lines,
            **usage_records.fields_of(jid),
        )
