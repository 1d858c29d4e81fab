"""``scripts/prove prefixes``: cut the append-only file of Redis at any byte, as a crash of the whole host does.

A history is cut between two groups, at any byte, and within a MULTI. A real server starts on each prefix, the real
parts recover, and every job that the prefix holds unfinished runs at least once or is at rest; no other job appears.
"""

import argparse
import os
import random
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from demo.folder import RunFolder
from demo.stop import StopSignal
from framework.store.embedded import EmbeddedServer
from tests.proofs.aof import Group, History
from tests.proofs.mixed_load import MixedLoadRun
from tests.proofs.places import END, place_of
from tests.proofs.prover import Places, Prover
from tests.proofs.recovery import Recoverer, recoverer

HELD, BROKEN, INTERRUPTED = 0, 1, 130
_LINE_S = 2.0
_RUN_S = 6.0
_SHOWN = 5


class Cut(NamedTuple):
    """The file and the offset where the history ends."""

    file: int
    offset: int
    kind: str


@dataclass
class Account:
    """The result of the cuts."""

    cuts: Counter[str] = field(default_factory=Counter[str])
    unfinished: int = 0
    """The jobs that prefixes held unfinished, summed up."""
    ran: int = 0
    rested: int = 0
    """The jobs that were in ``dead`` or ``interrupted`` at the end."""
    problems: list[str] = field(default_factory=list[str])


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Cut the history of ``options.history``, or one made for it; return the exit status."""
    folder = RunFolder(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove").path
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; files under {os.path.relpath(folder)}", flush=True)
    place = options.history
    if place is None:
        print(f"  a history of {_RUN_S:g} s is made: kills, retries, jobs for later, lost replies", flush=True)
        mixed = MixedLoadRun(root, folder / "mixed", seed=seed, progress=partial(print, flush=True))
        mixed.run(_RUN_S, stopped=lambda: stop.asked)
        place = mixed.data
    account, started, shown = Account(), time.monotonic(), 0.0
    for done, _ in enumerate(cut_all(place, folder / "prefix", options.cuts, random.Random(seed), account), 1):
        now = time.monotonic()
        if now - shown > _LINE_S:
            shown, rate = now, done / (now - started)
            left = (options.cuts - done) / rate
            print(f"  {done:,} of {options.cuts:,} prefixes, {rate:.1f}/s, {left:.0f} s left", flush=True)
        if stop.asked or account.problems:
            break
    _show(account, time.monotonic() - started)
    if account.problems:
        return BROKEN
    return INTERRUPTED if stop.asked else HELD


def cut_all(place: Path, folder: Path, count: int, rng: random.Random, account: Account) -> Iterator[Cut]:
    """Cut the history at ``count`` points, earliest first, and try each; findings go into ``account``.

    The folder of a failed prefix is kept.
    """
    history = History(place)
    prover = Prover(place, marked=False)
    groups = history.groups()
    held: Group | None = next(groups, None)
    for number, cut in enumerate(choose(history, count, rng)):
        while held is not None and (history.files.index(held.path), held.end) <= cut[:2]:
            prover.replay(held)
            held = next(groups, None)
        data = folder / f"{number}"
        _copy(history, cut, data)
        before = len(account.problems)
        with EmbeddedServer(data) as server, recoverer(server.url) as recovery:
            _try(cut, recovery, prover, account, seen_dying=bool(number % 2))
        if len(account.problems) == before:
            shutil.rmtree(data)
        yield cut


def choose(history: History, count: int, rng: random.Random) -> list[Cut]:
    """Draw the points: a third between groups, a third at any byte, a third within groups of several commands."""
    ends: list[Cut] = []
    amid: list[tuple[int, int, int]] = []
    for group in history.groups():
        file = history.files.index(group.path)
        ends.append(Cut(file, group.end, "between groups"))
        if len(group.commands) > 1:
            amid.append((file, group.offset, group.end))
    sizes = [path.stat().st_size for path in history.files]
    drawn = [rng.choice(ends) for _ in range(count - 2 * (count // 3))]
    for _ in range(count // 3):
        (file,) = rng.choices(range(len(sizes)), sizes)
        drawn.append(Cut(file, rng.randrange(sizes[file]), "any byte"))
        if amid:
            file, first, end = rng.choice(amid)
            drawn.append(Cut(file, rng.randrange(first + 1, end), "amid a group"))
    return sorted(drawn)


def _copy(history: History, cut: Cut, data: Path) -> None:
    """Create a data folder that holds the history up to the cut."""
    source, folder = history.files[0].parent, data / "appendonlydir"
    folder.mkdir(parents=True)
    (manifest,) = source.glob("*.manifest")
    later = {path.name for path in history.files[cut.file + 1 :]}
    lines = [line for line in manifest.read_text().splitlines() if line.split()[1] not in later]
    (folder / manifest.name).write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        shutil.copy(source / line.split()[1], folder)
    os.truncate(folder / history.files[cut.file].name, cut.offset)


def _try(cut: Cut, recovery: Recoverer, prover: Prover, account: Account, *, seen_dying: bool) -> None:
    expected = {jid: places for jid, places in prover.at.items() if place_of(places[0]) != END}
    problems: list[str] = []
    if (found := recovery.counts()) != (counts := Counter(key for places in prover.at.values() for key in places)):
        problems.append(f"the server holds {dict(found - counts)} more and {dict(counts - found)} less than the replay")
    recovery.settle(seen_dying=seen_dying)
    if stray := [key for key in recovery.counts() if place_of(key) not in ("waiting", END)]:
        problems.append(f"after the recovery jobs are left in {stray}")
    ran = recovery.drain()
    rested = recovery.jids()
    problems += check_recovery(expected, set(prover.at), ran, rested)
    problems += recovery.unexpected
    account.cuts[cut.kind] += 1
    account.unfinished += len(expected)
    account.ran += len(ran)
    account.rested += len(rested)
    account.problems += [f"cut at byte {cut.offset} of file {cut.file} ({cut.kind}): {problem}" for problem in problems]


def check_recovery(
    expected: dict[bytes, Places], known: set[bytes], ran: "Counter[bytes]", rested: "Counter[bytes]"
) -> Iterator[str]:
    """Compare the unfinished jobs of a prefix (``expected``) and all its jobs (``known``) with the jobs after the
    recovery.
    """
    for jid, places in expected.items():
        if not ran[jid] and not rested[jid]:
            yield f"job {_text(jid)} was in {_text(places[0])}, and never ran: lost"
    for jid, count in (ran + rested).items():
        if jid not in known:
            yield f"job {_text(jid)} had ended or was never pushed, and appears"
        elif count > max(1, len(expected.get(jid, ()))):
            yield f"job {_text(jid)} ran or rests {count} times"


def _show(account: Account, seconds: float) -> None:
    total = account.cuts.total()
    rows: Sequence[tuple[str, Any]] = [
        ("prefixes, each on a server of its own", f"{total:,} ({total / max(seconds, 1e-9):.1f}/s)"),
        *((f"  cut {kind}", f"{count:,}") for kind, count in sorted(account.cuts.items())),
        ("jobs they held unfinished", f"{account.unfinished:,}"),
        ("  ran after the recovery", f"{account.ran:,}"),
        ("  at rest (dead, interrupted)", f"{account.rested:,}"),
        ("jobs lost, twice, or from nowhere", f"{len(account.problems):,}"),
    ]
    print()
    for name, value in rows:
        print(f"  {name:<40} {value:>16}")
    for problem in account.problems[:_SHOWN]:
        print(f"\n{problem}")


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
