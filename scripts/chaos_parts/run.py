"""All rounds of ``scripts/chaos kill``: each on a Redis and a fleet of its own, then the table."""

import argparse
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_parts.folder import RunFolder
from demo_parts.stop import StopSignal
from prove_parts.prover import Verdict, prove
from redis import Redis

import framework
from chaos_parts import census, report
from chaos_parts.account import account
from chaos_parts.blows import Freezes, Kills, RedisTrouble, Round
from chaos_parts.effects import ENDED, FOLDER, Effect, Effects
from chaos_parts.fleet import BareFleet, ClusterFleet, Fleet
from chaos_parts.marks import STORES
from chaos_parts.producer import Producer
from chaos_parts.recorded import RecordedServer
from chaos_parts.report import Outcome
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import LONGEST_SOCKET_PATH

HELD, BROKEN, INTERRUPTED = 0, 1, 130
_LOOK_S = 0.02
_LINE_S = 2.0
_STANDSTILL_S = 60.0
"""No job ended for so long after the last blow: what is missing then is lost."""

_FOREIGN = ("FRAMEWORK_", "REDIS_URL")


def run(root: Path, wish: argparse.Namespace, stop: StopSignal) -> int:
    """Run the rounds, print the table, write ``report.json``; return the exit status."""
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "chaos"
    folder = RunFolder(parent).path
    if len(os.fsencode(folder / "redis-0" / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/chaos: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return 2
    seed = wish.seed if wish.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; logs and effects under {os.path.relpath(folder)}", flush=True)
    outcomes: list[Outcome] = []
    with prepared(folder) as server:
        for number, (name, mode) in enumerate(_plan(wish)):
            outcomes.append(_round(root, folder / f"{number}-{name}-{mode}", server, name, mode, wish, seed, stop))
            if stop.asked:
                break
    report.write(outcomes, wish, seed, [folder / "report.json", parent / "report.json"])
    report.show(outcomes)
    if stop.asked:
        return INTERRUPTED
    return HELD if all(outcome.held for outcome in outcomes) else BROKEN


@contextmanager
def prepared(folder: Path) -> Iterator[RecordedServer]:
    """A Redis of our own; this process pushes to it, and so do those that inherit its environment."""
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    (folder / "config").mkdir()
    with RecordedServer(folder / "redis-0") as server:
        os.environ["REDIS_URL"] = server.url
        os.environ[STORES] = f"main={server.url}"
        os.environ["FRAMEWORK_CONFIG_DIR"] = str(folder / "config")
        os.environ["FRAMEWORK_LOGGING__JOBS"] = "false"
        framework.boot()
        yield server


def environment(root: Path, effects: Path) -> dict[str, str]:
    """What the workers are started with; children of a supervisor find our modules by it."""
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'scripts'}", FOLDER: str(effects)}


def _plan(wish: argparse.Namespace) -> list[tuple[str, str]]:
    modes = ("bare", "cluster") if wish.mode == "both" else (wish.mode,)
    kills = [("kill", mode) for mode in modes]
    if wish.round == "all":
        return [*kills, ("freeze", "bare"), ("redis", "bare")]
    return kills if wish.round == "kill" else [(wish.round, "bare")]


def _round(
    root: Path, folder: Path, server: RecordedServer, name: str, mode: str,
    wish: argparse.Namespace, seed: int, stop: StopSignal,
) -> Outcome:  # fmt: skip
    effects = folder / "effects"
    effects.mkdir(parents=True)
    rng = random.Random(f"{seed} {name} {mode}")
    kinds: dict[str, type[Round]] = {"kill": Kills, "freeze": Freezes, "redis": RedisTrouble}
    shape = kinds[name]
    fleets: dict[str, type[Fleet]] = {"bare": BareFleet, "cluster": ClusterFleet}
    build: type = fleets[mode]
    fleet: Fleet = build(
        root, folder / "logs", environment(root, effects),
        processes=wish.processes, concurrency=wish.concurrency, timeout_s=shape.timeout_s,
    )  # fmt: skip
    server.begin()
    with open_client(Endpoint(server.url), name="chaos") as client:
        make: type = shape
        blows: Round = make(fleet, server, client, rng, **({"every": wish.every} if name == "kill" else {}))
        producer = Producer(wish.jobs, wish.seconds, rng, long_jobs=shape.long_jobs, long_ms=shape.long_ms)
        print(f"\nRound {name} ({mode}): {wish.jobs:,} jobs, {wish.processes} processes", flush=True)
        scene = Scene(fleet, blows, producer, Effects(effects), wish)
        try:
            scene.play(stop)
            census.settle(client, wish.settle if not stop.asked else 0.0, wish.processes)
        finally:
            producer.stop()
            fleet.stop()
        scene.read()
        server.written()
        return _judge(name, mode, scene, client, prove(server.data_dir), wish)


class Scene:
    """One round under way."""

    def __init__(
        self, fleet: Fleet, blows: Round, producer: Producer, effects: Effects, wish: argparse.Namespace
    ) -> None:
        self.fleet, self.blows, self.producer, self.wish = fleet, blows, producer, wish
        self.seen: list[Effect] = []
        self.done: set[int] = set()
        self.started = self.changed = self.shown = time.monotonic()
        self._effects = effects

    def play(self, stop: StopSignal) -> None:
        """Strike until the time is over, then let the fleet finish; return when all is done or nothing moves any more."""
        self.producer.start()
        self.fleet.start()
        while not stop.wait(_LOOK_S):
            self.fleet.tend()
            now = time.monotonic()
            if now - self.started < self.wish.seconds:
                self.blows.strike(now)
            elif not self._over:
                self.blows.finish()
                self._over = True
                self.changed = now
            self.read()
            self._tell(now)
            if self._over and (len(self.done) == self.wish.jobs or now - self.changed > _STANDSTILL_S):
                break
        self.blows.finish()

    _over = False

    def read(self) -> None:
        """Take in what the jobs have told."""
        fresh = list(self._effects.fresh())
        before = len(self.done)
        self.seen += fresh
        self.done.update(effect.serial for effect in fresh if effect.kind == ENDED)
        if len(self.done) != before:
            self.changed = time.monotonic()

    def _tell(self, now: float) -> None:
        if now - self.shown < _LINE_S:
            return
        self.shown = now
        again = sum(effect.kind == ENDED for effect in self.seen) - len(self.done)
        print(
            f"  {now - self.started:5.0f} s  {len(self.done):>8,} done, {self.producer.accepted - len(self.done):>6,} waiting, "
            f"{again} ended again, {len(self.blows.blows)} blows, {len(self.fleet.living)} processes",
            flush=True,
        )


def _judge(name: str, mode: str, scene: Scene, client: Redis, history: Verdict, wish: argparse.Namespace) -> Outcome:
    places = {key: int(client.zcard(key)) for key in ("retry", "schedule", "dead", "interrupted")}
    return Outcome(
        name=name,
        mode=mode,
        jobs=wish.jobs,
        slots=wish.concurrency,
        seconds=time.monotonic() - scene.started,
        account=account(scene.producer.accepted, scene.seen, scene.blows.blows, scene.producer.doubtful),
        blows=scene.blows.blows,
        producer=scene.producer,
        set_aside={key: count for key, count in places.items() if count},
        surprises=scene.fleet.surprises,
        keys_left=census.leaks(client),
        processes_left=scene.fleet.left(),
        told=scene.fleet.told,
        history=history,
    )
