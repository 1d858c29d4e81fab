"""``scripts/prove storm``: jobs are killed in flight by the thousand, and each is accounted for.

Async jobs hold a slot and no thread, so one ``kill -9`` cuts off as many as a process has slots. The first run of each job
waits to be killed; the run after ends at once. Only as many are pushed as the fleet can hold, so that those taken back find
free slots and their recovery measures the framework, not the backlog.
"""

import argparse
import json
import math
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos_parts import census
from demo_parts.folder import RunFolder
from demo_parts.stop import StopSignal
from redis import Redis

import framework
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import LONGEST_SOCKET_PATH, EmbeddedServer
from prove_parts.storm_fleet import BareFleet, ClusterFleet, Fleet, ended
from prove_parts.storm_jobs import FOLDER, JOURNAL, QUEUE, Journal, StormWorker, create_marks
from prove_parts.storm_ledger import Ledger, Life

HELD, BROKEN, INTERRUPTED = 0, 1, 130
ACKNOWLEDGED_LATE = 32
"""Jobs of one process that may have ended and run again after its death (docs/redis.md: batches)."""

_LOOK_S = 0.005
_LINE_S = 2.0
_STILL_S = 1.0
"""Nobody has begun or ended for so long: the fullest process is killed, however full."""
_STANDSTILL_S = 60.0
"""And nobody was left to be killed for so long: what is missing then is lost."""
_BATCH = 1_000
_EARLY = 0.1
"""The part of the kills that comes while a process takes in its first jobs, or runs again what others left."""


def run(root: Path, wish: argparse.Namespace, stop: StopSignal) -> int:
    """Kill ``wish.jobs`` jobs in flight, show the account; return the exit status."""
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove"
    folder = RunFolder(parent / "storm").path
    if len(os.fsencode(folder / "redis" / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/prove: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return 2
    seed = wish.seed if wish.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; records, logs and history under {os.path.relpath(folder)}", flush=True)
    with prepared(root, folder, wish) as client:
        kinds: dict[str, type[Fleet]] = {"cluster": ClusterFleet, "bare": BareFleet}
        fleet = kinds[wish.mode](root / "scripts", folder, processes=wish.processes, slots=wish.concurrency)
        storm = Storm(fleet, folder / "records", wish.jobs, random.Random(seed))
        try:
            storm.rage(stop)
        finally:
            fleet.stop()
        found = {"seed": seed, **storm.account(client)}
    (folder / "report.json").write_text(json.dumps(found, indent=2))
    held = True
    print(json.dumps(found, indent=1))
    return INTERRUPTED if stop.asked else HELD if held else BROKEN


@contextmanager
def prepared(root: Path, folder: Path, wish: argparse.Namespace) -> Iterator[Redis]:
    """A Redis of our own, known to this process and to those it starts."""
    for name in [name for name in os.environ if name.startswith(("FRAMEWORK_", "REDIS_URL"))]:
        del os.environ[name]
    (folder / "config").mkdir()
    (folder / "records").mkdir()
    with EmbeddedServer(folder / "redis") as server, open_client(Endpoint(server.url), name="storm") as client:
        if wish.keep_history:
            client.config_set("auto-aof-rewrite-percentage", 0)
        os.environ |= {
            "REDIS_URL": server.url,
            "FRAMEWORK_CONFIG_DIR": str(folder / "config"),
            "FRAMEWORK_LOGGING__JOBS": "false",
            "FRAMEWORK_LOGGING__LEVEL": "warning",
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'scripts'}",
            FOLDER: str(folder / "records"),
        }
        framework.boot()
        yield client


class Storm:
    """The pushing, the killing and the looking on; all in one thread."""

    def __init__(self, fleet: Fleet, records: Path, jobs: int, rng: random.Random) -> None:
        self.fleet, self.records, self.jobs, self.rng = fleet, records, jobs, rng
        self.ledger = Ledger(jobs)
        self.accepted = 0
        self.kills = 0
        self.living: dict[Life, float] = {}
        """Processes that have recorded something, and at how many jobs in flight each is killed."""
        self.seconds = 0.0
        # All but one process can hold everything, so a kill never leaves the others without room.
        self._most = fleet.slots * max(1, fleet.processes - 1)
        self._base_ns = create_marks(records, jobs)
        self._moved = self._shown = time.monotonic()

    def rage(self, stop: StopSignal) -> None:
        """Push and kill until every job has been killed and has ended, or nothing moves any more."""
        started = time.monotonic()
        self.fleet.start()
        while not stop.wait(_LOOK_S) and self.ledger.ended < self.jobs:
            now = time.monotonic()
            self.seconds = now - started
            self.fleet.tend()
            self._look(now)
            self._push()
            self._strike(now)
            self._tell(now)
            if now - self._moved > _STANDSTILL_S:
                break

    def _look(self, now: float) -> None:
        for path in self.records.glob(f"*{JOURNAL}"):
            if all(life.journal.path != path for life in self.living):
                self.living[self.ledger.open(Journal(path))] = self._threshold()
        before = self.ledger.runs + self.ledger.ended
        for life in list(self.living):
            self.ledger.read(life)
            if ended(life.journal.pid):
                self.fleet.surprises.append(f"process {life.journal.pid} ended, and we had not killed it")
                self._bury(life, self._now_us())
        if self.ledger.runs + self.ledger.ended != before:
            self._moved = now

    def _push(self) -> None:
        room = min(self._most - (self.accepted - self.ledger.ended), self.jobs - self.accepted, _BATCH)
        if room > 0:
            StormWorker.perform_bulk([(serial,) for serial in range(self.accepted, self.accepted + room)])
            self.accepted += room

    def _strike(self, now: float) -> None:
        victims = [life for life, full in self.living.items() if len(life.running) >= full]
        if not victims and now - self._moved > _STILL_S:
            victims = sorted(self.living, key=lambda life: len(life.running))[-1:]
        for life in victims:
            if life.running:
                self._kill(life)

    def _kill(self, life: Life) -> None:
        at_us = self._now_us()
        self.fleet.kill(life.journal.pid)
        while not ended(life.journal.pid):
            time.sleep(0.001)
        self.kills += 1
        self._bury(life, at_us)

    def _bury(self, life: Life, at_us: int) -> None:
        self.ledger.read(life)
        self.ledger.bury(life, at_us)
        life.journal.remove()
        del self.living[life]

    def _now_us(self) -> int:
        return (time.monotonic_ns() - self._base_ns) // 1000

    def _threshold(self) -> float:
        """At how many jobs in flight a process is killed. Of equal shares each reaches the highest that is drawn."""
        share = self._most / self.fleet.processes
        return share * (self.rng.uniform(0.0, 0.2) if self.rng.random() < _EARLY else self.rng.uniform(0.5, 1.0))

    def _tell(self, now: float) -> None:
        if now - self._shown < _LINE_S:
            return
        self._shown = now
        self.fleet.read_log()
        ledger, rate = self.ledger, self.ledger.killed / self.seconds
        left_s = (self.jobs - ledger.struck) / rate if rate else 0.0
        print(
            f"  {self.seconds:5.0f} s  {ledger.killed:>10,} killed in flight by {self.kills:,} kills, {rate:,.0f} a second; "
            f"{ledger.ended:>10,} of {self.jobs:,} ended, {ledger.awaited:,} awaited; about {left_s:,.0f} s left",
            flush=True,
        )

    def account(self, client: Redis) -> dict[str, Any]:
        """What the run came to, when the fleet is gone."""
        ledger = self.ledger
        places = {key: int(client.zcard(key)) for key in ("retry", "schedule", "dead", "interrupted")}
        lost = [serial for serial in ledger.lost() if serial < self.accepted]
        return {
            "jobs": self.jobs,
            "seconds": round(self.seconds, 1),
            "kills": self.kills,
            "accepted": self.accepted,
            "begun": ledger.begun,
            "ended": ledger.ended,
            "killed in flight": ledger.killed,
            "different jobs among them": ledger.struck,
            "killed in flight, a second": round(ledger.killed / max(0.1, self.seconds)),
            "runs": ledger.runs,
            "lost": len(lost),
            "lost serials": lost[:10],
            "ended and run again": ledger.again,
            "most of these by one kill": max((life.again for life in ledger.lives), default=0),
            "unexplained": ledger.unexplained[:100],
            "set aside": {key: count for key, count in places.items() if count},
            "surprises": self.fleet.surprises[:100],
            "told as taken back": self.fleet.taken_back,
            "keys left": census.leaks(client),
            "recovery": _times(ledger.recoveries_us),
        }


def _times(times_us: Sequence[int]) -> dict[str, float]:
    ordered = sorted(times_us)
    if not ordered:
        return {}
    share = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1e6 for name, part in share.items()}
