"""Run the main loop of ``cluster``: signals, restarts, rolling restarts, memory, health and systemd."""

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from framework import timings
from framework.cluster.child import ChildEvent, ChildSpec, MemoryLimits, MemoryWatch
from framework.cluster.rollout import DRAIN_TIMEOUT_S, Rollout
from framework.cluster.supervisor import GroupHealth, Supervisor
from framework.errors import FrameworkError
from framework.process.health_server import Answer, HealthServer
from framework.process.signals import DRAIN, DUMP, QUIET, STOP, STOP_NOW, SignalQueue
from framework.process.title import Title
from framework.process.worker_options import HealthAddress
from framework.telemetry import logs
from framework.text import format_count

_STEP_S = 0.1


PlanSource: TypeAlias = Callable[[], Sequence[ChildSpec]]
"""Returns the specs to run according to the current files. Raises FrameworkError."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a group. ``health`` is the address of the health server, ``None`` for none; ``answers`` its further paths."""

    drain_timeout_s: float = DRAIN_TIMEOUT_S
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    health: HealthAddress | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])


class ClusterRunner:
    """Run a group from its main thread until a signal to stop or a failure."""

    def __init__(
        self,
        group: Supervisor,
        signals: SignalQueue,
        options: ClusterOptions,
        plan: PlanSource,
        timeout_s: float,
        title: Title,
    ) -> None:
        """Open the health server if it is configured. Raises ConfigurationError when it cannot listen."""
        self._group = group
        self._signals = signals
        self._plan = plan
        self._title = title
        self._timeout_s = timeout_s
        self._folder = _working_folder()
        waits, drain_s = timings.current(), options.drain_timeout_s
        self._rollout = Rollout(group, log_event, drain_timeout_s=drain_s, timeout_s=timeout_s, timings=waits)
        self._memory = MemoryWatch(options.memory, waits)
        self._notifier = SystemdNotifier()
        self._health = GroupHealth(group, waits)
        answers = {**self._health.answers, **options.answers}
        self._server = HealthServer(answers, options.health) if options.health else None
        self._was_ready = False
        self._stop_now = False
        self._log = logs.logger(shard=",".join(sorted({child.spec.shard for child in group.children})))

    def run(self) -> int:
        """Start the children, run the loop, and stop the children; return the exit status."""
        try:
            self._group.start()
            if self._server is not None:
                self._server.start()
            stop = False
            while not stop and self._group.failure is None:
                stop = self._handle_signals(_STEP_S)
                self._step()
            failure = self._group.failure
        # Also if a thread of the supervisor cannot be started.
        finally:
            self._notifier.stopping()
            self._publish_status("stopping")
            self._group.stop(self._timeout_s, self._stop_now_requested)
        return failure or int(self._group.unclean)

    def _handle_signals(self, timeout_s: float) -> bool:
        """Handle the received signals; return whether to stop."""
        stop = False
        for number in self._signals.wait(timeout_s):
            if number in (*STOP, STOP_NOW):
                self._log.info(
                    "the supervisor stops its children",
                    event_name="cluster.stopping",
                    signal=signal.Signals(number).name,
                )
                self._stop_now = number == STOP_NOW or stop
                stop = True
            elif number == QUIET:
                self._rollout.cancel()
                self._group.quiet = True
                self._group.forward(QUIET)
            elif number == DUMP:
                self._group.forward(DUMP)
            elif number == DRAIN:
                self._begin_restart()
        return stop

    def _begin_restart(self) -> None:
        """Read the plan again and replace every child; a plan that cannot be made changes nothing."""
        # A deployment may have removed the folder.
        with suppress(OSError):
            os.chdir(self._folder)
        try:
            specs = {spec.name: spec for spec in self._plan()}
        except FrameworkError as error:
            self._log.error(
                "no child is replaced, because the plan is invalid. Correct the configuration, then send USR2 again",
                event_name="cluster.restart_failed",
                error=error,
            )
            return
        names = {child.name for child in self._group.children}
        new_shards = {spec.shard for spec in specs.values()} - {child.spec.shard for child in self._group.children}
        if new_shards:
            self._log.error(
                "no child is replaced, because the plan has shards that this supervisor does not know: restart the supervisor",
                event_name="cluster.restart_failed",
                shards=sorted(new_shards),
            )
            return
        if specs.keys() != names:
            count, now = len(specs), len(names)
            self._log.warning(
                f"the plan has {format_count(count, 'process')}, and this supervisor runs {now}: restart the supervisor to change "
                "the number",
                event_name="cluster.plan_differs",
            )
        self._log.info(
            "a rolling restart begins: the supervisor replaces its children one by one",
            event_name="cluster.restarting",
            again=self._rollout.rolling,
        )
        self._rollout.begin(specs)
        self._notifier.reloading()

    def _step(self) -> None:
        self._group.poll()
        if sys.platform == "linux":
            self._group.reap_adopted()
        rolling = self._rollout.rolling
        self._rollout.step()
        if rolling and not self._rollout.rolling:
            self._end_restart()
        if not self._group.quiet:
            self._watch_memory()
        self._health.note_loop()
        self._notifier.ping_watchdog()
        self._publish_status("replacing" if self._rollout.rolling else "quiet" if self._group.quiet else "")

    def _end_restart(self) -> None:
        if self._rollout.aborted:
            self._log.error(
                "a new child did not become ready. The other children are not replaced and keep running. Correct the cause, then "
                "send USR2 to the supervisor again",
                event_name="cluster.restart_failed",
            )
        else:
            self._log.info(
                "the rolling restart is complete: every child has been replaced", event_name="cluster.restarted"
            )
        self._notifier.ready()

    def _watch_memory(self) -> None:
        for exceeded in self._memory.check(self._group.all):
            if self._rollout.replace(exceeded.child, urgent=exceeded.hard):
                child = exceeded.child
                self._group.count("memory")
                self._log.warning(
                    "a child exceeds its memory limit: the supervisor replaces it. Look for a class that leaks, or raise the limit",
                    event_name="child.memory",
                    shard=child.spec.shard,
                    child=child.name,
                    child_pid=child.pid,
                    memwd_limit="hard" if exceeded.hard else "soft",
                    **exceeded.fields,
                )

    def _publish_status(self, state: str) -> None:
        """Show the status of the group in ``ps`` and to systemd."""
        children = self._group.children
        if not self._was_ready and not self._health.unserved_groups():
            self._was_ready = True
            self._notifier.ready()
        ready = sum(child.ready for child in children)
        self._title.show(self._group.running, len(children), state)
        self._notifier.status(f"fetching jobs: {ready} of {format_count(len(children), 'process')} {state}".rstrip())

    def _stop_now_requested(self) -> bool:
        """Return whether a second signal asks to stop without waiting for jobs; the supervisor polls it during the stop."""
        self._health.note_loop()
        self._notifier.ping_watchdog()
        received: Sequence[int] = list(self._signals.wait(0))
        self._stop_now = self._stop_now or any(number in (*STOP, STOP_NOW) for number in received)
        return self._stop_now


def log_event(event: ChildEvent) -> None:
    log = logs.logger(shard=event.shard, child=event.name, child_pid=event.pid)
    name, plain = f"child.{event.kind}", f"child {event.kind}"
    match event.kind:
        case "stuck":
            message = (
                "a child has sent no heartbeat for too long: it is killed, and its jobs are recovered. Look for jobs that hold "
                "the interpreter"
            )
            log.error(message, event_name=name, silent_s=event.status)
        case "not_ready":
            log.error(
                "the successor of a child did not become ready; the other children keep running",
                event_name=name,
                status=event.status,
            )
        case "overdue":
            log.warning(
                "the jobs of a replaced child exceed the drain timeout: the child stops, and its jobs have --timeout seconds",
                event_name=name,
                waited_s=event.status,
            )
        case "orphans_killed":
            log.warning("the supervisor kills processes that jobs of a dead child had started", event_name=name)
        case "died" | "killed" | "failed":
            log.warning(plain, event_name=name, status=event.status)
        case _:
            log.info(plain, event_name=name, status=event.status)


def _working_folder() -> Path:
    """Return the working folder, with its symbolic links where the shell has set ``PWD``.

    A deployment that changes such a link moves the children of the next restart to the new release.
    """
    real, of_shell = Path.cwd(), os.environ.get("PWD", "")
    with suppress(OSError):
        return Path(of_shell) if of_shell and real.samefile(of_shell) else real
    return real


class SystemdNotifier:
    """Notify systemd (``Type=notify``) of start, reload, stop and status, and ping its watchdog, if there is one."""

    def __init__(self) -> None:
        """Read systemd's variables, and remove them from the environment of the children."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        self._ping_s = int(usec) / 2_000_000 if watched else 0.0
        # Not 0.0: the clock counts from the start of the machine, and the first ping of a service must not wait for it.
        self._pinged_at = -math.inf
        self._status = ""

    def ready(self) -> None:
        """Notify that the group serves, after the start or after ``reloading``."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Notify that a rolling restart has started; ``ready`` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Send a changed line for ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ping_watchdog(self) -> None:
        """Ping the watchdog; call it more often than systemd's watchdog period."""
        now = time.monotonic()
        if self._ping_s and now - self._pinged_at >= self._ping_s:
            self._pinged_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
                outlet.setblocking(False)
                outlet.sendto(text.encode(), self._address)
