"""Draw where the microseconds of Redis go: jobs of five classes are drained, with a native profile, and again for each script's time.

The profile is that of ``perf``, by samples of the processor's clock, so hardware counters are not needed. Redis is Debian's binary,
which names only its exported functions: another address counts as the exported function before it, which is of the same file.
"""

import bisect
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import NamedTuple

from demo.folder import RunFolder
from tests.bench.contestants import BY_NAME, Launch
from tests.bench.errors import RunFailed
from tests.bench.machine import Cores, available_cores
from tests.bench.policies import PACES
from tests.bench.progress import say
from tests.bench.store import Store
from tests.bench.svg import picture, text
from tests.bench.workload_run import Conditions, WorkloadRun
from tests.lua import SCRIPTS

CLASSES = {
    "plain": "plain",
    "limited": "concurrency_limit",
    "deduplicated": "idempotent",
    "tracked": "status_expiration",
    "guidelines": "all three",
}
"""The classes of the workload ``policies``, and their names in the picture."""

HERTZ, BOOT_S = 5_000, 120.0
_NAMES = {one.digest: name for name, one in SCRIPTS.items()}
NEEDED = ("perf", "nm", "redis-server")

KERNEL, PROTOCOL, CALLS, LUA, COMMANDS, MEMORY = (
    "system calls",
    "connections and protocol",
    "calls of scripts and commands",
    "Lua",
    "commands and data",
    "memory",
)
COLOURS = {
    KERNEL: "6e7781",
    PROTOCOL: "0a7ea4",
    CALLS: "bf8700",
    LUA: "8250df",
    COMMANDS: "1f883d",
    MEMORY: "cf222e",
}

_LUA = re.compile(r"lua_|luaL_|luaopen_|lua_cjson|fpconv_|strbuf_|mp_|b_")
_CALLS = re.compile(
    r"lua[A-Z]|script|eval|function|ldb|call$|processCommand|lookupCommand|ACL|replicat|alsoPropagate|propagate|slowlog|latency|redisOp"
)
_PROTOCOL = re.compile(
    r"ae[A-Z]|conn|socket|anet|_?add[A-Z]|process[IM]|read[A-Z]|write[A-Z]|handleClients|beforeSleep|afterSleep|client|resetClient|"
    r"freeClient|trackingH|prepareClient|setDeferred|IOThread|postpone|ProcessingEvents|whileBlocked"
)
_MEMORY = re.compile(r"z(m|c|re|try)?(alloc|calloc|malloc|realloc|free)|je_|sds(new|free|MakeRoom|RemoveFree)")


class KindTime(NamedTuple):
    """The time of Redis for a job of one class, in microseconds: in all, by part of the server, and by script."""

    total: float
    parts: Mapping[str, float]
    scripts: Mapping[str, float]


def draw(var: Path, file: Path, *, jobs: int) -> int:
    """Measure, write the picture, print its table; return the exit status. ``jobs`` is the number of plain jobs."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        say(f"this needs {', '.join(missing)}")
        return 1
    given = Conditions(Cores.of(available_cores(), pinned=len(available_cores()) > 1), lambda: False)
    folder = RunFolder(var / "runs")
    found: dict[str, KindTime] = {}
    with WorkloadRun(BY_NAME["framework"], folder.path / "redis-time", None, given) as site:
        with suppress(PermissionError):
            # So that no other program has cleared the caches of the processor between two calls.
            os.sched_setscheduler(site.store.pids[0], os.SCHED_FIFO, os.sched_param(1))
        for kind, title in CLASSES.items():
            found[title] = _measured(site, kind, max(1_000, round(jobs * PACES[kind] / PACES["plain"])))
            say(f"{title}: {found[title].total:.1f} us")
        version = site.store.version
    file.write_text(drawn(found, version))
    print("\n".join(table(found)))
    return 0


def table(found: Mapping[str, KindTime]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    names = list(COLOURS)
    yield f"| Class | {' | '.join(names)} | In all | By script |"
    yield f"|{'---|' * (len(names) + 3)}"
    for title, one in found.items():
        scripts = ", ".join(f"`{name}` {us:.1f}" for name, us in one.scripts.items())
        yield f"| {title} | {' | '.join(f'{one.parts.get(name, 0.0):.1f}' for name in names)} | {one.total:.1f} us | {scripts} |"


def _measured(site: WorkloadRun, kind: str, jobs: int) -> KindTime:
    profile = site.folder / f"{kind}.perf"
    with _filled(site, kind, jobs):
        began = site.store.cpu_us()
        with _recorded(site.store, profile):
            _drain(site, kind, jobs)
        total = (site.store.cpu_us() - began) / jobs
        samples = Counter(_parts(profile, site.store))
    with _filled(site, kind, jobs), site.store.times_of_calls() as times:
        _drain(site, kind, jobs)
        scripts = Counter[str]()
        for command, us in times():
            # The commands of a script are calls too, within its time.
            head, *words = command.decode(errors="replace").split(" ", 2)
            if head == "EVALSHA":
                scripts[_NAMES.get(words[0], "?")] += us
    if not samples:
        raise RunFailed(f"perf has no sample of Redis in {profile}")
    parts = {name: total * count / samples.total() for name, count in samples.items()}
    return KindTime(total, parts, {name: us / jobs for name, us in scripts.most_common() if us / jobs >= 0.05})


@contextmanager
def _filled(site: WorkloadRun, kind: str, jobs: int) -> Generator[None]:
    site.store.empty()
    site.produce("fill", kind=kind, queues=["default"], count=jobs)
    yield


def _drain(site: WorkloadRun, kind: str, jobs: int) -> None:
    with site.working(Launch(kind)) as running:
        # A worker of a busy machine starts slowly.
        deadline = time.monotonic() + BOOT_S
        while not running.meters.read().count and time.monotonic() < deadline:
            running.children[0].check()
            time.sleep(0.05)
        running.wait_for(jobs)


@contextmanager
def _recorded(store: Store, profile: Path) -> Generator[None]:
    command = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        str(HERTZ),
        "-o",
        str(profile),
        "-t",
        str(store.pids[0]),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            yield
        finally:
            child.send_signal(signal.SIGINT)


def _parts(profile: Path, store: Store) -> Iterator[str]:
    """Yield the part of the server of each sample."""
    binary = Path(f"/proc/{store.pids[0]}/exe").resolve()
    base = next(
        int(line.split("-")[0], 16)
        for line in Path(f"/proc/{store.pids[0]}/maps").read_text().splitlines()
        if line.endswith(str(binary))
    )
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(binary)], capture_output=True, text=True, check=True
    ).stdout
    symbols = sorted(
        (int(words[0], 16), words[2]) for line in listed.splitlines() if (words := line.split())[1] in "TtWw"
    )
    starts = [start for start, _ in symbols]
    shown = subprocess.run(
        ["perf", "script", "-i", str(profile), "-F", "ip,dso"], capture_output=True, text=True, check=True
    ).stdout
    for line in shown.splitlines():
        address, _, place = line.strip().partition(" ")
        place = place.strip("()")
        if place == str(binary):
            at = bisect.bisect_right(starts, int(address, 16) - base) - 1
            yield part_of(symbols[at][1])
        elif place.startswith("["):
            yield KERNEL
        else:
            yield MEMORY if "alloc" in place else COMMANDS


def part_of(symbol: str) -> str:
    """Return the part of the server to which an exported function of Redis belongs."""
    found = ((LUA, _LUA), (CALLS, _CALLS), (PROTOCOL, _PROTOCOL), (MEMORY, _MEMORY))
    return next((name for name, pattern in found if pattern.match(symbol)), COMMANDS)


WIDTH, LEFT, RIGHT, TOP, ROW = 960, 150, 80, 76, 62
STYLE = ".in { fill: #ffffff; font-size: 12px; }"


def drawn(found: Mapping[str, KindTime], version: str) -> str:
    """Return the picture: a bar for each class, and its scripts below it."""
    scale = (WIDTH - LEFT - RIGHT) / max(one.total for one in found.values())
    parts = [text(20, 28, f"Microseconds of Redis {version} for a no-op job: fetch, admission, end", "text title")]
    at = 20.0
    for name, colour in COLOURS.items():
        parts += [
            f'<rect x="{at:g}" y="42" width="12" height="12" fill="#{colour}"/>',
            text(at + 17, 52, name, "faint small"),
        ]
        at += 34 + 6.4 * len(name)
    for row, (title, one) in enumerate(found.items()):
        parts += _row(TOP + row * ROW, title, one, scale)
    return picture(WIDTH, TOP + len(found) * ROW + 8, "Where the microseconds of Redis go", STYLE, parts)


def _row(top: float, title: str, one: KindTime, scale: float) -> Sequence[str]:
    parts, left = [text(20, top + 22, title, "text")], float(LEFT)
    for name, colour in COLOURS.items():
        us = one.parts.get(name, 0.0)
        label = text(left + us * scale / 2, top + 21, f"{us:.1f}", "in", "middle") if us * scale > 26 else ""
        parts.append(
            f"<g><title>{escape(f'{name}: {us:.1f} us')}</title>"
            f'<rect x="{left:.1f}" y="{top:g}" width="{us * scale:.1f}" height="32" fill="#{colour}"/>{label}</g>'
        )
        left += us * scale
    scripts = ", ".join(f"{name} {us:.1f}" for name, us in one.scripts.items())
    return [*parts, text(left + 8, top + 21, f"{one.total:.1f}", "text"), text(LEFT, top + 47, scripts, "faint small")]
