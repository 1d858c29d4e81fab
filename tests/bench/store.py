"""Run a private redis-server for one contestant, its queue kept as a copy that each repetition starts from."""

import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.bench.errors import RunFailed
from tests.bench.process import BenchProcess, clean_environment

BOOT_S = 10.0
QUEUE_DB, COPY_DB, JOB_DB = 0, 1, 2
"""The contestant's own database; the filled queue; the jobs' own writes."""
KEYS_AT_A_TIME = 2000
MOST_CALLS = 1_000_000


class Store:
    """Runs within the ``with`` block, on loopback, without persistence unless ``aof`` (fsync every second)."""

    def __init__(self, folder: Path, *, cores: frozenset[int], aof: bool = False) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise RunFailed("redis-server is not installed; scripts/setup --system installs it")
        folder.mkdir(parents=True)
        self.port = free_port()
        persistence = ["--appendonly", "yes", "--appendfsync", "everysec"] if aof else ["--appendonly", "no"]
        self._child = BenchProcess(
            [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *persistence],
            env=clean_environment(),
            cwd=folder,
            log=folder / "redis.log",
            cores=cores,
        )
        self._queue = self._client(QUEUE_DB)
        self._copy = self._client(COPY_DB)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + BOOT_S
        while True:
            try:
                self._queue.ping()
            except RedisConnectionError as error:
                if time.monotonic() > deadline:
                    self.close()
                    raise RunFailed(f"redis-server does not answer: {error}; {self._child.output()}") from error
                time.sleep(0.02)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._queue.close()
        self._copy.close()
        self._child.end()

    @property
    def pids(self) -> list[int]:
        return self._child.pids

    @property
    def version(self) -> str:
        info: Any = self._queue.info("server")
        return str(info["redis_version"])

    def empty(self) -> None:
        """Empty every database."""
        self._queue.flushall()

    def keep(self) -> None:
        """Keep a copy of the queue."""
        self._copy.flushdb()
        self._transfer(self._queue, COPY_DB)

    def restore(self) -> None:
        """Restore the queue from its copy, and remove the jobs' own writes."""
        self._queue.flushdb()
        self._client(JOB_DB).flushdb()
        self._transfer(self._copy, QUEUE_DB)

    def count(self, pattern: str) -> int:
        """Return how many keys of the queue's database match a pattern."""
        return sum(1 for _ in self._queue.scan_iter(pattern, count=KEYS_AT_A_TIME))

    def cpu_s(self) -> float:
        """Return the processor time of the main thread so far, by Redis's own clock: finer than that of the system."""
        found: Any = self._queue.info("cpu")
        return float(found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"])

    def commands(self) -> Counter[str]:
        """Return how often each command ran so far, inside scripts too, without those of this tool."""
        found: Any = self._queue.info("commandstats")
        calls = Counter({name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in found.items()})
        del calls["info"]
        return calls

    def cpu_us(self) -> float:
        """Return the processor time of the thread that runs commands so far, in microseconds."""
        used: Any = self._queue.info("cpu")
        return 1e6 * (float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"]))

    @contextmanager
    def times_of_calls(self) -> Generator[Callable[[], Iterator[tuple[bytes, int]]]]:
        """Note each call within the block; yield a function that yields the beginning of each, and its microseconds."""
        self._queue.config_set("slowlog-max-len", MOST_CALLS)
        self._queue.config_set("slowlog-log-slower-than", 0)
        self._queue.slowlog_reset()

        def noted() -> Iterator[tuple[bytes, int]]:
            self._queue.config_set("slowlog-log-slower-than", -1)
            found: Any = self._queue.slowlog_get(MOST_CALLS)
            yield from ((one["command"], one["duration"]) for one in found)

        yield noted
        self._queue.config_set("slowlog-log-slower-than", -1)

    def members(self, key: str) -> int:
        """Return how many members a list or sorted set of the queue's database has."""
        kind: Any = self._queue.type(key)
        count: Any = self._queue.llen(key) if kind == b"list" else self._queue.zcard(key)
        return int(count)

    def _transfer(self, source: "Redis", target: int) -> None:
        names = list(source.scan_iter(count=KEYS_AT_A_TIME))
        for start in range(0, len(names), KEYS_AT_A_TIME):
            with source.pipeline(transaction=False) as pipe:
                for name in names[start : start + KEYS_AT_A_TIME]:
                    pipe.copy(name, name, destination_db=str(target))
                pipe.execute()

    def _client(self, database: int) -> "Redis":
        return Redis(port=self.port, db=database, socket_timeout=60)


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
