"""Build and run a worker inside of a process that is not its own."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Self

from framework.all_settings import Settings, load
from framework.command_line import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK
from framework.errors import ConfigurationError, ConfigurationProblem, FrameworkError
from framework.execute.job_log import JobLog
from framework.process import own_queues
from framework.process.boot import check_rights, wait_for_redis
from framework.process.components import ProcessComponents
from framework.process.identity import draw_nonce, identity_of
from framework.process.launcher import Launcher
from framework.process.own_queues import checked_capsules, checked_queues, without_capsules
from framework.process.signals import QUIET, STOP, STOP_NOW, SignalQueue
from framework.process.title import NoTitle
from framework.process.worker_options import WorkerOptions, check_options
from framework.route.router import MAIN, Router, checked_router, load_workers
from framework.settings.model import MAX_CONCURRENCY, MAX_TIMEOUT_S
from framework.shard.shard import Shard
from framework.shard.shards import open_block_store
from framework.store.embedded import endpoint_of
from framework.supervised_threads import SupervisedThread, report_to
from framework.telemetry import logs
from framework.telemetry.logs import LibraryLog
from framework.wiring.worker_process import build_worker

CONCURRENCY = 2
"""The jobs that run at a time by default (Sidekiq's): they share the interpreter with the application."""

NO_CAPSULES: Mapping[str, tuple[int, Sequence[str | tuple[str, int]]]] = MappingProxyType({})

# After the deadline of the jobs: the push-back, and the handlers of exit.
_STOP_MARGIN_S = 10.0
_READY_CHECK_PERIOD_S = 0.02


class _Current:
    lock = threading.Lock()
    worker: "EmbeddedWorker | None" = None


class EmbeddedWorker:
    """A worker that runs in threads of this process. One at a time; start it after a fork, never before.

    ``queues`` are names or ``(name, weight)``; without them it serves the queues of all loaded classes. ``modules`` are imported
    at the start, in addition to those that the application has imported. ``capsules`` are further groups of queues by name, each
    with its concurrency, for example ``{"slow": (1, ["reports"])}``. ``timeout`` is the time in seconds that running jobs get
    at the stop; the default is the setting.

    Raises:
        TypeError: ``queues`` is one name.
        ValueError: a queue, a capsule, ``concurrency`` or ``timeout`` is invalid.
    """

    def __init__(
        self,
        queues: Sequence[str | tuple[str, int]] = (),
        *,
        concurrency: int = CONCURRENCY,
        capsules: Mapping[str, tuple[int, Sequence[str | tuple[str, int]]]] = NO_CAPSULES,
        shard: str = MAIN,
        timeout: float | None = None,
        modules: Sequence[str] = (),
        tag: str | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self._queues = checked_queues(queues)
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency must be a whole number from 1 to {MAX_CONCURRENCY:,}, not {concurrency!r}")
        self._capsules = checked_capsules(capsules)
        if timeout is not None and not 0 <= timeout <= MAX_TIMEOUT_S:
            raise ValueError(f"timeout must be a number of seconds from 0 to {MAX_TIMEOUT_S:,g}, not {timeout!r}")
        self._concurrency = concurrency
        self._shard_name = shard
        self._timeout_s = timeout
        self._modules = tuple(modules)
        self._tag = tag
        self._labels = tuple(labels)
        self._signals: SignalQueue | None = None
        self._components: ProcessComponents | None = None
        self._thread: SupervisedThread | None = None
        self._pid = 0
        self.status: int | None = None
        """The exit status that a process of its own would have, ``None`` before the end: 0 after a stop, 1 when a thread died."""

    @property
    def running(self) -> bool:
        """Whether the worker runs in this process: from ``start`` until its end."""
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    @property
    def ready(self) -> bool:
        """Whether the worker fetches jobs: Redis has answered it lately."""
        components = self._components
        return self.running and components is not None and components.shared_state.fetches(components.timings)

    def start(self) -> None:
        """Start the worker and return; it then connects, and fetches jobs as soon as Redis answers.

        Raises:
            ConfigurationError: the configuration, the modules or the rules are invalid, or the shard is unknown.
            FrameworkError: an embedded worker runs in this process already.
        """
        with _Current.lock:
            if _Current.worker is not None and _Current.worker.running:
                raise FrameworkError("an embedded worker runs in this process already: stop it, or give it all queues")
            settings = load()
            router = load_workers(settings, self._modules) if self._modules else checked_router(settings)
            options = self._options(settings, router)
            check_options(options, settings)
            self._signals = signals = SignalQueue()
            shard = Shard(
                options.shard,
                endpoint_of(settings, options.shard),
                role=f"embedded:{os.getpid()}",
                block_store=open_block_store(settings),
            )
            self._components = components = _build(settings, router, options, shard)
            self.status, self._pid = None, os.getpid()
            run = partial(self._run, settings, shard, components, signals)
            self._thread = SupervisedThread("embedded-worker", run, elastic=True)
            _Current.worker = self
            self._thread.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` until the worker fetches jobs; return whether it does."""
        deadline = time.monotonic() + timeout_s
        while not self.ready and self.running and time.monotonic() < deadline:
            time.sleep(_READY_CHECK_PERIOD_S)
        return self.ready

    def quiet(self) -> None:
        """Fetch no new jobs; the running ones go on. It lasts until ``stop``."""
        if self._signals is not None and self.running:
            self._signals.put(QUIET)

    def stop(self, *, wait_for_jobs: bool = True) -> bool:
        """Stop: running jobs get the timeout, the others go back to their queues. Return whether every job has ended.

        A job that has not ended is back in its queue, so it may run elsewhere while its thread goes on here. Do not call it
        from a job.
        """
        thread, components, signals = self._thread, self._components, self._signals
        if thread is None or components is None or self._pid != os.getpid():
            return True
        if signals is not None:
            if thread.is_alive():
                signals.put(STOP[0] if wait_for_jobs else STOP_NOW)
                thread.join(components.timeout_s + _STOP_MARGIN_S)
            if not thread.is_alive():
                self._signals = None
                signals.close()
        return not thread.is_alive() and components.capsules.join(0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _options(self, settings: Settings, router: Router) -> WorkerOptions:
        if self._shard_name not in settings.shards:
            known = ", ".join(settings.shards)
            problem = f"the shard {self._shard_name!r} of the embedded worker is unknown; shards: {known}"
            raise ConfigurationError([ConfigurationProblem(settings.config_file_label("redis.yml"), "shards", problem)])
        own = own_queues.of_loaded_classes(settings, router, self._shard_name)
        return WorkerOptions(
            shard=self._shard_name,
            queues=self._queues or without_capsules(own.weights, self._capsules),
            slots=self._concurrency,
            timeout_s=settings.timeout if self._timeout_s is None else self._timeout_s,
            no_namespaces=not self._queues,
            tag=self._tag or settings.tag,
            labels=self._labels or settings.labels,
            queues_from="EmbeddedWorker" if self._queues else own.source,
            capsules=self._capsules,
        )

    def _run(self, settings: Settings, shard: Shard, components: ProcessComponents, signals: SignalQueue) -> None:
        status = EXIT_FAILED
        report_to(components.events.component_died)
        try:
            status = _serve(settings, shard, components, signals)
        finally:
            report_to(None)
            if status != EXIT_OK:
                logs.logger().error(
                    "the embedded worker has ended by itself; this process goes on without it. Look at the lines above",
                    event_name="embedded.ended",
                    status=status,
                )
            # Last: the line must be there when an application that waits for the status ends.
            self.status = status


def _serve(settings: Settings, shard: Shard, components: ProcessComponents, signals: SignalQueue) -> int:
    """Run the worker; return the exit status that a process of its own would have."""
    try:
        check = partial(check_rights, settings, shard)
        waited = wait_for_redis(shard, components, signals, check)
        status = Launcher(components, signals).run() if waited is None else waited
        components.events.summarize_foreign(process_ends=True)
    # Its line has been written, and there is no command to show it.
    except ConfigurationError:
        return EXIT_CONFIGURATION
    except BaseException as error:  # noqa: BLE001 - the application must not lose the error in a thread
        components.events.component_died("embedded-worker", error)
        return EXIT_FAILED
    else:
        return status
    finally:
        components.close()


def _build(settings: Settings, router: Router, options: WorkerOptions, shard: Shard) -> ProcessComponents:
    """Return the components of a worker that leaves the process as it is."""
    job_log = JobLog(LibraryLog({"pid": os.getpid(), "shard": options.shard}), jobs=settings.logging.jobs)
    # Never the nonce that a supervisor gave to this process: its identity is that of a process of its own.
    identity = identity_of(os.getpid(), draw_nonce())
    components = build_worker(settings, router, options, shard, identity, job_log, supervisor=None)
    components.title = NoTitle()
    components.record.embedded = True
    return components
