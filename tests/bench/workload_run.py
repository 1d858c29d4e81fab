"""Run one contestant with one workload: its store, its producer, its workers."""

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench.contestants import GUIDELINE, JOBS, Contestant, Launch, interpreter
from tests.bench.errors import RunFailed, Stopped
from tests.bench.machine import Cores, cpu_seconds
from tests.bench.meters import Meters, Reading
from tests.bench.process import STOP_S, BenchProcess, clean_environment
from tests.bench.store import Store, free_port

LOOK_EVERY_S = 0.05
STALLED_S = 20.0
LONGEST_DRAIN_S = 60.0
CLIENT_S = 120.0


@dataclass(frozen=True)
class Conditions:
    """The conditions of a whole campaign or one part of it."""

    cores: Cores
    stopped: Callable[[], bool]
    aof: bool = False
    delay_ms: float = 0.0
    quick: bool = False
    seconds: float = 3.0
    """The seconds that a drain takes at the contestant's usual pace."""


@dataclass(frozen=True)
class Sample:
    """One sample of a running worker."""

    at: float
    count: int
    worker_cpu_s: float
    store_cpu_s: float


@dataclass
class Running:
    """A running worker: one process, or several that share the queues."""

    children: list[BenchProcess]
    meters: Meters
    stores: list[Store]
    stopped: Callable[[], bool]
    samples: list[Sample] = field(default_factory=list)
    """Samples since the first job was done."""
    each_look: Callable[[int], None] = lambda _count: None

    @property
    def pids(self) -> list[int]:
        return [pid for child in self.children for pid in child.pids]

    def wait_for(self, count: int, longest_s: float = LONGEST_DRAIN_S) -> Reading:
        """Return when so many jobs are done, or the number done when the time is up; raise RunFailed if none is done."""
        began = changed = time.monotonic()
        seen = self.meters.read().count
        while True:
            reading = self.meters.read()
            now = time.monotonic()
            if reading.count != seen:
                seen, changed = reading.count, now
                self._look(now, seen)
            if reading.count >= count or now - began > longest_s:
                return reading
            if self.stopped():
                raise Stopped
            for child in self.children:
                child.check()
            if now - changed > STALLED_S:
                raise RunFailed(f"stuck at {seen} of {count} jobs for {STALLED_S:g} s; {self.children[0].output()}")
            time.sleep(LOOK_EVERY_S)

    def _look(self, now: float, count: int) -> None:
        store_pids = [pid for store in self.stores for pid in store.pids]
        self.samples.append(Sample(now, count, cpu_seconds(self.pids), cpu_seconds(store_pids)))
        self.each_look(count)


class WorkloadRun:
    """Runs a store within the ``with`` block; its users fill and keep it."""

    def __init__(self, contestant: Contestant, folder: Path, environment: Path | None, given: Conditions) -> None:
        self.contestant = contestant
        self.folder = folder
        self.given = given
        self._python = interpreter(contestant, environment)
        self._runs = 0
        self._extra: list[Store] = []
        self._stack = ExitStack()
        folder.mkdir(parents=True)

    def __enter__(self) -> Self:
        try:
            self.store = self._another_store("redis")
            self.worker_port = self._behind_proxy(self.store.port) if self.given.delay_ms else self.store.port
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def extra_stores(self, count: int) -> list[Store]:
        """Return so many Redis servers in addition to the first, the same ones at each call; they end with this run."""
        while len(self._extra) < count:
            self._extra.append(self._another_store(f"redis-{len(self._extra) + 1}"))
        return self._extra[:count]

    def _another_store(self, name: str) -> Store:
        store = Store(self.folder / name, cores=self.given.cores.store, aof=self.given.aof)
        return self._stack.enter_context(store)

    def produce(
        self, action: str, *, cores: frozenset[int] | None = None, ports: Mapping[str, int] | None = None, **given: Any
    ) -> dict[str, float]:
        """Run the contestant's own client to its end and return its figures."""
        with self.producing(action, cores=cores, ports=ports, **given) as producer:
            producer.wait_for_end(CLIENT_S, self.given.stopped)
            measured: dict[str, float] = json.loads(producer.log.read_text().splitlines()[-1])
        return measured

    def producing(
        self, action: str, *, cores: frozenset[int] | None = None, ports: Mapping[str, int] | None = None, **given: Any
    ) -> BenchProcess:
        """Yield the contestant's own client, started."""
        own = self.contestant.environment(self.store.port, self.folder, ports)
        self._runs += 1
        return BenchProcess(
            [self._python, *self.contestant.client, action, json.dumps(given)],
            env=clean_environment() | own,
            cwd=self.folder,
            log=self.folder / f"client-{self._runs}.log",
            cores=cores or self.given.cores.producer,
        )

    @contextmanager
    def working(
        self, *launches: Launch, ports: Mapping[str, int] | None = None, stores: Sequence[Store] = ()
    ) -> Iterator[Running]:
        """Run a worker process per launch within the block; their meters are read together."""
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        meters = Meters(folder / "meters")
        recorded = any(launch.kind != GUIDELINE for launch in launches)
        own = self.contestant.environment(self.worker_port, self.folder, ports, recorded=recorded)
        own["BENCH_METERS"] = str(meters.folder)
        with ExitStack() as stack:
            children = [
                stack.enter_context(
                    BenchProcess(
                        self.contestant.worker(self._python, launch),
                        env=clean_environment() | own | {"BENCH_CONCURRENCY": str(launch.concurrency)},
                        cwd=folder, log=folder / f"worker-{number}.log", cores=self.given.cores.worker,
                        # The end of other contestants does not matter, and some take long for it. Lines are complete
                        # at the end.
                        grace_s=STOP_S if self.contestant.is_framework or self.contestant.lines else 0.0,
                    )
                )
                for number, launch in enumerate(launches)
            ]  # fmt: skip
            yield Running(children, meters, [self.store, *stores], self.given.stopped)

    def jobs(self, at_most_per_s: float) -> int:
        """Return how many jobs a run takes whose work itself allows so many in a second."""
        return max(50, round(self.given.seconds * min(self.contestant.pace, at_most_per_s)))

    def _behind_proxy(self, port: int) -> int:
        listening = free_port()
        argv = [sys.executable, str(JOBS / "proxy.py"), str(listening), str(port), str(self.given.delay_ms)]
        proxy = self._stack.enter_context(
            BenchProcess(
                argv, env=clean_environment(), cwd=self.folder, log=self.folder / "proxy.log",
                cores=self.given.cores.store,
            )
        )  # fmt: skip
        while not _listened(listening):
            proxy.check()
            time.sleep(0.02)
        return listening


def _listened(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except ConnectionRefusedError:
        return False
