"""Move jobs of all places to another Redis and back while producers and processes work, and movers, processes and both Redis die.

``MOVE_JOBS`` is the number of jobs that wait: by default 20,000, in the full form 1,000,000. ``MOVE_KILLS`` is the least number of
kills, one each ``MOVE_KILL_EVERY`` seconds of the words in ``MOVE_VICTIMS`` (``mover``, ``worker``, ``redis``). ``MOVE_RATE`` is the
number of jobs that a mover moves in a second, by default a sixtieth of the jobs. ``MOVE_FSYNC`` is ``appendfsync`` of both.
``MOVE_REPORT`` names a file to which the figures are appended, a line of JSON.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from struct import Struct

import pytest
from redis.exceptions import RedisError

from framework.features.moves.keys import MOVED_COUNTS
from framework.features.moves.records import read_records
from framework.fetch.blocks import packed_jobs
from framework.fetch.held_blocks import packed_held
from framework.store import embedded
from framework.wire import keys
from tests.chaos.move_jobs import ACCEPTED, DOUBTFUL, DROPPED, ENDED, ITEMS, LIMIT, PUSHED, RUN
from tests.harness import Site, encoded, until
from tests.servers.guarded import GuardedServer

HERE = Path(__file__).resolve().parent
JOBS = int(os.environ.get("MOVE_JOBS", "20000"))
KILLS = int(os.environ.get("MOVE_KILLS", "8" if JOBS < 200_000 else "24"))
RATE = int(os.environ.get("MOVE_RATE", str(max(200, JOBS // 60))))
FSYNC = os.environ.get("MOVE_FSYNC", "always")
REPORT = os.environ.get("MOVE_REPORT", "")
LIVE_RATE = 60
"""The pushes per second of a moving class, and of one that stays; as many of equal jobs."""
ALONE_S = QUIET_S = 20.0
"""How long the jobs run before the move, and in it before the first kill: for the comparison."""
KILL_EVERY_S = float(os.environ.get("MOVE_KILL_EVERY", "6" if JOBS < 200_000 else "20"))
VICTIMS = os.environ.get("MOVE_VICTIMS", "mover worker redis").split()
IN_FLIGHT = 42
"""Jobs of one process that a kill may let run again: ten slots, and the ends of one group that are not written yet."""
WRITTEN_WITHIN_S = 30.0
"""Until when after its begin the end of a job is written, which waits for a Redis that starts again."""
AFTER_KILL_S = 5.0
"""For how long behind a kill of a mover pushes are looked at: the next kill comes later."""
MOVED_BEFORE_UNDO = 0.3

SHARES = {
    "PlainWorker": 0.40,
    "LockedWorker": 0.14,
    "FairWorker": 0.10,
    "LaterWorker": 0.10,
    "PausedWorker": 0.06,
    "DeferredWorker": 0.06,
    "LimitedWorker": 0.02,
}
LOCKED = int(JOBS * SHARES["LockedWorker"])
"""Equal jobs of these are pushed all the time, and dropped while they wait."""
RAW = {"RetryWorker": (keys.RETRY, 0.05), "DeadWorker": (keys.DEAD, 0.02)}
MEMBERS = 0.05
BATCHES, ITERATIONS = 20, 20
QUEUES = ("live", "hot", "limited", "tick", "items", "batch_end", "paused", "deferred", "retry", "later", "dead")
"""The queues that run during the move, the first ones first. The jobs of the others wait until its end."""
WAITING = ("plain", "locked", "fair", "member")
LATER = 1_000_000_000
KINDS = (
    "plain",
    "locked",
    "fair",
    "later",
    "paused",
    "deferred",
    "limited",
    "member",
    "retry",
    "dead",
    "live",
    "other",
)


class Server(GuardedServer):
    def _configure(self) -> str:
        url = super()._configure()
        with (self.data_dir / "server.conf").open("a") as settings:
            settings.write(f"appendfsync {FSYNC}\n")
        return url


class Field:
    """Two Redis with two worker processes each, the producers, the kills, and the account."""

    def __init__(self, site: Site, servers: dict[str, Server]) -> None:
        self.site, self.servers = site, servers
        self.folder = site.folder / "ran"
        self.folder.mkdir()
        self.clients = {name: server.open(read_timeout_s=30) for name, server in servers.items()}
        # Before the processes start: one that runs learns it after 5 s.
        for client in self.clients.values():
            client.sadd(keys.PAUSED, *(f"moved:{name}" for name in WAITING))
        self.shard_of: dict[int, str] = {}
        """The shard of each worker process, by its pid."""
        self.workers = {name: [self.start_worker(name) for _ in range(2)] for name in servers}
        for process in itertools.chain.from_iterable(self.workers.values()):
            self.wait_for(process)
        self.mover = None
        self.kills: list[tuple[str, float]] = []
        self.killed_pids: dict[int, float] = {}
        self.down: list[tuple[str, float, float]] = []
        """The shards whose Redis was killed, when, and when it answered again."""
        self.phases: dict[str, tuple[float, float]] = {}
        victims = ["mover", "worker main", "redis main", "mover", "worker second", "redis second"]
        self._victims = itertools.cycle(one for one in victims if one.partition(" ")[0] in VICTIMS)
        self._producers: list[subprocess.Popen[str]] = []
        self._serials = itertools.count(LATER * 2, 1_000)
        self._shown_at = 0.0

    # --- processes

    def env(self) -> dict[str, str]:
        return {
            "MOVE_FOLDER": str(self.folder),
            "FRAMEWORK_FLAGS__DEFER_DELAY": "60",
            "FRAMEWORK_LOGGING__JOBS": "false",
        }

    def start_worker(self, shard: str):
        queues = [
            word
            for name in ("moved:live", "other", *(f"moved:{one}" for one in (*QUEUES[1:], *WAITING)))
            for word in ("-q", name)
        ]
        process = self.site.worker(*queues, "-c", "10", "--shard", shard, **self.env())
        self.shard_of[process.pid] = shard
        return process

    @staticmethod
    def wait_for(process) -> None:
        until(lambda: process.find(event_name="process.ready"), "the process is ready", 300)

    def producer(self, *words: object) -> "subprocess.Popen[str]":
        environment = self.site.environment("producer", **self.env())
        argv = [sys.executable, "move_producer.py", *map(str, words)]
        with (self.site.folder / "producer.err").open("ab") as errors:
            made = subprocess.Popen(
                argv, cwd=self.site.folder, env=environment, stdin=subprocess.PIPE, stderr=errors, text=True
            )
        self._producers.append(made)
        return made

    def command(self, *words: str, allowed: tuple[int, ...] = (0,)) -> str:
        # A Redis that loads its file after a kill answers later.
        for _ in range(60):
            found = self.site.run("-m", "framework", *words, timeout_s=600, **self.env())
            if found.returncode in allowed:
                return found.stdout
            assert found.returncode != 2, found.stderr
            time.sleep(1)
        pytest.fail(f"{' '.join(words)}: {found.stdout} {found.stderr}")

    def close(self) -> None:
        for one in self._producers:
            one.kill()
            one.wait(10)
            if one.stdin is not None:
                one.stdin.close()
        for client in self.clients.values():
            client.close()

    # --- the jobs

    def fill(self) -> dict[str, int]:
        for worker, verb in (("PausedWorker", "pause"), ("DeferredWorker", "defer")):
            self.command("jobs", verb, worker, "--for", "12h", "--reason", "campaign")
        counts = {name: int(JOBS * share) for name, share in SHARES.items()}
        members = int(JOBS * MEMBERS) // BATCHES
        # What is due runs during the move: a few hundred jobs a second.
        facts = {
            "jobs": counts,
            "later": max(300.0, JOBS / 800),
            "batches": BATCHES,
            "members": members,
            "iterations": ITERATIONS,
        }
        filling = self.producer("fill", json.dumps(facts))
        for name, (key, share) in RAW.items():
            self._fill_set(name, key, int(JOBS * share))
        assert filling.wait(1_200) == 0, (self.site.folder / "producer.err").read_text()
        main = self.clients["main"]
        held = keys.paused_jobs("PausedWorker").encode()
        until(
            lambda: self.show("filling") or main.zcard(held) + packed_held(main).get(held, 0) >= counts["PausedWorker"],
            "the jobs of the paused class are held",
            1_200,
        )
        until(lambda: not main.llen("queue:moved:deferred"), "the jobs of the deferred class are deferred", 600)
        return self.places()

    def _fill_set(self, name: str, key: str, count: int) -> None:
        """Write jobs as a process that has failed them leaves them."""
        kind, now = name.removesuffix("Worker").lower(), time.time()
        with (self.folder / f"pushed-{kind}.0").open("ab") as pushed:
            for start in range(0, count, 1_000):
                jobs = {}
                for serial in range(start, min(count, start + 1_000)):
                    jid = f"{len(name):012x}{serial:012x}"
                    facts = {"retry_count": 0, "error_message": "no", "error_class": "ValueError", "failed_at": now}
                    job = encoded(name, queue=f"moved:{kind}", jid=jid, args=[serial, now], created_at=now, **facts)
                    jobs[job] = now + (30 + serial % 600 if key == keys.RETRY else 0)
                    pushed.write(PUSHED.pack(serial, now, bytes.fromhex(jid), ACCEPTED))
                self.clients["main"].zadd(key, jobs)

    def places(self) -> dict[str, int]:
        """Return how many jobs wait in each place of the main shard."""
        main = self.clients["main"]
        limit, paused = f"{keys.limit('LimitedWorker')}:waiting:", keys.paused_jobs("PausedWorker")
        beyond, queues = packed_held(main), main.smembers(keys.QUEUES)
        return {
            "queued": sum(main.llen(b"queue:" + name) for name in queues),
            "in_blocks": sum(packed_jobs(main).values()) + sum(beyond.values()),
            "scheduled": main.zcard(keys.SCHEDULE),
            "deferred_blocks": main.zcard(keys.DEFERRED_PACKED),
            "retry": main.zcard(keys.RETRY),
            "dead": main.zcard(keys.DEAD),
            "held_by_limit": main.zcard(limit),
            "held_by_pause": main.zcard(paused),
            "locks": sum(1 for _ in main.scan_iter("aw:lock:*", count=1_000)),
        }

    # --- kills

    def kill_next(self) -> None:
        victim, _, shard = next(self._victims).partition(" ")
        at = time.time()
        if victim == "mover" and self.mover is not None:
            self.mover.kill()
        elif victim == "worker":
            process = self.workers[shard].pop(0)
            self.killed_pids[process.pid] = at
            process.kill()
            self.workers[shard].append(self.start_worker(shard))
            self.wait_for(self.workers[shard][-1])
        elif victim == "redis":
            self.servers[shard].kill()
            self.servers[shard].start()
            until(lambda: self.read(self.clients[shard].ping), "Redis answers", 300)
            self.down.append((shard, at, time.time()))
        else:
            return
        self.kills.append((victim, at))

    def read(self, step):
        """Return what a step returns, ``None`` while a Redis starts again."""
        try:
            return step()
        except (RedisError, OSError):
            return None

    # --- the moves

    def drive(self, done, *words: str) -> None:
        """Run a mover again and again until ``done``, and kill something from time to time."""
        killed_at = short_at = time.monotonic()
        self.mover, before, has_moved = None, self.moved, False
        while not self.read(done):
            if self.mover is None or self.mover.popen.poll() is not None:
                assert self.mover is None or self.mover.popen.poll() in (0, 75, -9), self.mover.output
                self.mover = self.site.start("-m", "framework", "shards", *words, "-r", "jobs", **self.env())
            time.sleep(0.2)
            now = time.monotonic()
            if now - short_at > 10:
                short_at = now
                self.producer("short", 5, next(self._serials), LOCKED)
            # A mover counts all jobs before it begins. From then on the processes carry its move on, whatever dies.
            has_moved = has_moved or bool(self.read(lambda: self.moved > before))
            if has_moved and time.time() > self.phases["quiet"][1] and now - killed_at > KILL_EVERY_S:
                self.kill_next()
                killed_at = time.monotonic()
            self.show(words[0])
        if self.mover.popen.poll() is None:
            self.mover.kill()
            self.kills.append(("mover", time.time()))

    @property
    def moved(self) -> int:
        return sum(int(n) for one in self.clients.values() for n in one.hvals(MOVED_COUNTS))

    def state(self, shard: str) -> str:
        return next(iter(read_records(self.clients[shard]).values())).state

    def run(self) -> dict[str, object]:
        places = self.fill()
        live = self.producer("live", LIVE_RATE, LATER, LOCKED)
        began = time.time()
        self.phases["alone"] = (began + 2, began + ALONE_S)
        until(lambda: time.time() > began + ALONE_S, "the jobs ran alone")
        total = sum(places[name] for name in ("queued", "in_blocks", "scheduled", "retry", "dead", "held_by_pause"))
        began = time.time()
        self.phases["quiet"] = (began, float("inf"))
        move = ("move", "--namespace", "moved", "--to", "second", "--rate", str(RATE))
        self.drive(lambda: self._begin_kills() and self.moved > total * MOVED_BEFORE_UNDO, *move)
        there = self.moved
        (record,) = read_records(self.clients["main"]).values()
        self.drive(lambda: self.state("second") == "undone", "undo", record.id, "--rate", str(RATE))
        back = self.moved - there
        self.drive(lambda: any(one.state == "moved" for one in read_records(self.clients["main"]).values()), *move)
        while len(self.kills) < KILLS:
            time.sleep(min(KILL_EVERY_S, 6.0) / 2)
            self.kill_next()
        self.phases["kills"] = (self.phases["quiet"][1], time.time())
        left = self.places()
        moved_s = time.time() - began
        dead_there = self.clients["second"].zcard(keys.DEAD)
        self._let_all_run(live)
        return {
            "jobs": JOBS,
            "places": places,
            "left_on_the_source": {name: count for name, count in left.items() if count},
            "dead_on_the_target": dead_there,
            "moved": there,
            "moved_back": back,
            "moves_in_all": self.moved,
            "seconds_of_moves": round(moved_s),
            "kills": Counter(victim for victim, _ in self.kills),
            "fsync": FSYNC,
            **self.account(),
        }

    def _begin_kills(self) -> bool:
        """Return whether the move has gone on for a while without a kill."""
        last, now = self.phases["quiet"][1], time.time()
        if last == float("inf") and self.moved:
            # Every process knows the move after 6.5 s.
            last = now + QUIET_S
            self.phases["quiet"] = now, last
        return now > last

    def _let_all_run(self, live: "subprocess.Popen[str]") -> None:
        for client in self.clients.values():
            until(
                lambda client=client: self.read(
                    lambda: client.srem(keys.PAUSED, *(f"moved:{one}" for one in WAITING)) >= 0
                ),
                "",
            )
        for words in (("resume", "PausedWorker", "--reason", "campaign"), ("flags", "clear", "DeferredWorker")):
            self.command("jobs", *words, allowed=(0, 1))
        # Status 1 also for the time limit of a command, and where none is left.
        self.command("jobs", "retry", "--in", "dead", "--class", "DeadWorker", "--rate", "max", "--yes")
        self.command(
            "jobs", "retry", "--in", "retry", "--class", "RetryWorker", "--rate", "max", "--yes", allowed=(0, 1)
        )
        self.command("jobs", "deferred", "run-now", "DeferredWorker", "--rate", "100000", allowed=(0, 1))
        live.communicate("\n", timeout=60)
        began = grown_at = looked_at = time.monotonic()
        ran = -1
        while self.missing():
            # Of a million jobs all records are read each time, so a look may take as long as a rest.
            time.sleep(max(1.0, time.monotonic() - looked_at))
            looked_at = time.monotonic()
            found = sum(path.stat().st_size for path in self.folder.iterdir())
            if found > ran:
                ran, grown_at = found, time.monotonic()
            assert time.monotonic() - grown_at < 240, f"jobs do not run: {self.missing()}; {self.places()}"
            self.show("all run")
        self.show(f"ended after {time.monotonic() - began:.0f} s", always=True)

    # --- the account

    def rows(self, kind: str, record: Struct = RUN) -> list[tuple]:
        found: list[tuple] = []
        for path in self.folder.glob(f"{kind}.*"):
            data = path.read_bytes()
            found += record.iter_unpack(data[: len(data) // record.size * record.size])
        return found

    def missing(self) -> dict[str, int]:
        """Return how many accepted jobs have not run, by their kinds."""
        found = {}
        for kind in KINDS:
            ran = sum(path.stat().st_size for path in self.folder.glob(f"{kind}.*")) // RUN.size
            pushed = sum(path.stat().st_size for path in self.folder.glob(f"pushed-{kind}.*")) // PUSHED.size
            # Sizes of files tell as long as many have not run. Equal jobs that were dropped are looked at below.
            found[kind] = pushed - ran if kind != "locked" and ran < pushed * 0.9 else len(self._lost(kind))
        hot = len(self._unrun_equal("hot")) + len(self._unrun_equal("locked"))
        items = ITERATIONS * ITEMS - len({row[0] for row in self.rows("items")})
        ends = BATCHES - len({row[3] for row in self.rows("batchend")})
        found |= {"equal": hot, "items": items, "batches": ends}
        return {kind: count for kind, count in found.items() if count}

    def _lost(self, kind: str) -> set[bytes]:
        if kind == "locked":
            return set()
        accepted = {row[2] for row in self.rows(f"pushed-{kind}", PUSHED) if row[3] == ACCEPTED}
        return accepted - {row[3] for row in self.rows(kind)}

    def _unrun_equal(self, kind: str) -> set[int]:
        """Return the serials of equal jobs of which none began after the last push, whether it was dropped or not."""
        began: dict[int, float] = {}
        for serial, _, at, _ in self.rows(kind):
            began[serial] = max(at, began.get(serial, 0.0))
        last: dict[int, float] = {}
        for serial, at, _, outcome in self.rows(f"pushed-{kind}", PUSHED):
            if outcome in (ACCEPTED, DROPPED):
                last[serial] = max(at, last.get(serial, 0.0))
        return {serial for serial, at in last.items() if began.get(serial, 0.0) < at}

    def account(self) -> dict[str, object]:
        again: Counter[tuple[str, float]] = Counter()
        for kind in (*KINDS, "hot", "tick", "batchend"):
            runs: dict[bytes, list[tuple[float, int]]] = {}
            for path in self.folder.glob(f"{kind}.*"):
                pid, data = int(path.suffix[1:]), path.read_bytes()
                for *_, at, jid in RUN.iter_unpack(data[: len(data) // RUN.size * RUN.size]):
                    runs.setdefault(jid, []).append((at, pid))
            for found in runs.values():
                if len(found) > 1:
                    again.update(self._cause(at, pid) for at, pid in sorted(found)[:-1])
        causes = Counter({"": 0})
        for (cause, _), count in again.items():
            causes[cause] += count
        items = self.rows("items")
        pushes = Counter(row[3] for kind in ("hot", "locked") for row in self.rows(f"pushed-{kind}", PUSHED))
        all_pushes = Counter(path.name.partition(".")[0] for path in self.folder.glob("pushed-*"))
        return {
            "lost": sum(len(self._lost(kind)) for kind in KINDS),
            "ran_again": causes.total(),
            "ran_again_by_kills_of": {cause: count for cause, count in causes.items() if cause},
            "ran_again_most_by_a_kill": max((count for (cause, _), count in again.items() if cause), default=0),
            "ran_again_without_a_kill": causes[""],
            "items_again": len(items) - ITERATIONS * ITEMS,
            "equal_pushes": {"accepted": pushes[ACCEPTED], "dropped": pushes[DROPPED], "doubtful": pushes[DOUBTFUL]},
            "equal_without_a_run": len(self._unrun_equal("hot")) + len(self._unrun_equal("locked")),
            "equal_jobs_both_waited": self.both_waited(),
            "most_limited": self.most_limited(),
            "ticks": len({row[3] for row in self.rows("tick")}),
            "producers": sum(all_pushes.values()),
            **{
                f"p99_{kind}_{phase}_ms": self.p99(kind, found)
                for kind in ("live", "other")
                for phase, found in self.windows().items()
            },
        }

    def _cause(self, at: float, pid: int) -> tuple[str, float]:
        """Return the kill behind which a job could run again that began in this process, and when; ``""`` for none.

        Its process was killed before its end was written, or the Redis of its shard was away when its end was to be written.
        """
        killed = self.killed_pids.get(pid, 0.0)
        if at <= killed <= at + WRITTEN_WITHIN_S:
            return "worker", killed
        for shard, gone, back in self.down:
            if shard == self.shard_of[pid] and gone - WRITTEN_WITHIN_S <= at <= back:
                return "redis", gone
        return "", 0.0

    def both_waited(self) -> dict[str, int]:
        """Return how many jobs were accepted while an equal one waited: merged with it as they met, or run beside it."""
        found = Counter({"merged": 0, "both_ran": 0, "both_ran_without_a_kill": 0})
        for kind in ("hot", "locked"):
            runs: dict[int, list[float]] = {}
            ran: set[bytes] = set()
            for serial, _, at, jid in self.rows(kind):
                runs.setdefault(serial, []).append(at)
                ran.add(jid)
            pushed: dict[int, list[tuple[float, bytes]]] = {}
            for serial, at, jid, outcome in self.rows(f"pushed-{kind}", PUSHED):
                if outcome == ACCEPTED:
                    pushed.setdefault(serial, []).append((at, jid))
            for serial, jobs in pushed.items():
                began = sorted(runs.get(serial, []))
                for (one, first), (later, second) in itertools.pairwise(sorted(jobs)):
                    # Of the earlier job a run began before the later push, or shortly behind it: its lock was free.
                    at = bisect_left(began, one)
                    if at < len(began) and began[at] <= later + 1:
                        continue
                    both = first in ran and second in ran
                    near = any(one - 5 < killed < later + 30 for _, killed in self.kills)
                    found["both_ran" if both else "merged"] += 1
                    found["both_ran_without_a_kill"] += both and not near
        return dict(found)

    def most_limited(self) -> int:
        """Return the most jobs of the limited class that ran at once. A killed process has no ends: its runs ended with it."""
        ends = {(jid, began): end for began, end, jid in self.rows("ended", ENDED)}
        events: list[tuple[float, int]] = []
        for path in self.folder.glob("limited.*"):
            killed_at = self.killed_pids.get(int(path.suffix[1:]))
            data = path.read_bytes()
            own = {jid: (began, end) for (jid, began), end in ends.items()}
            for *_, at, jid in RUN.iter_unpack(data[: len(data) // RUN.size * RUN.size]):
                began, end = own.get(jid, (at, killed_at or at))
                if not began <= at <= end:
                    began, end = at, killed_at or at
                events += [(at, 1), (max(at, end), -1)]
        running = most = 0
        for _, change in sorted(events, key=lambda one: (one[0], one[1])):
            running += change
            most = max(most, running)
        return most

    def windows(self) -> dict[str, list[tuple[float, float]]]:
        """Return the times whose pushes are compared: the phases, and in that of kills the time behind those of movers alone."""
        first, last = self.phases["kills"]
        others = [(killed, killed + WRITTEN_WITHIN_S) for victim, killed in self.kills if victim == "worker"]
        others += [(gone - 1, back + WRITTEN_WITHIN_S / 3) for _, gone, back in self.down]
        movers = [(killed, killed + AFTER_KILL_S) for victim, killed in self.kills if victim == "mover"]
        away = [(gone - 1, back + 2) for _, gone, back in self.down]
        return {
            **{name: [phase] for name, phase in self.phases.items()},
            "kills_of_movers": [
                one for one in movers if not any(one[0] < end and begin < one[1] for begin, end in others)
            ],
            "kills_redis_there": _without((first, last), away),
        }

    def p99(self, kind: str, windows: list[tuple[float, float]]) -> float:
        waits = sorted(
            began - pushed
            for _, pushed, began, _ in self.rows(kind)
            if any(first <= pushed <= last for first, last in windows)
        )
        return round(1_000 * waits[int(0.99 * (len(waits) - 1))], 1) if waits else 0.0

    def show(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._shown_at > 10:
            self._shown_at = now
            moved = self.read(lambda: self.moved)
            sys.__stderr__.write(f"moves: {text}; {moved or 0:,} moved, {len(self.kills)} kills\n")
            sys.__stderr__.flush()


def _without(whole: tuple[float, float], parts: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a span of time without these parts."""
    first, last = whole
    found = []
    for begin, end in sorted(parts):
        if begin > first:
            found.append((first, min(begin, last)))
        first = max(first, end)
    return [*found, (first, last)] if first < last else found


@pytest.mark.campaign
@pytest.mark.timeout(1_200 + JOBS // 200)
@pytest.mark.proves("I1", "I2")
def test_move_of_all_jobs_under_load_and_kills(short_path, redis_url, measured, monkeypatch):
    # A killed server loads hundreds of megabytes when it starts again.
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 300.0)
    servers = {name: Server(short_path / name) for name in ("main", "second")}
    for server in servers.values():
        server.start()
    site = Site(short_path, redis_url)
    shards = {name: {"url": server.url} for name, server in servers.items()}
    site.write("redis.yml", {"shards": shards, "roles": {"meta": "main"}})
    settings = {"packing_depth": 10_000, "workers_module": "jobs", "dead": {"max_jobs": 1_000_000}}
    site.write("application.yml", settings)
    shutil.copy(HERE / "move_jobs.py", short_path / "jobs.py")
    shutil.copy(HERE / "move_producer.py", short_path)
    field = Field(site, servers)
    try:
        found = field.run()
    finally:
        field.close()
        site.close()
        for server in servers.values():
            server.stop()
    if REPORT:
        with Path(REPORT).open("a") as report:
            report.write(json.dumps(found) + "\n")
    sys.__stderr__.write(f"moves: {json.dumps(found)}\n")
    for name, value in found.items():
        if isinstance(value, int | float):
            measured(name, value)
    kills = found["kills"]
    assert found["lost"] == 0, found
    assert found["equal_without_a_run"] == 0, found
    assert found["most_limited"] <= LIMIT, found
    assert found["ran_again_without_a_kill"] == 0, found
    # A page of a mover, or of a poller, has more jobs than the two processes of a shard have in flight.
    assert found["ran_again_most_by_a_kill"] <= 2 * IN_FLIGHT, found
    assert found["equal_jobs_both_waited"]["both_ran_without_a_kill"] == 0, found
    assert sum(kills.values()) >= KILLS, found
    assert found["dead_on_the_target"] == int(JOBS * RAW["DeadWorker"][1]), found
