"""``scripts/prove kills``: kill jobs in flight by the thousand, and account for each.

Async jobs need no thread, so one ``kill -9`` cuts off one job per slot of a process. The first run of each job waits to
be killed, the next one ends at once. No more jobs are pushed than the processes can run with one process dead, so that
reclaimed jobs find free slots: their recovery measures the framework, not a backlog.
"""

import argparse
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import framework
from demo.folder import RunFolder
from demo.stop import StopSignal
from framework.store.embedded import LONGEST_SOCKET_PATH
from tests.proofs.end_marks import STORES
from tests.proofs.kills_account import KillAccount, Life
from tests.proofs.kills_jobs import FOLDER, JOURNAL, Journal, KilledWorker, create_marks
from tests.proofs.kills_report import account, broken, show
from tests.proofs.worker_pools import BarePool, ClusterPool, WorkerPool, ended
from tests.servers.guarded import GuardedServer, as_role, with_all_rights

HELD, BROKEN, INTERRUPTED = 0, 1, 130

_POLL_S = 0.005
_LINE_S = 2.0
_STILL_S = 1.0
"""The seconds without a start or an end of a job after which the process with the most jobs in flight is killed."""
_STANDSTILL_S = 60.0
"""The seconds without any progress and without a process to kill after which the missing jobs are lost."""
_BATCH = 1_000
_EARLY = 0.1
"""The share of the kills during the first jobs of a process, or while it runs reclaimed jobs."""
_AT_ONCE = 0.2
"""The share of the kills that do not wait until the killed jobs run again: reapers are killed at work."""
_MOST_AWAITED = 50_000
"""The most jobs that wait for a recovery. Without a supervisor a killed job waits until a lease expires."""


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Kill ``options.jobs`` jobs in flight and show the account; return the exit status."""
    if min(options.jobs, options.processes, options.concurrency) < 1:
        print("scripts/prove: --jobs, --processes and --concurrency must be at least 1", file=sys.stderr)
        return 2
    folder = run_folder(root, "kills")
    if folder is None:
        return 2
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; logs and append-only file under {os.path.relpath(folder)}", flush=True)
    with prepared(root, folder, {FOLDER: str(folder / "records")}, keep_history=options.keep_history) as server:
        kinds: dict[str, type[WorkerPool]] = {"cluster": ClusterPool, "bare": BarePool}
        pool = kinds[options.mode](root / "scripts", folder, processes=options.processes, slots=options.concurrency)
        most_awaited = options.concurrency // 50 if options.mode == "cluster" else _MOST_AWAITED
        campaign = KillCampaign(pool, folder / "records", options.jobs, random.Random(seed), most_awaited)
        try:
            campaign.kill_all(stop)
        finally:
            pool.stop()
        with server.open("proof") as client:
            found = account(campaign.account, campaign.accepted, campaign.seconds, pool, client)
        found["rights refused"] = server.refusals()
    found |= {"seed": seed, "mode": options.mode, "broken": broken(found)}
    write_report(found, folder)
    show(found)
    return status_of(found, stop)


def run_folder(root: Path, campaign: str) -> Path | None:
    """Create the folder of one run of a campaign; print an error, and return ``None``, where its path is too long for a
    socket.
    """
    folder = RunFolder(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove" / campaign).path
    if len(os.fsencode(folder / "redis" / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/prove: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return None
    return folder


def write_report(found: Mapping[str, Any], folder: Path) -> None:
    """Write the account of a run into its folder, and as the newest into that of its campaign."""
    for path in (folder / "report.json", folder.parent / "report.json"):
        path.write_text(json.dumps(found, indent=2))


def status_of(found: Mapping[str, Any], stop: StopSignal) -> int:
    """Return the exit status of a run with this account."""
    if stop.asked:
        return INTERRUPTED
    return BROKEN if found["broken"] else HELD


@contextmanager
def prepared(
    root: Path, folder: Path, variables: Mapping[str, str], *, keep_history: bool = False
) -> Iterator[GuardedServer]:
    """Yield a Redis of this run, known to this process and to its children, which get these ``variables`` too."""
    for name in [name for name in os.environ if name.startswith(("FRAMEWORK_", "REDIS_URL"))]:
        del os.environ[name]
    (folder / "config").mkdir()
    (folder / "records").mkdir()
    with GuardedServer(folder / "redis") as server:
        os.environ.pop(STORES, None)
        if keep_history:
            with server.open("proof") as client:
                client.config_set("auto-aof-rewrite-percentage", 0)
            os.environ[STORES] = f"main={with_all_rights(server.url)}"
        os.environ |= {
            "REDIS_URL": as_role(server.url, "worker"),
            "FRAMEWORK_CONFIG_DIR": str(folder / "config"),
            "FRAMEWORK_LOGGING__JOBS": "false",
            "FRAMEWORK_LOGGING__LEVEL": "warning",
            "PYTHONPATH": str(root),
            **variables,
        }
        framework.boot()
        yield server


class KillCampaign:
    """The pushing, the killing and the observing, all in one thread."""

    def __init__(self, pool: WorkerPool, records: Path, jobs: int, rng: random.Random, most_awaited: int) -> None:
        self.pool, self.records, self.jobs, self.rng = pool, records, jobs, rng
        self.account = KillAccount(jobs)
        self.accepted = 0
        self.seconds = 0.0
        self.living: dict[Life, float] = {}
        """The processes with a record, and the number of jobs in flight at which each is killed."""
        self._most = pool.slots * max(1, pool.processes - 1)
        self._most_awaited = most_awaited
        self._at_once = False
        self._base_ns = create_marks(records, jobs)
        self._moved = self._shown = time.monotonic()

    def kill_all(self, stop: StopSignal) -> None:
        """Push and kill until every job has been killed and has ended, or no job runs any more."""
        started = time.monotonic()
        self.pool.start()
        while not stop.wait(_POLL_S) and self.account.ended < self.jobs:
            now = time.monotonic()
            self.seconds = now - started
            self.pool.restart_ended()
            self._read_journals(now)
            self._push()
            self._kill_if_due(now)
            self._print_progress(now)
            if now - self._moved > _STANDSTILL_S:
                break

    def _read_journals(self, now: float) -> None:
        known = {life.journal.path for life in self.living}
        for path in self.records.glob(f"*{JOURNAL}"):
            if path not in known:
                self.living[self.account.open(Journal(path))] = self._threshold()
        before = self.account.runs + self.account.ended
        for life in list(self.living):
            self.account.read(life)
            if ended(life.journal.pid):
                self.pool.unexpected.append(f"process {life.journal.pid} ended without a kill of this proof")
                self._record_death(life, self._now_us())
        if self.account.runs + self.account.ended != before:
            self._moved = now

    def _push(self) -> None:
        in_hand = self.accepted - self.account.ended - self.account.awaited
        room = min(self._most - in_hand, self.jobs - self.accepted, _BATCH)
        if room > 0:
            KilledWorker.perform_bulk([(serial,) for serial in range(self.accepted, self.accepted + room)])
            self.accepted += room

    def _kill_if_due(self, now: float) -> None:
        still = now - self._moved > _STILL_S
        if not (still or self._at_once or self.account.awaited <= self._most_awaited):
            return
        last = self.accepted == self.jobs and not self.account.awaited
        candidates = [life for life, full in self.living.items() if still or last or len(life.running) >= full]
        life = max(candidates, key=lambda life: len(life.running), default=None)
        if life is not None and life.running:
            self._kill(life)

    def _kill(self, life: Life) -> None:
        at_us = self._now_us()
        self.pool.kill(life.journal.pid)
        while not ended(life.journal.pid):
            time.sleep(0.001)
        self._record_death(life, at_us)
        self._at_once = self.rng.random() < _AT_ONCE

    def _record_death(self, life: Life, at_us: int) -> None:
        self.account.read(life)
        self.account.mark_dead(life, at_us)
        life.journal.remove()
        del self.living[life]

    def _threshold(self) -> float:
        """Return the number of jobs in flight at which a process is killed. With equal shares each reaches the highest
        drawn number.
        """
        share = self._most / self.pool.processes
        return share * (self.rng.uniform(0.0, 0.2) if self.rng.random() < _EARLY else self.rng.uniform(0.5, 1.0))

    def _now_us(self) -> int:
        return (time.monotonic_ns() - self._base_ns) // 1000

    def _print_progress(self, now: float) -> None:
        if now - self._shown < _LINE_S:
            return
        self._shown = now
        self.pool.read_log()
        account, rate = self.account, self.account.killed / self.seconds
        left_s = (self.jobs - account.ended) / rate if rate else 0.0
        print(
            f"  {self.seconds:5.0f} s  {account.killed:>10,} killed in flight, {rate:,.0f} a second; {account.ended:>10,} of "
            f"{self.jobs:,} ended, {account.awaited:,} not back yet; about {left_s:,.0f} s left",
            flush=True,
        )
