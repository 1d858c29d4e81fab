"""``scripts/prove drain``: run jobs that do nothing in real processes whose threads switch at nearly every step.

It finds steps that are not atomic for the interpreter, once in millions of jobs: a thread of the framework dies
(``component.died``), or a job is lost or runs again without a kill. The marks of the jobs are outside of Redis.
"""

import argparse
import os
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from redis import Redis

from demo.stop import StopSignal
from tests.proofs import leftover_keys
from tests.proofs.drain_jobs import FOLDER, LIFE, QUEUE, SWITCH_INTERVAL, DrainWorker, create_marks
from tests.proofs.kills import prepared, run_folder, status_of, write_report
from tests.proofs.kills_report import ACKNOWLEDGED_LATE
from tests.proofs.worker_pools import ClusterPool, WorkerPool, ended

_MODULE = "tests.proofs.drain_jobs"
_BATCH = 1_000
_MOST_WAITING = 50_000
"""The most jobs that are pushed and have not run; processes never run out of jobs, and Redis stays small."""
_POLL_S = 0.1
_LINE_S = 2.0
_STANDSTILL_S = 60.0
"""The seconds without a run after which the missing jobs are lost."""
_KILL_S = (3.0, 9.0)
"""The bounds of the random time between two kills."""


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Drain ``options.jobs`` jobs and show the account; return the exit status."""
    if min(options.jobs, options.processes, options.concurrency) < 1 or not 0 < options.switch_interval <= 1:
        print("scripts/prove: --jobs, --processes, --concurrency from 1 on, --switch-interval up to 1", file=sys.stderr)
        return 2
    folder = run_folder(root, "drain")
    if folder is None:
        return 2
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; logs under {os.path.relpath(folder)}", flush=True)
    variables = {FOLDER: str(folder / "records"), SWITCH_INTERVAL: f"{options.switch_interval!r}"}
    with prepared(root, folder, variables) as server:
        size = {"processes": options.processes, "slots": options.concurrency}
        pool = ClusterPool(root / "scripts", folder, queue=QUEUE, module=_MODULE, **size)
        drain = Drain(pool, folder / "records", options.jobs, random.Random(seed) if options.kills else None)
        try:
            drain.run(stop)
        finally:
            pool.stop()
        with server.open("drain") as client:
            found = drain.account(client)
        found["rights refused"] = server.refusals()
    found |= {"seed": seed, "switch interval": options.switch_interval, "broken": broken(found)}
    write_report(found, folder)
    show(found)
    return status_of(found, stop)


class Drain:
    """The pushing, the killing (with ``rng``) and the observing, all in one thread."""

    def __init__(self, pool: WorkerPool, records: Path, jobs: int, rng: random.Random | None) -> None:
        self.pool, self.records, self.jobs, self.rng = pool, records, jobs, rng
        self.accepted = self.done = self.kills = 0
        self.seconds = 0.0
        self._marks = create_marks(records, jobs)
        self._killed: set[int] = set()
        self._next_kill = 0.0

    def run(self, stop: StopSignal) -> None:
        """Push until every job has run, or no job runs any more."""
        started = moved = shown = time.monotonic()
        self.pool.start()
        while not stop.wait(_POLL_S) and self.done < self.jobs:
            now = time.monotonic()
            self.seconds = now - started
            self.pool.restart_ended()
            self._push()
            self._kill_if_due(now)
            if (done := self._count()) > self.done:
                self.done, moved = done, now
            if now - shown >= _LINE_S:
                shown = now
                self._print_progress()
            if now - moved > _STANDSTILL_S:
                return

    def account(self, client: Redis) -> dict[str, Any]:
        """Return the account, after the processes have ended."""
        marks = self._marks[:]
        again = [serial for serial, runs in enumerate(marks) if runs > 1] if marks.count(1) < self.done else []
        lost = marks[: self.accepted].count(0)
        left = leftover_keys.set_aside(client)
        if waiting := int(client.llen(f"queue:{QUEUE}")):
            left["queue"] = waiting
        return {
            "jobs": self.jobs,
            "accepted": self.accepted,
            "component.died": self.pool.deaths,
            "lost": lost,
            "second runs": sum(marks[serial] - 1 for serial in again),
            "second runs allowed": self.kills * (self.pool.slots + ACKNOWLEDGED_LATE),
            "kills": self.kills,
            "left in Redis": left,
            "unexpected ends and errors": self.pool.unexpected[:20],
            "seconds": round(self.seconds, 1),
            "jobs a second": round(self.done / max(0.1, self.seconds)),
        }

    def _push(self) -> None:
        while self.accepted < self.jobs and self.accepted - self.done < _MOST_WAITING:
            count = min(_BATCH, self.jobs - self.accepted)
            DrainWorker.perform_bulk([(serial,) for serial in range(self.accepted, self.accepted + count)])
            self.accepted += count

    def _count(self) -> int:
        return self.jobs - self._marks[:].count(0)

    def _kill_if_due(self, now: float) -> None:
        if self.rng is None or now < self._next_kill:
            return
        pids = [int(path.stem) for path in self.records.glob(f"*{LIFE}")]
        living = sorted(pid for pid in pids if pid not in self._killed and not ended(pid))
        first, self._next_kill = not self._next_kill, now + self.rng.uniform(*_KILL_S)
        if living and not first:
            pid = self.rng.choice(living)
            self._killed.add(pid)
            self.pool.kill(pid)
            self.kills += 1

    def _print_progress(self) -> None:
        self.pool.read_log()
        rate = self.done / self.seconds
        left = f"about {(self.jobs - self.done) / rate:,.0f} s left" if rate else ""
        print(
            f"  {self.seconds:5.0f} s  {self.done:>10,} of {self.jobs:,} have run, {rate:,.0f} a second; {self.kills} kills, "
            f"component.died {self.pool.deaths}; {left}",
            flush=True,
        )


def broken(found: dict[str, Any]) -> list[str]:
    """Return the broken promises."""
    promises = {
        "every job was accepted": found["accepted"] == found["jobs"],
        "no thread of the framework died": found["component.died"] == 0,
        "none was lost": found["lost"] == 0,
        "no second run beyond what kills may repeat": found["second runs"] <= found["second runs allowed"],
        "nothing is left in Redis": not found["left in Redis"],
        "no right was refused": not found["rights refused"],
        "nothing ended or failed by itself": not found["unexpected ends and errors"],
    }
    return [promise for promise, held in promises.items() if not held]


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    rows = {
        "jobs accepted": f"{found['accepted']:,} of {found['jobs']:,}",
        "component.died": found["component.died"],
        "jobs lost": f"{found['lost']:,}",
        "second runs": f"{found['second runs']:,} (allowed {found['second runs allowed']:,}, by {found['kills']:,} kills)",
        "left in Redis": found["left in Redis"] or 0,
        "rights refused": found["rights refused"] or 0,
        "unexpected ends and errors": found["unexpected ends and errors"] or 0,
        "jobs a second": f"{found['jobs a second']:,} over {found['seconds']:,.0f} s, at a switch interval of "
        f"{found['switch interval']:g} s",
    }
    print()
    for name, value in rows.items():
        print(f"  {name:20} {value}")
    print("\n" + ("; ".join(f"NOT: {promise}" for promise in found["broken"]) or "Every promise held."))
