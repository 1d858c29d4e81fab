"""``scripts/prove limit``: a limit of five, fifty threads, and a ``kill -9`` every two seconds (reference F45).

The same load runs twice, without kills and with them. Each job counts the running jobs, the taken slots are counted
all the time, and at the end none is left. The cost of the kills is a figure without a verdict.
"""

import argparse
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

import framework
from demo.folder import RunFolder
from demo.stop import StopSignal
from framework.wire import keys
from tests.proofs.limit_jobs import DONE, LIMIT, QUEUE, RUNNING, SEEN, STORE, LimitProofWorker
from tests.proofs.worker_pools import ClusterPool
from tests.servers.guarded import GuardedServer, as_role, with_all_rights

HELD, BROKEN, INTERRUPTED = 0, 1, 130
PROCESSES, THREADS, LASTS_S, EVERY_S = 5, 10, 0.1, 2.0

_AHEAD = 200
_POLL_S = 0.01
_STANDSTILL_S = 60.0
_BASE = keys.limit("LimitProofWorker")


class _LimitPool(ClusterPool):
    options = ("--timeout", "2")


class _Half:
    """One half: pushes, counts and kills until its time is up and every job has ended."""

    def __init__(self, client: Redis, pool: _LimitPool, rng: random.Random) -> None:
        self.client, self.pool, self.rng = client, pool, rng
        self.pushed = self.kills = self.samples = self.most = 0
        self.per_s = 0.0

    def run(self, seconds: float, stop: StopSignal, *, killing: bool) -> bool:
        """Return whether every job has ended."""
        began = time.monotonic()
        due, before = began + EVERY_S, self._done()
        while (now := time.monotonic()) - began < seconds and not stop.wait(_POLL_S):
            self._push(before)
            self._count_slots()
            if killing and now >= due:
                due += EVERY_S
                self._kill()
        self.per_s = (self._done() - before) / (time.monotonic() - began)
        deadline = time.monotonic() + _STANDSTILL_S
        while self._done() < before + self.pushed and time.monotonic() < deadline and not stop.wait(_POLL_S):
            self._count_slots()
        return self._done() == before + self.pushed

    def _done(self) -> int:
        return int(self.client.scard(DONE))

    def _push(self, before: int) -> None:
        if before + self.pushed - self._done() < _AHEAD:
            numbers = [(before + self.pushed + number, LASTS_S) for number in range(_AHEAD)]
            LimitProofWorker.perform_bulk(numbers)
            self.pushed += _AHEAD

    def _count_slots(self) -> None:
        self.most = max(self.most, int(self.client.zcard(f"{_BASE}:running")))
        self.samples += 1

    def _kill(self) -> None:
        """Kill any of the processes, whether it runs one of the five jobs or not."""
        pids = sorted(int(one.split(b":")[1]) for one in self.client.zrangebyscore(keys.REGISTRY, 1, "+inf"))
        if pids:
            self.pool.kill(self.rng.choice(pids))
            self.kills += 1


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run both halves and print the result; return the exit status."""
    if options.seconds < 1:
        print("scripts/prove: --seconds must be at least 1", file=sys.stderr)
        return 2
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove" / "limit"
    folder = RunFolder(parent).path
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; logs under {os.path.relpath(folder)}", flush=True)
    with _prepared(root, folder) as server, server.open("limit") as client:
        pool = _LimitPool(
            root / "scripts", folder, processes=PROCESSES, slots=THREADS, queue=QUEUE, module="tests.proofs.limit_jobs"
        )
        control, killed = (_Half(client, pool, random.Random(seed)) for _ in range(2))
        try:
            pool.start()
            while client.zcard(keys.REGISTRY) < PROCESSES and not stop.wait(0.05):
                pool.restart_ended()
            whole = control.run(options.seconds, stop, killing=False) and killed.run(
                options.seconds, stop, killing=True
            )
            left = _left(client, stop)
            most_seen = max((int(count) for count in client.hkeys(SEEN)), default=0)
        finally:
            pool.stop()
        left += [f"the right {one}" for one in server.refusals()]
    if stop.asked:
        return INTERRUPTED
    return _print_result(control, killed, pool, whole=whole, left=left, most_seen=most_seen)


def _left(client: Redis, stop: StopSignal) -> list[str]:
    """Return the keys of the limit that remain after the last job; a slot is released after its job."""
    deadline = time.monotonic() + 5
    while (found := client.keys(f"{_BASE}:*")) and time.monotonic() < deadline and not stop.wait(_POLL_S):
        pass
    client.delete(RUNNING)
    return sorted(key.decode() for key in found)


def _print_result(
    control: _Half, killed: _Half, pool: _LimitPool, *, whole: bool, left: list[str], most_seen: int
) -> int:
    share = killed.per_s / control.per_s if control.per_s else 0.0
    print(
        f"{control.samples + killed.samples:,} checks of the slots: at most {max(control.most, killed.most)} of {LIMIT} taken"
    )
    print(f"{control.pushed + killed.pushed:,} jobs, each counted the jobs running at its time: at most {most_seen}")
    print(f"without kills   {control.per_s:6.1f} jobs/s, of {LIMIT / LASTS_S:g} that five slots allow")
    print(f"{killed.kills:3} kills       {killed.per_s:6.1f} jobs/s, {share:.0%} of that")
    broken = [
        *([] if whole else ["not every job has ended"]),
        *([f"{most_seen} ran at a time"] if most_seen > LIMIT else []),
        *([f"{max(control.most, killed.most)} slots were taken"] if max(control.most, killed.most) > LIMIT else []),
        *([f"left behind or refused: {', '.join(left)}"] if left else []),
        *pool.unexpected,
    ]
    for line in broken:
        print(f"BROKEN: {line}")
    if not broken:
        print("Every promise held.")
    return BROKEN if broken else HELD


@contextmanager
def _prepared(root: Path, folder: Path) -> Iterator[GuardedServer]:
    for name in [name for name in os.environ if name.startswith(("FRAMEWORK_", "REDIS_URL"))]:
        del os.environ[name]
    (folder / "config").mkdir()
    with GuardedServer(folder / "redis") as server:
        os.environ |= {
            "REDIS_URL": as_role(server.url, "worker"),
            STORE: with_all_rights(server.url),
            "FRAMEWORK_CONFIG_DIR": str(folder / "config"),
            "FRAMEWORK_LOGGING__LEVEL": "warning",
            "PYTHONPATH": str(root),
        }
        framework.boot()
        yield server
