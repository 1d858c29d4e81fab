"""Two shards, the processes that serve them, and everything that can happen to them. After each step all jobs are judged."""

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from framework.declare import port, registry
from framework.execute.execution import Execution
from framework.execute.job_log import JobLog
from framework.fetch.custody import UNACKNOWLEDGED
from framework.fetch.prefetch import AHEAD_JOBS
from framework.fetch.reaper import retire
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, Outcome, Postponed, Unreadable
from framework.shard.shard import Shard
from framework.store.channel import Channel
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer
from framework.telemetry import logs
from framework.wire import keys
from framework.wiring.connect import Enqueuer, bind_default
from prove_parts.machine.baton import Act, Fate, Owner
from prove_parts.machine.ledger import Broken, Contents, Ledger, Look, spots_of
from prove_parts.machine.simulation import Clock, simulated
from prove_parts.machine.worker import QUEUES, SLOTS, Worker, declare, settings_for
from prove_parts.places import jid_of, place_of

SHARDS = ("main", "second")
MOST_AT_ONCE = SLOTS + AHEAD_JOBS + UNACKNOWLEDGED + len(QUEUES)
"""Jobs in one working list: running, fetched ahead, ended and unacknowledged, and what parked calls brought."""

_LONG = 400  # steps of one thread without a stop: it goes round in circles
_PARKED_S = 10

_READING = frozenset(
    ("SMEMBERS", "ZRANGEBYSCORE", "LRANGE", "ZCOUNT", "ZRANGE", "ZMSCORE", "ZSCORE", "CLIENT", "due", "examine", "beat")
)
"""After these, commands and scripts, everything is where it was."""

_UNANSWERED = ("BLMOVE", "fetch")
"""Sent now, and read later."""

_SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'list' then found[#found + 1] = {key, redis.call('LRANGE', key, 0, -1)}
  elseif kind == 'zset' then found[#found + 1] = {key, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')} end
end
local time = redis.call('TIME')
return {time[1] .. '.' .. string.format('%06d', time[2]), found}
"""

_PASS = """
redis.call('PEXPIRE', 'none', 1)  -- a full server takes the other writes only after one that frees
local s, awake = tonumber(ARGV[1]), {}
for i = 2, #ARGV do awake[ARGV[i]] = true end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  local kept = (key == 'aw:beats' and #ARGV > 1) or awake[string.match(key, '^aw:lease:(.*)') or '']
  if left >= 0 and not kept then
    if left <= s * 1000 then redis.call('DEL', key) else redis.call('PEXPIRE', key, left - s * 1000) end
  end
end
for _, key in ipairs({'schedule', 'retry', 'aw:processes'}) do
  if redis.call('TYPE', key)['ok'] == 'zset' then
    local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do
      local score = tonumber(members[i + 1])
      if not (key == 'aw:processes' and awake[members[i]]) then
        redis.call('ZADD', key, string.format('%.6f', score < 0 and score + s or score - s), members[i])
      end
    end
  end
end
if redis.call('EXISTS', 'aw:beats') == 1 then
  redis.call('SET', 'aw:beats', string.format('%.6f', tonumber(redis.call('GET', 'aw:beats')) - s), 'KEEPTTL')
end
return 0
"""


class World:
    """``open`` and ``close`` it; ``reset`` begins anew. ``servers`` are the two shards', which run."""

    def __init__(self, folder: Path, servers: dict[str, EmbeddedServer]) -> None:
        self._folder = folder
        self.servers = servers
        self._stack = ExitStack()
        self._number = 0
        self._down: set[str] = set()
        self.judged = 0
        """How often everything was judged, over all histories."""

    def open(self) -> None:
        """From here on threads and clocks of the framework are simulated, for the whole of this process."""
        self._stack.enter_context(registry.isolated())
        self.job = declare()
        self.clock = Clock()
        self._stack.enter_context(simulated(self.clock))
        null = os.open(os.devnull, os.O_WRONLY)
        self._log = JobLog(logs.open_server_log("error", {}, null), jobs=False)
        self._stack.callback(logs.close_server_log)
        self.clients = {name: open_client(Endpoint(server.url), name="states") for name, server in self.servers.items()}
        self._eyes = {name: Channel(client, read_timeout_s=5.0) for name, client in self.clients.items()}
        for one in (*self.clients.values(), *self._eyes.values()):
            self._stack.callback(one.close)
        urls = {name: server.url for name, server in self.servers.items()}
        self._settings = settings_for(self._folder, urls)
        self.producer = Shard("main", Endpoint(urls["main"]), role="producer")
        self._stack.callback(self.producer.close)
        enqueuer = Enqueuer(self._settings)
        self._stack.callback(enqueuer.shards.close)
        port.bind(enqueuer)
        self._stack.callback(bind_default)
        self._stack.callback(port.unbind)

    def close(self) -> None:
        """Everything is as it was."""
        self._stack.close()

    # --- one history

    def reset(self) -> None:
        """Empty servers, and no process."""
        for name in SHARDS:
            self.bring_up(name)
            client = self.clients[name]
            client.config_set("maxmemory", 0)
            client.flushall()
        self.ledger = Ledger()
        self.workers: list[Worker] = []
        self.zombies: list[Worker] = []
        self.others = Owner()
        """Producers and supervisors, which are threads too."""
        self.story: list[str] = []
        self._starts: list[tuple[Worker, bytes]] = []
        self._ends: list[tuple[Worker, bytes, set[str]]] = []
        self._parked_s = 0.0
        """How long the oldest parked call may have waited: it ends after 10 s."""
        self.lost = 0
        """Jobs that lie in working lists because the reply that brought them was lost, at most."""

    def abandon(self) -> None:
        """End whatever is left of this history."""
        for act in self.others.acts:
            act.kill()
        for worker in [*self.workers, *self.zombies]:
            worker.end()
            worker.close()
        self.workers, self.zombies = [], []

    def boot(self, shard: str, *, eager: bool = True) -> Worker:
        """A new process, which has started and waits for jobs; not ``eager``: it has, and its threads have not yet."""
        self._number += 1
        identity = f"host:{len(self.workers) + len(self.zombies) + self._number}:{self._number:012x}"
        worker = Worker(self._settings, shard, identity, self.clock, self._log, self._started, self._ended)
        self.workers.append(worker)
        for _ in range(3 if eager else 0):
            for act in list(worker.acts):
                self.turn(act)
        self.turn(worker.acts[0])
        return worker

    # --- steps

    def step(self, act: Act, fate: Fate = "go") -> None:
        """The thread moves to its next stop: at most one command is carried out."""
        commanded, what = act.at == "command", act.about
        if commanded:
            self.story.append(
                f"{getattr(act.owner, 'identity', '')} {act.name}: {act.about}{'' if fate == 'go' else f' ({fate})'}"
            )
        if fate == "lost":
            self.lost += MOST_AT_ONCE
        act.resume(fate)
        if what == "beat" and fate == "go" and isinstance(act.owner, Worker):
            act.owner.slept = False
        if act.doomed:
            act.kill()
        if commanded and what in _UNANSWERED:
            self._await_server()
        if commanded and what not in _READING and self.ledger.begun:
            self.look(by=act.owner)
        self._judge_runs()
        self._judge_threads(act)

    def _await_server(self) -> None:
        """What was sent has been carried out: a server answers nobody before it has heard all who had spoken by then."""
        for _, client in self.up():
            client.ping()

    def turn(self, act: Act) -> None:
        """The thread moves until it waits for something, or runs a job."""
        if act.at in ("wait", "begin"):
            self.step(act)
        steps = 0
        while act.movable:
            self.step(act)
            steps += 1
            if steps > _LONG:
                raise Broken(f"liveness: {act.name} goes round in circles: {self.story[-8:]}")

    def work(self, worker: Worker) -> None:
        """Its slots take what there is."""
        for _ in range(2):
            for act in worker.slots():
                if act.at != "perform":
                    self.turn(act)

    def finish(self, act: Act, how: str) -> None:
        """The job that this thread runs comes to its end; its thread stands before what it does then."""
        act.end = how
        self.story.append(f"{act.name}: {how}")
        self.step(act)

    def by_another(self, name: str, what: Callable[[], Any]) -> Act:
        """A thread of a producer or a supervisor."""
        return self.others.begin(name, what)

    def moving(self) -> list[Act]:
        """Threads that would get on by themselves."""
        owners = [worker for worker in [*self.workers, *self.zombies] if not worker.frozen]
        return [act for owner in [*owners, self.others] for act in owner.acts if act.movable]

    def performing(self) -> list[Act]:
        """Threads in the middle of a job."""
        return [act for worker in self.workers if not worker.frozen for act in worker.acts if act.at == "perform"]

    def awake(self) -> list[Worker]:
        """Processes that live and are not stopped."""
        return [worker for worker in self.workers if not worker.frozen]

    # --- ends of processes

    def crash(self, worker: Worker, *, spare: Act | None = None) -> None:
        """kill -9. The command that ``spare`` stands before is under way; calls left parked stay until the server notices."""
        self.workers.remove(worker)
        self.zombies.append(worker)
        worker.end(spare=spare)

    def bury(self) -> None:
        """The servers notice which processes are gone; what was under way is not."""
        for worker in self.zombies:
            for act in worker.acts:
                act.kill()
            worker.close()
        self.zombies = []
        self.look()

    def retire(self, worker: Worker) -> Act:
        """Its parent has seen it die."""
        client = self.clients[worker.shard]
        return self.by_another("supervisor", lambda: _quietly(lambda: retire(client, worker.identity)))

    def reap_left(self) -> None:
        """Processes that have come to their end by themselves are gone."""
        for worker in [worker for worker in self.workers if worker.gone]:
            self.workers.remove(worker)
            worker.end()
            worker.close()

    # --- time

    def pass_time(self, seconds: float, *, beating: bool = True) -> None:
        """So much time passes. The leases of processes that live are renewed meanwhile, unless not ``beating``."""
        awake = self._beat() if beating else []
        self._parked_s += seconds
        ended = self._parked_s >= _PARKED_S
        if ended:
            self._parked_s = 0.0
            self.bury()
        for name, client in self.up():
            names = [worker.identity for worker in awake if worker.shard == name]
            client.eval(_PASS, 0, seconds, *names)
            if ended:
                self._end_parked(client)
        self.clock.now += seconds
        for worker in [*self.workers, *self.zombies]:
            grace: Any = worker.parts.reaper._grace
            last, since, seen = grace._seen
            grace._seen = (
                (last, since - seconds, seen + seconds) if worker in awake else (last - seconds, since - seconds, seen)
            )
        self.look(rebase=True)

    def _beat(self) -> list[Worker]:
        """Who is awake has beaten."""
        for worker in self.awake():
            act = worker.act("lease")
            if act is not None and self.is_up(worker.shard):
                self.turn(act)
        return [worker for worker in self.awake() if worker.act("lease") and self.is_up(worker.shard)]

    def _end_parked(self, client: Redis) -> None:
        for other in cast("list[dict[str, str]]", client.client_list()):
            if "b" in other["flags"]:
                client.client_unblock(int(other["id"]))

    # --- servers

    def up(self) -> list[tuple[str, Redis]]:
        """The servers that run."""
        return [(name, self.clients[name]) for name in SHARDS if self.is_up(name)]

    def is_up(self, name: str) -> bool:
        """Whether it runs."""
        return name not in self._down

    def kill(self, name: str) -> None:
        """kill -9."""
        self.servers[name].kill()
        self._down.add(name)

    def bring_up(self, name: str) -> None:
        """The server runs."""
        if name in self._down:
            self.servers[name].start()
            self.clients[name].connection_pool.disconnect()
            self._down.discard(name)

    @property
    def all_up(self) -> bool:
        """Whether both servers run."""
        return len(self.up()) == len(SHARDS)

    def redis_time(self, name: str) -> float:
        """The server's clock; ours, which is the same, while it is down."""
        if not self.is_up(name):
            return time.time()
        seconds, micros = cast("tuple[int, int]", self.clients[name].time())
        return seconds + micros / 1e6

    # --- operators, and others who write to a server

    def spoil(self, client: Redis, key: str, *, on: bool) -> None:
        """A key of a wrong type comes, or goes."""
        if on and not client.exists(key):
            client.set(key, "no such thing")
        elif not on and client.type(key) == b"string":
            client.delete(key)

    def inject(self, client: Redis, key: str, data: bytes) -> None:
        """Bytes come into a list or a set that is one."""
        kind = client.type(key)
        if key in (keys.RETRY, keys.SCHEDULE):
            if kind in (b"none", b"zset"):
                client.zadd(key, {data: time.time() - 5})
        elif kind in (b"none", b"list"):
            client.lpush(key, data)

    def revive(self, client: Redis, key: str, which: int) -> None:
        """As Sidekiq's pages do it: out of the set, one retry less, into its queue."""
        members = cast("list[bytes]", client.zrange(key, 0, -1)) if client.type(key) == b"zset" else []
        jobs = [data for data in members if b'"jid"' in data and b'"queue"' in data and b'"class"' in data]
        if not jobs:
            return
        data = jobs[which % len(jobs)]
        fields = json.loads(data)
        if client.type(keys.queue(fields["queue"])) not in (b"none", b"list"):
            return
        if "retry_count" in fields:
            fields["retry_count"] -= 1
        again = json.dumps(fields, separators=(",", ":")).replace("Infinity", "1e999").encode()
        client.config_set("maxmemory", 0)
        client.zrem(key, data)
        client.lpush(keys.queue(fields["queue"]), again)

    def heal(self) -> None:
        """Whatever was broken on purpose is whole again."""
        for worker in self.workers:
            worker.frozen = False
        for name in SHARDS:
            self.bring_up(name)
            client = self.clients[name]
            client.config_set("maxmemory", 0)
            client.delete(keys.PAUSED)
            for key in cast("list[bytes]", client.keys("*")):
                if place_of(key) and client.type(key) == b"string":
                    client.delete(key)
            if client.type(keys.QUEUES) == b"string":
                client.delete(keys.QUEUES)
        self.look()

    def hasten(self) -> None:
        """All that is due later is due."""
        for client in self.clients.values():
            for key in (keys.SCHEDULE, keys.RETRY):
                for member in cast("list[bytes]", client.zrange(key, 0, -1)):
                    client.zadd(key, {member: 1.0})
        self.look(rebase=True)

    # --- what is judged

    def look(self, *, by: Owner | None = None, rebase: bool = False, operator: bool = False) -> None:
        """Judge what is there now, after a step of ``by``. On a server that is down everything is as it was."""
        self.judged += 1
        found: Look = {}
        now: dict[str, float] = {}
        registered: set[str] = set()
        for name in SHARDS:
            if not self.is_up(name):
                self._remember(name, found, registered)
                continue
            reply = self._snapshot(name)
            now[name] = float(reply[0])
            contents = _contents(reply[1])
            for jid, spot in spots_of(name, contents):
                found.setdefault(jid, []).append(spot)
            members = next((members for key, members in contents if key == keys.REGISTRY.encode()), [])
            registered |= {identity.decode() for identity, _ in members}
            self._judge_lists(contents)
        self._judge_owners(found, registered)
        self._judge_takers(found, by)
        if rebase:
            self.ledger.rebase(found)
        else:
            self.story += self.ledger.see(found, now, operator=operator)

    def _snapshot(self, name: str) -> Any:
        eye = self._eyes[name]
        try:
            return eye.call("EVAL", _SNAPSHOT, 0)
        except RedisConnectionError:  # all connections were closed
            eye.close()
            return eye.call("EVAL", _SNAPSHOT, 0)

    def _remember(self, name: str, found: Look, registered: set[str]) -> None:
        for jid, job in self.ledger.jobs.items():
            for spot in job.spots:
                if spot.shard == name:
                    found.setdefault(jid, []).append(spot)
                    registered.add(spot.key.decode().removeprefix("aw:working:"))

    def _judge_lists(self, contents: Contents) -> None:
        for key, members in contents:
            if key.startswith(b"aw:working:") and len(members) > MOST_AT_ONCE + self.lost:
                raise Broken(f"I16: {key!r} holds {len(members)} jobs")

    def _judge_owners(self, found: Look, registered: set[str]) -> None:
        for jid, spots in found.items():
            for spot in spots:
                owner = spot.key.decode().removeprefix("aw:working:")
                if spot.kind == "working" and owner not in registered:
                    raise Broken(f"I8: {jid!r} is in the hands of {owner}, of whom nobody knows")

    def _judge_takers(self, found: Look, by: Owner | None) -> None:
        """Nobody takes a job out of the hands of a process that lives and beats, or that had no chance to beat."""
        for worker in self.workers:
            ours = keys.working(worker.identity).encode()
            if worker is by or worker.frozen or worker.slept or not isinstance(by, Worker):
                continue
            for jid, job in self.ledger.jobs.items():
                held = any(spot.key == ours for spot in job.spots)
                if held and not any(spot.key == ours for spot in found.get(jid, [])):
                    raise Broken(f"I3: {jid!r} is taken by {by.identity} from {worker.identity}, which lives")

    def _judge_threads(self, act: Act) -> None:
        if act.error is not None:
            raise Broken(f"the thread {act.name} ended by an error of its own: {act.error!r}") from act.error
        for worker in self.workers:
            for component, error in worker.deaths:
                raise Broken(f"{component} died: {error!r}") from error

    def _started(self, worker: Worker, unit: UnitOfWork) -> None:
        self._starts.append((worker, jid_of(unit.data)))

    def _judge_runs(self) -> None:
        """Whoever starts a job has it in its working list at that moment; whose run has ended may move it."""
        starts, self._starts = self._starts, []
        ends, self._ends = self._ends, []
        for worker, jid in starts:
            spots = self.ledger.jobs[jid].spots if jid in self.ledger.jobs else []
            if keys.working(worker.identity).encode() not in [spot.key for spot in spots] and self.is_up(worker.shard):
                raise Broken(f"I3: {worker.identity} starts {jid!r}, which is in {[spot.key for spot in spots]}")
        for worker, jid, targets in ends:
            self.ledger.permit(jid, worker.identity, targets)

    def _ended(self, worker: Worker, run: Execution) -> None:
        self._ends.append((worker, jid_of(run.unit.data), _targets(run.outcome, run)))


def _targets(outcome: Outcome, run: Execution) -> set[str]:
    match outcome:
        case Failed():
            never = run.payload is not None and run.payload.get("retry") is False
            return {"over"} if never else {"retry", "dead"}
        case Postponed():
            return {"schedule"}
        case Unreadable():
            return {"dead"}
        case _:
            return {"over"}


def _contents(reply: Iterable[Any]) -> Contents:
    found: Contents = []
    for key, members in reply:
        pairs = key in (b"schedule", b"retry", b"dead", b"interrupted", b"aw:processes")
        found.append(
            (key, [(members[i], float(members[i + 1])) for i in range(0, len(members), 2)] if pairs else members)
        )
    return found


def _quietly(what: Callable[[], Any]) -> None:
    """A supervisor that does not reach Redis goes on: the lease runs out by itself."""
    try:
        what()
    except (RedisError, OSError):
        return
