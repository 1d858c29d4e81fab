"""``scripts/chaos idle``: measure the cost of an idle worker process."""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis import Redis

from demo.folder import RunFolder
from demo.stop import StopSignal
from tests.chaos.rounds.run import BROKEN, HELD, INTERRUPTED, clear_environment, configured, environment
from tests.chaos.rounds.stores import SingleStore
from tests.chaos.rounds.worker_processes import PATIENCE_S

CPU_PERCENT, COMMANDS_PER_S, RESIDENT_MB = 0.2, 5.0, 60.0
"""The most that an idle process may use (issue 3): of one core, with one queue or ten."""

_WARM_UP_S = 8.0
"""The seconds in which a process reads modules, writes its first records and sweeps for the first time."""

_TICKS = os.sysconf("SC_CLK_TCK")
_OURS = ("info", "client|list", "client|setinfo", "client|setname", "hello", "config|resetstat")
"""The commands of this program itself."""


@dataclass
class IdleReading:
    """The figures at one moment."""

    at: float
    cpu_s: float
    resident_mb: float
    calls: Counter[str]
    connections: int


def watch(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Start one process on queues without jobs, watch it, print the table; return the exit status."""
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "chaos"
    folder = RunFolder(parent).path
    clear_environment()
    with SingleStore(folder / "redis") as store, configured(folder, {"main": dict(store.settings)}, [["*", None]]):
        client = store.client
        queues = [part for number in range(options.queues) for part in ("-q", f"idle-{number}")]
        flags = [*queues, "-c", str(options.concurrency), "-r", "tests.chaos.rounds.jobs"]
        with (folder / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(root / "scripts" / "worker"), *flags],
                cwd=folder,
                env=environment(root, folder, shards=["main"]),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            print(f"Watching process {process.pid} with {options.queues} queues for {options.seconds:g} s", flush=True)
            if stop.wait(_WARM_UP_S):
                return INTERRUPTED
            before = _look(client, process.pid)
            if stop.wait(options.seconds):
                return INTERRUPTED
            after = _look(client, process.pid)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
    return _show(before, after)


def _look(client: Redis, pid: int) -> IdleReading:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    info = cast("dict[str, Any]", client.info("commandstats"))
    calls = Counter({name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in info.items()})
    clients = cast("list[dict[str, str]]", client.client_list())
    theirs = [one for one in clients if one["name"] != "chaos"]
    return IdleReading(time.monotonic(), (int(stat[11]) + int(stat[12])) / _TICKS, resident, calls, len(theirs))


def _show(before: IdleReading, after: IdleReading) -> int:
    seconds = after.at - before.at
    grown = after.calls - before.calls
    rates = {name: count / seconds for name, count in grown.most_common() if name not in _OURS}
    percent = 100 * (after.cpu_s - before.cpu_s) / seconds
    total = sum(rates.values())
    rows = [
        ("processor, % of one core", f"{percent:.2f}", f"< {CPU_PERCENT:g}", percent < CPU_PERCENT),
        ("Redis commands per second", f"{total:.2f}", f"<= {COMMANDS_PER_S:g}", total <= COMMANDS_PER_S),
        ("resident memory, MB", f"{after.resident_mb:.1f}", f"<= {RESIDENT_MB:g}", after.resident_mb <= RESIDENT_MB),
    ]
    print(f"\n  {'':<28} {'found':>8}   {'allowed':>8}")
    for name, value, allowed, ok in rows:
        print(f"  {name:<28} {value:>8}   {allowed:>8}   {'ok' if ok else 'BROKEN'}")
    print(f"  {'connections':<28} {after.connections:>8}")
    print("\n  Commands per second, those inside scripts included:")
    for name, rate in rates.items():
        print(f"    {name:<26} {rate:>8.2f}")
    return HELD if all(ok for _, _, _, ok in rows) else BROKEN
