"""Simulate one worker process with its real wiring, except for its threads, which move on request."""

import json
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from framework.all_settings import Settings, load
from framework.application_worker import ApplicationWorker
from framework.declare.policy_options import Deduplicate
from framework.errors import BusinessError, Discard, RetryLater
from framework.execute.execution import Execution
from framework.execute.job_log import JobLog
from framework.fetch.unit_of_work import UnitOfWork
from framework.process import boot
from framework.process.launcher import Launcher
from framework.process.signals import SignalQueue
from framework.process.worker_options import WorkerOptions
from framework.route.router import open_router
from framework.shard.shard import Shard
from framework.store.embedded import endpoint_of
from framework.wire import keys
from framework.wiring import worker_process
from tests.proofs.machine.interleaving import Act, Owner, mover, pause
from tests.proofs.machine.job_model import Broken

SLOTS = 2
QUEUES = ("a", "b", "c", "proof")
"""The queues of the producers; the last one is the class's own."""

SERVED = (*QUEUES, "default")
"""The queues of every process. Malformed bytes of an unknown queue become a dead set entry that names `default`, and an
operator may retry that entry by hand (`framework/wire/malformed.py`).
"""

LIMIT = 1
"""The most limited jobs that run at a time, and the most equal jobs."""

CLASSES = ("Proof", "Limited", "Keyed")
RETIRED = "Gone"
ENDS = ("done", "failed", "later", "discarded", "refused")
"""The ends of a job's own code."""

_RAISED: dict[str, Exception] = {
    "failed": RuntimeError("as chosen"),
    "later": RetryLater(21.0),
    "discarded": Discard("as chosen"),
    "refused": BusinessError("as chosen"),
}


def settings_for(folder: Path, urls: dict[str, str]) -> Settings:
    """Return the configuration of an installation with these shards."""
    config = folder / "config"
    config.mkdir(exist_ok=True)
    (config / "redis.yml").write_text(json.dumps({"shards": {name: {"url": url} for name, url in urls.items()}}))
    settings = load({"FRAMEWORK_CONFIG_DIR": str(config)}, folder)
    dead = settings.dead.model_copy(update={"business": True})  # one way to the dead set at the first failure
    return settings.model_copy(update={"retired_workers": {RETIRED: "it was removed"}, "dead": dead})


def declare() -> tuple[type[ApplicationWorker], ...]:
    """Declare the job classes in the current registry: each stops in its middle and ends as requested.

    The second is limited; the third is deduplicated too, and all jobs with equal arguments are equal.
    """

    class Proof(ApplicationWorker):
        """See above."""

        wire_name = "Proof"
        feature_category = "not_owned"
        queue = "proof"

        def perform(self, *_args: Any) -> None:
            act = mover()
            act.end = "done"
            pause("perform", self.jid)
            if act.end in _RAISED:
                raise _RAISED[act.end]

    class Limited(Proof):
        """See above."""

        wire_name = "Limited"
        concurrency_limit = LIMIT

    class Keyed(Limited):
        """See above."""

        wire_name = "Keyed"
        idempotent = True
        deduplicate = Deduplicate("until_executed", ttl=timedelta(days=1))  # no history is as long

    return Proof, Limited, Keyed


class _Signals(SignalQueue):
    """A queue of signals whose wait ends only when resumed."""

    def wait(self, timeout_s: float | None) -> Iterator[int]:
        came = list(super().wait(0))
        if not came and timeout_s:
            pause("wait")
            came = list(super().wait(0))
        yield from came

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Worker(Owner):
    """A process of ``shard``. ``on_start`` is called before each job, ``on_end`` after it."""

    def __init__(
        self,
        settings: Settings,
        shard: str,
        identity: str,
        log: JobLog,
        on_start: Callable[["Worker", UnitOfWork], None],
        on_end: Callable[["Worker", Execution], None],
    ) -> None:
        super().__init__()
        self.shard, self.identity = shard, identity
        self.frozen = self.gone = self.stopping = False
        self.slept = False
        """True if it was frozen and has sent no heartbeat since: it may rightly count as dead."""
        self.deaths: list[tuple[str, BaseException]] = []
        """Threads of the framework that ended by an error of their own."""
        self.signals = _Signals()
        self._shard = Shard(shard, endpoint_of(settings, shard), role="states")
        service = WorkerOptions(shard, tuple((name, 0) for name in SERVED), SLOTS, 1e9)
        self.parts = worker_process.build_worker(
            settings, open_router(settings), service, self._shard, identity, log, supervisor=None
        )
        self.list = keys.working(identity).encode()
        self._instrument(on_start, on_end)
        self.begin("main", self._main)

    def _instrument(self, on_start: Callable[..., None], on_end: Callable[..., None]) -> None:
        parts: Any = self.parts
        blocking, executor = parts.capsules.first.fetcher._leader._blocking, parts.capsules.first.processor._executor
        select, begin, died = blocking._selector.select, executor.begin, parts.events.component_died

        def waited(_timeout_s: float) -> Any:
            if not parts.capsules.first.fetcher._leader._rearm_requested and blocking.queues & self.paused:
                raise Broken(f"I15: {self} waits at {blocking.queues}, and knows that {self.paused} are paused")
            pause("wait")
            return select(0)

        def begun(unit: UnitOfWork) -> Execution:
            on_start(self, unit)
            run: Execution = begin(unit)
            on_end(self, run)
            return run

        def component_died(component: str, error: BaseException) -> None:
            self.deaths.append((component, error))
            died(component, error)

        blocking._selector.select, executor.begin, parts.events.component_died = waited, begun, component_died

    def _main(self) -> None:
        if boot.wait_for_redis(self._shard, self.parts, self.signals, _check_nothing) is None:
            Launcher(self.parts, self.signals).run()
        self.gone = True

    def __str__(self) -> str:
        return self.identity

    @property
    def paused(self) -> frozenset[str]:
        """Return the queues that it knows to be paused."""
        fetcher: Any = self.parts.capsules.first.fetcher
        return frozenset(fetcher._pipeline._rotation._paused)

    def let_time_go_by(self, redis_s: float, own_s: float, *, beating: bool) -> None:
        """Advance Redis's clock and its own; ``beating``: it has sent heartbeats meanwhile. Its remembered times move
        like scores.
        """
        grace: Any = self.parts.reaper._detector
        last, since, seen = grace._observed
        if beating:
            grace._observed = (last, since - redis_s, seen + own_s)
        else:
            grace._observed = (last - redis_s, since - redis_s, seen)

    @property
    def in_flight(self) -> Any:
        """Return its jobs in flight, as in its memory."""
        return self.parts.capsules.first.fetcher.in_flight

    def act(self, name: str) -> Act | None:
        """Return its thread of this name."""
        return next((act for act in self.acts if act.name == name and act.at != "ended"), None)

    def slots(self) -> list[Act]:
        """Return the threads that run jobs."""
        return [act for act in self.acts if act.name.startswith("processor") and act.at != "ended"]

    def stop(self, *, patient: bool) -> None:
        """Stop it with TERM; a patient one waits for its jobs as long as they take."""
        self.stopping = True
        self.parts.timeout_s = 1e9 if patient else 0.0
        self.signals.put(signal.SIGTERM)

    def end(self, *, spare: Act | None = None) -> None:
        """End the process; the command before which ``spare`` stopped is under way, and its blocking calls stay."""
        self.gone = True
        for act in self.acts:
            if act is spare:
                act.doomed = True
            else:
                act.kill()

    def close(self) -> None:
        """Close its connections, as the server does when it notices the end."""
        close_components(self.parts, self._shard)
        self.signals.close()


def close_components(parts: Any, shard: Shard) -> None:
    """Close every connection of a process whose threads have not been started, or have ended."""
    parts.capsules.first.fetcher._leader._blocking.close()
    parts.capsules.first.fetcher._state.wake_up.close()
    parts.capsules.first.fetcher._pipeline._call.close()
    for client in (parts.capsules.first.fetcher._leader._client, parts.record.client, parts.lease.client):
        client.close()
    parts.poller._transfer._shards.close()
    shard.close()


def _check_nothing() -> None:
    """Check nothing: the check of rights is a transaction that never runs, so no fault belongs there."""
