"""End a history without faults: every job must end, and only documented keys may stay."""

import json
import re
from typing import Any

from framework.wire import keys
from tests.proofs.leftover_keys import leaks
from tests.proofs.machine.job_model import Broken, Spot
from tests.proofs.machine.servers import SHARDS
from tests.proofs.machine.simulated_cluster import SimulatedCluster
from tests.proofs.machine.worker import Worker

_ROUNDS = 40  # and one for each job
_LONG_ROUND, _LONG_S = 2, 44.0
"""After a few short rounds a long one: leases, grace periods and open circuits end. From then on every scheduled job is
due.
"""

_ROUND_S = 4.0
_PARTS = ("lease", "record", "reaper", "policies", "poller")
_MAY_STAY = re.compile(r"aw:(transferred|push|status):.*|aw:retired|dead|aw:dead:business|interrupted|schedule|queues")
"""Documented keys that may stay (docs/reference/keys.md, column Census)."""


def drain(cluster: SimulatedCluster) -> None:
    """Check the end. Raises Broken when a job or a key of a process is left."""
    _heal(cluster)
    for number in range(_ROUNDS + len(cluster.checks.model.owed)):
        for name in SHARDS:
            if all(worker.stopping for worker in cluster.workers if worker.shard == name):
                cluster.boot(name)
        for worker in list(cluster.workers):
            _round(cluster, worker)
        if _settled(cluster):
            break
        if number >= _LONG_ROUND:
            cluster.hasten()
        cluster.pass_time(_LONG_S if number == _LONG_ROUND else _ROUND_S)
    else:
        left = {jid: [spot.key for spot in cluster.checks.model.jobs[jid].spots] for jid in cluster.checks.model.owed}
        raise Broken(f"liveness: not everything came to its end: {left}")
    _agree(cluster)
    _leave(cluster)
    for name in SHARDS:
        _check_keys(cluster, name)


def _heal(cluster: SimulatedCluster) -> None:
    cluster.heal()
    for act in list(cluster.others.acts):
        cluster.turn(act)
    cluster.notice_deaths()


def _round(cluster: SimulatedCluster, worker: Worker) -> None:
    for name in _PARTS:
        _turn(cluster, worker, name)
    cluster.work(worker)
    for act in worker.slots():
        if act.at == "perform":
            cluster.finish(act, "done")
        cluster.turn(act) if act.at != "perform" else None
    _turn(cluster, worker, "main")
    cluster.reap_left()


def _settled(cluster: SimulatedCluster) -> bool:
    """Return whether every job has ended, is dead, or is interrupted."""
    jobs = cluster.checks.model.jobs
    return all(_at_rest(spot) for jid in cluster.checks.model.owed for spot in jobs[jid].spots)


def _at_rest(spot: Spot) -> bool:
    # A job of an unknown class waits for a day.
    return spot.kind in ("dead", "interrupted") or (spot.kind == "schedule" and b'"Unknown"' in spot.data)


def _agree(cluster: SimulatedCluster) -> None:
    """I7: check that no process believes that it holds a job."""
    for worker in cluster.workers:
        if worker.in_flight.payloads():
            raise Broken(f"I7: {worker.identity} believes that it holds {worker.in_flight.payloads()}")


def _leave(cluster: SimulatedCluster) -> None:
    """Stop every process; the last ones of each shard unregister the dead ones first."""
    # One that does not stop yet: the threads of the others that unregister may have ended.
    last = {worker.shard: worker for worker in sorted(cluster.workers, key=lambda one: not one.stopping)}
    _stop_all(cluster, [worker for worker in cluster.workers if worker not in last.values()])
    cluster.pass_time(64)
    for worker in last.values():
        for _ in range(2):  # the first may find its connection closed
            _turn(cluster, worker, "reaper")
        _turn(cluster, worker, "record")
    _stop_all(cluster, list(last.values()))
    cluster.pass_time(64)


def _turn(cluster: SimulatedCluster, worker: Worker, name: str) -> None:
    act = worker.act(name)
    if act is not None:
        cluster.turn(act)


def _stop_all(cluster: SimulatedCluster, workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop(patient=False)
        for _ in range(20):
            for act in list(worker.acts):
                if act.at not in ("perform", "ended"):
                    cluster.turn(act)
            if worker.gone:
                break
        else:
            raise Broken(f"liveness: {worker.identity} does not stop: {[(act.name, act.at) for act in worker.acts]}")
    cluster.reap_left()


def _check_keys(cluster: SimulatedCluster, name: str) -> None:
    """I8, I24: check that no working list and no undocumented key is left."""
    client: Any = cluster.servers.clients[name]
    left = [leak for leak in leaks(client) if not _MAY_STAY.match(leak.partition(" (")[0])]
    if left:
        raise Broken(f"I24: left on {name}: {left}")
    for data in (*client.zrange(keys.DEAD, 0, -1), *client.zrange(keys.INTERRUPTED, 0, -1)):
        _readable_or_raw(data)


def _readable_or_raw(data: bytes) -> None:
    """Check that a dead set entry is a job, or the bytes of another writer: never half of one."""
    if data.startswith(b'{"class"') and data.endswith(b"}"):
        json.loads(data)
