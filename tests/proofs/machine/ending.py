"""The end of a history: faults are over, and everything must come to its end; what is left then must be what may be left."""

import json
import re
from typing import Any

from framework.wire import keys
from tests.proofs.census import leaks
from tests.proofs.machine.ledger import Broken, Spot
from tests.proofs.machine.servers import SHARDS
from tests.proofs.machine.worker import Worker
from tests.proofs.machine.world import World

_ROUNDS = 40  # and one for each job
_LONG_ROUND, _LONG_S = 2, 44.0
"""After a few short rounds a long one: leases, graces and refusals end by themselves. From then on all that waits is due."""

_ROUND_S = 4.0
_PARTS = ("lease", "record", "reaper", "policies", "poller")
_MAY_STAY = re.compile(r"aw:(landed|push|status):.*|aw:retired|dead|aw:dead:business|interrupted|schedule|queues")
"""Documented keys with a life of their own (docs/reference/keys.md, column Census)."""


def drain(world: World) -> None:
    """Judge the end. Raises Broken when a job is left, or anything of a process."""
    _heal(world)
    for number in range(_ROUNDS + len(world.judge.ledger.owed)):
        for name in SHARDS:
            if all(worker.stopping for worker in world.workers if worker.shard == name):
                world.boot(name)
        for worker in list(world.workers):
            _round(world, worker)
        if _settled(world):
            break
        if number >= _LONG_ROUND:
            world.hasten()
        world.pass_time(_LONG_S if number == _LONG_ROUND else _ROUND_S)
    else:
        left = {jid: [spot.key for spot in world.judge.ledger.jobs[jid].spots] for jid in world.judge.ledger.owed}
        raise Broken(f"liveness: not everything came to its end: {left}")
    _agree(world)
    _leave(world)
    for name in SHARDS:
        _census(world, name)


def _heal(world: World) -> None:
    world.heal()
    for act in list(world.others.acts):
        world.turn(act)
    world.notice_deaths()


def _round(world: World, worker: Worker) -> None:
    for name in _PARTS:
        _turn(world, worker, name)
    world.work(worker)
    for act in worker.slots():
        if act.at == "perform":
            world.finish(act, "done")
        world.turn(act) if act.at != "perform" else None
    _turn(world, worker, "main")
    world.reap_left()


def _settled(world: World) -> bool:
    """Whether every job is over, dead or set aside."""
    jobs = world.judge.ledger.jobs
    return all(_at_rest(spot) for jid in world.judge.ledger.owed for spot in jobs[jid].spots)


def _at_rest(spot: Spot) -> bool:
    # A job whose class is known nowhere waits for a day.
    return spot.kind in ("dead", "interrupted") or (spot.kind == "schedule" and b'"Nobody"' in spot.data)


def _agree(world: World) -> None:
    """I7: what a process holds, and what its list says that it holds, is nothing."""
    for worker in world.workers:
        if worker.custody.known():
            raise Broken(f"I7: {worker.identity} believes that it holds {worker.custody.known()}")


def _leave(world: World) -> None:
    """Every process stops when told to; those that are the last of their shard see to it that the dead are forgotten."""
    last = {worker.shard: worker for worker in world.workers}
    _stop_all(world, [worker for worker in world.workers if worker not in last.values()])
    world.pass_time(64)
    for worker in last.values():
        for _ in range(2):  # the first may find its connection closed
            _turn(world, worker, "reaper")
        _turn(world, worker, "record")
    _stop_all(world, list(last.values()))
    world.pass_time(64)


def _turn(world: World, worker: Worker, name: str) -> None:
    act = worker.act(name)
    if act is not None:
        world.turn(act)


def _stop_all(world: World, workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop(patient=False)
        for _ in range(20):
            for act in list(worker.acts):
                if act.at not in ("perform", "ended"):
                    world.turn(act)
            if worker.gone:
                break
        else:
            raise Broken(f"liveness: {worker.identity} does not stop: {[(act.name, act.at) for act in worker.acts]}")
    world.reap_left()


def _census(world: World, name: str) -> None:
    """I8, I24: no working list, and no key that nobody would remove."""
    client: Any = world.servers.clients[name]
    left = [leak for leak in leaks(client) if not _MAY_STAY.match(leak.partition(" (")[0])]
    if left:
        raise Broken(f"I24: left on {name}: {left}")
    for data in (*client.zrange(keys.DEAD, 0, -1), *client.zrange(keys.INTERRUPTED, 0, -1)):
        _readable_or_raw(data)


def _readable_or_raw(data: bytes) -> None:
    """What lies dead is a job, or the bytes that somebody wrote: never half of one."""
    if data.startswith(b'{"class"') and data.endswith(b"}"):
        json.loads(data)
