"""The life of a worker process: register, run, quiet, stop, and give back what is unfinished.

Start: the lease is beaten once before the first fetch, so that nobody takes us for dead.
Drain: no more fetching; the jobs in hand have all the time they need, or until told to stop.
Stop: (1) no more fetching, parked calls are ended; (2) wait for the jobs in hand until the deadline; (3) what is left
goes back to the right end of its queue, or is given up (``push_back``), from the main thread's own connection; (4) the lease
goes last: until then no other process may touch this one's list; (5) the classes of jobs that were given up run their hooks,
for a second at most. A thread that hangs cannot keep the process: ``os._exit``.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from redis.exceptions import RedisError

from framework.errors import PayloadError
from framework.execute.processor import Processor
from framework.fetch.fetcher import Fetcher
from framework.fetch.parking import PARK_S, REPLY_MARGIN_S
from framework.fetch.reaper import Reaper, Reconciler, draw_pause
from framework.fetch.slots import renew
from framework.fetch.unit_of_work import UnitOfWork
from framework.process.board import Board, State
from framework.process.events import ProcessEvents
from framework.process.eviction import EvictionWatch
from framework.process.heartbeat import (
    HOOKS_LIMIT_S,
    LEASE_PERIOD_S,
    RECORD_PERIOD_S,
    SWEEP_PERIOD_S,
    Lease,
    Loop,
    StuckError,
    Watchdog,
)
from framework.process.metrics import Metrics
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord
from framework.process.signals import DRAIN, DUMP, HANG_UP, QUIET, STOP, STOP_NOW, SWEEP, SignalQueue, asked_for
from framework.process.title import Title
from framework.process.unserved import UnservedWatch
from framework.schedule.poller import Poller
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.wire import keys
from framework.wire.ids import base36
from framework.wire.job import decode

EXIT_CLEAN = 0
EXIT_DIED = 1

_WIND_DOWN_S = 6.0  # a read of 5 s that the thread at the post is in the middle of
_DIED_PATIENCE_S = 2.0  # with a part of us dead: it may be the one that keeps our lease
_CANCEL_S = 0.5  # for cancelled async jobs to clean up
_DRAIN_S = 0.1  # how often acknowledgements leave while the last jobs run
_FETCHER_LIMIT_S = 60.0  # the post is looked after each 10 s at the latest, its reads have deadlines of 5 s
_SKEW_S = 2.0  # between our clock and Redis's, that somebody should see to
_FIRST_ANSWER_S = 0.05  # how often it is looked whether Redis has answered the first fetch
_WATCH_S = 1.0  # how often the main thread looks for a dead component or a dead parent


@dataclass
class Parts:
    """Everything one process consists of, wired by ``framework.wiring``."""

    identity: str
    fetcher: Fetcher
    processor: Processor
    lease: Lease
    record: ProcessRecord
    metrics: Metrics
    title: Title
    poller: Poller
    reaper: Reaper
    reconciler: Reconciler
    learn: Callable[[], None]
    """What the policies have to know before the first job, and anew every few seconds; raises redis errors."""
    upkeep: Sequence[Callable[[], None]]
    """What the policies do every few seconds; raises redis errors."""
    events: ProcessEvents
    push_back: PushBack
    poll_interval_s: float
    timeout_s: float
    supervisor: int | None
    """Process id of whoever looks after us."""
    board: Board
    unserved: UnservedWatch


class Launcher:
    """Runs one process from its main thread."""

    def __init__(self, parts: Parts, signals: SignalQueue) -> None:
        self._parts = parts
        self._signals = signals
        self._log = logs.logger()
        events = parts.events
        upkeep = parts.record.client
        self._lease_loop = Loop("lease", self._beat, LEASE_PERIOD_S, events, client=parts.lease.client)
        self._sweep_loop = Loop("reaper", self._sweep, SWEEP_PERIOD_S, events, client=upkeep, limit_s=HOOKS_LIMIT_S)
        self._loops = [
            Loop("record", self._write_record, RECORD_PERIOD_S, events, client=upkeep),
            self._sweep_loop,
            Loop("policies", self._keep, SWEEP_PERIOD_S, events, client=upkeep, limit_s=HOOKS_LIMIT_S),
            Loop("poller", self._poll, parts.poll_interval_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S),
            Loop("unserved", parts.unserved.step, SWEEP_PERIOD_S, events, limit_s=HOOKS_LIMIT_S),
        ]
        self._eviction = EvictionWatch(upkeep, events)
        self._paused: list[str] = []
        self._active_at = 0.0
        self._watched_at = time.monotonic()
        self._in_vain_s = 0.0
        self._draining = False
        self._at_once = False
        """Whether no job is waited for at the end."""
        self._watchdog = Watchdog([self._lease_loop, *self._loops], _WATCH_S)

    def run(self) -> int:
        """Work until told to stop; return the exit status: 0, or 1 when a thread of the framework died. The lease is held."""
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - this thread is one of the framework's, too
            # What is in hand is in the working list: another process takes it back when our lease has run out.
            self._parts.events.component_died("main", error)
            return EXIT_DIED

    def _run(self) -> int:
        parts = self._parts
        self._lease_loop.start()
        for loop in self._loops:
            loop.start()
        with contextlib.suppress(RedisError, OSError):  # the loops do it again
            self._read_pauses()
            parts.learn()
        self._show()
        parts.fetcher.start(parts.processor.hire)
        queues = {"queues": parts.record.order.names, "queues_from": parts.record.queues_from}
        self._log.info("ready", event_name="process.ready", identity=parts.identity, **queues)
        stop = False
        while not (stop or self._draining or self._broken):
            serves = parts.board.state is not State.STARTING
            stop = self._obey(_WATCH_S if serves else _FIRST_ANSWER_S) or self._orphaned()
            self._watch()
            self._report()
        if self._draining and not stop:
            self._finish()
        if self._signals.damaged:
            # Nothing can be said any more without perhaps saying it to somebody else: what is in hand is recovered.
            parts.events.component_died("descriptors", OSError("a job has closed what is not its own"))
            return EXIT_DIED
        self._stop()
        return EXIT_DIED if parts.events.died.is_set() else EXIT_CLEAN

    @property
    def _broken(self) -> bool:
        """Whether the process cannot go on, whatever anybody wants."""
        return self._parts.events.died.is_set() or self._signals.damaged

    def _obey(self, timeout_s: float) -> bool:
        """Handle the signals that came; return whether to stop."""
        stop = False
        for number in self._signals.wait(timeout_s):
            if number in (*STOP, STOP_NOW):
                if number == STOP_NOW or (stop and self._hurries(number)):
                    self._at_once = True
                stop = True
                self._log.info("stopping", event_name="process.stopping", signal=signal.Signals(number).name)
            elif number == DRAIN:
                self._draining = not stop
            elif number == QUIET:
                self._quiet()
            elif number == DUMP:
                self._dump()
            elif number == SWEEP:
                self._sweep_loop.hurry()
            elif number == HANG_UP:
                self._log.info("the log is stdout: there is no file to open anew", event_name="process.hangup")
        return stop

    def _hurries(self, number: int) -> bool:
        """Whether a signal that comes after the first to stop says that no job is to be waited for."""
        return number == STOP_NOW or (number in STOP and self._parts.supervisor is None)

    def _watch(self) -> None:
        self._parts.fetcher.relay()  # a thread that could not be had when it was needed may be had by now
        self._watch_loops()
        active_at, now = self._parts.fetcher.active_at, time.monotonic()
        # Between two looks no more counts than there is: time that the machine slept away is nobody's fault.
        passed_s, self._watched_at = min(2 * _WATCH_S, now - self._watched_at), now
        self._in_vain_s = self._in_vain_s + passed_s if active_at == self._active_at else 0.0
        self._active_at = active_at
        if self._in_vain_s > _FETCHER_LIMIT_S:
            error = StuckError(f"nobody has looked after the queues for more than {_FETCHER_LIMIT_S:g} s")
            self._parts.events.component_died("fetcher", error)

    def _watch_loops(self) -> None:
        stuck = self._watchdog.look()
        if stuck is not None:
            error = StuckError(f"a step of {stuck.name} has been under way for more than {stuck.limit_s:g} s")
            self._parts.events.component_died(stuck.name, error)

    def _report(self) -> None:
        """Say on the board how we are."""
        parts = self._parts
        state = parts.board.state
        if self._draining:
            state = State.DRAINING
        elif parts.record.quiet:
            state = State.QUIET
        elif parts.fetcher.fetching:
            state = State.READY
        fetched_at = parts.fetcher.active_at if parts.fetcher.fetching else None
        parts.board.show(state, len(parts.fetcher.custody.running()), fetched_at)

    def _orphaned(self) -> bool:
        """A child whose supervisor died stops too: nobody would restart it, or end it."""
        if self._parts.supervisor is not None and os.getppid() != self._parts.supervisor:
            self._log.warning("the supervisor is gone; stopping", event_name="process.orphaned")
            return True
        return False

    def _quiet(self) -> None:
        if not self._parts.record.quiet:
            self._parts.record.quiet = True
            self._parts.fetcher.quiet()
            self._show()
            self._log.info("quiet: no new jobs are taken", event_name="process.quiet")

    def _dump(self) -> None:
        """Write every thread's stack, with the job it runs."""
        running = self._parts.record.runs.running()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
            unit = running.get(ident)
            self._log.warning(
                "stack",
                event_name="process.stack",
                thread=names.get(ident, str(ident)),
                tid=base36(ident),
                jid=_field(unit[0], "jid") if unit else None,
                stack=[line.rstrip() for line in traceback.format_stack(frame)],
            )
        for jid, lines in self._parts.processor.stacks():
            self._log.warning("stack", event_name="process.stack", thread="event-loop", jid=jid, stack=lines)

    def _finish(self) -> None:
        """Drain: give back what has not begun and wait for the rest until it has ended, or until we are to stop all the same."""
        parts = self._parts
        running = [
            {"jid": _field(unit, "jid"), "class": _field(unit, "class")} for unit in parts.fetcher.custody.running()
        ]
        self._log.info("draining: running jobs may finish", event_name="process.draining", running_jobs=running)
        parts.record.quiet = parts.record.runs.interrupted = True
        self._show()
        parts.fetcher.stop()
        with contextlib.suppress(RedisError, OSError):  # as in ``_stop``, where it is tried again
            parts.fetcher.wind_down(_WIND_DOWN_S)
        while not (self._broken or parts.processor.join(0) or self._obey(_DRAIN_S) or self._orphaned()):
            self._watch_loops()
            self._report()
            with contextlib.suppress(RedisError, OSError):
                parts.fetcher.acknowledge()

    def _stop(self) -> None:
        parts = self._parts
        deadline = time.monotonic() + self._patience_s()
        parts.board.show(State.STOPPING, len(parts.fetcher.custody.running()), None)
        parts.record.quiet = True
        parts.record.runs.interrupted = parts.record.runs.ending = True
        parts.fetcher.stop()
        for loop in self._loops:
            loop.ask_to_stop()  # all at once: while Redis hangs, each step takes its time-out
        for loop in self._loops:
            loop.stop()
        with contextlib.suppress(RedisError, OSError):  # what is left in hand is given back at the end, or recovered
            parts.fetcher.wind_down(min(_WIND_DOWN_S, max(1.0, deadline - time.monotonic())))
        finished = self._drain(deadline)
        if not finished:
            parts.record.runs.overdue = True
            parts.processor.cancel_async(_CANCEL_S)
        parts.processor.abandon()
        try:
            parts.fetcher.acknowledge()
            in_time = not (self._at_once or parts.events.died.is_set())
            parts.push_back.give_back(parts.timeout_s if in_time else None)
            parts.fetcher.acknowledge()  # what ended while we gave back
            with contextlib.suppress(RedisError, OSError):  # refused at maxmemory; the record runs out by itself
                parts.record.remove()
                counters.flush(parts.record.client)
                parts.metrics.flush()
            self._lease_loop.stop()
            lost_at = parts.fetcher.parked_lost_at
            parts.lease.drop(emptied=lost_at is None or time.monotonic() - lost_at > PARK_S + REPLY_MARGIN_S)
            self._log.info(
                "stopped", event_name="process.stopped", returned=parts.push_back.returned, finished=finished
            )
        except (RedisError, OSError) as error:
            # Everything unfinished is in the working list; whoever lives takes it back when our lease has run out.
            self._log.error("stopped without Redis; jobs in hand are left to be recovered", error=error)
        parts.push_back.tell_given_up()

    def _patience_s(self) -> float:
        """How long the jobs in hand may still run."""
        if self._at_once:
            return 0.0
        if self._parts.events.died.is_set():
            return min(_DIED_PATIENCE_S, self._parts.timeout_s)
        return self._parts.timeout_s

    def _drain(self, deadline: float) -> bool:
        """Wait for the jobs in hand until the deadline, or until told to wait no longer; tell whether all have ended.

        Acknowledges as they end.
        """
        while not self._parts.processor.join(_DRAIN_S):
            with contextlib.suppress(
                RedisError, OSError
            ):  # tried again: a death before the end would repeat these jobs
                self._parts.fetcher.acknowledge()
            self._show()
            if self._waits_no_longer() or time.monotonic() >= deadline:
                return False
        return True

    def _waits_no_longer(self) -> bool:
        for number in self._signals.wait(0):
            if self._hurries(number):
                self._at_once = True
                self._log.info("not waiting for jobs", event_name="process.forced", signal=signal.Signals(number).name)
                return True
        return False

    def _beat(self) -> None:
        lease, events = self._parts.lease, self._parts.events
        lease.beat()
        self._parts.board.beaten()
        if lease.lapsed:
            events.lease_lost()
        if lease.forgotten:
            events.data_lost()
        if abs(lease.skew_s) >= _SKEW_S:
            events.clock_skewed(lease.skew_s)

    def _show(self) -> None:
        """``ps`` says what the record says."""
        record = self._parts.record
        runs = record.runs
        state = "stopping" if runs.ending else "draining" if runs.interrupted else "quiet" if record.quiet else ""
        self._parts.title.show(len(runs.running()), record.slots, state)

    def _write_record(self) -> None:
        self._show()
        for number in asked_for(self._parts.record.beat()):
            self._signals.put(number)
        self._read_pauses()
        renew(self._parts.record.client, self._parts.fetcher.custody.running())
        counters.flush(self._parts.record.client)
        self._parts.metrics.beat()
        self._eviction.look()

    def _read_pauses(self) -> None:
        members = cast("set[bytes]", self._parts.record.client.smembers(keys.PAUSED))
        paused = sorted(name.decode(errors="backslashreplace") for name in members)
        if paused != self._paused:
            self._paused = paused
            self._parts.fetcher.pause(paused)
            self._log.info("paused queues are skipped", event_name="queues.paused", queues=paused)

    def _sweep(self) -> float:
        try:
            self._parts.reaper.sweep(own=self._parts.identity)
        finally:  # a dead process's odd keys must not hide what we have lost sight of ourselves
            self._parts.reconciler.look()
        return draw_pause(SWEEP_PERIOD_S)

    def _keep(self) -> float:
        self._parts.learn()
        for step in self._parts.upkeep:
            step()
        return draw_pause(SWEEP_PERIOD_S)

    def _poll(self) -> float:
        return self._parts.poller.step()


def _field(unit: UnitOfWork, name: str) -> str | None:
    try:
        payload = decode(unit.data) if unit.outline is None else unit.outline
    except PayloadError:
        return None
    return str(payload.get(name))
