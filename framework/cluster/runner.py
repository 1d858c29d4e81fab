"""The loop of ``cluster``: signals, the dead, the replaced, memory, health, and the listeners."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from framework.cluster.child import ChildEvent, ChildSpec
from framework.cluster.health_server import GroupHealth, HealthServer, unserved_groups
from framework.cluster.memory import MemoryLimits, MemoryWatch
from framework.cluster.rollout import DRAIN_TIMEOUT_S, Rollout
from framework.cluster.supervisor import Supervisor
from framework.cluster.systemd import SystemdNotifier
from framework.errors import FrameworkError
from framework.process.signals import DRAIN, DUMP, QUIET, STOP, STOP_NOW, SignalQueue
from framework.process.title import Title
from framework.telemetry import logs

_STEP_S = 0.1


PlanSource: TypeAlias = Callable[[], Sequence[ChildSpec]]
"""Says what is to run, as the files have it now. Raises FrameworkError."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a group is run. ``health``: host and port of the answers over HTTP, if wanted."""

    drain_timeout_s: float = DRAIN_TIMEOUT_S
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    health: tuple[str, int] | None = None


class ClusterRunner:
    """Runs a group from its main thread until told to stop, or unable to go on."""

    def __init__(
        self,
        group: Supervisor,
        signals: SignalQueue,
        options: ClusterOptions,
        plan: PlanSource,
        timeout_s: float,
        title: Title,
    ) -> None:
        """Listen for questions about health, if wanted. Raises ConfigurationError when that is not possible."""
        self._group = group
        self._signals = signals
        self._plan = plan
        self._title = title
        self._timeout_s = timeout_s
        self._folder = _working_folder()
        self._rollout = Rollout(group, log_event, drain_timeout_s=options.drain_timeout_s, timeout_s=timeout_s)
        self._memory = MemoryWatch(options.memory)
        self._notifier = SystemdNotifier()
        self._health = GroupHealth(group)
        self._server = HealthServer(self._health, *options.health) if options.health else None
        self._was_ready = False
        self._stop_now = False
        self._log = logs.logger(shard=",".join(sorted({child.spec.shard for child in group.children})))

    def run(self) -> int:
        """Start the children, look after them, end them; return the exit status."""
        self._group.start()
        if self._server is not None:
            host, port = self._server.server_address[:2]
            self._log.info("answering about our health", event_name="health.listening", host=host, port=port)
            self._server.start()
        stop = False
        while not stop and self._group.failure is None:
            stop = self._handle_signals(_STEP_S)
            self._step()
        failure = self._group.failure
        self._notifier.stopping()
        self._publish_status("stopping")
        self._group.stop(self._timeout_s, self._stop_now_requested)
        return failure or int(self._group.unclean)

    def _handle_signals(self, timeout_s: float) -> bool:
        """Handle the signals that came; return whether to stop."""
        stop = False
        for number in self._signals.wait(timeout_s):
            if number in (*STOP, STOP_NOW):
                self._log.info("stopping", event_name="cluster.stopping", signal=signal.Signals(number).name)
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
        """Plan anew and replace every child; a plan that cannot be made leaves all as it is."""
        with suppress(OSError):  # it is no more, and we are still there
            os.chdir(self._folder)
        try:
            specs = {spec.name: spec for spec in self._plan()}
        except FrameworkError as error:
            self._log.error(
                "nobody is replaced: the plan cannot be made", event_name="cluster.restart_failed", error=error
            )
            return
        names = {child.name for child in self._group.children}
        strange = {spec.shard for spec in specs.values()} - {child.spec.shard for child in self._group.children}
        if strange:
            self._log.error(
                "nobody is replaced: there are shards now that this supervisor does not know; start it anew",
                event_name="cluster.restart_failed",
                shards=sorted(strange),
            )
            return
        if specs.keys() != names:
            count, now = len(specs), len(names)
            self._log.warning(
                f"the plan has {count} processes now; this supervisor goes on with {now}: start it anew to change their number",
                event_name="cluster.plan_differs",
            )
        self._log.info(
            "replacing every child, one by one", event_name="cluster.restarting", again=self._rollout.rolling
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
                "a new child did not come up; the others were not replaced and serve on: put it right and send USR2 again",
                event_name="cluster.restart_failed",
            )
        else:
            self._log.info("every child has been replaced", event_name="cluster.restarted")
        self._notifier.ready()

    def _watch_memory(self) -> None:
        for overrun in self._memory.check(self._group.all):
            if self._rollout.replace(overrun.child, urgent=overrun.hard):
                child = overrun.child
                self._log.warning(
                    "a child is over its memory limit; it is replaced",
                    event_name="child.memory",
                    shard=child.spec.shard,
                    child=child.name,
                    child_pid=child.pid,
                    memwd_limit="hard" if overrun.hard else "soft",
                    **overrun.fields,
                )

    def _publish_status(self, state: str) -> None:
        """Say how we are to ``ps`` and to systemd."""
        children = self._group.children
        if not self._was_ready and not unserved_groups(children):
            self._was_ready = True
            self._notifier.ready()
        ready = sum(child.ready for child in children)
        self._title.show(self._group.running, len(children), state)
        self._notifier.status(f"{ready} of {len(children)} processes take jobs {state}".rstrip())

    def _stop_now_requested(self) -> bool:
        """Asked all through the end: whether no job is to be waited for any longer."""
        self._health.note_loop()
        self._notifier.ping_watchdog()
        heard: Sequence[int] = list(self._signals.wait(0))
        self._stop_now = self._stop_now or any(number in (*STOP, STOP_NOW) for number in heard)
        return self._stop_now


def log_event(event: ChildEvent) -> None:
    """Write the line of an event."""
    log = logs.logger(shard=event.shard, child=event.name, child_pid=event.pid)
    name, plain = f"child.{event.kind}", f"child {event.kind}"
    match event.kind:
        case "stuck":
            words = "a child lives but has not beaten for long; it is killed and its jobs go back"
            log.error(words, event_name=name, silent_s=event.status)
        case "not_ready":
            log.error("a successor did not come up; who serves goes on", event_name=name, status=event.status)
        case "overdue":
            log.warning(
                "a replaced child's jobs take too long; they are told to stop", event_name=name, waited_s=event.status
            )
        case "orphans_killed":
            log.warning("what the jobs of a dead child had left running is killed", event_name=name)
        case "died" | "killed" | "failed":
            log.warning(plain, event_name=name, status=event.status)
        case _:
            log.info(plain, event_name=name, status=event.status)


def _working_folder() -> Path:
    """Return the name of the working folder, symbolic links and all where the shell has told them.

    There a child runs what a deployment has led that name to by then.
    """
    real, told = Path.cwd(), os.environ.get("PWD", "")
    with suppress(OSError):
        return Path(told) if told and real.samefile(told) else real
    return real
