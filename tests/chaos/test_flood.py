"""Flood a small Redis with the jobs of one class that cannot run, beside 40 healthy classes, while processes and Redis are killed.

``FLOOD_JOBS`` and ``FLOOD_MEMORY_MB`` set the size: by default 200,000 and 64, in the full form 12,000,000 and 512.
``FLOOD_KILLS`` is the least number of kills while the flood comes, and while it drains; each third one is of Redis. ``FLOOD_FSYNC``
is its ``appendfsync``. ``FLOOD_HOLD_S`` is how long the cause holds at most: then it ends, and what was not accepted comes meanwhile.
``FLOOD_REPORT`` names a file for the figures of each round, a line of JSON; a round that it has is not run again, so a second call
continues with the next cause. A line each ten seconds on standard error says how far a round is.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from framework.fetch.blocks import packed_jobs, true_size
from framework.fetch.held_blocks import packed_held
from framework.store import embedded
from framework.wire import keys
from tests.chaos.flood_jobs import HEALTHY_RUN, SERIAL
from tests.harness import Site, until
from tests.servers.guarded import GuardedServer, with_all_rights

HERE = Path(__file__).resolve().parent
JOBS = int(os.environ.get("FLOOD_JOBS", "200000"))
MEMORY_MB = int(os.environ.get("FLOOD_MEMORY_MB", "64"))
REPORT = os.environ.get("FLOOD_REPORT", "")
RATE = float(os.environ.get("FLOOD_HEALTHY_RATE", "80"))
"""The healthy jobs per second."""
LATER = 1_000_000_000
"""The first serial of the healthy jobs that are pushed during the flood."""
ALONE_S = 20.0
"""How long the healthy classes run alone, for the comparison."""
KILLS = int(os.environ.get("FLOOD_KILLS", "3"))
KILL_EVERY_S = 12.0
FURTHER_KILLS_EVERY_S = 60.0
"""Behind the first ``KILLS``, while a long flood goes on."""
FSYNC = os.environ.get("FLOOD_FSYNC", "everysec")
IN_FLIGHT = 42
"""Jobs of one process that a kill may let run again: ten slots, and the ends of one group that are not written yet."""
IDLE_S = 30.0
"""The flood counts as held back when no job of it was accepted for so long."""
HOLD_S = float(os.environ.get("FLOOD_HOLD_S", str(90 + JOBS // 40_000)))
PRODUCERS = 2
STALLED_S = 240.0
"""A round ends in failure when no further job ran for so long."""
BEFORE_KILL_S, BEHIND_KILL_S = 2.0, 5.0
"""Healthy jobs that are pushed so long before a kill, or behind the start of what follows, wait for that, and not for the flood."""

# By the cause: the class, the queues that the workers serve in the flood, and the commands that make and end the cause.
_FOR = ("--for", "12h", "--reason", "flood")
CAUSES = {
    "limited": (
        "FloodWorker",
        ("limits", "set", "FloodWorker", "-1", *_FOR),
        ("limits", "set", "FloodWorker", "0", *_FOR),
    ),
    "paused": ("FreeFloodWorker", ("pause", "FreeFloodWorker", *_FOR), ("resume", "FreeFloodWorker")),
    "deferred": ("FreeFloodWorker", ("defer", "FreeFloodWorker", *_FOR), ("flags", "clear", "FreeFloodWorker")),
    "workers down": ("FreeFloodWorker", None, None),
}


class SmallServer(GuardedServer):
    """A server with little memory, after each restart too."""

    def _configure(self) -> str:
        url = super()._configure()
        with (self.data_dir / "server.conf").open("a") as settings:
            settings.write(f"maxmemory {MEMORY_MB}mb\nappendfsync {FSYNC}\n")
        return url


class Round:
    """One flood: the processes, the faults, the memory, and what was pushed."""

    def __init__(self, site: Site, server: SmallServer, cause: str) -> None:
        self.site, self.server, self.cause = site, server, cause
        self.worker, self._begin, self._end = CAUSES[cause]
        self.folder = site.folder / "ran"
        self.folder.mkdir()
        self.flooding, self.over = cause != "workers down", threading.Event()
        self.most_memory = self.most_jobs = 0
        self.kills = {"worker": 0, "redis": 0}
        self.kills_in_drain = 0
        self.most_in_blocks = 0
        self.workers = []
        self.flood_runs = FloodRuns(self.folder)
        self._disturbed: list[tuple[float, float]] = []
        """The times of kills, from before each until what was killed has started again."""
        self._began = time.monotonic()
        self._producers: list[subprocess.Popen[str]] = []
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    # --- processes

    def producer(self, *words: object) -> "subprocess.Popen[str]":
        env = self.site.environment("producer", FLOOD_FOLDER=str(self.folder), REDIS_URL=self.server.url)
        argv = [sys.executable, str(HERE / "flood_producer.py"), *map(str, words)]
        pipe = subprocess.PIPE
        with (self.site.folder / "producer.err").open("ab") as errors:
            made = subprocess.Popen(
                argv, cwd=self.site.folder, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True
            )
        self._producers.append(made)
        return made

    def close(self) -> None:
        self.over.set()
        for one in self._producers:
            one.kill()
            one.wait(10)
            for stream in (one.stdin, one.stdout):
                if stream is not None:
                    stream.close()
        self._watcher.join(10)

    def start_worker(self) -> None:
        queues = ("-q", "healthy", "-q", "flood") if self.flooding else ("-q", "healthy")
        options = {
            "REDIS_URL": self.server.url,
            "FLOOD_FOLDER": str(self.folder),
            "FRAMEWORK_FLAGS__DEFER_DELAY": "10",
            "FRAMEWORK_FLAGS__RELEASE_RATE": "20000",
            # Two lines of each of 12 million jobs are some gigabytes.
            "FRAMEWORK_LOGGING__JOBS": "false",
        }
        process = self.site.worker(*queues, "-c", "10", **options)
        # Longer than elsewhere: the flood takes the machine too.
        until(lambda: process.find(event_name="process.ready"), "the process is ready", 300)
        self.workers.append(process)

    def command(self, *words: str) -> None:
        # A Redis that loads its file after a kill answers later.
        for _ in range(20):
            found = self.site.run("-m", "framework", "jobs", *words, "-r", "flood_jobs", REDIS_URL=self.server.url)
            if not found.returncode:
                return
            time.sleep(1)
        pytest.fail(f"jobs {' '.join(words)}: {found.stdout} {found.stderr}")

    # --- faults and figures, in threads of their own

    def _watch(self) -> None:
        """Note the most memory and the most waiting jobs."""
        with Redis.from_url(with_all_rights(self.server.url), socket_timeout=5) as client:
            self._note_until_over(client)

    def _note_until_over(self, client: Redis) -> None:
        while not self.over.wait(0.2):
            with suppress(RedisError, RuntimeError):
                self.most_memory = max(self.most_memory, client.info("memory")["used_memory"])
                self.most_jobs = max(self.most_jobs, waiting(client, self.worker))
                in_blocks = int(client.hget(keys.PACKED, "flood") or 0) + sum(packed_held(client).values())
                self.most_in_blocks = max(self.most_in_blocks, in_blocks)

    def kill_something(self, number: int) -> None:
        """Kill a worker, every third time Redis."""
        began = time.time() - BEFORE_KILL_S
        if number % 3 == 1:
            self.server.kill()
            self.kills["redis"] += 1
            self.server.start()
        else:
            victim = self.workers.pop(random.randrange(len(self.workers)))
            victim.kill()
            self.kills["worker"] += 1
            self.start_worker()
        self._disturbed.append((began, time.time() + BEHIND_KILL_S))

    # --- the way of the round

    def run(self) -> dict[str, object]:
        self._watcher.start()
        for _ in range(2):
            self.start_worker()
        alone = self._healthy_alone()
        if self._begin:
            self.command(*self._begin)
        healthy, flood = self.producer("healthy", RATE, LATER), self._flood_producers()
        self._flood(flood)
        held_s = time.monotonic() - self._began
        waits, disturbed = self.healthy_waits(LATER, calm=True), self.healthy_waits(LATER)
        self.show(f"the cause ends: {self._told(flood, 'accepted'):,} jobs were accepted by now")
        began = time.monotonic()
        if self._end:
            self.command(*self._end)
        if not self.flooding:
            self.flooding = True
            for _ in range(2):
                self.start_worker()
        ran = self._drain(flood)
        recovered_s = time.monotonic() - began
        pushed = self._finish(healthy)
        until(lambda: self.healthy_ran() >= pushed["pushed"] - pushed["failed"], "every healthy job ran", 120)
        self.over.set()
        return {
            "cause": self.cause,
            "jobs": JOBS,
            "memory_mb": MEMORY_MB,
            "most_memory_mb": round(self.most_memory / 2**20, 1),
            "most_waiting": self.most_jobs,
            "most_in_blocks": self.most_in_blocks,
            "accepted": self._told(flood, "accepted"),
            "refused_pushes": self._told(flood, "refused"),
            "lost": JOBS - ran,
            "ran_again": self.flood_runs.count - ran,
            "kills": self.kills,
            "kills_in_drain": self.kills_in_drain,
            "fsync": FSYNC,
            "held_s": round(held_s, 1),
            "recovered_s": round(recovered_s, 1),
            "healthy_pushed": pushed["pushed"],
            "healthy_failed": pushed["failed"],
            "healthy_refused_as_full": pushed["full"],
            "healthy_ran": self.healthy_ran(),
            "p99_alone_ms": round(1_000 * p99(alone), 1),
            # Between the kills, and with the jobs that a kill of their process or of Redis kept waiting.
            "p99_flood_ms": round(1_000 * p99(waits), 1),
            "p99_flood_and_kills_ms": round(1_000 * p99(disturbed), 1),
        }

    def _healthy_alone(self) -> list[float]:
        healthy = self.producer("healthy", RATE, 0)
        time.sleep(ALONE_S)
        pushed = self._finish(healthy)
        deadline = time.monotonic() + 60
        while len(waits := self.healthy_waits()) < pushed["pushed"] - pushed["failed"]:
            assert time.monotonic() < deadline, "the healthy jobs ran"
            time.sleep(0.2)
        return waits

    def _flood_producers(self) -> "list[Producer]":
        bounds = [JOBS * number // PRODUCERS for number in range(PRODUCERS + 1)]
        return [Producer(self.producer("flood", self.worker, first, end - first)) for first, end in pairwise(bounds)]

    def _told(self, flood: "list[Producer]", figure: str) -> int:
        return sum(one.last[figure] for one in flood)

    def _flood(self, flood: "list[Producer]") -> None:
        """Flood until all is accepted, or nothing more is, or for long enough, while something is killed again and again."""
        began = accepted_at = killed_at = shown_at = time.monotonic()
        number = accepted = 0
        while not all(one.is_done for one in flood) or number < KILLS:
            time.sleep(0.2)
            now = time.monotonic()
            self._check_alive(flood)
            if (found := self._told(flood, "accepted")) > accepted:
                accepted, accepted_at = found, now
            if number >= KILLS and (now - accepted_at > IDLE_S or now - began > HOLD_S):
                break
            if now - killed_at > (KILL_EVERY_S if number < KILLS else FURTHER_KILLS_EVERY_S):
                self.kill_something(number)
                number, killed_at = number + 1, time.monotonic()
            if now - shown_at > 10:
                shown_at = now
                used = f"{self.most_memory / 2**20:.0f} of {MEMORY_MB} MB at most"
                self.show(f"{accepted:,} of {JOBS:,} accepted, {self.most_in_blocks:,} in blocks, {used}")

    def _check_alive(self, flood: "list[Producer]") -> None:
        errors = (self.site.folder / "producer.err").read_text()
        assert all(one.is_alive for one in flood), f"{self.cause}: a producer of the flood has ended: {errors[-3_000:]}"

    def _drain(self, flood: "list[Producer]") -> int:
        """Kill a few times more, and wait until every job has run; return how many have. No hand helps."""
        ran, before, shown_at, grown_at = 0, 0, time.monotonic(), time.monotonic()
        killed_at, kills = time.monotonic(), 0
        while ran < JOBS:
            time.sleep(0.5)
            found, now = self.flood_runs.read(), time.monotonic()
            if found > ran:
                grown_at = now
            ran = found
            if kills < KILLS and now - killed_at > KILL_EVERY_S / 2:
                self.kill_something(kills)
                kills, killed_at = kills + 1, time.monotonic()
            self._check_alive(flood)
            if now - grown_at > STALLED_S:
                accepted = self._told(flood, "accepted")
                pytest.fail(
                    f"{self.cause}: {ran:,} of {JOBS:,} jobs ran, {accepted:,} were accepted, then none ran for {STALLED_S:.0f} s; "
                    f"left in Redis: {self._left()}"
                )
            if now - shown_at > 10:
                rate, before, shown_at = (ran - before) / (now - shown_at), ran, now
                self.show(
                    f"{ran:,} of {JOBS:,} ran, {rate:,.0f} per second, {self._told(flood, 'accepted'):,} accepted"
                )
        self.kills_in_drain = kills
        for one in flood:
            one.process.wait(60)
        return ran

    def _left(self) -> str:
        with Redis.from_url(with_all_rights(self.server.url), socket_timeout=30) as client:
            return f"{waiting(client, self.worker):,} jobs wait, {client.zcard(keys.DEAD):,} are dead"

    def _finish(self, healthy: "subprocess.Popen[str]") -> dict[str, int]:
        out, _ = healthy.communicate("\n", timeout=60)
        return json.loads(out.splitlines()[-1])

    # --- the account

    def _healthy_runs(self) -> Iterator[tuple[int, float, float]]:
        for path in self.folder.glob("healthy.*"):
            data = path.read_bytes()
            yield from HEALTHY_RUN.iter_unpack(data[: len(data) // HEALTHY_RUN.size * HEALTHY_RUN.size])

    def healthy_ran(self) -> int:
        """Return how many healthy jobs that were pushed during the flood ran."""
        return len({serial for serial, *_ in self._healthy_runs() if serial >= LATER})

    def healthy_waits(self, first: int = 0, *, calm: bool = False) -> list[float]:
        """Return the waits of healthy jobs, in seconds; ``calm``: of those only that no kill has kept waiting."""
        disturbed = self._disturbed if calm else []
        return [
            waited_s
            for serial, at, waited_s in self._healthy_runs()
            if serial >= first and not any(began < at < end for began, end in disturbed)
        ]

    def show(self, text: str) -> None:
        sys.__stderr__.write(f"flood, {self.cause}, {time.monotonic() - self._began:,.0f} s: {text}\n")
        sys.__stderr__.flush()


class Producer:
    """A process that pushes a part of the flood, and what it said last."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.last: dict[str, int] = {"accepted": 0, "refused": 0}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.last = json.loads(line)

    @property
    def is_done(self) -> bool:
        return bool(self.last.get("done"))

    @property
    def is_alive(self) -> bool:
        return self.process.poll() in (None, 0)


class FloodRuns:
    """The jobs of the flood that ran, from the files that processes write. Each look goes on where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ran = bytearray(JOBS)
        self._read_to: dict[Path, int] = {}
        self.count = 0
        """The runs, those of a job that ran again included."""

    def read(self) -> int:
        """Return how many jobs ran."""
        for path in self._folder.glob("flood.*"):
            start = self._read_to.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            serials = array("Q")
            serials.frombytes(data[: len(data) // SERIAL.size * SERIAL.size])
            self._read_to[path] = start + len(serials) * SERIAL.size
            self.count += len(serials)
            for serial in serials:
                self._ran[serial] = 1
        return self._ran.count(1)


def waiting(client: Redis, worker: str) -> int:
    """Return the jobs of the flood that wait, wherever they are."""
    beyond = packed_held(client)
    held = (keys.paused_jobs(worker), f"{keys.limit(worker)}:waiting:")
    queued = true_size(client.llen(keys.queue("flood")), "flood", packed_jobs(client))
    scheduled = sum(client.zcard(key) for key in (keys.SCHEDULE, keys.DEFERRED_PACKED))
    scheduled += beyond.get(keys.DEFERRED_PACKED.encode(), 0)
    return queued + scheduled + sum(client.zcard(key) + beyond.get(key.encode(), 0) for key in held)


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * (len(waits) - 1))] if waits else 0.0


def done_before(cause: str) -> bool:
    """Return whether the report has this round in this size."""
    if not REPORT or not Path(REPORT).exists():
        return False
    rounds = [json.loads(line) for line in Path(REPORT).read_text().splitlines()]
    return any((one["cause"], one["jobs"], one["memory_mb"]) == (cause, JOBS, MEMORY_MB) for one in rounds)


@pytest.mark.campaign
# Some 10,000 jobs a second on a quiet machine.
@pytest.mark.timeout(900 + JOBS // 2_500)
@pytest.mark.parametrize("cause", list(CAUSES))
def test_flood_of_one_class_leaves_the_others_alone(cause, short_path, redis_url, measured, monkeypatch):
    if done_before(cause):
        pytest.skip("the report has this round")
    # A killed server loads hundreds of megabytes when it starts again.
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 180.0)
    server = SmallServer(short_path / "redis")
    server.start()
    site = Site(short_path, redis_url)
    site.write("redis.yml", {"shards": {"main": {"url": server.url}}})
    site.write("application.yml", {"packing_depth": 10_000, "workers_module": "flood_jobs"})
    shutil.copy(HERE / "flood_jobs.py", short_path / "flood_jobs.py")
    shutil.copy(HERE / "flood_jobs.py", short_path / "jobs.py")
    flood = Round(site, server, cause)
    try:
        found = flood.run()
    finally:
        flood.close()
        site.close()
        server.stop()
    if REPORT:
        with Path(REPORT).open("a") as report:
            report.write(json.dumps(found) + "\n")
    for name, value in found.items():
        if isinstance(value, int | float):
            measured(name, value)
    assert found["lost"] == 0, f"{found['lost']:,} jobs of the flood are lost: {found}"
    again = IN_FLIGHT * (found["kills"]["worker"] + 2 * found["kills"]["redis"])
    assert found["ran_again"] <= again, f"more than {again} jobs ran again: {found}"
    assert found["most_memory_mb"] <= MEMORY_MB, f"Redis had more than {MEMORY_MB} MB: {found}"
    # What the budget leaves is for them: none is refused for lack of memory, only while a killed Redis starts again.
    assert found["healthy_refused_as_full"] == 0, f"healthy jobs were refused for lack of memory: {found}"
    assert found["healthy_failed"] <= found["healthy_pushed"] * 0.05, f"healthy pushes failed: {found}"
    assert found["healthy_ran"] >= found["healthy_pushed"] - found["healthy_failed"], (
        f"healthy jobs did not run: {found}"
    )
