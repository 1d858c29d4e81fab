"""Make a short history with every event: killed processes, retries, scheduled jobs, lost replies."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from redis import Redis

from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from tests.proofs.end_marks import STORES
from tests.proofs.places import END, WAITING, WORKING, place_of
from tests.servers.guarded import as_role, with_all_rights
from tests.servers.proxy import Proxy
from tests.servers.recorded import RecordedServer

_QUEUE, _PAUSED = "mixed", "PausedWorker"
_JOBS = ("-r", "tests.proofs.mixed_load_jobs")
_FETCH = rb"EVAL(SHA)?\r\n.*queue:"
_LOST_REPLIES = range(4, 40, 6)
_KILL_EVERY_S = 1.2
_SEED_EVERY_S = 0.4
_PATIENCE_S = 60.0
_POLL_S = 0.05
_LINE_S = 2.0


class MixedLoadRun:
    """One server, one ``scripts/cluster`` whose children are killed, and a worker behind a proxy that loses replies.

    ``run`` works for ``seconds`` and until there is ``enough``, then waits until every job has ended; what stays is the data folder
    with the history.
    """

    def __init__(
        self, root: Path, folder: Path, *, seed: int = 0, progress: Callable[[str], object] = lambda _: None
    ) -> None:
        self.data = folder / "redis"
        self._progress = progress
        self._printed = 0.0
        self.kills = 0
        self._root = root
        self._folder = folder
        self._rng = random.Random(seed)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = folder / "cluster.log"

    def run(
        self, seconds: float, stopped: Callable[[], bool] = lambda: False, enough: Callable[[], bool] = lambda: True
    ) -> None:
        """Run the load. Raises RuntimeError when jobs are left after a minute, or a process ends by itself."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            RecordedServer(self.data) as server,
            Proxy(server.url) as proxy,
            server.open("mixed") as client,
        ):
            try:
                self._start(server.url, proxy)
                self._kill_children(client, seconds, stopped, enough)
                self._settle(client, stopped)
            finally:
                self._stop()
            server.written()
            if refused := server.refusals():
                raise RuntimeError(f"rights that a role lacks: {refused}")

    def _start(self, url: str, proxy: Proxy) -> None:
        (self._folder / "config").mkdir(exist_ok=True)
        scripts = self._root / "scripts"
        size = ["--processes", "2", "--max-concurrency", "5"]
        self._open("cluster", [str(scripts / "cluster"), _QUEUE, *size, *_JOBS], as_role(url, "worker"), url)
        self._open(
            "bare", [str(scripts / "worker"), "-q", _QUEUE, "-c", "3", *_JOBS], as_role(proxy.url, "worker"), url
        )
        proxy.lose_replies(_FETCH, _LOST_REPLIES)

    def _open(self, name: str, argv: list[str], url: str, store: str) -> None:
        foreign = [key for key in os.environ if key.startswith("FRAMEWORK_")]
        env = {key: value for key, value in os.environ.items() if key not in foreign} | {
            "PYTHONPATH": str(self._root),
            "FRAMEWORK_CONFIG_DIR": str(self._folder / "config"),
            "FRAMEWORK_POLL_INTERVAL": "0.1",
            "REDIS_URL": url,
            STORES: f"main={with_all_rights(store)}",
        }
        with (self._folder / f"{name}.log").open("wb") as log, (self._folder / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                start_new_session=True,
            )
        self._processes.append(process)

    def _kill_children(
        self, client: Redis, seconds: float, stopped: Callable[[], bool], enough: Callable[[], bool]
    ) -> None:
        # During the start of the processes: a running one would see it seconds later.
        set_flag(client, Flag(pause_flag(_PAUSED), 100.0, "mixed"), None)
        while not self._children() and not stopped():
            self._watch("processes start")
            time.sleep(_POLL_S)
        begun = killed = seeded = now = time.monotonic()
        while not stopped() and (now - begun < seconds or (now - begun < _PATIENCE_S and not enough())):
            time.sleep(_POLL_S)
            self._watch(f"{now - begun:.0f} of {seconds:g} s")
            now = time.monotonic()
            if now - seeded > _SEED_EVERY_S:
                seeded = now
                self._seed(client)
            if now - killed > _KILL_EVERY_S and (children := self._children()):
                killed = now
                with suppress(ProcessLookupError):
                    os.kill(self._rng.choice(children), signal.SIGKILL)
                    self.kills += 1
        unset_flag(client, pause_flag(_PAUSED))

    def _seed(self, client: Redis) -> None:
        job = {"class": "SeedWorker", "args": [], "queue": _QUEUE, "jid": self._rng.randbytes(12).hex(), "retry": True}
        client.lpush(f"queue:{_QUEUE}", json.dumps(job, separators=(",", ":")))

    def _children(self) -> list[int]:
        """Return the children of the supervisor that are ready, from its log."""
        alive: set[int] = set()
        text = self._log.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event.get("event_name") == "process.ready":
                    alive.add(int(event["pid"]))
                elif event.get("event_name") in ("child.died", "child.stopped", "child.killed"):
                    alive.discard(int(event["child_pid"]))
        return sorted(alive)

    def _settle(self, client: Redis, stopped: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while left := _left(client):
            if stopped():
                return
            if time.monotonic() > deadline:
                message = f"jobs are left: {left}; logs are in {self._folder}"
                raise RuntimeError(message)
            self._watch(f"{sum(left.values())} jobs are left")
            _hasten(client)
            time.sleep(_POLL_S)

    def _watch(self, doing: str) -> None:
        """Print the progress every 2 s, and notice a process that ended by itself. Called often."""
        if time.monotonic() - self._printed > _LINE_S:
            self._printed = time.monotonic()
            self._progress(f"  {doing}; {self.kills} kills")
        for process in self._processes:
            if process.poll() is not None:
                message = f"a process ended with {process.returncode}; logs are in {self._folder}"
                raise RuntimeError(message)

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _hasten(client: Redis) -> None:
    """Make retries due: a retry waits some random seconds more than its class says."""
    for member in client.zrange("retry", 0, -1):
        client.zadd("retry", {member: 1}, xx=True)


def _left(client: Redis) -> dict[str, int]:
    """Return how many jobs are in each place where no job stays for good."""
    counts: dict[str, Any] = {}
    for key in cast("list[bytes]", client.keys("*")):
        kind = place_of(key)
        if kind not in (None, END):
            counts[key.decode()] = client.llen(key) if kind in (WAITING, WORKING) else client.zcard(key)
    return {key: int(count) for key, count in counts.items() if count}
